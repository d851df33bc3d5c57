package kube

import (
	"context"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// Before a node goes away, the cluster adds taints and conditions to the node. Its pods learn of that later. The reaper
// notifies the supervisors on the node, which announce it in the notebooks. A supervisor's status has the notice. So
// the next reaper repeats nothing, and takes back what no longer holds.
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

// announceNodes tells the supervisors on nodes that go away, and those of kernels that may be evicted. It takes back
// what no longer holds. A node that the informer does not have changes nothing.
func (r *reaper) announceNodes() {
	now := r.l.timing.now()
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	for _, k := range r.l.kernels {
		if r.l.noticesSent >= noticesAtOnce {
			return // the others follow in the next round
		}
		if k.end != nil || k.stop != nil || k.removed || !k.supervisor.Streaming || k.nodeNotice.busy {
			continue
		}
		shown := k.supervisor.Status.NodeNotice
		text, known := r.l.machines.Notice(k.pod.Spec.NodeName)
		if !known && shown != "" && shown != evictNotice {
			continue
		}
		if text == "" && mayBeEvicted(r.l.opts.EvictIdleAfter, k.supervisor.Status, r.l.clusterNow()) {
			text = evictNotice
		}
		last := &k.nodeNotice
		if text == shown || text == last.text && now.Sub(last.at) < noticeRetry {
			continue
		}
		*last = sentNotice{text: text, at: now, busy: true}
		r.l.noticesSent++
		if !r.l.goroutines.Go(func() { r.sendNodeNotice(k, text) }) {
			return
		}
	}
}

// sendNodeNotice tells one supervisor.
func (r *reaper) sendNodeNotice(k *kernel, text string) {
	r.l.mu.Lock()
	pod := k.pod
	r.l.mu.Unlock()
	client, err := r.l.supervisors.Client(pod)
	if err == nil {
		ctx, cancel := context.WithTimeout(r.l.ctx, updateTime)
		err = client.SetNodeNotice(ctx, text)
		cancel()
	}
	switch {
	case r.l.ctx.Err() != nil:
	case err != nil:
		r.l.log.Debug("a notice could not be sent to a supervisor", logkey.Kernel, k.id, logkey.Err, err)
	case text != "":
		r.l.log.Info("the notebooks of a kernel announce that it may be ended: "+text, logkey.Kernel, k.id, logkey.Pod,
			pod.Name)
	}
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	r.l.noticesSent--
	k.nodeNotice.busy = false
}
