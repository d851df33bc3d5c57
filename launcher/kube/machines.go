package kube

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// machines are the informers of the cluster's nodes, and of the pods of all namespaces. Each is optional, since it
// needs rights for the whole cluster.
type machines struct {
	nodes, pods cache.SharedIndexInformer // nil: not watched

	mu     sync.Mutex
	denied map[string]string // why a resource cannot be listed, by its name
}

// watchMachines starts the informers, which end with the launcher. It is called once.
func (l *Launcher) watchMachines() {
	m := &l.machines
	m.denied = map[string]string{}
	if l.opts.WatchNodes || l.opts.WatchGPUs {
		nodes := l.client.CoreV1().Nodes()
		m.nodes = l.watchAll("nodes", &corev1.Node{}, trimNode, cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return nodes.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return nodes.Watch(ctx, o)
			},
		})
	}
	if l.opts.WatchGPUs {
		pods := l.client.CoreV1().Pods(metav1.NamespaceAll)
		m.pods = l.watchAll("pods of the cluster", &corev1.Pod{}, trimForGPUs, cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return pods.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return pods.Watch(ctx, o)
			},
		})
	}
}

// watchAll starts an informer of a resource, called name in sentences. It reports the first failure in the log.
func (l *Launcher) watchAll(name string, of runtime.Object, trim cache.TransformFunc, lw cache.ListWatch,
) cache.SharedIndexInformer {
	informer := cache.NewSharedIndexInformer(listThenWatch{&lw}, of, 0, nil)
	complain := func(_ context.Context, _ *cache.Reflector, err error) {
		l.machines.mu.Lock()
		defer l.machines.mu.Unlock()
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

// list returns the nodes and the pods that are known, and what is missing.
func (m *machines) list() (nodes []*corev1.Node, pods []*corev1.Pod, absent []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range []struct {
		informer   cache.SharedIndexInformer
		name, hint string
	}{{m.nodes, "nodes", missingNodes}, {m.pods, "pods of the cluster", missingPods}} {
		switch {
		case w.informer == nil:
			absent = append(absent, w.hint)
		case w.informer.HasSynced():
			for _, o := range w.informer.GetStore().List() {
				switch o := o.(type) {
				case *corev1.Node:
					nodes = append(nodes, o)
				case *corev1.Pod:
					pods = append(pods, o)
				}
			}
		case m.denied[w.name] != "":
			absent = append(absent, m.denied[w.name])
		default:
			absent = append(absent, "The gateway has not listed the "+w.name+" yet.")
		}
	}
	return nodes, pods, absent
}
