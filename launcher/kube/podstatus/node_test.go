package podstatus

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestNodeNotice(t *testing.T) {
	node := func(cordoned bool, taints ...string) *corev1.Node {
		n := &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: cordoned}}
		for _, key := range taints {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
		}
		return n
	}
	event := func(status corev1.ConditionStatus, said string) *corev1.Node {
		n := node(true, corev1.TaintNodeUnschedulable)
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
			{Type: "VMEventScheduled", Status: status, Message: said}}
		return n
	}
	for _, c := range []struct {
		name, want string
		node       *corev1.Node
	}{
		{"stays", "", node(false, "nvidia.com/gpu", corev1.TaintNodeNotReady)},
		{"spot, and cordoned as a consequence", "the cloud takes back the spot machine of its node within 2 minutes",
			node(true, corev1.TaintNodeUnschedulable, "aws-node-termination-handler/spot-itn")},
		{"maintenance", "the cloud maintains the machine of its node",
			node(true, "aws-node-termination-handler/scheduled-maintenance")},
		{"scaling group", "the scaling group of its node removes the machine",
			node(false, "aws-node-termination-handler/asg-lifecycle-termination")},
		{"rebalance", "the cloud may take back the spot machine of its node soon",
			node(false, "aws-node-termination-handler/rebalance-recommendation")},
		{"GKE", "the cloud is about to end the machine of its node",
			node(false, "cloud.google.com/impending-node-termination")},
		{"AKS", "the cloud is about to end or repair the machine of its node",
			node(false, "remediator.kubernetes.azure.com/unschedulable")},
		{"AKS, by its condition", "the cloud has scheduled an event for the machine of its node: Preempt Scheduled",
			event(corev1.ConditionTrue, "Preempt Scheduled")},
		{"AKS, and nothing scheduled", cordonedNode, event(corev1.ConditionFalse, "VM has no scheduled event")},
		{"Karpenter", "Karpenter removes its node", node(false, "karpenter.sh/disrupted")},
		{"older Karpenter", "Karpenter removes its node", node(false, "karpenter.sh/disruption")},
		{"autoscaler", "the autoscaler removes its node",
			node(true, "DeletionCandidateOfClusterAutoscaler", "ToBeDeletedByClusterAutoscaler")},
		{"a candidate", "the autoscaler may remove its node, as little runs there",
			node(false, "DeletionCandidateOfClusterAutoscaler")},
		{"cordoned", cordonedNode, node(true)},
		{"cordoned, by its taint", cordonedNode, node(false, corev1.TaintNodeUnschedulable)},
	} {
		if got := NodeNotice(c.node); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
	if n := len([]rune(NodeNotice(event(corev1.ConditionTrue, strings.Repeat("é\n", 999))))); n != nodeNoticeLimit {
		t.Errorf("%d characters", n)
	}
}
