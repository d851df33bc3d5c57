package podstatus

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// words say in a sentence what blocks a pod, and what its owner or the operator can do about it.
type words struct {
	text, help string
}

// cause is one of the scheduler's counts: for which cause some nodes do not take a pod.
type cause struct {
	words
	nodes    int
	resource string // of which nodes have too little; empty for another cause
	excluded bool   // the nodes are meant for other pods
	passing  bool   // the nodes may take pods soon
}

// Words of the scheduler's counts. The first match holds. The words of the scheduler are those of its plugins
// (k8s.io/kubernetes: pkg/scheduler/framework/plugins); older ones are in the repository's testdata/events.
var schedulerCauses = []struct {
	says string
	cause
}{
	{"volume node affinity conflict", cause{words: otherZone}},
	{"no available volume zone", cause{words: otherZone}},
	{"exceed max volume count", cause{words: words{"nodes have as many volumes as they can attach",
		"wait, or ask the operator for another node"}}},
	{"unbound immediate PersistentVolumeClaims", cause{words: words{"the claim of its volume has no volume yet",
		"if it stays so, ask the operator about the storage class of the claim"}}},
	{"find available persistent volumes to bind", cause{words: words{"no volume fits the claim",
		"ask the operator for a volume, or change the claim"}}},
	{"enough free storage", cause{words: words{"no node has enough free storage for its volume",
		"ask for a smaller volume, or ask the operator for more storage"}}},
	{"non-existent", cause{words: words{"the volume of its claim does not exist any more", "use another claim"}}},
	{"is being deleted", cause{words: words{"the claim of its volume is being deleted", "use another claim"}}},
	{"storageclass", cause{words: words{"the storage class of its volume does not exist",
		"correct the storage class of the claim"}}},
	{"ReadWriteOncePod", cause{words: words{"another pod uses its volume", "end that pod first"}}},
	{"persistentvolumeclaim", cause{words: words{"its volume does not exist",
		"create the claim, or correct its name in the kernelspec"}}},
	{"cannot allocate all claims", cause{words: words{"no device is free", "wait, or shut down a kernel that has one"}}},
	{"Too many pods", cause{words: words{"nodes run as many pods as they can",
		"wait, or ask the operator for another node"}}},
	{"were unschedulable", cause{words: cordoned, passing: true}},
	{"free ports", cause{words: words{"its port is in use on the nodes", "wait, or ask the operator"}}},
	{"pod affinity", cause{words: otherPods}},
	{"anti-affinity", cause{words: otherPods}},
	{"topology spread constraints", cause{words: otherPods}},
	{"node affinity", cause{words: wrongLabels, excluded: true}},
	{"node selector", cause{words: wrongLabels, excluded: true}},
	// Kubernetes 1.34 does not name the taint.
	{"untolerated taint(s)", cause{words: words{text: "a node does not answer, or is kept for others"}, excluded: true}},
}

var (
	otherZone = words{"its volume is in another zone or on another node", "ask the operator for a node there"}
	otherPods = words{"its rules about other pods allow no node", "wait, or ask the operator"}
	cordoned  = words{"a node is cordoned", "it starts when the operator ends the maintenance of the node"}

	wrongLabels = words{"no node has the labels that it asks for",
		"use another kernelspec, or ask the operator for such a node"}
	keptForOthers = words{"nodes are kept for others",
		"use another kernelspec, or ask the operator for a toleration of the taint"}
	silentNode   = words{"a node does not answer", "it starts when the node is back"}
	nodeRemoved  = words{text: "a node is being removed"}
	nodePrepared = words{text: "a new node is being prepared"}
)

// taintCauses are the taints that go away by themselves, by key. A pattern ends in "*" or begins with it.
var taintCauses = []struct {
	key string
	words
}{
	{corev1.TaintNodeUnreachable, silentNode},
	{corev1.TaintNodeNotReady, silentNode},
	{corev1.TaintNodeUnschedulable, cordoned},
	{corev1.TaintNodeMemoryPressure, words{text: "a node is short of memory"}},
	{corev1.TaintNodeDiskPressure, words{text: "a node is short of disk space"}},
	{corev1.TaintNodePIDPressure, words{text: "a node has too many processes"}},
	{corev1.TaintNodeNetworkUnavailable, nodePrepared},
	{"node.cloudprovider.kubernetes.io/uninitialized", nodePrepared},
	{"karpenter.sh/unregistered", nodePrepared},
	{"*/agent-not-ready", nodePrepared}, // ebs.csi.aws.com, node.cilium.io
	{"ToBeDeletedByClusterAutoscaler", nodeRemoved},
	{"karpenter.sh/disrupted", nodeRemoved},
	{"karpenter.sh/disruption", nodeRemoved},
	{"cloud.google.com/impending-node-termination", nodeRemoved},
	{"aws-node-termination-handler/*", nodeRemoved},
}

var (
	countedCause = regexp.MustCompile(`^(\d+) (.*)$`)
	causeTaint   = regexp.MustCompile(`taint \{([^:=}]+)`)
)

// causesOf reads the scheduler's counts. A cause without a number belongs to the one before it. If it is the first, it
// holds for every node.
func causesOf(total int, counts string) (all []cause) {
	for _, noise := range []string{" no new claims to deallocate", " still not schedulable"} {
		counts = strings.TrimSuffix(counts, noise)
	}
	for part := range strings.SplitSeq(strings.TrimRight(counts, "."), ", ") {
		m := countedCause.FindStringSubmatch(part)
		if m == nil && len(all) > 0 {
			continue
		}
		nodes := total
		if m != nil {
			nodes, _ = strconv.Atoi(m[1])
			part = m[2]
		}
		c := causeOf(part)
		c.nodes = nodes
		all = append(all, c)
	}
	return all
}

// causeOf returns the words for one cause, without its number of nodes.
func causeOf(said string) cause {
	if _, name, ok := strings.Cut(said, "Insufficient "); ok {
		return cause{words: insufficient(name), resource: name}
	}
	if m := causeTaint.FindStringSubmatch(said); m != nil {
		for _, t := range taintCauses {
			prefix, isPrefix := strings.CutSuffix(t.key, "*")
			suffix, isSuffix := strings.CutPrefix(t.key, "*")
			if t.key == m[1] || isPrefix && strings.HasPrefix(m[1], prefix) || isSuffix && strings.HasSuffix(m[1], suffix) {
				return cause{words: t.words, passing: true}
			}
		}
		return cause{words: keptForOthers, excluded: true}
	}
	for _, known := range schedulerCauses {
		if strings.Contains(said, known.says) {
			return known.cause
		}
	}
	return cause{words: words{text: "none fits"}}
}

func insufficient(resource string) words {
	if gpu, shared := podspec.IsGPU(corev1.ResourceName(resource)); gpu {
		if shared {
			return words{"not enough of a GPU is free", "wait, or shut down a kernel that uses one"}
		}
		return words{"no GPU is free", "wait, or shut down a kernel that has one"}
	}
	return words{"not enough " + resource, "wait, or ask for less"}
}

// blockerOf returns what keeps a pod from every node, from the scheduler's counts of causes and from what it says about
// preemption. Nodes that are meant for other pods count only if there are no others. A cause that all others have is
// the blocker: without it one of them would take the pod.
func blockerOf(total int, counts, preemption string) words {
	var excluded, passing, lasting []cause
	ours := total
	for _, c := range causesOf(total, counts) {
		switch {
		case c.excluded:
			excluded = append(excluded, c)
			ours -= c.nodes
		case c.passing:
			passing = append(passing, c)
		default:
			lasting = append(lasting, c)
		}
	}
	if len(lasting) == 0 && len(passing) == 0 {
		return exclusion(excluded)
	}
	if len(lasting) == 0 {
		return most(passing).words
	}
	why := lastingBlocker(ours, lasting, noneLargeEnough(total, preemption))
	if len(passing) > 0 && !strings.Contains(why.text, passing[0].text) {
		why.text += ", and " + most(passing).text
	}
	return why
}

// lastingBlocker chooses the blocker among the causes of the nodes that are not meant for others.
func lastingBlocker(nodes int, causes []cause, tooSmall bool) words {
	var scarce, short []cause
	for _, c := range causes {
		if c.resource == "" {
			continue
		}
		scarce = append(scarce, c)
		if c.nodes >= nodes {
			short = append(short, c)
		}
	}
	switch {
	case len(short) == 1 && len(scarce) == 1 && tooSmall:
		return neverEnough(short[0].resource)
	case len(short) > 0:
		return shortOf(short)
	case len(scarce) > 1 && len(scarce) == len(causes):
		return words{"no node has enough " + resourceNames(scarce) + " at the same time", "wait, or ask for less"}
	}
	return most(causes).words
}

// shortOf returns the words for resources of which every node has too little. GPUs come first.
func shortOf(causes []cause) words {
	i := slices.IndexFunc(causes, func(c cause) bool { return isGPU(c.resource) })
	if i < 0 {
		return words{"not enough " + resourceNames(causes), causes[0].help}
	}
	why := causes[i].words
	if others := slices.Delete(slices.Clone(causes), i, i+1); len(others) > 0 {
		why.text += ", and not enough " + resourceNames(others)
	}
	return why
}

// neverEnough returns the words for a resource of which no node has enough, even if nothing else runs there.
func neverEnough(resource string) words {
	if isGPU(resource) {
		return words{"no node has the GPUs that it asks for", "ask for fewer, or ask the operator for such a node"}
	}
	return words{"no node has so much " + resource, "ask for less, or ask the operator for a larger node"}
}

func isGPU(resource string) bool {
	gpu, _ := podspec.IsGPU(corev1.ResourceName(resource))
	return gpu
}

// resourceNames returns "cpu, memory and GPU".
func resourceNames(causes []cause) string {
	var names []string
	for _, c := range causes {
		name := c.resource
		if isGPU(name) {
			name = "GPU"
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	last := len(names) - 1
	if last == 0 {
		return names[0]
	}
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

// exclusion returns the words for a cluster in which every node is meant for other pods.
func exclusion(causes []cause) words {
	why := most(causes).words
	if slices.ContainsFunc(causes, func(c cause) bool { return c.words == wrongLabels }) &&
		slices.ContainsFunc(causes, func(c cause) bool { return c.words == keptForOthers }) {
		why.text = "nodes are kept for others, or lack the labels that it asks for"
	}
	return why
}

// most returns the cause of the most nodes.
func most(causes []cause) cause {
	return slices.MaxFunc(causes, func(a, b cause) int { return cmp.Compare(a.nodes, b.nodes) })
}

var notHelpful = regexp.MustCompile(`^0/\d+ nodes are available: (\d+) Preemption is not helpful for scheduling`)

// noneLargeEnough reports whether every node would be too small for a pod even if it were empty. Since Kubernetes 1.31
// the scheduler does not count such a node among those where preemption may help.
func noneLargeEnough(total int, preemption string) bool {
	m := notHelpful.FindStringSubmatch(preemption)
	return m != nil && m[1] == strconv.Itoa(total)
}
