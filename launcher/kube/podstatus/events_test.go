package podstatus

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// recorded is what a real cluster said of a pod, and what Explain makes of it. The first line of its file names the
// public thread with the event.
type recorded struct {
	Platform string `json:"platform"`
	Object   string `json:"object"` // see pod
	From     string `json:"from"`   // the event's source, or the condition's type
	Reason   string `json:"reason"`
	Message  string `json:"message"`
	Class    Class  `json:"class"`
	Sentence string `json:"sentence"`
}

// pod returns a kernel's pod in the state in which a cluster reports the recorded message, and its events.
func (r recorded) pod(t *testing.T) (*corev1.Pod, []corev1.Event) {
	t.Helper()
	said := event(r.From, r.Reason, r.Message, time.Minute)
	said.Type = corev1.EventTypeWarning
	switch r.Object {
	case "pod without a node":
		counts := "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available: 3 No " +
			"preemption victims found for incoming pod."
		if r.From == "cluster-autoscaler" || r.From == "karpenter" {
			return podOf(unschedulable(counts)), []corev1.Event{said}
		}
		return podOf(unschedulable(r.Message)), []corev1.Event{said}
	case "gated pod":
		return podOf(condition(corev1.PodScheduled, corev1.ConditionFalse, r.Reason, ""), func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: r.Message}}
		}), nil
	case "pod on a node":
		return podOf(onNode), []corev1.Event{said}
	case "container":
		_, why, _ := strings.Cut(r.Message, `": `)
		said.Count, said.FirstTimestamp = 2, ago(2*time.Minute)
		return podOf(running(waits("ErrImagePull", why), corev1.ContainerState{})), []corev1.Event{said}
	case "failed pod":
		return podOf(finished(corev1.PodFailed, r.Reason, r.Message, waits("", ""), waits("", ""))), nil
	case "pod being deleted":
		return podOf(running(runs, corev1.ContainerState{}), deleted,
			condition(corev1.PodConditionType(r.From), corev1.ConditionTrue, r.Reason, r.Message)), nil
	}
	t.Fatalf("unknown object %q", r.Object)
	return nil, nil
}

// TestExplain_Events explains what real clusters have said: schedulers, autoscalers, container runtimes, storage
// drivers and device plugins of many platforms.
func TestExplain_Events(t *testing.T) {
	files, err := filepath.Glob("../../../testdata/events/*.yaml")
	if err != nil || len(files) < 70 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var r recorded
			if err := yaml.UnmarshalStrict(text, &r); err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(string(text), "# Source: https://") {
				t.Error("the file names no source")
			}
			pod, events := r.pod(t)
			got := Explain(pod, events, reasonNow)
			if *update {
				writeRecorded(t, file, string(text), got)
				return
			}
			if got.Class != r.Class || got.Text != r.Sentence {
				t.Errorf("got  %s: %s\nwant %s: %s", got.Class, got.Text, r.Class, r.Sentence)
			}
			if n := len([]rune(got.Text)); n == 0 || n >= reasonLimit {
				t.Errorf("%d characters: %s", n, got.Text)
			}
		})
	}
}

// writeRecorded replaces the last two lines of a golden file.
func writeRecorded(t *testing.T, file, text string, got Reason) {
	t.Helper()
	text, _, _ = strings.Cut(text, "class: ")
	var quoted strings.Builder
	e := json.NewEncoder(&quoted)
	e.SetEscapeHTML(false)
	if err := e.Encode(got.Text); err != nil {
		t.Fatal(err)
	}
	text += "class: " + string(got.Class) + "\nsentence: " + quoted.String()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestBlockerOf: the blocker is what every node lacks that is meant for the pod.
func TestBlockerOf(t *testing.T) {
	for _, c := range []struct {
		nodes              int
		counts, preemption string
		text               string
	}{
		{5, "1 Insufficient cpu, 5 Insufficient nvidia.com/gpu.", "", "no GPU is free"},
		{5, "5 Insufficient cpu, 1 Insufficient nvidia.com/gpu.", "", "not enough cpu"},
		{5, "5 Insufficient cpu, 2 Insufficient memory, 5 Insufficient amd.com/gpu.", "",
			"no GPU is free, and not enough cpu"},
		{5, "5 Insufficient cpu, 5 Insufficient memory.", "", "not enough cpu and memory"},
		{10, "3 Insufficient cpu, 7 Insufficient nvidia.com/gpu.", "", "no node has enough cpu and GPU at the same time"},
		{10, "3 Insufficient cpu, 7 node(s) had untolerated taint {team: x}.", "", "not enough cpu"},
		{4, "4 Insufficient aliyun.com/gpu-mem.", "", "not enough of a GPU is free"},
		{4, "4 Insufficient example.com/fpga.", "", "not enough example.com/fpga"},
		{4, "1 node(s) were unschedulable, 3 Insufficient nvidia.com/gpu.", "",
			"no GPU is free, and a node is cordoned"},
		{3, "3 Insufficient nvidia.com/gpu.", "0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
			"no node has the GPUs that it asks for"},
		{4, "1 node(s) had untolerated taint {team: x}, 3 Insufficient memory.",
			"0/4 nodes are available: 4 Preemption is not helpful for scheduling.", "no node has so much memory"},
		{3, "3 Insufficient nvidia.com/gpu.", "0/3 nodes are available: 1 No preemption victims found for incoming pod, " +
			"2 Preemption is not helpful for scheduling.", "no GPU is free"},
		{3, "2 Insufficient cpu, 3 Insufficient nvidia.com/gpu.",
			"0/3 nodes are available: 3 Preemption is not helpful for scheduling.", "no GPU is free"},
		{2, "2 Too many pods.", "", "nodes run as many pods as they can"},
		{2, "1 node(s) had untolerated taint {team: x}, 1 node(s) didn't match Pod's node affinity/selector.", "",
			"nodes are kept for others, or lack the labels that it asks for"},
		{2, "2 node(s) had untolerated taint {team: x}.", "", "nodes are kept for others"},
		{1, `1 node(s) had untolerated taint {karpenter.sh/disrupted: }.`, "", "a node is being removed"},
		{3, `persistentvolumeclaim "data" is being deleted.`, "", "the claim of its volume is being deleted"},
		{3, `storageclass.storage.k8s.io "fast" not found.`, "", "the storage class of its volume does not exist"},
		{3, "3 node(s) of a plugin of tomorrow.", "", "none fits"},
	} {
		if got := blockerOf(c.nodes, c.counts, c.preemption); got.text != c.text {
			t.Errorf("%s:\ngot  %s\nwant %s", c.counts, got.text, c.text)
		}
	}
}

// TestExplain_UnknownWarning: a warning that ekg does not know is passed on, and a known one that explains nothing is
// not.
func TestExplain_UnknownWarning(t *testing.T) {
	pod := podOf(onNode)
	warning := func(reason string) []corev1.Event {
		e := event("kubelet", reason, "something of tomorrow", time.Minute)
		e.Type = corev1.EventTypeWarning
		return []corev1.Event{event("default-scheduler", "Scheduled", "", 5*time.Minute), e}
	}
	const waits = "its containers are being created for 5 minutes"
	if got, want := Explain(pod, warning("FailedFuture"), reasonNow).Text,
		waits+"; the cluster reports FailedFuture: something of tomorrow"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := Explain(pod, warning("DNSConfigForming"), reasonNow).Text; got != waits {
		t.Errorf("got  %s\nwant %s", got, waits)
	}
	solved := append(warning("FailedFuture"), event("kubelet", "Started", "", 0))
	if got := Explain(pod, solved, reasonNow).Text; got != waits {
		t.Errorf("got  %s\nwant %s", got, waits)
	}
}

// TestMayRetry: only a young first pod that no container has used is replaced, and only after some rejections.
func TestMayRetry(t *testing.T) {
	rejected := func(reason string, change ...func(*corev1.Pod)) *corev1.Pod {
		p := podOf(onNode)
		p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: reason, Message: "Pod was rejected: for a reason",
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
				LastTransitionTime: ago(20 * time.Second)}}}
		p.Annotations = map[string]string{}
		for _, f := range change {
			f(p)
		}
		return p
	}
	note := func(key string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Annotations[key] = "x" } }
	for name, c := range map[string]struct {
		pod   *corev1.Pod
		retry bool
	}{
		"devices":          {rejected("UnexpectedAdmissionError"), true},
		"GPUs":             {rejected("OutOfnvidia.com/gpu"), true},
		"processors":       {rejected("OutOfcpu"), true},
		"labels":           {rejected("NodeAffinity"), true},
		"topology":         {rejected("TopologyAffinityError"), false},
		"a second pod":     {rejected("OutOfcpu", note(podspec.AnnotationRejected)), false},
		"ended by ekg":     {rejected("OutOfcpu", note(podspec.AnnotationEnding)), false},
		"being deleted":    {rejected("OutOfcpu", deleted), false},
		"not yet rejected": {rejected("", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }), false},
		"it has run": {rejected("NodeAffinity", func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: podspec.ContainerKernel, State: ends("Error", 1, "")}}
		}), false},
		"scheduled long ago": {rejected("OutOfcpu", func(p *corev1.Pod) {
			p.Status.Conditions[0].LastTransitionTime = ago(time.Hour)
		}), false},
	} {
		if got := MayRetry(c.pod, reasonNow); got != c.retry {
			t.Errorf("%s: %v", name, got)
		}
		if got := Explain(c.pod, nil, reasonNow); (got.Class == ClassWaiting) != (c.retry || name == "not yet rejected") {
			t.Errorf("%s: %s: %s", name, got.Class, got.Text)
		}
	}
}
