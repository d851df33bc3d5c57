// Package podstatus says in words what has become of a kernel's pod: why it is not running, why it could not be
// created, how it ended, how far its start has come, and how long it has held GPUs. Package kube shows a Reason in the
// kernel's model and in its notebooks. Begin with Explain, then schedule.go, image.go, container.go and end.go, which
// have the reasons by the state of the pod.
//
// Everything is a pure function of the pod, its events and the time. Nothing here asks a cluster, starts a goroutine or
// keeps state. All functions may be called concurrently.
package podstatus

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// Bounds of a reason's text, in characters.
const (
	reasonLimit = 500 // of the whole
	quoteLimit  = 300 // of a text by Kubernetes, a registry or a container runtime
)

// Class says whether a kernel that is not running may still run.
type Class string

// The classes of reasons.
const (
	ClassNone    Class = ""        // the pod runs, or nothing is known yet
	ClassWaiting Class = "waiting" // the pod may still run without any change
	ClassNever   Class = "never"   // the pod cannot run unless its kernelspec, its request or the cluster is changed
	ClassDied    Class = "died"    // the pod has ended, or is about to end
)

// Reason says why a kernel's pod is not running. Text is one sentence for all who may see the kernel, without its full
// stop and without control characters, of at most 500 characters.
type Reason struct {
	Class Class
	Text  string
	Since time.Time // zero if unknown
}

func newReason(c Class, since time.Time, format string, args ...any) Reason {
	return Reason{Class: c, Since: since, Text: OneLine(fmt.Sprintf(format, args...), reasonLimit)}
}

// OneLine makes a text of another program fit for a sentence: one line of at most limit characters, without control
// characters and without a full stop at its end.
func OneLine(text string, limit int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) || unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == unicode.ReplacementChar {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, " "))
	text = strings.TrimRight(strings.Join(strings.Fields(text), " "), ". ")
	if runes := []rune(text); len(runes) > limit {
		return string(runes[:limit-1]) + "…"
	}
	return text
}

// Explain returns why a kernel's pod is not running, from its status and its events, newest last. Events of other pods
// are ignored. While the state of the pod stays the same, the text changes only in how long it has lasted. The text
// names no other pod.
func Explain(pod *corev1.Pod, events []corev1.Event, now time.Time) Reason {
	e := explanation{pod: pod, now: now}
	for _, event := range events {
		if event.InvolvedObject.UID == "" || event.InvolvedObject.UID == pod.UID {
			e.events = append(e.events, event)
		}
	}
	return withoutOthers(pod, e.explain())
}

func (e *explanation) explain() Reason {
	pod := e.pod
	switch phase := pod.Status.Phase; {
	case phase == corev1.PodSucceeded || phase == corev1.PodFailed:
		return e.ended()
	case pod.Status.Reason == "NodeLost":
		return newReason(ClassDied, e.deleted(), "its node %s was lost", pod.Spec.NodeName)
	case pod.DeletionTimestamp != nil || e.disruption() != nil:
		return e.ending()
	case pod.Spec.NodeName == "" && !e.scheduled():
		return e.unscheduled()
	}
	if r := e.containers(); r.Class != ClassNone {
		return r
	}
	if gone := e.last("NodeNotReady"); gone != nil && e.isFalse(corev1.PodReady) {
		return newReason(ClassWaiting, EventTime(gone), "its node %s does not answer", pod.Spec.NodeName)
	}
	return Reason{}
}

// KernelEnd returns why the kernel's container ended last, even if the container is running again. The class is
// ClassNone if it never ended.
func KernelEnd(pod *corev1.Pod) Reason {
	e := explanation{pod: pod}
	for _, s := range pod.Status.ContainerStatuses {
		if s.Name != podspec.ContainerKernel {
			continue
		}
		for _, t := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
			if t != nil {
				return withoutOthers(pod, e.containerReason(s.Name, t))
			}
		}
	}
	return Reason{}
}

// explanation is what a reason is derived from.
type explanation struct {
	pod    *corev1.Pod
	events []corev1.Event // of this pod, newest last
	now    time.Time
}

// last returns the newest event with one of the reasons, or nil.
func (e *explanation) last(reasons ...string) *corev1.Event {
	for i := range slices.Backward(e.events) {
		if slices.Contains(reasons, e.events[i].Reason) {
			return &e.events[i]
		}
	}
	return nil
}

// EventTime returns when an event was last seen.
func EventTime(e *corev1.Event) time.Time {
	switch {
	case e.Series != nil && !e.Series.LastObservedTime.IsZero():
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	}
	return e.CreationTimestamp.Time
}

func source(e *corev1.Event) string { return cmp.Or(e.ReportingController, e.Source.Component) }

func (e *explanation) condition(t corev1.PodConditionType) *corev1.PodCondition {
	for i := range e.pod.Status.Conditions {
		if c := &e.pod.Status.Conditions[i]; c.Type == t {
			return c
		}
	}
	return nil
}

func (e *explanation) isFalse(t corev1.PodConditionType) bool {
	c := e.condition(t)
	return c != nil && c.Status == corev1.ConditionFalse
}

func (e *explanation) scheduled() bool {
	c := e.condition(corev1.PodScheduled)
	return c != nil && c.Status == corev1.ConditionTrue
}

// disruption returns the condition that says why the cluster is removing the pod, or nil. TerminationTarget is Kueue's.
func (e *explanation) disruption() *corev1.PodCondition {
	for _, t := range []corev1.PodConditionType{corev1.DisruptionTarget, "TerminationTarget"} {
		if c := e.condition(t); c != nil && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}

// deleted returns when the pod was deleted, the beginning of its grace period.
func (e *explanation) deleted() time.Time {
	if at := e.pod.DeletionTimestamp; at != nil {
		grace := time.Duration(0)
		if s := e.pod.DeletionGracePeriodSeconds; s != nil {
			grace = time.Duration(*s) * time.Second
		}
		return at.Add(-grace)
	}
	return time.Time{}
}

// howLong returns " for 2 minutes", or "" under 10 seconds. It is rounded, so that a reason does not change every
// second.
func (e *explanation) howLong(since time.Time) string {
	switch d := e.now.Sub(since); {
	case since.IsZero() || d < 10*time.Second:
		return ""
	case d < time.Minute:
		return fmt.Sprintf(" for %d seconds", int(d/(10*time.Second))*10)
	case d < 2*time.Minute:
		return " for a minute"
	case d < 2*time.Hour:
		return fmt.Sprintf(" for %d minutes", int(d/time.Minute))
	default:
		return fmt.Sprintf(" for %d hours", int(d/time.Hour))
	}
}

// Scheduled returns when a pod was scheduled to its node. Without that it returns when the pod was created.
func Scheduled(pod *corev1.Pod) time.Time {
	e := explanation{pod: pod}
	return e.started()
}

// started returns when the pod was scheduled to its node.
func (e *explanation) started() time.Time {
	if c := e.condition(corev1.PodScheduled); c != nil {
		return c.LastTransitionTime.Time
	}
	return e.pod.CreationTimestamp.Time
}
