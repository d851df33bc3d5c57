package podstatus

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// schedulerCounts matches the scheduler's message: the number of nodes, and why they do not fit. Volcano writes
// "unavailable".
var schedulerCounts = regexp.MustCompile(`^0/(\d+) nodes are (?:un)?available(?:: )?(.*)$`)

// unboundClaims begins the whole message of schedulers up to Kubernetes 1.18.
const unboundClaims = "pod has unbound immediate PersistentVolumeClaims"

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
		turn := "it waits for its turn"
		for _, g := range e.pod.Spec.SchedulingGates {
			gates = append(gates, g.Name)
			if strings.HasPrefix(g.Name, podspec.KueueDomain) {
				turn = "it waits in Kueue's queue until there is quota for it"
			}
		}
		return newReason(ClassWaiting, c.LastTransitionTime.Time, "%s (%s)", turn,
			strings.Join(gates, ", "))
	case e.pod.Status.NominatedNodeName != "": // the scheduler removes pods of lower priority there, such as placeholders
		return newReason(ClassWaiting, c.LastTransitionTime.Time, "node %s makes room for it",
			OneLine(e.pod.Status.NominatedNodeName, quoteLimit))
	}
	said := c.Message
	if event := e.last("FailedScheduling"); said == "" && event != nil {
		said = event.Message
	}
	return newReason(ClassWaiting, c.LastTransitionTime.Time, "%s", e.noNode(said))
}

// noNode explains the scheduler's message. The message itself is shortened first if the sentence would be too long.
func (e *explanation) noNode(said string) string {
	scaling, comes := e.scaling()
	said, preemption, _ := strings.Cut(said, " preemption: ")
	// Kubernetes 1.34 adds these words to the message of every pod, or of every pod with claims.
	for _, noise := range []string{" no new claims to deallocate,", " still not schedulable,"} {
		said = strings.TrimSuffix(said, noise)
	}
	said = OneLine(said, quoteLimit)
	m := schedulerCounts.FindStringSubmatch(said)
	if m == nil && strings.HasPrefix(said, unboundClaims) {
		m = []string{said, "", said}
	}
	switch {
	case m == nil:
		return "no node can take it: " + said + scaling
	case m[1] == "0" || m[2] == "":
		return "the cluster has no node that could take it" + scaling
	}
	total, _ := strconv.Atoi(m[1])
	why := blockerOf(total, m[2], preemption)
	if why.help != "" && !comes {
		scaling = "; " + why.help + scaling
	}
	nodes := ""
	switch m[1] {
	case "":
	case "1":
		nodes = "of 1 node, "
	default:
		nodes = "of " + m[1] + " nodes, "
	}
	text := fmt.Sprintf("no node can take it (%s): %s", why.text, nodes)
	room := reasonLimit - len([]rune(text)) - len([]rune(scaling))
	return text + OneLine(m[2], max(room, 50)) + scaling
}
