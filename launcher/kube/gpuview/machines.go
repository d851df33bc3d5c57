package gpuview

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// Machines are the informers of the cluster's nodes, of the pods of all namespaces, and of devices and claims (dynamic
// resource allocation). Each is optional, since it needs rights for the whole cluster.
type Machines struct {
	o                           Options
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

// Options are what Watch needs.
type Options struct {
	Client     kubernetes.Interface
	Goroutines *goroutines.Group // in which informers run
	Done       <-chan struct{}   // closed when they end
	Log        *slog.Logger
	Nodes      bool // watch nodes
	All        bool // watch nodes, and who holds their GPUs
}

// Watch starts the informers.
func Watch(o Options) *Machines {
	m := &Machines{o: o, denied: map[string]string{}, absent: map[string]bool{}}
	if o.Nodes || o.All {
		m.nodes = m.watch(nodesName, &corev1.Node{}, trimNode, listWatchOf(o.Client.CoreV1().Nodes()))
	}
	if o.All {
		m.pods = m.watch(podsName, &corev1.Pod{}, trimPod, listWatchOf(o.Client.CoreV1().Pods(metav1.NamespaceAll)))
		m.slices = m.watch(slicesName, &resourceapi.ResourceSlice{}, trimSlice,
			listWatchOf(o.Client.ResourceV1().ResourceSlices()))
		m.claims = m.watch(claimsName, &resourceapi.ResourceClaim{}, trimClaim,
			listWatchOf(o.Client.ResourceV1().ResourceClaims(metav1.NamespaceAll)))
	}
	return m
}

// SeesNodes reports whether the nodes are known.
func (m *Machines) SeesNodes() bool { return m.nodes != nil && m.nodes.HasSynced() }

// Notice returns why a node will go away soon, or "". known reports whether the informer has the node.
func (m *Machines) Notice(name string) (text string, known bool) {
	if !m.SeesNodes() {
		return "", false
	}
	o, found, err := m.nodes.GetStore().GetByKey(name)
	node, ok := o.(*corev1.Node)
	if err != nil || !found || !ok {
		return "", false
	}
	return podstatus.NodeNotice(node), true
}

// ListThenWatch makes an informer list before it watches. An informer that gets the list through its watch does not
// report that the API server refuses connections, or that the list is not allowed.
type ListThenWatch struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is called by client-go.
func (ListThenWatch) IsWatchListSemanticsUnSupported() bool { return true }

// listWatchOf lists and watches with a client of one resource.
func listWatchOf[L runtime.Object](client interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}) cache.ListWatch {
	return cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, o)
		},
		WatchFuncWithContext: client.Watch,
	}
}

// watch starts an informer of a resource, called name in sentences. It reports the first failure in the log.
func (m *Machines) watch(name string, of runtime.Object, trim cache.TransformFunc, lw cache.ListWatch,
) cache.SharedIndexInformer {
	informer := cache.NewSharedIndexInformer(ListThenWatch{&lw}, of, 0, nil)
	complain := func(_ context.Context, _ *cache.Reflector, err error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if apierrors.IsNotFound(err) { // before Kubernetes 1.34 there is another version of it, or none
			m.absent[name] = true
			return
		}
		before := m.denied[name]
		m.denied[name] = missing("the "+name, err)
		switch {
		case before != "":
		case apierrors.IsForbidden(err):
			m.o.Log.Warn("this gateway may not watch the "+name+", so notebooks do not announce that a node goes away, or the "+
				"view of GPUs is incomplete", logkey.Err, err)
		default:
			m.o.Log.Warn("the "+name+" cannot be watched; this is tried again", logkey.Err, err)
		}
	}
	for _, err := range []error{informer.SetTransform(trim), informer.SetWatchErrorHandlerWithContext(complain)} {
		if err != nil {
			panic("gpuview: an informer that has not been started rejects a setting: " + err.Error())
		}
	}
	if !m.o.Goroutines.Go(func() { informer.Run(m.o.Done) }) {
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
func (m *Machines) list() (seen seenMachines) {
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

// missingNodes and missingPods say why the view of GPUs is incomplete.
const (
	missingNodes = "The gateway does not see nodes, so totals are unknown. --watch-gpus and the component watch-gpus " +
		"change that."
	missingPods = "The gateway does not see other pods, so GPUs that they hold count as free. --watch-gpus and the " +
		"component watch-gpus change that."
)

func missing(what string, err error) string {
	return fmt.Sprintf("The gateway cannot list %s: %s.", what, strings.TrimSuffix(podstatus.ExplainError(err).Text, "."))
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
