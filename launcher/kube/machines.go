package kube

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// machines are the informers of the cluster's nodes, of the pods of all namespaces, and of devices and claims (dynamic
// resource allocation). Each is optional, since it needs rights for the whole cluster.
type machines struct {
	nodes, pods, slices, claims cache.SharedIndexInformer // nil: not watched

	mu     sync.Mutex
	denied map[string]string // why a resource cannot be listed, by its name
	absent map[string]bool   // resources that the cluster does not have, by name
}

// Names of the watched resources in sentences.
const (
	nodesName  = "nodes"
	podsName   = "pods of the cluster"
	slicesName = "resource slices"
	claimsName = "resource claims"
)

// watchMachines starts the informers, which end with the launcher. It is called once.
func (l *Launcher) watchMachines() {
	m := &l.machines
	m.denied, m.absent = map[string]string{}, map[string]bool{}
	if l.opts.WatchNodes || l.opts.WatchGPUs {
		m.nodes = l.watchAll(nodesName, &corev1.Node{}, trimNode, listWatchOf(l.client.CoreV1().Nodes()))
	}
	if l.opts.WatchGPUs {
		m.pods = l.watchAll(podsName, &corev1.Pod{}, trimForGPUs, listWatchOf(l.client.CoreV1().Pods(metav1.NamespaceAll)))
		m.slices = l.watchAll(slicesName, &resourceapi.ResourceSlice{}, trimSlice,
			listWatchOf(l.client.ResourceV1().ResourceSlices()))
		m.claims = l.watchAll(claimsName, &resourceapi.ResourceClaim{}, trimClaim,
			listWatchOf(l.client.ResourceV1().ResourceClaims(metav1.NamespaceAll)))
	}
}

// listWatcher is a client of one resource.
type listWatcher[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// listWatchOf lists and watches with a client of one resource.
func listWatchOf[L runtime.Object](client listWatcher[L]) cache.ListWatch {
	return cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, o)
		},
		WatchFuncWithContext: client.Watch,
	}
}

// watchAll starts an informer of a resource, called name in sentences. It reports the first failure in the log.
func (l *Launcher) watchAll(name string, of runtime.Object, trim cache.TransformFunc, lw cache.ListWatch,
) cache.SharedIndexInformer {
	informer := cache.NewSharedIndexInformer(listThenWatch{&lw}, of, 0, nil)
	complain := func(_ context.Context, _ *cache.Reflector, err error) {
		l.machines.mu.Lock()
		defer l.machines.mu.Unlock()
		if apierrors.IsNotFound(err) { // before Kubernetes 1.34 there is another version of it, or none
			l.machines.absent[name] = true
			return
		}
		before := l.machines.denied[name]
		l.machines.denied[name] = missing("the "+name, err)
		switch {
		case before != "":
		case apierrors.IsForbidden(err):
			l.log.Warn("this gateway may not watch the "+name+", so notebooks do not announce that a node goes away, or the "+
				"view of GPUs is incomplete", logkey.Err, err)
		default:
			l.log.Warn("the "+name+" cannot be watched; this is tried again", logkey.Err, err)
		}
	}
	for _, err := range []error{informer.SetTransform(trim), informer.SetWatchErrorHandlerWithContext(complain)} {
		if err != nil {
			panic("kube: an informer that has not been started rejects a setting: " + err.Error())
		}
	}
	if !l.goroutines.Go(func() { informer.Run(l.ctx.Done()) }) {
		return nil // the launcher is closed
	}
	return informer
}

// seenMachines is what the informers know.
type seenMachines struct {
	nodes   []*corev1.Node
	pods    []*corev1.Pod
	slices  []*resourceapi.ResourceSlice
	claims  []*resourceapi.ResourceClaim
	missing []string // sentences: what they do not know
}

// list returns what is known.
func (m *machines) list() (seen seenMachines) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range []struct {
		informer   cache.SharedIndexInformer
		name, hint string
	}{{m.nodes, nodesName, missingNodes}, {m.pods, podsName, missingPods}, {m.slices, slicesName, ""},
		{m.claims, claimsName, ""}} {
		switch {
		case w.informer == nil && w.hint != "":
			seen.missing = append(seen.missing, w.hint)
		case w.informer == nil:
		case w.informer.HasSynced():
			for _, o := range w.informer.GetStore().List() {
				seen.add(o)
			}
		case m.denied[w.name] != "":
			seen.missing = append(seen.missing, m.denied[w.name])
		case !m.absent[w.name]:
			seen.missing = append(seen.missing, "The gateway has not listed the "+w.name+" yet.")
		}
	}
	return seen
}

func (s *seenMachines) add(o any) {
	switch o := o.(type) {
	case *corev1.Node:
		s.nodes = append(s.nodes, o)
	case *corev1.Pod:
		s.pods = append(s.pods, o)
	case *resourceapi.ResourceSlice:
		s.slices = append(s.slices, o)
	case *resourceapi.ResourceClaim:
		s.claims = append(s.claims, o)
	}
}
