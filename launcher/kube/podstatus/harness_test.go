package podstatus

import (
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

var reasonNow = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(reasonNow.Add(-d)) }

// podOf returns a kernel's pod as the API server keeps it, changed by each of the functions.
func podOf(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "k-1", UID: "u",
		Labels: map[string]string{podspec.LabelKernel: "k"}, CreationTimestamp: ago(time.Hour)}}
	p.Spec.Containers = []corev1.Container{
		{Name: podspec.ContainerSupervisor, Image: "ekg:1"},
		{Name: podspec.ContainerKernel, Image: "lab/image:2", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("8Gi")}}},
	}
	p.Status.Phase = corev1.PodPending
	for _, f := range change {
		f(p)
	}
	return p
}

func condition(t corev1.PodConditionType, status corev1.ConditionStatus, why, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type: t, Status: status, Reason: why, Message: message, LastTransitionTime: ago(5 * time.Minute)})
	}
}

func unschedulable(message string) func(*corev1.Pod) {
	return condition(corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable, message)
}

// onNode puts the pod on a node, with both containers waiting.
func onNode(p *corev1.Pod) {
	p.Spec.NodeName = "n1"
	condition(corev1.PodScheduled, corev1.ConditionTrue, "", "")(p)
	for _, name := range []string{podspec.ContainerSupervisor, podspec.ContainerKernel} {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: name,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}})
	}
}

// running lets the supervisor run, and sets the state of the kernel's container.
func running(state, last corev1.ContainerState) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		onNode(p)
		p.Status.Phase = corev1.PodRunning
		p.Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
		p.Status.ContainerStatuses[1].State, p.Status.ContainerStatuses[1].LastTerminationState = state, last
	}
}

func waits(why, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: why, Message: message}}
}

func ends(why string, code int32, message string) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		Reason: why, ExitCode: code, Message: message, FinishedAt: ago(time.Minute)}}
}

var runs = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}

// finished ends the pod and its containers.
func finished(phase corev1.PodPhase, why, message string, super, kernel corev1.ContainerState) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		onNode(p)
		p.Status.Phase, p.Status.Reason, p.Status.Message = phase, why, message
		p.Status.ContainerStatuses[0].State, p.Status.ContainerStatuses[1].State = super, kernel
	}
}

func deleted(p *corev1.Pod) {
	at, grace := ago(-20*time.Second), int64(30)
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &grace
}

// deletedAt deletes a pod some time ago.
func deletedAt(p *corev1.Pod, age time.Duration) {
	at, grace := ago(age-30*time.Second), int64(30)
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &grace
}

// frozenModules is what ipykernel prints when its debugger is loaded.
const frozenModules = "0.00s - Debugger warning: It seems that frozen modules are being used, which may\n" +
	"0.00s - make the debugger miss breakpoints. Please pass -Xfrozen_modules=off\n" +
	"0.00s - to python to disable frozen modules.\n" +
	"0.00s - Note: Debugging will proceed. Set PYDEVD_DISABLE_FILE_VALIDATION=1 to disable this validation.\n"

func lastWords(text string, stopped bool) string {
	b, err := json.Marshal(api.Ending{KernelID: "k", Reason: text, At: reasonNow.Add(-time.Minute), Stopped: stopped})
	if err != nil {
		panic(err)
	}
	return string(b)
}

func event(from, why, message string, age time.Duration) corev1.Event {
	return corev1.Event{Reason: why, Message: message, LastTimestamp: ago(age),
		Source:         corev1.EventSource{Component: from},
		InvolvedObject: corev1.ObjectReference{UID: "u"}}
}

// pullsFailed returns the kubelet's event about failed pulls of the kernel's image, the first of them some time ago.
func pullsFailed(count int32, first time.Duration) []corev1.Event {
	e := event("kubelet", "Failed", `Failed to pull image "lab/image:2": reg.example/lab/image:2: not found`, 0)
	e.Count, e.FirstTimestamp = count, ago(first)
	return []corev1.Event{e}
}
