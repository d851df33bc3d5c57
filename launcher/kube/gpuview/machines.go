package gpuview

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
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
// resource allocation). Each needs rights for the whole cluster and runs while the gateway has them.
type Machines struct {
	o   Options
	all []*watchable // nodes first; the slice is constant
}

// watchable is what one informer watches.
type watchable struct {
	name     string // in sentences
	group    string // of the resource
	resource string // for which the rights to list and watch are needed
	hint     string // says what is missing without the rights; "": nothing is said
	of       runtime.Object
	trim     cache.TransformFunc
	lists    ListThenWatch

	mu       sync.Mutex
	informer cache.SharedIndexInformer // nil: not watched
	stop     context.CancelFunc        // ends informer
	denied   string                    // why it cannot be listed; "" if that is not known
	absent   bool                      // the cluster does not have it
}

// Options are what Watch needs.
type Options struct {
	Client     kubernetes.Interface
	Goroutines *goroutines.Group // in which informers run
	Life       context.Context   // ends the informers
	Review     time.Duration     // between two looks at the gateway's rights
	// Bound gives a request its deadline.
	Bound func(ctx context.Context) (context.Context, context.CancelFunc)
	Log   *slog.Logger
}

// Watch starts the informers of all that the gateway may list and watch. It looks at these rights again after each
// Review, and starts and ends informers accordingly. It looks again sooner if the cluster did not say.
func Watch(ctx context.Context, o Options) *Machines {
	m := &Machines{o: o, all: []*watchable{
		{name: "nodes", resource: "nodes", hint: missingNodes, of: &corev1.Node{}, trim: trimNode,
			lists: ListWatch(o.Client.CoreV1().Nodes(), nil)},
		{name: "pods of the cluster", resource: "pods", hint: missingPods, of: &corev1.Pod{}, trim: trimPod,
			lists: ListWatch(o.Client.CoreV1().Pods(metav1.NamespaceAll), nil)},
		{name: "resource slices", group: resourceapi.GroupName, resource: "resourceslices",
			of: &resourceapi.ResourceSlice{}, trim: trimSlice, lists: ListWatch(o.Client.ResourceV1().ResourceSlices(), nil)},
		{name: "resource claims", group: resourceapi.GroupName, resource: "resourceclaims",
			of: &resourceapi.ResourceClaim{}, trim: trimClaim,
			lists: ListWatch(o.Client.ResourceV1().ResourceClaims(metav1.NamespaceAll), nil)},
	}}
	pause := m.review(ctx)
	o.Goroutines.Go(func() {
		for goroutines.Sleep(o.Life, pause) == nil {
			pause = m.review(o.Life)
		}
	})
	return m
}

// unknownReview is the longest pause after which the cluster is asked again for rights of which it did not say
// anything.
const unknownReview = 10 * time.Second

// review asks for the rights to watch each resource, and follows them. It returns the pause before the next review.
func (m *Machines) review(ctx context.Context) (pause time.Duration) {
	pause = m.o.Review
	for _, r := range m.all {
		may, err := m.may(ctx, r)
		if err != nil || ctx.Err() != nil {
			pause = min(pause, unknownReview)
		}
		if ctx.Err() != nil {
			return pause
		}
		m.follow(r, may, err)
	}
	return pause
}

// follow starts the informer of a resource that the gateway may watch, and ends the one of a resource that it may not
// watch any more. The error says that the cluster did not say the right: then the informer stays as it is.
func (m *Machines) follow(r *watchable, may bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch watching := r.informer != nil; {
	case err != nil && !watching && r.denied == "":
		r.denied = "The cluster does not say whether the gateway may watch the " + r.name + ": " + err.Error()
		m.o.Log.Warn("the cluster does not say whether this gateway may watch the "+r.name, logkey.Err, err)
	case err != nil:
	case may && !watching:
		m.start(r)
	case may && r.informer.HasSynced():
		r.denied = "" // the next failure is reported again
	case may: // a failure to list stays reported
	case watching:
		r.stop()
		r.informer, r.stop, r.denied = nil, nil, ""
		m.o.Log.Warn("this gateway may no longer watch the " + r.name + ", so notebooks do not announce that a node goes " +
			"away, or the view of GPUs is incomplete")
	default:
		r.denied = ""
	}
}

// may reports whether the gateway may list and watch a resource in the whole cluster.
func (m *Machines) may(ctx context.Context, r *watchable) (bool, error) {
	for _, verb := range []string{"list", "watch"} {
		what := authorizationv1.ResourceAttributes{Group: r.group, Resource: r.resource, Verb: verb}
		asking, cancel := m.o.Bound(ctx)
		review, err := m.o.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(asking,
			&authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &what}}, metav1.CreateOptions{})
		cancel()
		if err == nil && !review.Status.Allowed && review.Status.EvaluationError != "" {
			err = errors.New(review.Status.EvaluationError)
		}
		if err != nil || !review.Status.Allowed {
			return false, err
		}
	}
	return true, nil
}

// watched returns the informer of a resource if it has listed it, or nil.
func (r *watchable) watched() cache.SharedIndexInformer {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.informer == nil || !r.informer.HasSynced() {
		return nil
	}
	return r.informer
}

// SeesNodes reports whether the nodes are known.
func (m *Machines) SeesNodes() bool { return m.all[0].watched() != nil }

// Notice returns why a node will go away soon, or "". known reports whether the informer has the node.
func (m *Machines) Notice(name string) (text string, known bool) {
	nodes := m.all[0].watched()
	if nodes == nil {
		return "", false
	}
	o, found, err := nodes.GetStore().GetByKey(name)
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

// ListWatch lists and then watches with a client of one resource. choose may narrow each request; nil: all objects.
func ListWatch[L runtime.Object](client interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}, choose func(*metav1.ListOptions)) ListThenWatch {
	if choose == nil {
		choose = func(*metav1.ListOptions) {}
	}
	return ListThenWatch{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			choose(&o)
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			choose(&o)
			return client.Watch(ctx, o)
		},
	}}
}

// start starts the informer of a resource, which reports the first failure in the log. The caller holds r.mu.
func (m *Machines) start(r *watchable) {
	informer := cache.NewSharedIndexInformer(r.lists, r.of, 0, nil)
	complain := func(_ context.Context, _ *cache.Reflector, err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.informer != informer {
			return
		}
		if apierrors.IsNotFound(err) { // before Kubernetes 1.34 there is another version of it, or none
			r.absent = true
			return
		}
		if r.denied == "" {
			m.o.Log.Warn("the "+r.name+" cannot be watched; this is tried again", logkey.Err, err)
		}
		r.denied = missing("the "+r.name, err)
	}
	for _, err := range []error{informer.SetTransform(r.trim), informer.SetWatchErrorHandlerWithContext(complain)} {
		if err != nil {
			panic("gpuview: an informer that has not been started rejects a setting: " + err.Error())
		}
	}
	ctx, stop := context.WithCancel(m.o.Life)
	if !m.o.Goroutines.Go(func() { informer.RunWithContext(ctx) }) {
		stop() // the launcher is closed
		return
	}
	r.informer, r.stop, r.absent, r.denied = informer, stop, false, ""
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
	for _, r := range m.all {
		if informer := r.watched(); informer != nil {
			for _, o := range informer.GetStore().List() {
				seen.add(o)
			}
		} else if text := r.lacking(); text != "" {
			seen.missing = append(seen.missing, text)
		}
	}
	return seen
}

// lacking says why the resource is not known; "" if nothing is to be said.
func (r *watchable) lacking() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.denied != "":
		return r.denied
	case r.informer == nil:
		return r.hint
	case r.absent:
		return ""
	}
	return "The gateway has not listed the " + r.name + " yet."
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
	missingNodes = "The gateway may not list and watch nodes, so totals are unknown. The component watch-gpus gives it " +
		"that right."
	missingPods = "The gateway may not list and watch the pods of the cluster, so GPUs that other pods hold count as " +
		"free. The component watch-gpus gives it that right."
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
