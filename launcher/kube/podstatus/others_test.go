package podstatus

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// TestExplain_Others: whatever the cluster says of a kernel's pod, the reason names no pod of another kernel. It still
// names the kernel's own, and its volume.
func TestExplain_Others(t *testing.T) {
	const own, other = "0a1b2c3d-0000-4000-8000-00000000000a", "7f1b2c3d-0000-4000-8000-00000000000b"
	const volume = "pvc-5c9e1f7a-1111-4222-8333-444444444444"
	pod := func(change ...func(*corev1.Pod)) *corev1.Pod {
		p := podOf(change...)
		p.Name, p.Labels = podspec.PodName(own, 1), map[string]string{podspec.LabelKernel: own}
		return p
	}
	failed := func(reason, message string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, reason, message
		}
	}
	gone := pod(onNode, deleted)
	odd := event("someone", "Odd", "pod "+other+"-1 is in the way of "+own+"-1", time.Minute)
	odd.Type = corev1.EventTypeWarning
	for name, test := range map[string]struct {
		pod    *corev1.Pod
		events []corev1.Event
		want   string
	}{
		"preempted": {gone, []corev1.Event{event("default-scheduler", "Preempted",
			"Preempted by pod "+other+" on node n1", time.Minute)}, "it was preempted: Preempted by another pod on node n1"},
		"preempted before 1.24": {gone, []corev1.Event{event("default-scheduler", "Preempted",
			"Preempted by kernels/"+other+"-1 on node n1", time.Minute)},
			"it was preempted: Preempted by another pod on node n1"},
		"Kueue": {pod(onNode, condition(corev1.DisruptionTarget, corev1.ConditionTrue, "StoppedByKueue", "Preempted to "+
			"accommodate a workload (UID: "+other+", JobUID: "+other+") due to prioritization in the ClusterQueue")), nil,
			"accommodate a workload due to prioritization"},
		"volume": {pod(onNode), []corev1.Event{event("attachdetach-controller", "FailedAttachVolume", `Multi-Attach error `+
			`for volume "`+volume+`" Volume is already used by pod(s) `+other+`-1, `+other+`-2`, time.Minute)},
			`volume "` + volume + `" Volume is already used by another pod`},
		"scheduler": {pod(unschedulable("persistentvolumeclaim is used by pod " + other + "-12")), nil,
			"used by pod another pod"},
		"event":   {pod(onNode), []corev1.Event{odd}, "pod another pod is in the way of " + own + "-1"},
		"evicted": {pod(onNode, failed("Evicted", "The node had more use for "+other+"-3")), nil, "use for another pod"},
		"refused": {pod(onNode, failed("UnexpectedAdmissionError", "Pod was rejected: devices are held by "+other+"-1")),
			nil, "devices are held by another pod"},
	} {
		got := Explain(test.pod, test.events, reasonNow).Text
		if strings.Contains(got, other) || !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
