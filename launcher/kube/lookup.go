package kube

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

const (
	// absentTime is how long a kernel that the cluster does not have is not looked for again. A watch or a replica may
	// bring it earlier.
	absentTime = time.Second
	absentKept = 4096 // ids
)

// find returns the kernel of an id. An unknown kernel is looked for in the cluster: another gateway may have created it
// at this moment.
func (l *Launcher) find(ctx context.Context, id string) (*kernel, error) {
	if !launcher.ValidID(id) {
		return nil, launcher.ErrNotFound // the id becomes no name and no selector
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if k, err := l.lookUp(id); k != nil || err != nil {
		return k, err
	}
	if at, ok := l.absent.Get(id); ok && l.timing.now().Sub(at) < absentTime && !l.freshness.doubted() {
		return nil, l.endings.Gone(id)
	}
	if err := launcher.CountLookup(ctx); err != nil {
		return nil, err
	}
	if err := l.lookFor(ctx, id); err != nil {
		if l.replicas.Complete(ctx) != nil {
			return nil, err
		}
		if k, lerr := l.lookUp(id); k != nil || lerr != nil { // a replica knows it
			return k, lerr
		}
		return nil, err
	}
	k, err := l.lookUp(id)
	if k == nil && err == nil {
		l.absent.Add(id, l.timing.now())
		err = l.endings.Gone(id)
	}
	return k, err
}

// lookFor looks in the cluster for a kernel that is not in memory, and records its pods. A kernel's first pod has a
// known name, and the API server finds a pod by its name without a list. Later pods have other names. Right after a
// proof that memory has every pod, no list is needed for those: lists of kernels trust the proof as well.
func (l *Launcher) lookFor(ctx context.Context, id string) error {
	if l.opts.Pods.NamespacePerOwner() {
		return l.refresh(ctx, id) // the id does not tell in which namespace its pod lies
	}
	for _, ns := range l.namespaces.Readable() {
		pod, err := l.getPod(ctx, ns, podspec.PodName(id, 1))
		if err != nil {
			return err
		}
		if pod != nil && pod.Labels[podspec.LabelKernel] == id {
			l.updatePod(pod)
			if k, err := l.lookUp(id); k != nil || err != nil {
				return err
			}
		}
	}
	if l.freshness.isProved(l.timing.now(), l.timing.fresh) {
		return nil
	}
	return l.refresh(ctx, id)
}

// lookUp returns the kernel from memory, nil if it is unknown.
func (l *Launcher) lookUp(id string) (*kernel, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.goroutines.Closed() {
		return nil, errClosed
	}
	k := l.kernels[id]
	if k != nil && k.end != nil && (k.removed || k.unheard) && l.lingered(k.end) {
		l.forgetLocked(k)
		return nil, l.endings.Gone(id)
	}
	return k, nil
}

// refresh lists one kernel's pods in the cluster and records them.
func (l *Launcher) refresh(ctx context.Context, id string) error {
	l.mu.Lock()
	var known *corev1.Pod // taken before the request, so a pod that is created meanwhile does not seem removed
	if k := l.kernels[id]; k != nil && !k.removed {
		known = k.pod
	}
	l.mu.Unlock()
	listed := map[string]bool{}
	for _, ns := range l.namespaces.Readable() {
		pods, err := l.listPods(ctx, ns, podspec.LabelKernel+"="+id)
		if err != nil {
			return err
		}
		listed[ns] = true
		for i := range pods.Items {
			if known != nil && pods.Items[i].UID == known.UID {
				known = nil
			}
			l.updatePod(&pods.Items[i])
		}
	}
	if known != nil && listed[l.namespaces.WatchOf(known.Namespace)] {
		l.podRemoved(known)
	}
	return nil
}
