package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
	"github.com/elastic-kernel-gateway/ekg/gateway/metrics"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// fetch requests a URL on a new connection.
func fetch(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// TestServer_metrics: the metrics' port requires no token and serves nothing else but optional profiles. The API's port
// serves neither. Both ports close with the gateway.
func TestServer_metrics(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, pprof := range []string{"false", "true"} {
		s, err := settings.Load(sourcesOf(map[string][]string{
			"listen": {"127.0.0.1:0"}, "state-dir": {t.TempDir()}, "token": {"canary"},
			"metrics-listen": {"127.0.0.1:0"}, "pprof": {pprof},
		}, nil))
		if err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancel(t.Context())
		v := newServer(s, io.Discard, discard)
		kernel := launcher.Kernel{ID: "x", SpecName: "python3", State: api.Idle}
		v.openLauncher = opensLauncher(&fakeLauncher{kernels: []launcher.Kernel{kernel}}, nil)
		ready, measured, ended := make(chan string, 1), make(chan string, 1), make(chan error, 1)
		v.ready = func(url string) { ready <- url }
		v.measured = func(url string) { measured <- url }
		go func() { ended <- v.Run(ctx) }()
		metrics, api := <-measured, <-ready
		base := strings.TrimSuffix(metrics, "/metrics")
		if code, body := fetch(t, metrics); code != 200 ||
			!strings.Contains(body, `ekg_kernels{spec="python3",state="idle"} 1`) ||
			!strings.Contains(body, "ekg_ready 1") {
			t.Errorf("%d %s", code, body)
		}
		// A page whose own name resolves to 127.0.0.1 must not read metrics and profiles.
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, metrics, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "rebound.example:8891"
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("a foreign Host: %d", resp.StatusCode)
		}
		want := map[string]int{"true": 200, "false": 404}[pprof]
		for path, want := range map[string]int{
			"/debug/pprof/": want, "/debug/pprof/goroutine?debug=1": want, "/debug/pprof/cmdline": 404,
			"/": 404, "/api/kernels": 404, "/healthz": 404,
		} {
			if code, _ := fetch(t, base+path); code != want {
				t.Errorf("pprof %s: %s is %d, want %d", pprof, path, code, want)
			}
		}
		for _, path := range []string{"metrics", "debug/pprof/"} {
			if code, _ := fetch(t, strings.Split(api, "?")[0]+path); code != 404 {
				t.Errorf("%s on the port of the API: %d", path, code)
			}
		}
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if code, _ := fetch(t, metrics); code != 0 {
			t.Errorf("after the end: %d", code)
		}
	}
}

// TestServer_metricsRefused: an error about a port in use names the setting. Profiles without a port are rejected.
func TestServer_metricsRefused(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close() }()
	s, err := settings.Load(sourcesOf(map[string][]string{
		"listen": {"127.0.0.1:0"}, "state-dir": {t.TempDir()}, "metrics-listen": {busy.Addr().String()},
	}, nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := newServer(s, io.Discard, discard).Run(t.Context()); err == nil ||
		!strings.HasPrefix(err.Error(), "--metrics-listen: ") {
		t.Errorf("got %v", err)
	}
	for flags, want := range map[[2]string]string{
		{"pprof", "true"}:           "--pprof: profiles are served on --metrics-listen",
		{"metrics-listen", "x"}:     `--metrics-listen: "x" is not host:port`,
		{"metrics-listen", "x:9x0"}: `--metrics-listen: "x:9x0" has no port`,
	} {
		_, err := settings.Load(sourcesOf(map[string][]string{flags[0]: {flags[1]}, "state-dir": {"/x"}}, nil))
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v: got %v", flags, err)
		}
	}
}

// TestServer_auditLog: the audit log is appended to, and only its user can read it. After a rename and SIGHUP there is
// a new file.
func TestServer_auditLog(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir := t.TempDir()
	file, moved := filepath.Join(dir, "audit.jsonl"), filepath.Join(dir, "audit.jsonl.1")
	if err := os.WriteFile(file, []byte("{\"before\":1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := start(t, &fakeLauncher{}, map[string][]string{"audit-log": {file}, "token": {"canary"}})
	ask := func() {
		if code, _ := r.get("/api/kernels", "wrong", &http.Transport{}); code != 403 {
			t.Errorf("got %d", code)
		}
	}
	count := func(name string) int {
		b, err := os.ReadFile(name)
		if err != nil {
			return 0
		}
		return strings.Count(string(b), "\n")
	}
	ask()
	poll.Until(t, "the first entry is there", func() bool { return count(file) == 2 })
	if err := os.Rename(file, moved); err != nil {
		t.Fatal(err)
	}
	ask()
	poll.Until(t, "the moved file has the next", func() bool { return count(moved) == 3 })
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the file is there again", func() bool {
		return strings.Contains(r.log.String(), "audit log was reopened")
	})
	ask()
	poll.Until(t, "the new file has the third", func() bool { return count(file) == 1 })
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 || count(moved) != 3 {
		t.Errorf("%v %v; %d lines in the file before", info.Mode(), err, count(moved))
	}
}

// TestServer_auditStdout: with - the audit log goes to standard output, after the line for people.
func TestServer_auditStdout(t *testing.T) {
	r := start(t, &fakeLauncher{}, map[string][]string{"audit-log": {"-"}, "token": {"canary"}})
	r.get("/api/kernels", "wrong", &http.Transport{})
	poll.Until(t, "the entry is there", func() bool { return strings.Contains(r.stdout.String(), `"outcome":"refused"`) })
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	lines := bufio.NewScanner(strings.NewReader(r.stdout.String()))
	lines.Scan()
	if !strings.HasPrefix(lines.Text(), "ekg is ready at") || !lines.Scan() || !strings.HasPrefix(lines.Text(), "{") {
		t.Errorf("printed %s", r.stdout)
	}
}

// TestMeasureDisks: the free space of the state folder is a metric. A folder that does not exist has no metric.
func TestMeasureDisks(t *testing.T) {
	s := &settings.Settings{Launcher: "local"}
	s.Local.StateDir, s.Gateway.Jobs.Dir = t.TempDir(), "/no/such/folder"
	v, counters := &server{settings: s}, metrics.New("1")
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { v.measureDisks(ctx, counters); close(ended) }()
	defer func() { end(); <-ended }()
	poll.Until(t, "the free space of one disk", func() bool {
		all, err := counters.Gatherer().Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range all {
			if family.GetName() == "ekg_disk_free_bytes" {
				m := family.GetMetric()
				return len(m) == 1 && m[0].GetLabel()[0].GetValue() == "state" && m[0].GetGauge().GetValue() > 0
			}
		}
		return false
	})
}
