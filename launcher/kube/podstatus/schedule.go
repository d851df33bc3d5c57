package podstatus

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// schedulerCounts matches the scheduler's message: the number of nodes, and why they do not fit.
var schedulerCounts = regexp.MustCompile(`^0/(\d+) nodes are available(?:: )?(.*)$`)

// unscheduled explains a pod without a node.
func (e *explanation) unscheduled() Reason {
	c := e.condition(corev1.PodScheduled)
	claim := e.last("FailedResourceClaimCreation") // the scheduler ignores the pod until its claims exist
	switch {
	case IsUndecided(e.pod):
		since := e.pod.CreationTimestamp.Time
		if long := e.howLong(since); long != "" {
			return newReason(ClassWaiting, since,
				"it has waited%s for limits to admit it; no gateway decides about limits at this moment", long)
		}
		return newReason(ClassWaiting, since, "it waits for limits to admit it")
	case c == nil && claim != nil:
		return newReason(ClassWaiting, EventTime(claim), "its resource claim cannot be created: %s",
			OneLine(claim.Message, quoteLimit))
	case c == nil, c.Reason == corev1.PodReasonSchedulingGated && len(e.pod.Spec.SchedulingGates) == 0:
		return newReason(ClassWaiting, e.pod.CreationTimestamp.Time, "it waits for the scheduler")
	case c.Reason == corev1.PodReasonSchedulingGated:
		var gates []string
		for _, g := range e.pod.Spec.SchedulingGates {
			gates = append(gates, g.Name)
		}
		return newReason(ClassWaiting, c.LastTransitionTime.Time, "it waits for its turn (%s)", strings.Join(gates, ", "))
	}
	said := c.Message
	if event := e.last("FailedScheduling"); said == "" && event != nil {
		said = event.Message
	}
	said, _, _ = strings.Cut(said, " preemption: ")
	// Kubernetes 1.34 adds these words to the message of every pod, or of every pod with claims.
	for _, noise := range []string{" no new claims to deallocate,", " still not schedulable,"} {
		said = strings.TrimSuffix(said, noise)
	}
	said = OneLine(said, quoteLimit)
	text := "no node can take it: " + said
	if m := schedulerCounts.FindStringSubmatch(said); m != nil {
		nodes := "nodes"
		if m[1] == "1" {
			nodes = "node"
		}
		text = fmt.Sprintf("no node can take it (%s): of %s %s, %s", missing(m[2]), m[1], nodes, m[2])
		if m[1] == "0" || m[2] == "" {
			text = "the cluster has no node that could take it"
		}
	}
	return newReason(ClassWaiting, c.LastTransitionTime.Time, "%s%s", text, e.scaling())
}

// missing summarizes why no node fits.
func missing(counts string) string {
	for part := range strings.SplitSeq(counts, ", ") {
		_, res, ok := strings.Cut(part, "Insufficient ")
		switch {
		case !ok:
		case strings.Contains(res, "gpu") || strings.Contains(res, "/mig-"):
			return "no GPU is free"
		default:
			return "not enough " + res
		}
	}
	switch {
	case strings.Contains(counts, "cannot allocate all claims"):
		return "no device is free"
	case strings.Contains(counts, corev1.TaintNodeUnreachable):
		return "a node does not answer"
	case strings.Contains(counts, "were unschedulable"):
		return "a node is cordoned"
	case strings.Contains(counts, "untolerated taint(s)"): // Kubernetes 1.34 does not say which
		return "a node does not answer, or is kept for others"
	case strings.Contains(counts, "persistentvolumeclaim") || strings.Contains(counts, "volume"):
		return "its volume does not exist"
	}
	return "none fits"
}

// scaling returns what an autoscaler is doing about it, to be appended.
func (e *explanation) scaling() string {
	for i := range slices.Backward(e.events) {
		event := &e.events[i]
		karpenter := strings.HasPrefix(source(event), "karpenter")
		said := OneLine(event.Message, 150)
		switch {
		case event.Reason == "TriggeredScaleUp":
			return "; a node is being added" + e.howLong(EventTime(event))
		case event.Reason == "NotTriggerScaleUp":
			_, why, ok := strings.Cut(said, "scale-up: ")
			if !ok {
				why = said
			}
			return "; the autoscaler adds no node: " + why
		case event.Reason == "Nominated" && karpenter:
			_, where, _ := strings.Cut(said, "schedule on: ")
			return "; a node was requested (" + where + ")"
		case event.Reason == "FailedScheduling" && karpenter:
			return "; Karpenter adds no node: " + said
		}
	}
	return ""
}
