package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/gpuview"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/namespaces"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// selectPodEvents selects the events of pods.
const selectPodEvents = "involvedObject.kind=Pod"

// watches are the informers of kernels' pods and of their events. They know which of their requests fail.
type watches struct {
	// Fixed.
	client     kubernetes.Interface
	ctx        context.Context // of the launcher's life
	resync     time.Duration
	namespaces *namespaces.Set
	answers    *answers
	goroutines *goroutines.Group
	log        *slog.Logger

	pods []cache.SharedIndexInformer // one for each namespace; fixed after start

	mu     sync.Mutex // the last that is locked
	broken map[watchKey]bool
}

// handlers receive what the informers report.
type handlers struct {
	updated, removed func(*corev1.Pod)
	event            func(*corev1.Event)
	trimEvent        cache.TransformFunc
}

// watchKey names what an informer watches.
type watchKey struct{ namespace, resource string }

// start watches pods and their events in every namespace. It returns when all existing objects have been handled.
// Without access to its own namespace, a gateway does not become ready.
func (w *watches) start(ctx context.Context, own string, h handlers) error {
	var synced []cache.InformerSynced
	for _, ns := range w.namespaces.Watched() {
		pods := w.informer(&watchKey{ns, "pods"}, &corev1.Pod{}, gpuview.ListWatch(w.client.CoreV1().Pods(ns),
			func(o *metav1.ListOptions) { o.LabelSelector = podspec.SelectManaged }))
		events := w.informer(&watchKey{ns, "events"}, &corev1.Event{}, gpuview.ListWatch(w.client.CoreV1().Events(ns),
			func(o *metav1.ListOptions) { o.FieldSelector = selectPodEvents }))
		entered, err := w.handle(ns, pods, events, h)
		if err != nil {
			return err
		}
		w.pods = append(w.pods, pods)
		settled := w.namespaces.Track(ns, entered)
		if ns == w.namespaces.WatchOf(own) {
			synced = append(synced, entered...)
		} else {
			synced = append(synced, settled)
		}
		for _, informer := range []cache.SharedIndexInformer{pods, events} {
			w.goroutines.Go(func() { informer.Run(w.ctx.Done()) })
		}
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		err := context.Cause(ctx)
		if why := w.namespaces.Denial(own); why != "" {
			err = errors.New(why)
		}
		return fmt.Errorf("the cluster's pods could not be listed: %w", err)
	}
	return nil
}

func (w *watches) informer(key *watchKey, of runtime.Object, lists gpuview.ListThenWatch) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(w.persistent(key, lists), of, w.resync, nil)
}

// persistent repeats requests that are not answered. Whether they work is recorded under a key that is not nil, so the
// gateway can say why kernels cannot be listed.
func (w *watches) persistent(key *watchKey, plain gpuview.ListThenWatch) gpuview.ListThenWatch {
	return gpuview.ListThenWatch{ListWatch: &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return untilAnswered(ctx, w, func() (runtime.Object, error) {
				list, err := plain.ListWithContextFunc(ctx, o)
				w.track(key, false, err)
				return list, err
			})
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return untilAnswered(ctx, w, func() (watch.Interface, error) {
				begun, err := plain.WatchFuncWithContext(ctx, o)
				w.track(key, true, err)
				return begun, err
			})
		},
	}}
}

// track records whether a list or watch request works. Informers do not report failures: while the API server refuses
// connections they retry silently, up to a minute apart. Only a watch that works clears the record of a failure.
func (w *watches) track(key *watchKey, mends bool, err error) {
	if key == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.broken[*key] = true
	} else if mends {
		delete(w.broken, *key)
	}
}

// failing reports whether a watch has failed, in a namespace that the gateway may list.
func (w *watches) failing() bool {
	w.mu.Lock()
	broken := slices.Collect(maps.Keys(w.broken))
	w.mu.Unlock()
	return slices.ContainsFunc(broken, func(k watchKey) bool { return w.namespaces.Denial(k.namespace) == "" })
}

// handle makes two informers report. synced report whether their first lists have been handled.
func (w *watches) handle(ns string, pods, events cache.SharedIndexInformer, h handlers,
) (synced []cache.InformerSynced, err error) {
	complain := func(_ context.Context, _ *cache.Reflector, err error) {
		if w.namespaces.Deny(ns, err) {
			w.log.Error("this gateway may not list pods in a namespace", logkey.Namespace, ns, logkey.Err,
				w.namespaces.Denial(ns))
			return
		}
		w.log.Warn("the cluster's pods cannot be watched; this is tried again", logkey.Namespace, ns, logkey.Err, err)
	}
	entered := func(o any) {
		if pod, ok := o.(*corev1.Pod); ok {
			h.updated(pod)
		}
	}
	p, err1 := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    entered,
		UpdateFunc: func(_, o any) { entered(o) },
		DeleteFunc: func(o any) {
			if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = d.Obj
			}
			if pod, ok := o.(*corev1.Pod); ok {
				h.removed(pod)
			}
		},
	})
	heard := func(o any) {
		if e, ok := o.(*corev1.Event); ok {
			h.event(e)
		}
	}
	e, err2 := events.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: heard,
		UpdateFunc: func(_, o any) { heard(o) }})
	if err := errors.Join(err1, err2,
		pods.SetWatchErrorHandlerWithContext(complain), events.SetWatchErrorHandlerWithContext(complain),
		pods.SetTransform(podbuild.TrimmedObject), events.SetTransform(h.trimEvent)); err != nil {
		return nil, err
	}
	return []cache.InformerSynced{p.HasSynced, e.HasSynced}, nil
}
