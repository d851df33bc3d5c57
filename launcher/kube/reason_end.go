package kube

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// terminated tells why a container ended.
func terminated(pod *corev1.Pod, container string, t *corev1.ContainerStateTerminated) string {
	who := whose(container)
	switch {
	case t.Reason == "OOMKilled":
		who = strings.TrimSuffix(who, "'s container")
		if limit := memoryLimit(pod, container); limit != "" {
			return fmt.Sprintf("%s ran out of memory and was killed (limit %s)", who, limit)
		}
		return who + " ran out of memory and was killed"
	case t.Reason == "StartError" || t.Reason == "ContainerCannotRun":
		return fmt.Sprintf("%s could not be started: %s", who, quote(shortRuntime(t.Message), quoteLimit))
	case t.Reason == "ContainerStatusUnknown":
		return fmt.Sprintf("%s is gone, and nobody knows how it ended", who)
	}
	said := quote(t.Message, quoteLimit)
	if ending, ok := endingOf(pod, t.Message); ok {
		return quote(ending.Reason, quoteLimit)
	}
	if said != "" {
		said = ": " + said
	}
	if t.ExitCode > 128 && t.ExitCode <= 128+64 {
		return fmt.Sprintf("%s was killed by signal %d%s", who, t.ExitCode-128, said)
	}
	return fmt.Sprintf("%s ended with exit code %d%s", who, t.ExitCode, said)
}

func memoryLimit(pod *corev1.Pod, container string) string {
	for _, c := range pod.Spec.Containers {
		if q, ok := c.Resources.Limits[corev1.ResourceMemory]; ok && c.Name == container {
			return q.String()
		}
	}
	return ""
}

// disruptions say who takes a pod away, by the reason of its condition.
var disruptions = map[string]string{
	corev1.PodReasonPreemptionByScheduler: "it was preempted by a kernel or pod of higher priority",
	"DeletionByTaintManager":              "its node was lost or does not take it any more",
	"EvictionByEvictionAPI":               "it was evicted: its node is drained or removed",
	"DeletionByPodGC":                     "its node is gone",
	corev1.PodReasonTerminationByKubelet:  "its node ended it",
}

// ending explains a pod that is being deleted.
func (e *explanation) ending() reason {
	r := e.taken()
	if r.class == classNone {
		if ending, at, ok := e.lastWords(); ok {
			return newReason(classDied, at, "%s", ending.Reason)
		}
		r = newReason(classDied, e.deleted(), "its pod was deleted")
	}
	return r
}

// taken explains a pod that the cluster has taken away, by what only the cluster knows.
func (e *explanation) taken() reason {
	at := e.deleted()
	if c := e.disrupted(); c != nil {
		text, known := disruptions[c.Reason]
		said := quote(cmp.Or(e.pod.Status.Message, c.Message), quoteLimit)
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
		return newReason(classDied, c.LastTransitionTime.Time, "%s", text)
	}
	if event := e.last("Preempted", "TaintManagerEviction", "ScaleDown", "Evicted", "Disrupted"); event != nil {
		texts := map[string]string{"Preempted": "it was preempted", "TaintManagerEviction": "its node was lost or does not take it any more",
			"ScaleDown": "its node is removed by the autoscaler", "Evicted": "it was evicted", "Disrupted": "its node is removed"}
		return newReason(classDied, firstTime(at, eventTime(event)), "%s: %s", texts[event.Reason], quote(event.Message, quoteLimit))
	}
	return reason{}
}

// firstTime returns a, or b where a is not known.
func firstTime(a, b time.Time) time.Time {
	if a.IsZero() {
		return b
	}
	return a
}

// endingOf reads an Ending that the pod's supervisor has left in its termination message, or a gateway in an annotation.
func endingOf(pod *corev1.Pod, text string) (supervisor.Ending, bool) {
	var ending supervisor.Ending
	if json.Unmarshal([]byte(text), &ending) != nil || ending.Reason == "" || ending.KernelID != pod.Labels[LabelKernel] {
		return supervisor.Ending{}, false
	}
	return ending, true
}

// lastWords returns what the supervisor has left behind, and when it ended.
func (e *explanation) lastWords() (ending supervisor.Ending, at time.Time, ok bool) {
	st := containerStatus(e.pod, containerSupervisor)
	if st == nil || st.State.Terminated == nil {
		return ending, at, false
	}
	if ending, ok = endingOf(e.pod, st.State.Terminated.Message); ok {
		at = firstTime(ending.At, st.State.Terminated.FinishedAt.Time)
	}
	return ending, at, ok
}

// ended explains a pod that has run to its end.
func (e *explanation) ended() reason {
	ending, at, left := e.lastWords()
	if left && ending.Stopped {
		return newReason(classDied, at, "%s", ending.Reason)
	}
	said := quote(e.pod.Status.Message, quoteLimit)
	since := e.finished()
	switch why := e.pod.Status.Reason; {
	case e.disrupted() != nil:
		return e.taken()
	case why == "Evicted":
		return newReason(classDied, since, "it was evicted from its node: %s", said)
	case why == "Preempting":
		return newReason(classDied, since, "it was preempted: %s", said)
	case why == "DeadlineExceeded":
		return newReason(classDied, since, "it ran longer than its deadline allows")
	case why == "NodeLost":
		return newReason(classDied, since, "its node %s was lost", e.pod.Spec.NodeName)
	case why == "Terminated" || why == "Shutdown" || why == "NodeShutdown":
		return newReason(classDied, since, "its node was shut down")
	case strings.HasPrefix(said, "Pod was rejected: ") || why == "UnexpectedAdmissionError" || why == "NodeAffinity" ||
		strings.HasPrefix(why, "OutOf") || why == "NodePorts" || strings.HasSuffix(why, "NotSupported"):
		// The node has refused it, so nothing of it ever ran.
		return newReason(classNever, since, "its node refused it: %s", cmp.Or(said, why))
	}
	if left {
		return newReason(classDied, at, "%s", ending.Reason)
	}
	if r := e.taken(); r.class != classNone {
		return r
	}
	if r := e.failedContainer(); r.class != classNone {
		return r
	}
	if said != "" {
		return newReason(classDied, since, "its pod has ended: %s", said)
	}
	return newReason(classDied, since, "its pod has ended")
}

// failedContainer explains an end by the container that did not end well; the kernel's before others.
func (e *explanation) failedContainer() reason {
	statuses := slices.Concat(e.pod.Status.ContainerStatuses, e.pod.Status.InitContainerStatuses)
	slices.SortStableFunc(statuses, func(a, b corev1.ContainerStatus) int {
		first := func(s corev1.ContainerStatus) int {
			if s.Name == containerKernel {
				return 0
			}
			return 1
		}
		return first(a) - first(b)
	})
	for _, s := range statuses {
		if t := s.State.Terminated; t != nil && (t.ExitCode != 0 || t.Reason == "OOMKilled") {
			return newReason(classDied, t.FinishedAt.Time, "%s", terminated(e.pod, s.Name, t))
		}
	}
	return reason{}
}

// finished is when the pod's last container ended; of a pod that never ran, when it came to its node.
func (e *explanation) finished() time.Time {
	at := e.started()
	for _, s := range e.pod.Status.ContainerStatuses {
		if t := s.State.Terminated; t != nil && t.FinishedAt.After(at) {
			at = t.FinishedAt.Time
		}
	}
	return at
}
