package podstatus

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// containerEnd returns why a container ended.
func containerEnd(pod *corev1.Pod, container string, t *corev1.ContainerStateTerminated) string {
	who := containerWords(container)
	switch {
	case t.Reason == "OOMKilled":
		who = strings.TrimSuffix(who, "'s container")
		if limit := memoryLimit(pod, container); limit != "" {
			return fmt.Sprintf("%s ran out of memory and was killed (limit %s)", who, limit)
		}
		return who + " ran out of memory and was killed"
	case t.Reason == "StartError" || t.Reason == "ContainerCannotRun":
		return fmt.Sprintf("%s could not be started: %s", who, OneLine(shortRuntime(t.Message), quoteLimit))
	case t.Reason == "ContainerStatusUnknown":
		return fmt.Sprintf("%s is gone; how it ended is unknown", who)
	}
	if container == podspec.ContainerSupervisor || container == podspec.ContainerKernel { // others may write anything
		if ending, ok := ReadEnding(pod, t.Message); ok {
			return OneLine(ending.Reason, quoteLimit)
		}
	}
	said := OneLine(api.WithoutNoise(t.Message), quoteLimit)
	if said != "" {
		said = ": " + said
	}
	if t.ExitCode > 128 && t.ExitCode <= 128+64 {
		return fmt.Sprintf("%s was killed by signal %d%s", who, t.ExitCode-128, said)
	}
	return fmt.Sprintf("%s ended with exit code %d%s", who, t.ExitCode, said)
}

func memoryLimit(pod *corev1.Pod, container string) string {
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		if q, ok := c.Resources.Limits[corev1.ResourceMemory]; ok && c.Name == container {
			return q.String()
		}
	}
	return ""
}

// disruptions are texts for the reasons of the condition DisruptionTarget.
var disruptions = map[string]string{
	corev1.PodReasonPreemptionByScheduler: "it was preempted by a kernel or pod of higher priority",
	"DeletionByTaintManager":              "its node was lost or no longer accepts it",
	"EvictionByEvictionAPI":               "it was evicted: its node is drained or removed",
	"DeletionByPodGC":                     "its node is gone",
	corev1.PodReasonTerminationByKubelet:  "its node ended it",
	"StoppedByKueue":                      "Kueue ended it",
}

// ending explains a pod that is being deleted.
func (e *explanation) ending() Reason {
	r := e.takenAway()
	if r.Class == ClassNone {
		if ending, at, ok := e.lastWords(); ok && !e.deletionEnded(ending) {
			return newReason(ClassDied, at, "%s", ending.Reason)
		}
		r = newReason(ClassDied, e.deleted(), deletedText)
	}
	return r
}

const deletedText = "its pod was deleted"

// deletionEnded reports whether the supervisor's ending of the kernel follows from the deletion of its pod. Then the
// supervisor knows only how its processes were ended.
func (e *explanation) deletionEnded(ending api.Ending) bool {
	if e.deleted().IsZero() {
		return false
	}
	return ending.Reason == api.SignalReason ||
		!ending.Stopped && !ending.Culled && !ending.At.Before(e.deleted())
}

// removal explains the end of a container of a pod that was deleted. The class is ClassNone if the pod was not deleted,
// or if the container had ended before.
func (e *explanation) removal(ended time.Time) Reason {
	at := e.deleted()
	if at.IsZero() || ended.Before(at) {
		return Reason{}
	}
	if r := e.takenAway(); r.Class != ClassNone {
		return r
	}
	return newReason(ClassDied, at, deletedText)
}

// takenAway explains a pod that the cluster has removed or evicted. The class is ClassNone if the cluster says nothing
// of the kind.
func (e *explanation) takenAway() Reason {
	at := e.deleted()
	if c := e.disruption(); c != nil {
		text, known := disruptions[c.Reason]
		said := OneLine(cmp.Or(e.pod.Status.Message, c.Message), quoteLimit)
		switch {
		case c.Reason == corev1.PodReasonTerminationByKubelet && strings.Contains(said, "shutdown"):
			text = "its node is shutting down"
		case !known:
			text = "it was taken away (" + c.Reason + ")"
		}
		if e.pod.Status.Reason == "Evicted" {
			text = "it was evicted from its node"
		}
		if said != "" {
			text += ": " + said
		}
		return newReason(ClassDied, c.LastTransitionTime.Time, "%s", text)
	}
	if event := e.last("Preempted", "TaintManagerEviction", "ScaleDown", "Evicted", "Disrupted"); event != nil {
		texts := map[string]string{
			"Preempted":            "it was preempted",
			"TaintManagerEviction": "its node was lost or no longer accepts it",
			"ScaleDown":            "its node is removed by the autoscaler",
			"Evicted":              "it was evicted",
			"Disrupted":            "its node is removed",
		}
		return newReason(ClassDied, timeOr(at, EventTime(event)), "%s: %s", texts[event.Reason],
			OneLine(event.Message, quoteLimit))
	}
	return Reason{}
}

// timeOr returns a, or b if a is zero.
func timeOr(a, b time.Time) time.Time {
	if a.IsZero() {
		return b
	}
	return a
}

// ReadEnding decodes an Ending of the pod's kernel: a supervisor's termination message, or podspec.AnnotationEnding. It
// reports whether the text is one.
func ReadEnding(pod *corev1.Pod, text string) (api.Ending, bool) {
	var ending api.Ending
	if json.Unmarshal([]byte(text), &ending) != nil || ending.Reason == "" ||
		ending.KernelID != pod.Labels[podspec.LabelKernel] {
		return api.Ending{}, false
	}
	return ending, true
}

// lastWords returns the ending in the supervisor's termination message, and when the supervisor ended.
func (e *explanation) lastWords() (ending api.Ending, at time.Time, ok bool) {
	st := ContainerStatus(e.pod, podspec.ContainerSupervisor)
	if st == nil || st.State.Terminated == nil {
		return ending, at, false
	}
	if ending, ok = ReadEnding(e.pod, st.State.Terminated.Message); ok {
		at = timeOr(ending.At, st.State.Terminated.FinishedAt.Time)
	}
	return ending, at, ok
}

// ended explains a pod that has succeeded or failed.
func (e *explanation) ended() Reason {
	ending, at, left := e.lastWords()
	left = left && !e.deletionEnded(ending)
	if left && ending.Stopped {
		return newReason(ClassDied, at, "%s", ending.Reason)
	}
	said := OneLine(e.pod.Status.Message, quoteLimit)
	since := e.finished()
	switch why := e.pod.Status.Reason; {
	case e.disruption() != nil:
		return e.takenAway()
	case why == "Evicted":
		return newReason(ClassDied, since, "it was evicted from its node: %s", said)
	case why == "Preempting":
		return newReason(ClassDied, since, "it was preempted: %s", said)
	case why == "DeadlineExceeded":
		return newReason(ClassDied, since, "it ran longer than its deadline allows")
	case why == "NodeLost":
		return newReason(ClassDied, since, "its node %s was lost", e.pod.Spec.NodeName)
	case why == "Terminated" || why == "Shutdown" || why == "NodeShutdown":
		return newReason(ClassDied, since, "its node was shut down")
	case isRejected(e.pod):
		return e.rejected(since)
	}
	if left {
		return newReason(ClassDied, at, "%s", ending.Reason)
	}
	if r := e.takenAway(); r.Class != ClassNone {
		return r
	}
	if r := e.failedContainer(); r.Class != ClassNone {
		return r
	}
	if r := e.removal(since); r.Class != ClassNone {
		return r
	}
	if said != "" {
		return newReason(ClassDied, since, "its pod has ended: %s", said)
	}
	return newReason(ClassDied, since, "its pod has ended")
}

// failedContainer explains an end by the container that failed, the kernel's before others. Init containers that go on
// running do not end a pod: the kubelet ends them when the others have ended.
func (e *explanation) failedContainer() Reason {
	statuses := slices.Concat(e.pod.Status.ContainerStatuses, e.pod.Status.InitContainerStatuses)
	slices.SortStableFunc(statuses, func(a, b corev1.ContainerStatus) int {
		first := func(s corev1.ContainerStatus) int {
			if s.Name == podspec.ContainerKernel {
				return 0
			}
			return 1
		}
		return first(a) - first(b)
	})
	for _, s := range statuses {
		if t := s.State.Terminated; t != nil && (t.ExitCode != 0 || t.Reason == "OOMKilled") && !e.goesOn(s.Name) {
			return e.containerReason(s.Name, t)
		}
	}
	return Reason{}
}

// containerReason returns why a container has ended: the deletion of its pod, or what happened in it.
func (e *explanation) containerReason(container string, t *corev1.ContainerStateTerminated) Reason {
	if r := e.removal(t.FinishedAt.Time); r.Class != ClassNone {
		return r
	}
	return newReason(ClassDied, t.FinishedAt.Time, "%s", containerEnd(e.pod, container, t))
}

// finished returns when the pod's last container ended, or when a pod that never ran was scheduled.
func (e *explanation) finished() time.Time {
	at := e.started()
	for _, s := range e.pod.Status.ContainerStatuses {
		if t := s.State.Terminated; t != nil && t.FinishedAt.After(at) {
			at = t.FinishedAt.Time
		}
	}
	return at
}

// DeletionReason returns why a pod was deleted, if no gateway has deleted it.
func DeletionReason(pod *corev1.Pod, now time.Time) string {
	e := explanation{pod: pod, now: now}
	if why := e.takenAway(); why.Text != "" {
		return why.Text
	}
	return deletedText
}

// DeletionEnded reports whether the supervisor's ending of the kernel follows from the deletion of its pod.
func DeletionEnded(pod *corev1.Pod, ending api.Ending) bool {
	e := explanation{pod: pod}
	return e.deletionEnded(ending)
}
