package podstatus

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// beside adds an init container with a state. It goes on running if always is true.
func beside(name string, always bool, state corev1.ContainerState) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		c := corev1.Container{Name: name, Image: "tools:1", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}}}
		if always {
			c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		p.Status.InitContainerStatuses = append(p.Status.InitContainerStatuses,
			corev1.ContainerStatus{Name: name, State: state, Started: new(false)})
	}
}

// A start that waits for a container beside the kernel's says for which. Afterwards such a container neither explains
// the kernel's state nor its end.
func TestExplain_Beside(t *testing.T) {
	initialized := condition(corev1.PodInitialized, corev1.ConditionTrue, "", "")
	since := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: ago(3 * time.Minute)}}
	oom := ends("OOMKilled", 137, "")
	forged := ends("Error", 1, `{"kernel_id": "k", "reason": "it was forged", "stopped": true}`)
	for _, tt := range []struct {
		name  string
		pod   *corev1.Pod
		class Class
		want  string
	}{
		{"an init container runs", podOf(onNode, beside("clone", false, since)), ClassWaiting,
			`container "clone" runs before the kernel starts for 3 minutes`},
		{"an init container fails", podOf(onNode, beside("clone", false, ends("Error", 3, "no such branch"))), ClassWaiting,
			`container "clone" ended with exit code 3: no such branch; it is started again`},
		{"an init container has too little memory", podOf(onNode, beside("clone", false, oom)), ClassWaiting,
			`container "clone" ran out of memory and was killed (limit 64Mi); it is started again`},
		{"an init container has ended", podOf(onNode, beside("clone", false, ends("Completed", 0, ""))), ClassWaiting,
			"its containers are being created for 5 minutes"},
		{"the image of a container beside it is missing",
			podOf(onNode, beside("proxy", true, waits("ErrImageNeverPull", ""))),
			ClassNever, `the image "tools:1" is not on the node, and may not be pulled`},
		{"a container beside it has not started", podOf(onNode, beside("proxy", true, since)), ClassWaiting,
			`container "proxy" has not started completely for 3 minutes`},
		{"a forged ending", podOf(onNode, beside("clone", false, forged)), ClassWaiting,
			`container "clone" ended with exit code 1: {"kernel_id": "k", "reason": "it was forged", "stopped": true}; it is ` +
				`started again`},
		{"a container beside a kernel that runs is out of memory",
			podOf(running(runs, corev1.ContainerState{}), initialized, beside("proxy", true, oom)), ClassNone, ""},
		{"a container beside a kernel that is started again crashes",
			podOf(running(ends("Error", 5, "the kernel's words"), corev1.ContainerState{}), initialized,
				beside("proxy", true, ends("Error", 1, "the proxy's words"))), ClassWaiting,
			"the kernel's container ended with exit code 5: the kernel's words; it is started again"},
		{"the pod has ended, and with it the container beside",
			podOf(finished(corev1.PodFailed, "", "", ends("Completed", 0, ""), ends("Completed", 0, "")), initialized,
				beside("proxy", true, ends("Error", 143, ""))), ClassDied, "its pod has ended"},
		{"the kernel failed, and so did the container beside",
			podOf(finished(corev1.PodFailed, "", "", ends("Completed", 0, ""), ends("OOMKilled", 137, "")), initialized,
				beside("proxy", true, oom)), ClassDied, "the kernel ran out of memory and was killed (limit 8Gi)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := Explain(tt.pod, nil, reasonNow); got.Class != tt.class || got.Text != tt.want {
				t.Errorf("got  %s %q\nwant %s %q", got.Class, got.Text, tt.class, tt.want)
			}
		})
	}
	pod := podOf(running(runs, corev1.ContainerState{}), beside(podspec.ContainerKernel+"s", true, oom))
	if end := KernelEnd(pod); end.Class != ClassNone {
		t.Errorf("the kernel's end is that of another container: %q", end.Text)
	}
	if got := FailureOf(podOf(onNode, beside("clone", false, oom))); got != launcher.FailedContainer {
		t.Errorf("a failed init container is %s", got)
	}
}

// Each init container that starts or succeeds is progress of the start. One that fails again and again is none.
func TestProgress_Beside(t *testing.T) {
	since := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: ago(3 * time.Minute)}}
	again := beside("clone", false, since)
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		want time.Duration
	}{
		"begins":   {podOf(onNode, beside("clone", false, since)), 3 * time.Minute},
		"succeeds": {podOf(onNode, beside("clone", false, ends("Completed", 0, ""))), time.Minute},
		"fails":    {podOf(onNode, beside("clone", false, ends("Error", 1, ""))), 5 * time.Minute},
		"begins again": {podOf(onNode, again, func(p *corev1.Pod) { p.Status.InitContainerStatuses[0].RestartCount = 2 }),
			5 * time.Minute},
	} {
		if got := Progress(tt.pod, nil, reasonNow); !got.Equal(ago(tt.want).Time) {
			t.Errorf("%s: got %v ago, want %v", name, reasonNow.Sub(got), tt.want)
		}
	}
}
