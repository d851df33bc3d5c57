package podstatus

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// nodeNoticeLimit bounds a notice about a node, in characters.
const nodeNoticeLimit = 240

// departures are the taints that announce that a node will go away, the most certain first. The source stands above
// each group.
var departures = []struct{ key, text string }{
	// aws/aws-node-termination-handler: pkg/node/node.go
	{"aws-node-termination-handler/spot-itn", "the cloud takes back the spot machine of its node within 2 minutes"},
	// cloud.google.com/kubernetes-engine/docs: graceful termination of spot and GPU nodes
	{"cloud.google.com/impending-node-termination", "the cloud is about to end the machine of its node"},
	// learn.microsoft.com/azure/aks: node auto-drain
	{"remediator.kubernetes.azure.com/unschedulable", "the cloud is about to end or repair the machine of its node"},
	// kubernetes-sigs/karpenter: pkg/apis/v1/taints.go; disruption is the key up to 0.36
	{"karpenter.sh/disrupted", "Karpenter removes its node"},
	{"karpenter.sh/disruption", "Karpenter removes its node"},
	// kubernetes/autoscaler: cluster-autoscaler/utils/taints/taints.go
	{"ToBeDeletedByClusterAutoscaler", "the autoscaler removes its node"},
	{"aws-node-termination-handler/asg-lifecycle-termination", "the scaling group of its node removes the machine"},
	{"aws-node-termination-handler/scheduled-maintenance", "the cloud maintains the machine of its node"},
	{"aws-node-termination-handler/rebalance-recommendation",
		"the cloud may take back the spot machine of its node soon"},
	{corev1.TaintNodeUnschedulable, cordonedNode},
	{"DeletionCandidateOfClusterAutoscaler", "the autoscaler may remove its node, as little runs there"},
}

const cordonedNode = "its node is closed for new pods, and is drained or maintained soon"

// vmEventScheduled is the condition in which AKS reports an event of a node's machine.
const vmEventScheduled corev1.NodeConditionType = "VMEventScheduled"

// NodeNotice returns why a node will go away soon, for the owner of a kernel on it. It returns "" if the node stays, as
// far as it says. It needs the node's taints, conditions and whether it is cordoned.
func NodeNotice(node *corev1.Node) string {
	for _, d := range departures {
		if slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == d.key }) {
			return d.text
		}
		if d.key == "remediator.kubernetes.azure.com/unschedulable" {
			if text := machineEvent(node); text != "" {
				return text
			}
		}
	}
	if node.Spec.Unschedulable {
		return cordonedNode
	}
	return ""
}

// machineEvent returns what the cloud has scheduled for a node's machine, or "".
func machineEvent(node *corev1.Node) string {
	for _, c := range node.Status.Conditions {
		if c.Type != vmEventScheduled || c.Status != corev1.ConditionTrue {
			continue
		}
		text := "the cloud has scheduled an event for the machine of its node"
		if c.Message != "" {
			text += ": " + c.Message
		}
		return OneLine(text, nodeNoticeLimit)
	}
	return ""
}
