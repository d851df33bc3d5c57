// Command ekg-gpu-agent says for a node of a cluster which processes and pods use its GPUs. A DaemonSet runs it. It is
// a program of its own, since ekg-gpu runs beside every kernel with a GPU and stays small.
//
//	ekg-gpu-agent [--listen :9402] [--every 10s] [--pod-resources SOCKET]
//
// runs until SIGTERM. It starts "ekg-gpu watch", which lies beside it, and starts it again if it ends. GET /gpus
// returns the last samples as JSON, the UID of each process's pod, and the devices that the kubelet has given to pods.
// GET /metrics has the same for Prometheus. NODE_NAME is the name of the node. The program needs the node's PID
// namespace, to tell processes apart.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/elastic-kernel-gateway/ekg/cmd/buildinfo"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
)

const (
	podResourcesSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"
	podResourcesTime   = 5 * time.Second // for an answer of the kubelet
	maxPodResources    = 16 << 20        // bytes of it, as kubelet's own clients
	agentTime          = 10 * time.Second
	maxLine            = 1 << 20 // bytes of a line of ekg-gpu
	maxSaid            = 1 << 10 // bytes of its last words
)

// nodeReport is what the agent serves.
type nodeReport struct {
	Node      string       `json:"node"`
	Seconds   float64      `json:"seconds"` // as in gpu.Samples
	Devices   []nodeDevice `json:"devices"`
	Pods      []podDevices `json:"pods"`                 // that hold devices
	Error     string       `json:"error,omitempty"`      // of the driver
	PodsError string       `json:"pods_error,omitempty"` // of the kubelet; Pods is empty then
}

// nodeDevice is a GPU with its processes.
type nodeDevice struct {
	gpu.Sample
	Processes []podProcess `json:"processes"`
}

// podProcess is a process that has a GPU open.
type podProcess struct {
	gpu.Process
	Pod string `json:"pod_uid,omitempty"` // of the pod that it belongs to; "": none
}

// podDevices is what a container holds by one resource, or by one claim.
type podDevices struct {
	Namespace string   `json:"namespace"`
	Pod       string   `json:"pod"`
	Container string   `json:"container"`
	Resource  string   `json:"resource"` // or the driver of a claim
	Devices   []string `json:"devices"`  // as the device plugin calls them: a UUID, or one with a number behind "::"
}

// agent answers with what ekg-gpu watch has seen last.
type agent struct {
	node string
	pods func(context.Context) ([]podDevices, error)
	proc string // "/proc"

	mu   sync.Mutex
	last gpu.Samples
}

// version is set by the linker.
var version = "dev"

func main() { os.Exit(run()) }

func run() int {
	listen := flag.String("listen", ":9402", "address of /gpus and /metrics")
	every := flag.Duration("every", 10*time.Second, "time between two samples, at least 1s")
	socket := flag.String("pod-resources", podResourcesSocket, "socket of the kubelet's pod resources")
	showVersion := flag.Bool("version", false, "print version and commit")
	flag.Parse()
	if *showVersion {
		fmt.Println(buildinfo.Line("ekg-gpu-agent", version))
		return 0
	}
	if flag.NArg() > 0 || *every < time.Second {
		fmt.Fprintln(os.Stderr, "ekg-gpu-agent: --every must be at least 1s, and other arguments are rejected")
		return 2
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "ekg-gpu-agent:", err)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	a := &agent{node: os.Getenv("NODE_NAME"), proc: "/proc",
		pods: func(ctx context.Context) ([]podDevices, error) { return podsOf(ctx, *socket) }}
	listener, err := net.Listen("tcp", *listen)
	if err == nil {
		fmt.Fprintln(os.Stderr, "ekg-gpu-agent: listens on", listener.Addr())
		err = a.serve(ctx, listener, filepath.Join(filepath.Dir(self), "ekg-gpu"), *every)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "ekg-gpu-agent:", err)
		return 1
	}
	return 0
}

// serve answers requests, and samples GPUs with a program, until ctx ends.
func (a *agent) serve(ctx context.Context, listener net.Listener, program string, every time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := &http.Server{Handler: a.handler(), ReadHeaderTimeout: agentTime, WriteTimeout: agentTime,
		IdleTimeout: agentTime, MaxHeaderBytes: 16 << 10}
	var ended sync.WaitGroup
	ended.Go(func() {
		for ctx.Err() == nil {
			err := a.watch(ctx, program, every)
			a.fail(err)
			select {
			case <-time.After(every):
			case <-ctx.Done():
			}
		}
	})
	ended.Go(func() {
		<-ctx.Done()
		_ = server.Close() // the requests in progress are short
	})
	err := server.Serve(listener)
	cancel()
	ended.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// watch runs ekg-gpu watch until it ends. The error says why.
func (a *agent) watch(ctx context.Context, program string, every time.Duration) error {
	cmd := exec.CommandContext(ctx, program, "watch", "--every", every.String())
	cmd.WaitDelay = agentTime
	var said bytes.Buffer
	cmd.Stderr = &limited{&said}
	open, err := cmd.StdinPipe() // it samples until this is closed
	if err != nil {
		return err
	}
	lines, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		_ = open.Close() // nothing was written
		return err
	}
	reader := bufio.NewScanner(lines)
	reader.Buffer(nil, maxLine)
	for reader.Scan() {
		if err := a.take(reader.Bytes()); err != nil {
			a.fail(err)
		}
	}
	_ = open.Close() // as above
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("ekg-gpu has ended: %w: %s", err, bytes.TrimSpace(said.Bytes()))
	}
	return errors.New("ekg-gpu has ended")
}

// limited takes the first bytes that are written to it, and drops the others.
type limited struct{ to *bytes.Buffer }

func (l *limited) Write(b []byte) (int, error) {
	l.to.Write(b[:min(len(b), max(0, maxSaid-l.to.Len()))])
	return len(b), nil
}

func (a *agent) handler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(&nodeMetrics{a})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /gpus", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		_ = enc.Encode(a.report(r.Context())) // the client has gone
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	return mux
}

// take takes a line of ekg-gpu watch.
func (a *agent) take(line []byte) error {
	s, err := gpu.ParseSamples(line)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = s
	return nil
}

// fail replaces the samples by the reason why they are missing.
func (a *agent) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = gpu.Samples{Error: err.Error()}
}

// report returns what is known now.
func (a *agent) report(ctx context.Context) nodeReport {
	a.mu.Lock()
	last := a.last
	a.mu.Unlock()
	r := nodeReport{Node: a.node, Seconds: last.Seconds, Error: last.Error, Devices: []nodeDevice{}, Pods: []podDevices{}}
	for _, s := range last.Devices {
		d := nodeDevice{Sample: s}
		for _, p := range s.Processes {
			d.Processes = append(d.Processes, podProcess{p, a.podOf(p.PID)})
		}
		r.Devices = append(r.Devices, d)
	}
	ctx, cancel := context.WithTimeout(ctx, podResourcesTime)
	defer cancel()
	pods, err := a.pods(ctx)
	if err != nil {
		r.PodsError = err.Error()
		return r
	}
	r.Pods = append(r.Pods, pods...)
	return r
}

// podGroup finds the UID of a pod in the name of a control group. With the driver cgroupfs it has hyphens, with
// systemd underscores.
var podGroup = regexp.MustCompile(`[/-]pod([0-9a-f]{8}([-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})`)

// podOf returns the UID of the pod that a process belongs to, or "".
func (a *agent) podOf(pid int) string {
	text, err := os.ReadFile(filepath.Join(a.proc, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return "" // it has ended
	}
	m := podGroup.FindSubmatch(text)
	if m == nil {
		return ""
	}
	return strings.ReplaceAll(string(m[1]), "_", "-")
}

// podsOf asks the kubelet which devices of GPUs pods have: API v1 of
// kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins.
func podsOf(ctx context.Context, socket string) ([]podDevices, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxPodResources)))
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // everything was read
	answer, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("the kubelet does not say which pods have devices: %w", err)
	}
	var all []podDevices
	for _, p := range answer.GetPodResources() {
		for _, c := range p.GetContainers() {
			one := podDevices{Namespace: p.GetNamespace(), Pod: p.GetName(), Container: c.GetName()}
			for _, d := range c.GetDevices() {
				one.Resource, one.Devices = d.GetResourceName(), slices.Sorted(slices.Values(d.GetDeviceIds()))
				all = append(all, one)
			}
			for _, d := range c.GetDynamicResources() {
				for _, r := range d.GetClaimResources() {
					one.Resource, one.Devices = r.GetDriverName(), []string{r.GetPoolName() + "/" + r.GetDeviceName()}
					all = append(all, one)
				}
			}
		}
	}
	return joined(all), nil
}

// joined joins the devices of one container and resource: the kubelet lists them for each NUMA node.
func joined(all []podDevices) (list []podDevices) {
	for _, one := range all {
		at := slices.IndexFunc(list, func(d podDevices) bool {
			return d.Namespace == one.Namespace && d.Pod == one.Pod && d.Container == one.Container && d.Resource == one.Resource
		})
		if at < 0 {
			list = append(list, one)
			continue
		}
		list[at].Devices = slices.Compact(slices.Sorted(slices.Values(append(list[at].Devices, one.Devices...))))
	}
	return list
}

// nodeMetrics are the agent's metrics.
type nodeMetrics struct{ agent *agent }

var (
	nodeUtilization = prometheus.NewDesc("ekg_node_gpu_utilization_ratio",
		"The part of the last seconds in which the GPU computed.", []string{"node", "uuid", "model"}, nil)
	nodeMemoryUsed = prometheus.NewDesc("ekg_node_gpu_memory_used_bytes", "Memory of the GPU that is in use.",
		[]string{"node", "uuid", "model"}, nil)
	nodeMemory = prometheus.NewDesc("ekg_node_gpu_memory_bytes", "Memory of the GPU.",
		[]string{"node", "uuid", "model"}, nil)
	nodeUp = prometheus.NewDesc("ekg_node_gpu_up", "1 if the driver reports all values of the GPU, else 0.",
		[]string{"node", "uuid", "model"}, nil)
	nodeHeld = prometheus.NewDesc("ekg_node_gpu_held", "Devices that a container holds by a resource or a claim.",
		[]string{"node", "namespace", "pod", "container", "resource"}, nil)
)

// Describe sends the descriptions.
func (m *nodeMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{nodeUtilization, nodeMemoryUsed, nodeMemory, nodeUp, nodeHeld} {
		to <- d
	}
}

// Collect sends the present values.
func (m *nodeMetrics) Collect(to chan<- prometheus.Metric) {
	r := m.agent.report(context.Background())
	send := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{r.Node}, labels...)...)
	}
	for _, d := range r.Devices {
		up := 1.0
		if d.Error != "" {
			up = 0
		}
		send(nodeUp, up, d.UUID, d.Model)
		if d.Utilization != nil {
			send(nodeUtilization, *d.Utilization, d.UUID, d.Model)
		}
		if d.MemoryTotal > 0 {
			send(nodeMemory, float64(d.MemoryTotal), d.UUID, d.Model)
			send(nodeMemoryUsed, float64(d.MemoryUsed), d.UUID, d.Model)
		}
	}
	for _, p := range r.Pods {
		send(nodeHeld, float64(len(p.Devices)), p.Namespace, p.Pod, p.Container, p.Resource)
	}
}
