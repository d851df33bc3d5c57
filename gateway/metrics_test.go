package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/gateway/metrics"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// scrape returns what the metrics say, as Prometheus reads it: the value of each series.
func scrape(t *testing.T, m *metrics.Metrics) map[string]string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	all := map[string]string{}
	for line := range strings.Lines(w.Body.String()) {
		if at := strings.LastIndexByte(line, ' '); at > 0 && line[0] != '#' {
			all[line[:at]] = strings.TrimSpace(line[at:])
		}
	}
	return all
}

// wantSeries fails for each series that has another value.
func wantSeries(t *testing.T, got map[string]string, want map[string]string) {
	t.Helper()
	for _, series := range slices.Sorted(maps.Keys(want)) {
		if got[series] != want[series] {
			t.Errorf("%s is %q, want %q", series, got[series], want[series])
		}
	}
}

// family is the name of a series' metric.
func family(series string) string {
	name, _, _ := strings.Cut(series, "{")
	for _, m := range metrics.List() {
		if m.Type == "histogram" {
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				if name == m.Name+part {
					return m.Name
				}
			}
		}
	}
	return name
}

// busyGateway is one whose every metric has a value.
func busyGateway(t *testing.T) *testGateway {
	t.Helper()
	g := startGateway(t, func(o *Options) { o.Metrics = metrics.New("1.2.3"); o.Audit = brokenWriter{} })
	g.fake.measures = launcher.Measures{
		Traffic: []launcher.Traffic{{Channel: "shell", ToKernel: true, Messages: 3, Bytes: 300},
			{Channel: "iopub", Messages: 7, Bytes: 700}},
		LogEvicted: 11, LogLost: 5, Failed: 2, Wakes: api.Wakes{
			Waits:    api.Durations{Buckets: [13]int64{0: 2, 4: 1, 12: 1}, Sum: 3 * time.Hour},
			Restores: api.Durations{Buckets: [13]int64{3: 4}, Sum: 3 * time.Second},
		},
		GPUs:        map[launcher.GPULabels]float64{{SpecName: "r", Flavor: "t4"}: 2.25},
		GPUSeconds:  map[launcher.GPULabels]float64{{SpecName: "r", Flavor: "t4"}: 12.5, {SpecName: "r"}: 1},
		GPUBusy:     map[launcher.GPULabels]float64{{SpecName: "r", Flavor: "t4"}: 2.5},
		Warm:        map[string]launcher.WarmCount{"r": {Wanted: 2, Waiting: 1}},
		WarmClaims:  map[launcher.WarmClaim]int64{{SpecName: "r", Result: launcher.ClaimTaken}: 3},
		WarmGaveWay: map[string]int64{"r": 2},
		Culls: map[launcher.CullLabels]int64{{SpecName: "r", Limit: "idle"}: 4,
			{SpecName: "r", Limit: "of a later version"}: 1},
		Keys: map[string]int64{launcher.KeyCurrent: 6, launcher.KeySecond: 3},
	}
	g.fake.add(idA, "python3", api.Busy)
	g.fake.add(idB, "python3", api.Idle)
	g.fake.change(func() {
		g.fake.kernels[idA].Groups, g.fake.kernels[idB].Groups = []string{"vision", metrics.Other}, []string{"vision"}
		g.fake.kernels[idA].LogBytes, g.fake.kernels[idA].Connections = 1000, 2
		g.fake.kernels[idB].LogBytes, g.fake.kernels[idB].Stale = 24, true
		g.fake.kernels[idA].Parked = api.Parked{State: api.GPUFailed, Cause: api.CauseMemory}
		g.fake.kernels[idB].Parked = api.Parked{State: api.GPUParked}
	})
	g.runJobs()
	m := g.metrics
	m.JobBegan("t4", time.Minute)
	m.JobBegan("", time.Second)
	m.JobEnded("succeeded", 2*time.Minute)
	m.JobEnded("stopped", 0)
	m.JobDue(false)
	m.GPUWaited("t4", time.Minute)
	m.KernelUp("python3", []launcher.Phase{{Name: launcher.PhaseAdmission, Took: 200 * time.Millisecond},
		{Name: launcher.PhaseReady, Took: 4 * time.Second}})
	m.KernelFailed("r", launcher.FailedImage)
	m.ClusterRequest("list", "pods", 200, time.Millisecond)
	m.ClusterWait("requests", time.Millisecond)
	m.DiskFree("state", 1)
	g.do("GET", "/api/kernels", "").want(t, 200, "")
	g.do("DELETE", "/api/kernels/"+idUnknown, "").want(t, 404, "") // whose entry in the audit log cannot be written
	poll.Until(t, "the jobs are known, and the requests are counted, which is done behind the answer", func() bool {
		all := scrape(t, m)
		return all[`ekg_jobs{state="running"}`] == "0" && all["ekg_audit_failures_total"] == "1" &&
			all[`ekg_http_requests_total{code="200",method="GET",route="/api/kernels"}`] == "1"
	})
	return g
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("the disk is full") }

// Everything that is documented is measured, and everything that is measured is documented and named as Prometheus
// wants it.
func TestMetrics_Names(t *testing.T) {
	g := busyGateway(t)
	documented := map[string]bool{}
	for _, m := range metrics.List() {
		if documented[m.Name] || m.Help == "" || !strings.HasSuffix(m.Help, ".") {
			t.Errorf("%+v is documented twice or without a sentence", m)
		}
		documented[m.Name] = true
	}
	measured := map[string]bool{}
	for series := range scrape(t, g.metrics) {
		measured[family(series)] = true
		if name := family(series); !documented[name] && !strings.HasPrefix(name, "go_") &&
			!strings.HasPrefix(name, "process_") {
			t.Errorf("%s is not documented", series)
		}
	}
	for name := range documented {
		if !measured[name] {
			t.Errorf("%s is documented, and not measured", name)
		}
	}
	for _, name := range []string{"go_goroutines", "process_open_fds"} {
		if !measured[name] {
			t.Errorf("%s is missing", name)
		}
	}
	problems, err := testutil.GatherAndLint(g.metrics.Gatherer())
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
}

func TestMetrics_Values(t *testing.T) {
	g := busyGateway(t)
	wantSeries(t, scrape(t, g.metrics), map[string]string{
		`ekg_kernels{spec="python3",state="busy"}`:                                      "1",
		`ekg_kernels{spec="python3",state="idle"}`:                                      "1",
		`ekg_kernels{spec="python3",state="dead"}`:                                      "0",
		`ekg_kernels{spec="r",state="idle"}`:                                            "0",
		`ekg_group_kernels{group="vision",state="busy"}`:                                "1",
		`ekg_group_kernels{group="vision",state="idle"}`:                                "1",
		`ekg_group_kernels{group="vision",state="dead"}`:                                "0",
		`ekg_group_kernels{group="other",state="busy"}`:                                 "1",
		`ekg_kernels_stale`:                                                             "1",
		`ekg_parkable_kernels{state="failed"}`:                                          "1",
		`ekg_parkable_kernels{state="parked"}`:                                          "1",
		`ekg_parkable_kernels{state="held"}`:                                            "0",
		`ekg_unparkable_kernels{cause="memory"}`:                                        "1",
		`ekg_unparkable_kernels{cause="driver"}`:                                        "0",
		`ekg_park_wait_seconds_bucket{le="0.1"}`:                                        "2",
		`ekg_park_wait_seconds_bucket{le="1"}`:                                          "2",
		`ekg_park_wait_seconds_bucket{le="2.5"}`:                                        "3",
		`ekg_park_wait_seconds_bucket{le="7200"}`:                                       "3",
		`ekg_park_wait_seconds_bucket{le="+Inf"}`:                                       "4",
		`ekg_park_wait_seconds_count`:                                                   "4",
		`ekg_park_wait_seconds_sum`:                                                     "10800",
		`ekg_park_restore_seconds_count`:                                                "4",
		`ekg_kernel_clients`:                                                            "2",
		`ekg_kernel_log_bytes`:                                                          "1024",
		`ekg_kernel_log_evicted_messages_total`:                                         "11",
		`ekg_kernel_log_lost_messages_total`:                                            "5",
		`ekg_supervisor_failures_total`:                                                 "2",
		`ekg_kernel_messages_total{channel="shell",direction="to_kernel"}`:              "3",
		`ekg_kernel_message_bytes_total{channel="iopub",direction="from_kernel"}`:       "700",
		`ekg_gpus{flavor="t4",spec="r"}`:                                                "2.25",
		`ekg_gpus{flavor="",spec="r"}`:                                                  "0",
		`ekg_gpu_seconds_total{flavor="t4",spec="r"}`:                                   "12.5",
		`ekg_gpu_busy_seconds_total{flavor="t4",spec="r"}`:                              "2.5",
		`ekg_gpu_wait_seconds_count{flavor="t4"}`:                                       "1",
		`ekg_jobs{state="queued"}`:                                                      "0",
		`ekg_jobs_ended_total{outcome="succeeded"}`:                                     "1",
		`ekg_jobs_ended_total{outcome="stopped"}`:                                       "1",
		`ekg_jobs_ended_total{outcome="failed"}`:                                        "0",
		`ekg_job_wait_seconds_sum{flavor="t4"}`:                                         "60",
		`ekg_job_wait_seconds_count{flavor=""}`:                                         "1",
		`ekg_job_run_seconds_sum{outcome="succeeded"}`:                                  "120",
		`ekg_job_run_seconds_count{outcome="stopped"}`:                                  "0",
		`ekg_scheduled_jobs_total{result="left_out"}`:                                   "1",
		`ekg_scheduled_jobs_total{result="made"}`:                                       "0",
		`ekg_kernel_culls_total{limit="idle",spec="r"}`:                                 "4",
		`ekg_kernel_culls_total{limit="busy",spec="python3"}`:                           "0",
		`ekg_kernel_culls_total{limit="other",spec="r"}`:                                "1",
		`ekg_kernels_by_master_key{key="current"}`:                                      "6",
		`ekg_kernels_by_master_key{key="second"}`:                                       "3",
		`ekg_kernel_start_seconds_sum{spec="python3"}`:                                  "4.2",
		`ekg_kernel_start_seconds_bucket{spec="python3",le="2.5"}`:                      "0",
		`ekg_kernel_start_seconds_bucket{spec="python3",le="5"}`:                        "1",
		`ekg_kernel_start_phase_seconds_sum{phase="ready"}`:                             "4",
		`ekg_kernel_start_failures_total{reason="image",spec="r"}`:                      "1",
		`ekg_http_requests_total{code="200",method="GET",route="/api/kernels"}`:         "1",
		`ekg_http_requests_total{code="404",method="DELETE",route="/api/kernels/{id}"}`: "1",
		`ekg_http_request_seconds_count{route="/api/kernels"}`:                          "1",
		`ekg_kube_requests_total{code="200",resource="pods",verb="list"}`:               "1",
		`ekg_kube_request_seconds_count{verb="list"}`:                                   "1",
		`ekg_audit_failures_total`:                                                      "1",
		`ekg_ready`:                                                                     "0",
		`ekg_websockets`:                                                                "0",
		`ekg_websocket_bytes_total{direction="to_client"}`:                              "0",
		fmt.Sprintf(`ekg_build_info{goversion=%q,version="1.2.3"}`, runtime.Version()):  "1",
	})
	g.SetReady(true)
	wantSeries(t, scrape(t, g.metrics), map[string]string{`ekg_ready`: "1"})
	// The kernels go; a series that is gone would be a gap in the graph, and a counter never falls.
	for _, id := range []string{idA, idB} {
		g.do("DELETE", "/api/kernels/"+id, "").want(t, 204, "")
	}
	wantSeries(t, scrape(t, g.metrics), map[string]string{
		`ekg_kernels{spec="python3",state="busy"}`: "0", `ekg_kernel_log_lost_messages_total`: "5",
	})
}

// Whatever comes from outside, there are only so many series.
func TestMetrics_Bounded(t *testing.T) {
	g := startGateway(t, nil)
	for i := range 3 * metrics.MaxLabelValues {
		spec := fmt.Sprintf("spec-%d", i)
		g.metrics.KernelFailed(spec, launcher.Failure(fmt.Sprintf("reason %d", i)))
		g.metrics.KernelUp(spec, []launcher.Phase{{Name: launcher.PhaseReady, Took: time.Second}})
		g.fake.change(func() {
			id := fmt.Sprintf("%08x-0000-4000-8000-000000000000", i)
			g.fake.kernels[id] = &fakeKernel{Kernel: launcher.Kernel{ID: id, SpecName: spec,
				State:  api.State(fmt.Sprint("state", i)),
				Parked: api.Parked{State: api.GPUFailed, Cause: api.ParkCause(fmt.Sprint("reason ", i))}}}
		})
		g.metrics.Request("/api", logMethod(fmt.Sprintf("METHOD%d", i)), 600+i, time.Second, false)
		g.do("GET", fmt.Sprintf("/nothing/%d", i), "")
		g.do("FETCH", fmt.Sprintf("/nothing/%d", i), "")
	}
	const other = `ekg_http_requests_total{code="404",method="other",route="other"}`
	poll.Until(t, "all requests are counted", func() bool {
		return scrape(t, g.metrics)[other] == fmt.Sprint(3*metrics.MaxLabelValues)
	})
	all := scrape(t, g.metrics)
	labels := map[string]bool{}
	for series := range all {
		if name := family(series); strings.HasPrefix(name, "ekg_kernel") {
			_, rest, _ := strings.Cut(series, `spec="`)
			label, _, _ := strings.Cut(rest, `"`)
			labels[label] = true
		}
		if strings.Contains(series, "METHOD") || strings.Contains(series, "nothing") || strings.Contains(series, "reason ") ||
			strings.Contains(series, "state1") {
			t.Errorf("there is %s", series)
		}
	}
	delete(labels, "")
	if len(labels) != metrics.MaxLabelValues+1 || !labels[metrics.Other] {
		t.Errorf("%d kernelspecs have their own label, want %d and other", len(labels), metrics.MaxLabelValues)
	}
	wantSeries(t, all, map[string]string{
		`ekg_kernel_start_failures_total{reason="internal",spec="other"}`:   fmt.Sprint(2 * metrics.MaxLabelValues),
		`ekg_kernels{spec="other",state="unknown"}`:                         fmt.Sprint(2 * metrics.MaxLabelValues),
		`ekg_unparkable_kernels{cause="other"}`:                             fmt.Sprint(3 * metrics.MaxLabelValues),
		`ekg_http_requests_total{code="other",method="other",route="/api"}`: fmt.Sprint(3 * metrics.MaxLabelValues),
		`ekg_http_requests_total{code="404",method="other",route="other"}`:  fmt.Sprint(3 * metrics.MaxLabelValues),
	})
}

// Each of the launcher's errors is counted by its kind. Errors that do not concern the start are not counted.
func TestMetrics_Failures(t *testing.T) {
	var fails error
	g := startGateway(t, nil)
	g.fake.start = func(context.Context, launcher.Request) (launcher.Kernel, bool, error) {
		return launcher.Kernel{}, false, fails
	}
	for _, err := range []error{
		&launcher.RefusedError{Reason: "no"}, &launcher.FailedError{Reason: "no", Class: launcher.FailedQuota},
		&launcher.FailedError{Reason: "no"},
		fmt.Errorf("x: %w", launcher.ErrUnavailable), context.DeadlineExceeded, errors.New("a fault"),
		launcher.ErrConflict, context.Canceled,
	} {
		fails = err
		g.do("POST", "/api/kernels", `{"name":"python3"}`)
	}
	got := map[string]string{}
	for series, n := range scrape(t, g.metrics) {
		if strings.HasPrefix(series, "ekg_kernel_start_failures_total") {
			got[series] = n
		}
	}
	want := map[string]string{}
	for reason, n := range map[string]string{"refused": "1", "quota": "1", "unavailable": "2", "internal": "2"} {
		want[fmt.Sprintf("ekg_kernel_start_failures_total{reason=%q,spec=\"python3\"}", reason)] = n
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

// Websockets count while they are open, with the bytes that passed; those of websockets that have ended stay.
func TestMetrics_Websockets(t *testing.T) {
	g := startGateway(t, nil)
	g.fake.add(idA, "python3", api.Idle)
	send := func() net.Conn {
		conn, answers := g.dialChannels(idA, "")
		if _, err := conn.Write(make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(answers, make([]byte, 1000)); err != nil { // the fake supervisor's echo
			t.Fatal(err)
		}
		return conn
	}
	one, two := send(), send()
	wantSeries(t, scrape(t, g.metrics), map[string]string{
		`ekg_websockets`: "2", `ekg_websockets_opened_total`: "2",
		`ekg_websocket_bytes_total{direction="from_client"}`: "2000",
		`ekg_websocket_bytes_total{direction="to_client"}`:   "2000",
	})
	_ = one.Close()
	poll.Until(t, "one is gone", func() bool { return scrape(t, g.metrics)["ekg_websockets"] == "1" })
	wantSeries(t, scrape(t, g.metrics), map[string]string{`ekg_websocket_bytes_total{direction="from_client"}`: "2000"})
	_ = two.Close()
	const upgrades = `ekg_http_requests_total{code="101",method="GET",route="/api/kernels/{id}/channels"}`
	poll.Until(t, "both were counted as requests", func() bool { return scrape(t, g.metrics)[upgrades] == "2" })
	wantSeries(t, scrape(t, g.metrics), map[string]string{
		`ekg_websockets`: "0",
		`ekg_websocket_bytes_total{direction="from_client"}`:                 "2000",
		`ekg_websocket_bytes_total{direction="to_client"}`:                   "2000",
		`ekg_http_request_seconds_count{route="/api/kernels/{id}/channels"}`: "",
	})
}

// One Metrics cannot tell two gateways apart.
func TestMetrics_Twice(t *testing.T) {
	m := metrics.New("1")
	o := Options{Options: kernels.Options{Launcher: newFakeLauncher(t), Specs: testSpecs(t), Log: discard, Metrics: m}}
	if _, err := New(o); err != nil {
		t.Fatal(err)
	}
	if _, err := New(o); err == nil || !strings.Contains(err.Error(), "Metrics") {
		t.Errorf("got %v", err)
	}
}
