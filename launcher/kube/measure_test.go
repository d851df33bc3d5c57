package kube

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// heard is an Observer that writes down what it is told.
type heard struct {
	mu   sync.Mutex
	said []string
}

func (h *heard) add(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.said = append(h.said, fmt.Sprintf(format, args...))
}

func (h *heard) KernelUp(spec string, phases []launcher.Phase) {
	text := "up " + spec
	for _, p := range phases {
		text += fmt.Sprintf(" %s=%v", p.Name, p.Took)
	}
	h.add("%s", text)
}
func (h *heard) KernelFailed(spec string, why launcher.Failure) { h.add("failed %s %s", spec, why) }
func (h *heard) ClusterAsked(verb, resource string, code int, _ time.Duration) {
	h.add("%s %s %d", verb, resource, code)
}

func (h *heard) all() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.said, "; ")
}

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time { return noon.Add(time.Duration(seconds * float64(time.Second))) }

// gpuPod is scheduled at a second after noon, and ended at another; what is negative has not happened.
func gpuPod(limits map[corev1.ResourceName]string, scheduled, ended float64) *corev1.Pod {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: containerSupervisor}, {Name: containerKernel}}}}
	list := corev1.ResourceList{}
	for name, q := range limits {
		list[name] = resource.MustParse(q)
	}
	pod.Spec.Containers[1].Resources.Limits = list
	if scheduled >= 0 {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(at(scheduled))}}
	}
	if ended >= 0 {
		pod.Status.Phase = corev1.PodSucceeded
		for i, name := range []string{containerSupervisor, containerKernel} {
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: name, State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(at(ended - float64(i)))}}})
		}
	}
	return pod
}

// TestUsageOf: what is on record of a kernel is what its pod held until the kernel's end, however late that is written.
func TestUsageOf(t *testing.T) {
	two := map[corev1.ResourceName]string{"nvidia.com/gpu": "2"}
	lost := gpuPod(two, 100, -1)
	lost.Status.Phase = corev1.PodFailed
	for _, tt := range []struct {
		name string
		pod  *corev1.Pod
		end  float64
		want launcher.Usage
	}{
		{"its containers still end", gpuPod(two, 100, -1), 160.4, launcher.Usage{Started: at(100), Seconds: 60, GPUs: 2}},
		{"they have ended since", gpuPod(two, 100, 170), 160, launcher.Usage{Started: at(100), Seconds: 60, GPUs: 2}},
		{"dead for long when it is removed", gpuPod(two, 100, 160), 900, launcher.Usage{Started: at(100), Seconds: 60, GPUs: 2}},
		{"its node is lost", lost, 160, launcher.Usage{Started: at(100), Seconds: 60, GPUs: 2}},
		{"no GPU", gpuPod(nil, 100, 160), 160, launcher.Usage{Started: at(100), Seconds: 60}},
		{"its node's clock is ahead", gpuPod(nil, 100, -1), 99, launcher.Usage{Started: at(100)}},
		{"it never had a node", gpuPod(two, -1, -1), 160, launcher.Usage{}},
	} {
		if got := usageOf(tt.pod, at(tt.end)); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

func TestGPUSeconds(t *testing.T) {
	two := map[corev1.ResourceName]string{"nvidia.com/gpu": "2", "cpu": "8"}
	for _, tt := range []struct {
		name             string
		pod              *corev1.Pod
		since, until     float64
		want             float64
		heldAtEnd, count int64
	}{
		{"running all the time", gpuPod(two, 0, -1), 10, 40, 60, 2, 2},
		{"from its scheduling on", gpuPod(two, 30, -1), 10, 40, 20, 2, 2},
		{"until its containers ended", gpuPod(two, 0, 25), 10, 40, 30, 0, 2},
		{"within", gpuPod(two, 15, 20), 10, 40, 10, 0, 2},
		{"before", gpuPod(two, 0, 5), 10, 40, 0, 0, 2},
		{"later", gpuPod(two, 50, -1), 10, 40, 0, 0, 2},
		{"without a node", gpuPod(two, -1, -1), 10, 40, 0, 0, 2},
		{"no GPU", gpuPod(map[corev1.ResourceName]string{"cpu": "8"}, 0, -1), 10, 40, 0, 0, 0},
		{"none of it", gpuPod(map[corev1.ResourceName]string{"nvidia.com/gpu": "0"}, 0, -1), 10, 40, 0, 0, 0},
		{"slices", gpuPod(map[corev1.ResourceName]string{"nvidia.com/mig-1g.5gb": "3"}, 0, -1), 10, 40, 90, 3, 3},
		{"a share in bytes", gpuPod(map[corev1.ResourceName]string{"nvidia.com/gpumem": "8000"}, 0, -1), 10, 40, 30, 1, 1},
		{"a device and a share", gpuPod(map[corev1.ResourceName]string{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000"}, 0, -1), 10, 40, 30, 1, 1},
	} {
		if got := gpuSeconds(tt.pod, at(tt.since), at(tt.until)); got != tt.want {
			t.Errorf("%s: %v GPU seconds, want %v", tt.name, got, tt.want)
		}
		if got := gpusHeld(tt.pod, at(tt.until)); got != tt.heldAtEnd {
			t.Errorf("%s: holds %d in the end, want %d", tt.name, got, tt.heldAtEnd)
		}
		if got := gpuCountOf(tt.pod); got != tt.count {
			t.Errorf("%s: %d GPUs, want %d", tt.name, got, tt.count)
		}
	}
}

func TestPhases(t *testing.T) {
	started := start{asked: at(0), made: at(0.5)}
	show := func(all []launcher.Phase) string {
		var total time.Duration
		var parts []string
		for _, p := range all {
			parts, total = append(parts, fmt.Sprintf("%s %v", p.Name, p.Took)), total+p.Took
		}
		return fmt.Sprintf("%s of %v", strings.Join(parts, ", "), total)
	}
	pod := gpuPod(nil, 3, -1)
	pod.UID = "1"
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: containerKernel, State: corev1.ContainerState{
		Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(at(63))}}}}
	pulled := func(uid, container string, second float64) corev1.Event {
		return corev1.Event{Reason: "Pulled", LastTimestamp: metav1.NewTime(at(second)),
			InvolvedObject: corev1.ObjectReference{UID: "1", FieldPath: "spec.containers{" + container + "}"}}
	}
	events := []corev1.Event{pulled("1", containerKernel, 61), pulled("1", containerSupervisor, 5)}
	if got, want := show(phases(pod, events, started, at(64.5))),
		"admission 500ms, scheduled 2.5s, pulled 58s, started 2s, ready 1.5s of 1m4.5s"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got, want := show(phases(pod, nil, started, at(64.5))), "admission 500ms, scheduled 2.5s, started 1m0s, ready 1.5s of 1m4.5s"; got != want {
		t.Errorf("without events: got  %s\nwant %s", got, want)
	}
	// The cluster's seconds are whole, and its clocks differ: nothing is negative, and the whole is what it took.
	pod.Status.Conditions[0].LastTransitionTime = metav1.NewTime(at(0))
	pod.Status.ContainerStatuses[0].State.Running.StartedAt = metav1.NewTime(at(70))
	if got, want := show(phases(pod, nil, started, at(64.5))), "admission 500ms, scheduled 0s, started 1m4s, ready 0s of 1m4.5s"; got != want {
		t.Errorf("other clocks: got  %s\nwant %s", got, want)
	}
}

func TestFailureOf(t *testing.T) {
	waiting := func(name, reason string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}
	}
	ended := func(name, reason string, code int32) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: reason, ExitCode: code}}}
	}
	runs := corev1.ContainerStatus{Name: containerKernel, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	again := waiting(containerKernel, "CrashLoopBackOff")
	again.LastTerminationState = ended(containerKernel, "Error", 1).State
	for _, tt := range []struct {
		want     launcher.Failure
		node     string
		statuses []corev1.ContainerStatus
		change   func(*corev1.Pod)
	}{
		{launcher.FailedUnscheduled, "", nil, nil},
		{launcher.FailedImage, "n", []corev1.ContainerStatus{waiting(containerKernel, "ImagePullBackOff")}, nil},
		{launcher.FailedImage, "n", []corev1.ContainerStatus{waiting(containerKernel, "InvalidImageName")}, nil},
		{launcher.FailedContainer, "n", []corev1.ContainerStatus{waiting(containerKernel, "CreateContainerConfigError")}, nil},
		{launcher.FailedContainer, "n", []corev1.ContainerStatus{waiting(containerKernel, "ContainerCreating")}, nil},
		{launcher.FailedContainer, "n", []corev1.ContainerStatus{ended(containerKernel, "StartError", 128)}, nil},
		{launcher.FailedMemory, "n", []corev1.ContainerStatus{ended(containerKernel, "OOMKilled", 137)}, nil},
		{launcher.FailedExited, "n", []corev1.ContainerStatus{ended(containerKernel, "Error", 1)}, nil},
		{launcher.FailedExited, "n", []corev1.ContainerStatus{again}, nil},
		{launcher.FailedSilent, "n", []corev1.ContainerStatus{runs}, nil},
		{launcher.FailedTaken, "n", []corev1.ContainerStatus{runs}, func(p *corev1.Pod) { p.Status.Reason = "NodeLost" }},
		{launcher.FailedTaken, "n", nil, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}
		}},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: tt.node}, Status: corev1.PodStatus{ContainerStatuses: tt.statuses}}
		if tt.change != nil {
			tt.change(pod)
		}
		if got := failureOf(pod); got != tt.want {
			t.Errorf("%+v: got %s, want %s", pod.Status, got, tt.want)
		}
	}
}

// A gateway tells of the starts that it has begun, each once: up, failed, or neither if somebody stopped it. What supervisors have
// counted and the time of GPUs stay when kernels go.
func TestMeasure(t *testing.T) {
	c := newTestCluster(t)
	now := atomic.Int64{}
	now.Store(time.Now().UnixNano())
	h, other := new(heard), new(heard)
	l := openTest(t, c, func(o *Options, tm *timing) {
		o.Observer = h
		tm.now = func() time.Time { return time.Unix(0, now.Load()) }
	})
	openTest(t, c, func(o *Options, _ *timing) { o.Observer = other })
	begin := func(id string) *kernel {
		t.Helper()
		req := testRequest(id)
		req.Env = map[string]string{"KERNEL_GPUS": "1"}
		if _, _, err := l.Start(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		k := l.kernels[id]
		k.watcher = new(watcher)
		return k
	}
	say := func(k *kernel, state launcher.State, lost int64) {
		l.hear(k, k.watcher, supervisor.Status{State: string(state), Counts: supervisor.Counts{Since: time.Unix(0, now.Load()).Add(time.Second), LogLost: lost}})
	}
	up := begin(idA)
	say(up, launcher.Starting, 0)
	c.setPod(t, idA+"-1", func(p *corev1.Pod) {
		p.Spec.NodeName = "n"
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Unix(0, now.Load()))}}
	})
	eventually(t, "the pod's node is known", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return up.pod.Spec.NodeName != ""
	})
	if got := h.all(); got != "" {
		t.Errorf("before it is up: %s", got)
	}
	say(up, launcher.Idle, 5)
	say(up, launcher.Busy, 7)
	say(up, launcher.Idle, 7)
	if got := h.all(); !strings.HasPrefix(got, "up python3 admission=") || strings.Count(got, "up ") != 1 {
		t.Errorf("told %s", got)
	}
	now.Add(int64(time.Minute))
	m := l.Measure()
	if len(m.Kernels) != 1 || m.LogLost != 7 || m.GPUs["python3"] != 1 || m.GPUSeconds["python3"] < 59 || m.GPUSeconds["python3"] > 61 {
		t.Errorf("measured %+v", m)
	}
	now.Add(int64(30 * time.Second)) // until its end, and nobody looks
	if err := c.CoreV1().Pods("ns").Delete(t.Context(), idA+"-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, l, idA, func(k launcher.Kernel) bool { return k.State == launcher.Dead })
	now.Add(int64(time.Minute))
	after := l.Measure()
	if after.LogLost != 7 || after.GPUs["python3"] != 0 || after.GPUSeconds["python3"] != m.GPUSeconds["python3"]+30 {
		t.Errorf("after its end: %+v", after)
	}

	h.said = nil
	say(begin(idB), launcher.Dead, 0)
	stopped := begin("cccccccc-0000-4000-8000-000000000003")
	l.mu.Lock()
	l.enterEnd(stopped, &ending{Reason: "it was shut down on request", Stopped: true})
	l.mu.Unlock()
	if got := h.all(); got != "failed python3 unscheduled" {
		t.Errorf("of one that fails and one that is stopped: %s", got)
	}
	if got := other.all(); got != "" {
		t.Errorf("a gateway that has started nothing told %s", got)
	}
}

func TestWhatIsAsked(t *testing.T) {
	for _, tt := range []struct{ method, url, want string }{
		{"GET", "/api/v1/namespaces/ns/pods?labelSelector=x", "list pods"},
		{"GET", "/api/v1/namespaces/ns/pods?watch=true", "watch pods"},
		{"GET", "/api/v1/namespaces/ns/pods/a", "get pods"},
		{"POST", "/api/v1/namespaces/ns/pods", "create pods"},
		{"PATCH", "/api/v1/namespaces/ns/pods/a", "patch pods"},
		{"DELETE", "/api/v1/namespaces/ns/pods/a", "delete pods"},
		{"POST", "/api/v1/namespaces/ns/pods/a/portforward", "create pods/portforward"},
		{"PUT", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/ekg", "update leases"},
		{"GET", "/api/v1/namespaces/ns", "get namespaces"},
		{"GET", "/k8s/clusters/c-1/api/v1/namespaces/ns/configmaps", "list configmaps"},
		{"GET", "/api/v1/namespaces/ns/secret-of-somebody", "list other"},
		{"GET", "/version", "get other"},
		{"GET", "/api", "get other"},
		{"BREW", "/api/v1/namespaces/ns/pods/a", "other pods"},
	} {
		r := httptest.NewRequest(http.MethodGet, tt.url, nil)
		r.Method = tt.method
		verb, resource := whatIsAsked(r)
		if got := verb + " " + resource; got != tt.want {
			t.Errorf("%s %s: got %s, want %s", tt.method, tt.url, got, tt.want)
		}
	}
}

// Every request of the real client is counted, also one that is refused or gets no answer.
func TestAsked(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/gone") {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusForbidden)
	}))
	defer server.Close()
	cluster, err := newCluster(&rest.Config{Host: server.URL}, "ns", true)
	if err != nil {
		t.Fatal(err)
	}
	h := new(heard)
	cluster.asked.tell(h)
	if _, err := cluster.client.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("no error")
	}
	if err := cluster.client.CoreV1().Secrets("ns").Delete(t.Context(), "gone", metav1.DeleteOptions{}); err == nil {
		t.Error("no error")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if got := slices.Compact(h.said); !slices.Equal(got, []string{"list pods 403", "delete secrets 0"}) {
		t.Errorf("counted %v", got)
	}
}
