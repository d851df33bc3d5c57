package podstatus

import (
	"regexp"
	"strings"
)

// Words for what autoscalers say. The first match holds.
var (
	clusterAutoscalerSays = []struct{ says, text string }{
		{"max node group size reached", "its node groups have their largest size; the operator can raise it"},
		{"in backoff after failed scale-up", "the cloud had no such node a moment ago; it is tried again"},
		{"max cluster", "the cluster has its largest size; the operator can raise it"},
		{"max limit reached", "the cluster has its largest size; the operator can raise it"},
	}
	karpenterSays = []struct{ says, text string }{
		{"exceed limits", "its node pool has reached its limit; the operator can raise it"},
		{"no instance type", "no allowed instance type is large enough, or none is on offer"},
		{"known values", "no node pool has a label that it asks for"},
		{"did not tolerate", "the node pools are kept for others"},
	}
)

var (
	// noScaleUp begins cluster-autoscaler's message; its releases before 1.20 add the words in parentheses.
	noScaleUp = regexp.MustCompile(`^pod didn't trigger scale-up(?: \(it wouldn't fit if a new node is added\))?(?:: |$)`)
	// failedScaleUp matches the message of GKE.
	failedScaleUp = regexp.MustCompile(`^Node scale up in zones .* failed: (.*?)\. Pod is at risk of not being scheduled`)
)

// scaling returns what an autoscaler is doing for a pod without a node, to be appended, and whether a node comes.
func (e *explanation) scaling() (text string, comes bool) {
	for i := len(e.events) - 1; i >= 0; i-- {
		event := &e.events[i]
		karpenter := strings.HasPrefix(source(event), "karpenter")
		said := OneLine(event.Message, scalingLimit)
		switch {
		case event.Reason == "TriggeredScaleUp":
			return "; a node is being added" + e.howLong(EventTime(event)), true
		case event.Reason == "NotTriggerScaleUp":
			why := OneLine(noScaleUp.ReplaceAllString(event.Message, ""), scalingLimit)
			if why == "" {
				why = "a new node would not take it either"
			}
			return "; the autoscaler adds no node" + inWords(clusterAutoscalerSays, event.Message) + ": " + why, false
		case event.Reason == "FailedScaleUp":
			if m := failedScaleUp.FindStringSubmatch(event.Message); m != nil {
				said = OneLine(m[1], scalingLimit)
			}
			return "; a node could not be added: " + said, false
		case event.Reason == "Nominated" && karpenter:
			_, where, _ := strings.Cut(said, "schedule on: ")
			return "; a node was requested (" + where + ")", true
		case event.Reason == "FailedScheduling" && karpenter:
			return "; Karpenter adds no node" + inWords(karpenterSays, event.Message) + ": " + said, false
		}
	}
	return "", false
}

// scalingLimit bounds an autoscaler's own words, in characters.
const scalingLimit = 200

// inWords returns the first matching words in parentheses, or "".
func inWords(known []struct{ says, text string }, said string) string {
	for _, k := range known {
		if strings.Contains(said, k.says) {
			return " (" + k.text + ")"
		}
	}
	return ""
}
