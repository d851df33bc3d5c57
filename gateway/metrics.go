package gateway

import (
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// Bounds of what labels tell apart.
const (
	maxLabelValues = 50      // kernelspecs, and groups; what comes after is "other"
	otherLabel     = "other" // of all that is not told apart
	maxScrapes     = 4       // at one time
	toKernel       = "to_kernel"
	fromKernel     = "from_kernel"
	toClient       = "to_client"
	fromClient     = "from_client"
)

// Metric is a line of the documentation of what a gateway measures.
type Metric struct {
	Name   string
	Type   string   // counter, gauge or histogram
	Labels []string //
	Shared bool     // every gateway of the same kernels measures the same: take the greatest, not the sum
	Help   string
}

// Buckets of histograms, in seconds.
var (
	startBuckets   = []float64{.1, .25, .5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600, 1200, 1800, 3600}
	requestBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
)

// What a gateway measures, beside what the Go runtime and the system tell of its process.
var (
	metricKernels     = Metric{"ekg_kernels", "gauge", []string{"spec", "state"}, true, "Kernels by kernelspec and execution state; dead ones are shown for some minutes."}
	metricGroups      = Metric{"ekg_group_kernels", "gauge", []string{"group", "state"}, true, "Kernels of the users of each group that the file of users names or limits count; one may be in several."}
	metricStale       = Metric{"ekg_kernels_stale", "gauge", nil, true, "Kernels whose state is the last one known, because their supervisor cannot be heard."}
	metricClients     = Metric{"ekg_kernel_clients", "gauge", nil, true, "Websockets, through any gateway, on which a client has sent a kernel something."}
	metricLogBytes    = Metric{"ekg_kernel_log_bytes", "gauge", nil, true, "Bytes that the logs of all kernels hold, in memory and on disk."}
	metricLogEvicted  = Metric{"ekg_kernel_log_evicted_messages_total", "counter", nil, true, "Messages that logs have let go because their bound was reached."}
	metricLogLost     = Metric{"ekg_kernel_log_lost_messages_total", "counter", nil, true, "Messages that a client has missed because its kernel's log had let them go, and was told so."}
	metricMessages    = Metric{"ekg_kernel_messages_total", "counter", []string{"channel", "direction"}, true, "Messages to and from kernels (direction to_kernel, from_kernel)."}
	metricMsgBytes    = Metric{"ekg_kernel_message_bytes_total", "counter", []string{"channel", "direction"}, true, "Bytes of these messages: headers, contents and buffers."}
	metricGPUs        = Metric{"ekg_gpus", "gauge", []string{"spec"}, true, "GPUs, or slices of one, that kernels' pods hold."}
	metricGPUSeconds  = Metric{"ekg_gpu_seconds_total", "counter", []string{"spec"}, true, "For how long they were held, whether used or not, in seconds times their number."}
	metricCulls       = Metric{"ekg_kernel_culls_total", "counter", []string{"spec", "limit"}, true, "Kernels that were ended for what the limit says: idle, busy or age."}
	metricStart       = Metric{"ekg_kernel_start_seconds", "histogram", []string{"spec"}, false, "Time from the request for a kernel until its first answer, of kernels that this gateway has started."}
	metricStartPhase  = Metric{"ekg_kernel_start_phase_seconds", "histogram", []string{"phase"}, false, "The parts of that time: admission, scheduled, pulled, started, ready; each ends with what it is named after."}
	metricFailures    = Metric{"ekg_kernel_start_failures_total", "counter", []string{"spec", "reason"}, false, "Kernels that could not be started, or ended before their first answer."}
	metricRequests    = Metric{"ekg_http_requests_total", "counter", []string{"route", "method", "code"}, false, "Requests that were answered; a websocket counts when it has ended, and 499 is a client that did not wait."}
	metricDuration    = Metric{"ekg_http_request_seconds", "histogram", []string{"route"}, false, "Time to answer them, but for websockets and logs."}
	metricWebsockets  = Metric{"ekg_websockets", "gauge", nil, false, "Websockets that this gateway carries."}
	metricOpened      = Metric{"ekg_websockets_opened_total", "counter", nil, false, "Websockets that it has accepted."}
	metricWSBytes     = Metric{"ekg_websocket_bytes_total", "counter", []string{"direction"}, false, "Bytes on them (direction from_client, to_client)."}
	metricLobby       = Metric{"ekg_lobby_bytes", "gauge", nil, false, "Bytes held for kernels that have no supervisor yet."}
	metricLogReaders  = Metric{"ekg_log_readers", "gauge", nil, false, "Clients that read a kernel's log through this gateway."}
	metricReady       = Metric{"ekg_ready", "gauge", nil, false, "1 while /readyz answers 200, else 0."}
	metricAsked       = Metric{"ekg_kube_requests_total", "counter", []string{"verb", "resource", "code"}, false, "Requests to the Kubernetes API server; code 0 is one that got no answer."}
	metricAskedTime   = Metric{"ekg_kube_request_seconds", "histogram", []string{"verb"}, false, "Time until it has begun to answer them."}
	metricAuditErrors = Metric{"ekg_audit_failures_total", "counter", nil, false, "Entries that could not be written to the audit log."}
	metricBuild       = Metric{"ekg_build_info", "gauge", []string{"version", "goversion"}, false, "Always 1."}
)

// MetricList is everything that a gateway measures itself, in the order of the documentation.
func MetricList() []Metric {
	return []Metric{
		metricKernels, metricGroups, metricStale, metricClients, metricLogBytes, metricLogEvicted, metricLogLost, metricMessages, metricMsgBytes,
		metricGPUs, metricGPUSeconds, metricCulls, metricStart, metricStartPhase, metricFailures, metricRequests, metricDuration,
		metricWebsockets, metricOpened, metricWSBytes, metricLobby, metricLogReaders, metricReady, metricAsked, metricAskedTime,
		metricAuditErrors, metricBuild,
	}
}

// Metrics is what one gateway has counted. It is made before the launcher, whose Observer it is. It may be used concurrently.
type Metrics struct {
	registry *prometheus.Registry
	specs    labelValues
	groups   labelValues

	start       *prometheus.HistogramVec
	startPhase  *prometheus.HistogramVec
	failures    *prometheus.CounterVec
	requests    *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	opened      prometheus.Counter
	asked       *prometheus.CounterVec
	askedTime   *prometheus.HistogramVec
	auditErrors prometheus.Counter
}

// NewMetrics begins to count. Version is the program's.
func NewMetrics(version string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(), specs: labelValues{known: map[string]bool{}}, groups: labelValues{known: map[string]bool{}},
		start: histogram(metricStart, startBuckets), startPhase: histogram(metricStartPhase, startBuckets),
		failures: counter(metricFailures), requests: counter(metricRequests), duration: histogram(metricDuration, requestBuckets),
		opened: counter(metricOpened).WithLabelValues(), asked: counter(metricAsked),
		askedTime: histogram(metricAskedTime, requestBuckets), auditErrors: counter(metricAuditErrors).WithLabelValues(),
	}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: metricBuild.Name, Help: metricBuild.Help}, metricBuild.Labels)
	build.WithLabelValues(version, runtime.Version()).Set(1)
	m.registry.MustRegister(m.start, m.startPhase, m.failures, m.requests, m.duration, m.opened, m.asked, m.askedTime, m.auditErrors, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func counter(m Metric) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.Name, Help: m.Help}, m.Labels)
}

func histogram(m Metric, buckets []float64) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: m.Name, Help: m.Help, Buckets: buckets}, m.Labels)
}

// Handler answers scrapes.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, ErrorHandling: promhttp.ContinueOnError})
}

// KernelUp counts a start that went well.
func (m *Metrics) KernelUp(spec string, phases []launcher.Phase) {
	var total time.Duration
	for _, p := range phases {
		total += p.Took
		m.startPhase.WithLabelValues(p.Name).Observe(p.Took.Seconds())
	}
	m.start.WithLabelValues(m.specs.of(spec)).Observe(total.Seconds())
}

// KernelFailed counts one that did not.
func (m *Metrics) KernelFailed(spec string, why launcher.Failure) {
	if !slices.Contains(launcher.Failures, why) {
		why = launcher.FailedInternal
	}
	m.failures.WithLabelValues(m.specs.of(spec), string(why)).Inc()
}

// ClusterAsked counts a request to the cluster's API server.
func (m *Metrics) ClusterAsked(verb, resource string, code int, took time.Duration) {
	m.asked.WithLabelValues(verb, resource, codeLabel(code)).Inc()
	m.askedTime.WithLabelValues(verb).Observe(took.Seconds())
}

// request counts a request that was answered, or a websocket that has ended.
func (m *Metrics) request(route, method string, status int, took time.Duration, lasting bool) {
	if route == "" {
		route = otherLabel
	}
	m.requests.WithLabelValues(route, logMethod(method), codeLabel(status)).Inc()
	if !lasting {
		m.duration.WithLabelValues(route).Observe(took.Seconds())
	}
}

// codeLabel is a status in a label. Supervisors stand beside code that nobody vouches for, and could say any number.
func codeLabel(status int) string {
	if status != 0 && status != statusClientGone && http.StatusText(status) == "" {
		return otherLabel
	}
	return strconv.Itoa(status)
}

// labelValues bounds the kernelspecs, or the groups, that labels tell apart. Which label one has never changes, so that counters do not either.
type labelValues struct {
	mu    sync.Mutex
	known map[string]bool
}

func (s *labelValues) of(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.known[name]:
		return name
	case name == "" || name == otherLabel || len(s.known) >= maxLabelValues:
		return otherLabel
	}
	s.known[name] = true
	return name
}

// all returns the labels that there are, but for "other".
func (s *labelValues) all() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.known {
		names = append(names, name)
	}
	return names
}

// watch has the metrics tell what a gateway knows at the moment of a scrape. A Metrics belongs to one gateway.
func (m *Metrics) watch(g *Gateway) error { return m.registry.Register(newSnapshot(m, g)) }

// snapshot collects what is known at the moment of a scrape.
type snapshot struct {
	m     *Metrics
	g     *Gateway
	descs map[string]*prometheus.Desc
}

func newSnapshot(m *Metrics, g *Gateway) *snapshot {
	s := &snapshot{m: m, g: g, descs: map[string]*prometheus.Desc{}}
	for _, d := range []Metric{metricKernels, metricGroups, metricStale, metricClients, metricLogBytes, metricLogEvicted, metricLogLost, metricMessages,
		metricMsgBytes, metricGPUs, metricGPUSeconds, metricCulls, metricWebsockets, metricWSBytes, metricLobby, metricLogReaders, metricReady} {
		s.descs[d.Name] = prometheus.NewDesc(d.Name, d.Help, d.Labels, nil)
	}
	return s
}

// Describe tells what is collected.
func (s *snapshot) Describe(to chan<- *prometheus.Desc) {
	for _, d := range s.descs {
		to <- d
	}
}

// Collect tells what is known now.
func (s *snapshot) Collect(to chan<- prometheus.Metric) {
	tell := func(m Metric, v float64, labels ...string) {
		kind := prometheus.GaugeValue
		if m.Type == "counter" {
			kind = prometheus.CounterValue
		}
		to <- prometheus.MustNewConstMetric(s.descs[m.Name], kind, v, labels...)
	}
	s.collectKernels(tell)
	open, in, out := s.g.conns.traffic()
	tell(metricWebsockets, float64(open))
	tell(metricWSBytes, float64(in), fromClient)
	tell(metricWSBytes, float64(out), toClient)
	readers, _, _ := s.g.streams.traffic()
	tell(metricLogReaders, float64(readers))
	tell(metricLobby, float64(s.g.lobbyHeld.Load()))
	ready := 0.0
	if s.g.ready.Load() {
		ready = 1
	}
	tell(metricReady, ready)
}

// shownStates are the states that labels tell apart.
var shownStates = []launcher.State{launcher.Starting, launcher.Idle, launcher.Busy, launcher.Restarting, launcher.Dead}

// cullLimits are the limits that labels tell apart.
var cullLimits = []string{"idle", "busy", "age"}

// collectKernels tells what the launcher knows. Of a kernelspec that ever had a kernel all states are told.
func (s *snapshot) collectKernels(tell func(m Metric, v float64, labels ...string)) {
	now := s.g.opts.Launcher.Measure()
	type cell struct {
		spec  string
		state launcher.State
	}
	type groupCell struct {
		group string
		state launcher.State
	}
	counts, ofGroups := map[cell]int{}, map[groupCell]int{}
	var stale, clients, logBytes float64
	for _, k := range now.Kernels {
		counts[cell{s.m.specs.of(k.SpecName), launcher.StateOf(string(k.State))}]++
		for _, group := range k.Groups {
			ofGroups[groupCell{s.m.groups.of(group), launcher.StateOf(string(k.State))}]++
		}
		if k.Stale {
			stale++
		}
		clients += float64(k.Connections)
		logBytes += float64(k.LogBytes)
	}
	for _, spec := range append(s.m.specs.all(), otherLabel) {
		for _, state := range shownStates {
			if n := counts[cell{spec, state}]; n > 0 || spec != otherLabel {
				tell(metricKernels, float64(n), spec, string(state))
			}
		}
	}
	for _, group := range append(s.m.groups.all(), otherLabel) {
		for _, state := range shownStates {
			if n := ofGroups[groupCell{group, state}]; n > 0 || group != otherLabel {
				tell(metricGroups, float64(n), group, string(state))
			}
		}
	}
	tell(metricStale, stale)
	tell(metricClients, clients)
	tell(metricLogBytes, logBytes)
	tell(metricLogEvicted, float64(now.LogEvicted))
	tell(metricLogLost, float64(now.LogLost))
	for _, t := range now.Traffic {
		direction := fromKernel
		if t.ToKernel {
			direction = toKernel
		}
		tell(metricMessages, float64(t.Messages), t.Channel, direction)
		tell(metricMsgBytes, float64(t.Bytes), t.Channel, direction)
	}
	gpus, seconds := map[string]float64{}, map[string]float64{}
	for spec, n := range now.GPUs {
		gpus[s.m.specs.of(spec)] += float64(n)
	}
	for spec, v := range now.GPUSeconds {
		seconds[s.m.specs.of(spec)] += v
		gpus[s.m.specs.of(spec)] += 0 // it had some once
	}
	type culls struct{ spec, limit string }
	culled := map[culls]float64{}
	for _, spec := range s.m.specs.all() {
		for _, limit := range cullLimits {
			culled[culls{spec, limit}] = 0 // the first one is an increase, too
		}
	}
	for c, n := range now.Culls {
		limit := c.Limit
		if !slices.Contains(cullLimits, limit) {
			limit = otherLabel
		}
		culled[culls{s.m.specs.of(c.SpecName), limit}] += float64(n)
	}
	for c, n := range culled {
		tell(metricCulls, n, c.spec, c.limit)
	}
	for spec, n := range gpus {
		tell(metricGPUs, n, spec)
	}
	for spec, v := range seconds {
		tell(metricGPUSeconds, v, spec)
	}
}
