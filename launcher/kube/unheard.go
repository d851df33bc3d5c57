package kube

import (
	"fmt"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/endings"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

const (
	// staleAfter is how long a supervisor may be unheard before its kernel's model says so. A supervisor that is
	// restarted is unheard for less.
	staleAfter = 10 * time.Second

	// unheardMargin is how long after its grace period a deleted pod may still exist. After that its node is taken for
	// lost, if its supervisor is unheard, too.
	unheardMargin = 30 * time.Second
)

// explainStaleLocked says in a sentence for how long a kernel's supervisor has been unheard, and what is known of its
// pod; "" if that is not long.
func (l *Launcher) explainStaleLocked(k *kernel) string {
	now, lost := l.timing.now(), k.supervisor.Lost
	if lost.IsZero() || now.Sub(lost) < staleAfter {
		return ""
	}
	return podstatus.Unheard(k.pod, l.events.Of(k.pod.UID), l.opts.Cluster.Time(lost), l.clusterNow())
}

// endUnheard ends a kernel whose pod should have ended, if neither its node nor its supervisor answers. It reports
// whether it did. The pod of a lost node stays for as long as the node does, and the kernel could not be restarted.
//
// Its two durations are measured in this process, from the moment at which it saw the deletion.
func (l *Launcher) endUnheard(k *kernel) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.timing.now()
	if k.end != nil || k.removed || k.stop != nil || k.deletionSeen.IsZero() || k.supervisor.Streaming ||
		now.Sub(k.supervisor.Lost) < unheardMargin {
		return false
	}
	grace := time.Duration(0)
	if s := k.pod.DeletionGracePeriodSeconds; s != nil {
		grace = time.Duration(*s) * time.Second
	}
	if now.Sub(k.deletionSeen) < grace+unheardMargin {
		return false
	}
	reason := fmt.Sprintf("its node %s is lost: %s, and did not end", k.pod.Spec.NodeName,
		podstatus.DeletionReason(k.pod, l.clusterNow()))
	k.unheard = true
	l.endLocked(k, &endings.Ending{Reason: reason, At: l.clusterNow().UTC()})
	k.supervisor.ChangedLocked()
	l.log.Warn("a kernel counts as dead: its pod should have ended, and its node does not answer", logkey.Kernel, k.id,
		logkey.Pod, k.pod.Name)
	return true
}
