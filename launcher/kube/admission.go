package kube

import (
	"cmp"
	"context"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/admission"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/election"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/endings"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const (
	admissionLease = "ekg-admission"
	abandonedAfter = time.Minute // age from which a waiting pod counts as abandoned by all gateways
)

// decideAboutLimits takes part in the election of the gateway that decides about starts. It begins at once if there are
// limits, else when pods still wait for gateways with limits that are gone.
func (c admissionCluster) decideAboutLimits() {
	l := c.l
	for !launcher.HasLimits(l.opts.Limits) && !c.seesAbandoned() {
		if goroutines.Sleep(l.ctx, l.timing.maintenance) != nil {
			return
		}
	}
	lease := l.election(admissionLease, l.timing.admission)
	lease.Run(l.ctx, func(ctx context.Context) {
		term := c.beginTerm(lease)
		l.log.Info("this gateway decides about limits")
		term.Lead(ctx)
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.term == term {
			l.term = nil
		}
	})
}

// election returns the election of a gateway by a lease in the kernels' namespace.
func (l *Launcher) election(lease string, t election.Timing) *election.Election {
	return election.New(election.Options{Leases: l.opts.Cluster.Leases.CoordinationV1().Leases(l.opts.Pods.Namespace),
		Name: lease, Labels: map[string]string{podspec.LabelManagedBy: podspec.Manager},
		Holder: cmp.Or(hostName(l.log), "ekg") + "_" + uuid.NewString(), Timing: t, Log: l.log})
}

// beginTerm makes a term that knows all pods that this launcher learns of from now on.
func (c admissionCluster) beginTerm(lease *election.Election) *admission.Term {
	l := c.l
	term := admission.NewTerm(admission.Options{Cluster: c, Limits: l.opts.Limits, Holds: lease.Holds,
		Now: l.timing.now, Log: l.log})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.term = term
	return term
}

// seesAbandoned reports whether a pod waits for a decision that gateways with limits would have taken long ago.
func (c admissionCluster) seesAbandoned() bool {
	l := c.l
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range l.kernels {
		if k.end == nil && podstatus.IsUndecided(k.pod) && l.clusterNow().Sub(k.pod.CreationTimestamp.Time) > abandonedAfter {
			return true
		}
	}
	return false
}

// admissionCluster implements admission.Cluster. updatePod and podRemoved call the term's Update and Remove.
type admissionCluster struct{ l *Launcher }

// List implements admission.Cluster.
func (c admissionCluster) List(ctx context.Context) (all []corev1.Pod, listed func(string) bool, err error) {
	read := map[string]bool{}
	for _, ns := range c.l.namespaces.Readable() {
		pods, err := c.l.listPods(ctx, ns, podspec.SelectManaged)
		if err != nil {
			return nil, nil, err
		}
		for i := range pods.Items {
			c.l.updatePod(&pods.Items[i])
		}
		all, read[ns] = append(all, pods.Items...), true
	}
	return all, func(ns string) bool { return read[c.l.namespaces.WatchOf(ns)] }, nil
}

// Read implements admission.Cluster.
func (c admissionCluster) Read(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	now, err := c.l.askForPod(ctx, pod.Namespace, pod.Name)
	if now == nil || now.UID != pod.UID {
		return nil, err
	}
	c.l.updatePod(now)
	return now, nil
}

// Patch implements admission.Cluster. Launcher.annotate calls it, too.
func (c admissionCluster) Patch(ctx context.Context, pod *corev1.Pod, patch []byte) error {
	asking, cancel := c.l.apiContext(ctx)
	defer cancel()
	changed, err := c.l.client.CoreV1().Pods(pod.Namespace).Patch(
		asking, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err == nil {
		c.l.updatePod(changed)
	}
	return err
}

// Now implements admission.Cluster.
func (c admissionCluster) Now() time.Time { return c.l.clusterNow() }

// Held implements admission.Cluster.
func (c admissionCluster) Held(pods []admission.Pod) []launcher.Held {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	all := make([]launcher.Held, len(pods))
	for i, p := range pods {
		h := launcher.Held{
			ID:           p.Record.ID,
			SpecName:     p.Record.SpecName,
			Owner:        p.Record.Owner,
			Groups:       p.Record.Groups,
			GPUs:         podspec.GPUs(p.Pod),
			State:        api.Starting,
			LastActivity: p.Record.Created,
			Ending:       p.DeletionTimestamp != nil,
		}
		if k := c.l.kernels[p.Record.ID]; k != nil && k.pod.UID == p.UID {
			k.supervisor.HeldLocked(&h)
			h.Ending = h.Ending || k.end != nil || k.stop != nil || h.State == api.Dead
		}
		all[i] = h
	}
	return all
}

// addGate makes a new pod wait for a decision if there are limits.
func (l *Launcher) addGate(pod *corev1.Pod) {
	if launcher.HasLimits(l.opts.Limits) {
		pod.Spec.SchedulingGates = append(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: podspec.GateLimits})
	}
}

// awaitDecision waits for the decision about a kernel's pod, at most for timing.decision. The error is a
// *launcher.LimitError.
func (l *Launcher) awaitDecision(ctx context.Context, k *kernel) error {
	ctx, cancel := context.WithTimeout(ctx, l.timing.decision)
	defer cancel()
	var end *endings.Ending
	var owner string
	l.follower.Await(ctx, &k.supervisor, func() bool {
		end, owner = k.end, k.rec.Owner
		return end != nil || k.removed || !podstatus.IsUndecided(k.pod)
	})
	if end != nil && end.Limit != "" {
		return &launcher.LimitError{Limit: end.Limit, Owner: owner, Reason: end.Reason}
	}
	return nil
}

// refusedUnclaimed reports whether a pod is a refused start whose kernel's id no client has received, except with the
// refusal.
func refusedUnclaimed(pod *corev1.Pod) bool {
	return pod.Annotations[podspec.AnnotationLimit] != "" &&
		pod.Annotations[podspec.AnnotationClaimed] == podspec.Unclaimed
}

// Restarting does nothing: a pod counts while its containers live, whatever its supervisor does with the kernel.
func (l *Launcher) Restarting(context.Context, string) (done func(), err error) {
	return func() {}, nil
}
