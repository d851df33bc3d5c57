// Package metrics serves the numbers of one gateway to Prometheus. cmd/ekg makes a Metrics and passes it to package
// gateway, which counts what it does. Other numbers are read from the launcher at each scrape: see Source. Begin with
// the list of metrics below, from which docs/monitoring.md is generated.
//
// Labels come from bounded sets, so that no client can add series. The package starts no goroutine.
package metrics

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

// Bounds of labels.
const (
	maxScrapes = 4 // at one time
	toKernel   = "to_kernel"
	fromKernel = "from_kernel"
	toClient   = "to_client"
	fromClient = "from_client"
)

// MaxLabelValues bounds the kernelspecs, and the groups, with a label of their own.
const MaxLabelValues = 50

// Other is the label of all values without a label of their own.
const Other = "other"

// statusClientGone is the status, in logs and metrics, of a request whose client did not wait for the answer.
const statusClientGone = 499

// Metric describes one metric, for the gateway and its documentation.
type Metric struct {
	Name   string
	Type   string   // counter, gauge or histogram
	Labels []string //
	Shared bool     // all gateways of the same kernels report the same value: use the maximum, not the sum
	Help   string
}

// Buckets of histograms, in seconds.
var (
	startBuckets   = []float64{.1, .25, .5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600, 1200, 1800, 3600}
	gpuWaitBuckets = []float64{1, 5, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400}
	jobRunBuckets  = []float64{1, 10, 30, 60, 300, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800}
	requestBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
)

// all and atScrape are the metrics below, in the order of the documentation. A snapshot collects those of atScrape.
var all, atScrape []Metric

func listed(m Metric) Metric {
	all = append(all, m)
	return m
}

func scraped(m Metric) Metric {
	atScrape = append(atScrape, m)
	return listed(m)
}

// The metrics of a gateway, besides those of the Go runtime and the process.
var (
	metricKernels = scraped(Metric{"ekg_kernels", "gauge", []string{"spec", "state"}, true,
		"Kernels by kernelspec and execution state. Dead kernels count for some minutes. The state is unknown if this " +
			"gateway cannot speak to the kernel's supervisor."})
	metricGroups = scraped(Metric{"ekg_group_kernels", "gauge", []string{"group", "state"}, true,
		"Kernels by group of their user. A group counts if the users file has it, or if groups have limits. A kernel may " +
			"count in several groups."})
	metricStale = scraped(Metric{"ekg_kernels_stale", "gauge", nil, true,
		"Kernels whose supervisor cannot be reached; the last known state is shown."})
	metricClients = scraped(Metric{"ekg_kernel_clients", "gauge", nil, true,
		"Websockets, through any gateway, but for those that leave pings unanswered and never sent a message."})
	metricLogBytes = scraped(Metric{"ekg_kernel_log_bytes", "gauge", nil, true,
		"Bytes that the logs of all kernels hold, in memory and on disk."})
	metricLogEvicted = scraped(Metric{"ekg_kernel_log_evicted_messages_total", "counter", nil, true,
		"Messages that logs have dropped because their bound was reached."})
	metricLogLost = scraped(Metric{"ekg_kernel_log_lost_messages_total", "counter", nil, true,
		"Messages that a kernel's log dropped before a client read them; the client got a notice."})
	metricFailed = scraped(Metric{"ekg_supervisor_failures_total", "counter", nil, true,
		"Supervisors that ended unexpectedly. Others have adopted their kernels."})
	metricMessages = scraped(Metric{"ekg_kernel_messages_total", "counter", []string{"channel", "direction"}, true,
		"Messages to and from kernels (direction to_kernel, from_kernel)."})
	metricMsgBytes = scraped(Metric{"ekg_kernel_message_bytes_total", "counter", []string{"channel", "direction"}, true,
		"Bytes of messages to and from kernels: headers, contents and buffers."})
	metricGPUs = scraped(Metric{"ekg_gpus", "gauge", []string{"spec", "flavor"}, true,
		"GPUs, or slices of one, that kernels hold."})
	metricGPUSeconds = scraped(Metric{"ekg_gpu_seconds_total", "counter", []string{"spec", "flavor"}, true,
		"GPUs held, used or not, times the seconds for which they were held."})
	metricGPUBusy = scraped(Metric{"ekg_gpu_busy_seconds_total", "counter", []string{"spec", "flavor"}, true,
		"The part of ekg_gpu_seconds_total in which the GPUs computed, as far as it is measured."})
	metricParkable = scraped(Metric{"ekg_parkable_kernels", "gauge", []string{"state"}, true,
		"Kernels that may be parked, by the state of their GPU: held, parking, parked, waking, none or failed."})
	metricUnparkable = scraped(Metric{"ekg_unparkable_kernels", "gauge", []string{"cause"}, true,
		"Kernels that keep their GPU although they may be parked (state failed), by cause: memory, bound, processes, " +
			"computes, driver, program or other."})
	metricParkWait = scraped(Metric{"ekg_park_wait_seconds", "histogram", nil, true,
		"Time for which kernels without their GPU have waited for it. The count is how often kernels took it, " +
			"except for those that took a free GPU ahead of a cell."})
	metricParkRestore = scraped(Metric{"ekg_park_restore_seconds", "histogram", nil, true,
		"Time that it has taken to restore the GPU memory of parked kernels, once they had their GPU."})
	metricCulls = scraped(Metric{"ekg_kernel_culls_total", "counter", []string{"spec", "limit"}, true,
		"Kernels that were culled, by limit: idle, busy or age."})
	metricWarm = scraped(Metric{"ekg_warm_kernels", "gauge", []string{"spec"}, true,
		"Warm kernels: started before a user asks, they wait for an owner. Only the gateway that keeps them reports them."})
	metricWarmWanted = scraped(Metric{"ekg_warm_kernels_wanted", "gauge", []string{"spec"}, true,
		"Warm kernels that the kernelspec wants (metadata.ekg.warm). Only the gateway that keeps them reports it."})
	metricWarmClaims = scraped(Metric{"ekg_warm_claims_total", "counter", []string{"spec", "result"}, false,
		"Starts by this gateway of kernelspecs with warm kernels, by result: taken; empty if none was left; unfit if the " +
			"request asks for something else, or limits seem to refuse it; failed."})
	metricWarmGaveWay = scraped(Metric{"ekg_warm_gave_way_total", "counter", []string{"spec"}, false,
		"Warm kernels that this gateway has ended, because a kernel waited for the GPUs that they held."})
	metricKeys = scraped(Metric{"ekg_kernels_by_master_key", "gauge", []string{"key"}, true,
		"Living kernels by the master key of their pod: current or second. It is unknown if it is neither, or if the pod " +
			"does not say it."})
	metricStart = listed(Metric{"ekg_kernel_start_seconds", "histogram", []string{"spec"}, false,
		"Time from the request for a kernel until its first answer, for kernels that this gateway has started."})
	metricStartPhase = listed(Metric{"ekg_kernel_start_phase_seconds", "histogram", []string{"phase"}, false,
		"Parts of ekg_kernel_start_seconds: admission, scheduled, pulled, started, ready. Each ends with the event of its " +
			"name."})
	metricGPUWait = listed(Metric{"ekg_gpu_wait_seconds", "histogram", []string{"flavor"}, false,
		"Time for which kernels that this gateway has started have waited for their GPUs."})
	metricFailures = listed(Metric{"ekg_kernel_start_failures_total", "counter", []string{"spec", "reason"}, false,
		"Kernels that could not be started, or ended before their first answer."})
	metricJobs = scraped(Metric{"ekg_jobs", "gauge", []string{"state"}, true,
		"Jobs that have not ended, by state; absent while they cannot be read."})
	metricJobsEnded = listed(Metric{"ekg_jobs_ended_total", "counter", []string{"outcome"}, false,
		"Jobs that ended while this gateway held them, by outcome: succeeded, failed or stopped."})
	metricJobWait = listed(Metric{"ekg_job_wait_seconds", "histogram", []string{"flavor"}, false,
		"Time from the submission of a job until its kernel was up for the first time."})
	metricJobRun = listed(Metric{"ekg_job_run_seconds", "histogram", []string{"outcome"}, false,
		"Time for which the last attempt of a job ran, until its kernel was stopped."})
	metricJobsDue = listed(Metric{"ekg_scheduled_jobs_total", "counter", []string{"result"}, false,
		"Times of schedules, by result: made if this gateway has made the job, left_out if no job could be made."})
	metricJobsGaveWay = listed(Metric{"ekg_jobs_gave_way_total", "counter", nil, false,
		"Jobs that this gateway has chosen to give their GPU to a kernel that waited for one."})
	metricRequests = listed(Metric{"ekg_http_requests_total", "counter", []string{"route", "method", "code"}, false,
		"Answered requests. A websocket counts when it has ended. Code 499 means that the client did not wait."})
	metricDuration = listed(Metric{"ekg_http_request_seconds", "histogram", []string{"route"}, false,
		"Time to answer requests, except websockets, logs, and answers that wait for the change of a job."})
	metricWebsockets = scraped(Metric{"ekg_websockets", "gauge", nil, false, "Websockets that this gateway carries."})
	metricOpened     = listed(Metric{"ekg_websockets_opened_total", "counter", nil, false,
		"Websockets that this gateway has accepted."})
	metricWSBytes = scraped(Metric{"ekg_websocket_bytes_total", "counter", []string{"direction"}, false,
		"Bytes on websockets (direction from_client, to_client)."})
	metricLobby = scraped(Metric{"ekg_lobby_bytes", "gauge", nil, false,
		"Bytes held for kernels that have no supervisor yet."})
	metricLogReaders = scraped(Metric{"ekg_log_readers", "gauge", nil, false,
		"Clients that read a kernel's log through this gateway."})
	metricReady        = scraped(Metric{"ekg_ready", "gauge", nil, false, "1 while /readyz answers 200, else 0."})
	metricKubeRequests = listed(Metric{"ekg_kube_requests_total", "counter", []string{"verb", "resource", "code"}, false,
		"Requests to the Kubernetes API server; code 0 means no answer."})
	metricKubeRequestTime = listed(Metric{"ekg_kube_request_seconds", "histogram", []string{"verb"}, false,
		"Time until the Kubernetes API server has begun to answer."})
	metricKubeWait = listed(Metric{"ekg_kube_limiter_seconds", "histogram", []string{"client"}, false,
		"Time for which requests to the Kubernetes API server have waited because of its rate. Requests for leases have " +
			"a limit of their own."})
	metricAuditErrors = listed(Metric{"ekg_audit_failures_total", "counter", nil, false,
		"Entries that could not be written to the audit log."})
	metricDisk = listed(Metric{"ekg_disk_free_bytes", "gauge", []string{"disk"}, false,
		"Bytes that the gateway can still write: state is the disk of its state folder, jobs that of --jobs-dir."})
	metricBuild = listed(Metric{"ekg_build_info", "gauge", []string{"version", "goversion"}, false, "Always 1."})
)

// List returns all metrics of a gateway, in the order of the documentation.
func List() []Metric { return slices.Clone(all) }

// Metrics has the counters of one gateway. It is made before the launcher, whose Observer it is. It may be used
// concurrently.
type Metrics struct {
	registry *prometheus.Registry
	specs    labelValues
	groups   labelValues
	flavors  labelValues
	waits    waits

	start           *prometheus.HistogramVec
	startPhase      *prometheus.HistogramVec
	gpuWait         *prometheus.HistogramVec
	failures        *prometheus.CounterVec
	jobs            jobCounts
	requests        *prometheus.CounterVec
	duration        *prometheus.HistogramVec
	opened          prometheus.Counter
	kubeRequests    *prometheus.CounterVec
	kubeRequestTime *prometheus.HistogramVec
	kubeWait        *prometheus.HistogramVec
	auditErrors     prometheus.Counter
	disk            *prometheus.GaugeVec
}

// New makes metrics whose counters are 0. Version is the program's.
func New(version string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(), specs: labelValues{known: map[string]bool{}},
		groups: labelValues{known: map[string]bool{}}, flavors: labelValues{known: map[string]bool{}},

		start:           histogram(metricStart, startBuckets),
		startPhase:      histogram(metricStartPhase, startBuckets),
		gpuWait:         histogram(metricGPUWait, gpuWaitBuckets),
		failures:        counter(metricFailures),
		jobs:            newJobCounts(),
		requests:        counter(metricRequests),
		duration:        histogram(metricDuration, requestBuckets),
		opened:          counter(metricOpened).WithLabelValues(),
		kubeRequests:    counter(metricKubeRequests),
		kubeRequestTime: histogram(metricKubeRequestTime, requestBuckets),
		kubeWait:        histogram(metricKubeWait, requestBuckets),
		auditErrors:     counter(metricAuditErrors).WithLabelValues(),
		disk:            gauge(metricDisk),
	}
	build := gauge(metricBuild)
	build.WithLabelValues(version, runtime.Version()).Set(1)
	m.registry.MustRegister(m.jobs.ended, m.jobs.wait, m.jobs.run, m.jobs.due, m.jobs.gave)
	m.registry.MustRegister(m.start, m.startPhase, m.gpuWait, m.failures, m.requests, m.duration, m.opened,
		m.kubeRequests, m.kubeRequestTime, m.kubeWait, m.auditErrors, m.disk, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func counter(m Metric) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.Name, Help: m.Help}, m.Labels)
}

func gauge(m Metric) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: m.Name, Help: m.Help}, m.Labels)
}

func histogram(m Metric, buckets []float64) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: m.Name, Help: m.Help, Buckets: buckets}, m.Labels)
}

// Handler answers scrapes.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry,
		promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, ErrorHandling: promhttp.ContinueOnError})
}

// Gatherer returns the source of the values that Handler writes.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

// KernelUp counts a successful start.
func (m *Metrics) KernelUp(spec string, phases []launcher.Phase) {
	var total time.Duration
	for _, p := range phases {
		total += p.Took
		m.startPhase.WithLabelValues(p.Name).Observe(p.Took.Seconds())
	}
	m.start.WithLabelValues(m.specs.of(spec)).Observe(total.Seconds())
}

// GPUWaited records how long a kernel has waited for its GPUs.
func (m *Metrics) GPUWaited(flavor string, took time.Duration) {
	label := m.flavorLabel(flavor)
	m.gpuWait.WithLabelValues(label).Observe(took.Seconds())
	m.waits.add(label, took)
}

// flavorLabel returns the label of a flavor. It is empty for none, which to Prometheus is a label that is absent.
func (m *Metrics) flavorLabel(flavor string) string {
	if flavor == "" {
		return ""
	}
	return m.flavors.of(flavor)
}

// KernelFailed counts a failed start.
func (m *Metrics) KernelFailed(spec string, why launcher.Failure) {
	if !slices.Contains(launcher.Failures, why) {
		why = launcher.FailedInternal
	}
	m.failures.WithLabelValues(m.specs.of(spec), string(why)).Inc()
}

// ClusterRequest counts a request to the cluster's API server.
func (m *Metrics) ClusterRequest(verb, resource string, code int, took time.Duration) {
	m.kubeRequests.WithLabelValues(verb, resource, codeLabel(code)).Inc()
	m.kubeRequestTime.WithLabelValues(verb).Observe(took.Seconds())
}

// ClusterWait records for how long a request to the cluster's API server has waited for its turn.
func (m *Metrics) ClusterWait(client string, took time.Duration) {
	m.kubeWait.WithLabelValues(client).Observe(took.Seconds())
}

// Request counts an answered request, or an ended websocket, which is lasting. Route and method come from bounded sets;
// the route "" means that no route matched.
func (m *Metrics) Request(route, method string, status int, took time.Duration, lasting bool) {
	if route == "" {
		route = Other
	}
	m.requests.WithLabelValues(route, method, codeLabel(status)).Inc()
	if !lasting {
		m.duration.WithLabelValues(route).Observe(took.Seconds())
	}
}

// WebsocketOpened counts a websocket that was opened.
func (m *Metrics) WebsocketOpened() { m.opened.Inc() }

// AuditFailed counts an entry that could not be written to the audit log.
func (m *Metrics) AuditFailed() { m.auditErrors.Inc() }

// DiskFree records how many bytes can still be written to a disk: "state" or "jobs".
func (m *Metrics) DiskFree(disk string, free int64) { m.disk.WithLabelValues(disk).Set(float64(free)) }

// codeLabel returns the label of a status. A supervisor runs beside user code and could answer with any number.
func codeLabel(status int) string {
	if status != 0 && status != statusClientGone && http.StatusText(status) == "" {
		return Other
	}
	return strconv.Itoa(status)
}

// labelValues bounds the number of kernelspecs, groups or flavors with a label of their own. The label of a name never
// changes, so that counters never decrease.
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
	case name == "" || name == Other || len(s.known) >= MaxLabelValues:
		return Other
	}
	s.known[name] = true
	return name
}

// all returns all labels but "other".
func (s *labelValues) all() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.known {
		names = append(names, name)
	}
	return names
}
