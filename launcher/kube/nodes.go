package kube

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// Before a node goes away, the cluster adds taints and conditions to the node. Its pods are told later. The reaper
// tells the supervisors on the node, which announce it in the notebooks. A supervisor reports in its status what it was
// told. So the next reaper repeats nothing, and takes back what no longer holds.
//
// A kernel that may be evicted is announced in the same way, before its pod is marked.
const (
	// evictNotice is the notice of a kernel that may be evicted. All gateways know it as theirs, whatever their settings.
	evictNotice = "autoscalers may evict it, because it has been idle for long"

	noticesAtOnce = 16          // notices that are being sent
	noticeRetry   = time.Minute // until a supervisor is told again that has not accepted a notice, or is too old for it
)

// sentNotice is an attempt to send a notice.
type sentNotice struct {
	text string
	at   time.Time // zero: none was sent
	busy bool      // it is being sent
}

// trimNode keeps only what podstatus.NodeNotice and gpuNodes read, so that thousands of nodes need little memory.
func trimNode(o any) (any, error) {
	node, ok := o.(*corev1.Node)
	if !ok {
		return o, nil // a cache.DeletedFinalStateUnknown
	}
	small := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion},
		Spec:       corev1.NodeSpec{Taints: node.Spec.Taints, Unschedulable: node.Spec.Unschedulable},
		Status:     corev1.NodeStatus{Conditions: node.Status.Conditions},
	}
	if len(podspec.GPUPools(node.Status.Capacity)) == 0 {
		return small, nil
	}
	small.Labels, small.Status.Addresses = node.Labels, node.Status.Addresses
	small.Status.Capacity, small.Status.Allocatable = gpusOnly(node.Status.Capacity), gpusOnly(node.Status.Allocatable)
	return small, nil
}

// gpusOnly keeps the resources that stand for GPUs.
func gpusOnly(all corev1.ResourceList) corev1.ResourceList {
	some := corev1.ResourceList{}
	for name, q := range all {
		if gpu, _ := podspec.IsGPU(name); gpu {
			some[name] = q
		}
	}
	return some
}

// announceNodes tells the supervisors on nodes that go away, and those of kernels that may be evicted. It takes back
// what no longer holds. A node that the informer does not have changes nothing.
func (l *Launcher) announceNodes() {
	var nodes cache.SharedIndexInformer
	if l.opts.WatchNodes {
		nodes = l.machines.nodes
	}
	now := l.timing.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range l.kernels {
		if l.noticesSent >= noticesAtOnce {
			return // the others follow in the next round
		}
		if k.end != nil || k.stop != nil || k.removed || !k.supervisor.Streaming || k.nodeNotice.busy {
			continue
		}
		shown := k.supervisor.Status.NodeNotice
		text, known := nodeNotice(nodes, k.pod.Spec.NodeName)
		if !known && shown != "" && shown != evictNotice {
			continue
		}
		if text == "" && l.mayBeEvicted(k.supervisor.Status, l.clusterNow()) {
			text = evictNotice
		}
		last := &k.nodeNotice
		if text == shown || text == last.text && now.Sub(last.at) < noticeRetry {
			continue
		}
		*last = sentNotice{text: text, at: now, busy: true}
		l.noticesSent++
		if !l.goroutines.Go(func() { l.sendNodeNotice(k, text) }) {
			return
		}
	}
}

// nodeNotice returns why a node will go away soon, or "". known reports whether the informer has the node.
func nodeNotice(nodes cache.SharedIndexInformer, name string) (text string, known bool) {
	if nodes == nil || !nodes.HasSynced() {
		return "", false
	}
	o, found, err := nodes.GetStore().GetByKey(name)
	node, ok := o.(*corev1.Node)
	if err != nil || !found || !ok {
		return "", false
	}
	return podstatus.NodeNotice(node), true
}

// sendNodeNotice tells one supervisor.
func (l *Launcher) sendNodeNotice(k *kernel, text string) {
	l.mu.Lock()
	pod := k.pod
	l.mu.Unlock()
	client, err := l.supervisor(pod)
	if err == nil {
		ctx, cancel := context.WithTimeout(l.ctx, updateTime)
		err = client.SetNodeNotice(ctx, text)
		cancel()
	}
	switch {
	case l.ctx.Err() != nil:
	case err != nil:
		l.log.Debug("a notice could not be sent to a supervisor", logkey.Kernel, k.id, logkey.Err, err)
	case text != "":
		l.log.Info("the notebooks of a kernel announce that it may be ended: "+text, logkey.Kernel, k.id, logkey.Pod,
			pod.Name)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noticesSent--
	k.nodeNotice.busy = false
}
