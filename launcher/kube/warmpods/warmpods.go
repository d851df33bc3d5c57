// Package warmpods has the warm kernels of a cluster: their pods, how a start takes one, and which of them give way to
// a kernel that waits for their GPUs. Package warm decides how many there are. Package kube has the kernels, behind the
// interface Kernels.
//
// The pod of a warm kernel is no kernel's pod for any gateway, until a start takes it. That is one patch of exactly one
// version of the pod, so two starts never take the same. The patch makes it a pod like any other, with an owner. Then
// the gateway assigns the kernel in it. If it dies before, the reaper removes the kernel. Nothing makes a pod warm
// again.
//
// Begin with New and Store.Rest. The goroutine of the informer belongs to the group that the options name. Store.mu is
// the last that is locked, and no request is made while it is held.
package warmpods

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/gpuview"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/warm"
)

const (
	selectWarm = podspec.LabelManagedBy + "=" + podspec.ManagerWarm

	startLimit = 10 * time.Minute // for the containers of a warm kernel to run
	proof      = 15 * time.Second // for which they run if the kernelspec works
	claimTries = 4                // kernels that one start tries to take
	reportTime = time.Minute      // for the watch to report a pod that was created; then the pod is read
)

// Kernels is what a launcher knows and does about kernels. All methods may be called concurrently.
type Kernels interface {
	// GPUWaits returns the pods of kernels for which the scheduler finds too few GPUs, the longest first.
	GPUWaits() []gpuview.Wait
	// GPUs returns which GPUs the nodes have, with who holds them.
	GPUs() launcher.GPUs
	// Unowned returns the pods that were warm, and have no owner yet or never get one.
	Unowned() []*corev1.Pod
	// Why says what keeps a pod from running, "" if nothing is known.
	Why(pod *corev1.Pod) string
	// CreateParts creates what a new pod needs besides. It deletes the pod if that fails.
	CreateParts(ctx context.Context, pod *corev1.Pod) error
	// Allows reports whether limits seem to allow the start of the kernel of a record.
	Allows(pod *corev1.Pod, rec podspec.Record) bool
	// Admit records a pod that was just taken, and waits until limits admit it. Without that it ends the pod. The error
	// is one of the start.
	Admit(ctx context.Context, pod *corev1.Pod) (admitted bool, err error)
	// Discard removes a pod that was taken and could not be given to its owner.
	Discard(ctx context.Context, pod *corev1.Pod)
	// Given tells of a kernel that has got its owner since a start was requested, and returns the kernel.
	Given(ctx context.Context, pod *corev1.Pod, requested time.Time) (launcher.Kernel, error)
	// Failed returns the error of a start whose request to the cluster has failed.
	Failed(ctx context.Context, err error) error
}

// Options configures a Store. All but Wanted and Resync are needed.
type Options struct {
	Pods      typedcorev1.PodInterface // of the namespace of warm kernels
	Build     podbuild.Options
	MasterKey string      // fingerprint of the one for new pods
	Limits    func() bool // at this moment a start waits for a decision of limits
	Kernels   Kernels

	Supervisor func(*corev1.Pod) (*api.Client, error) // of a pod

	// Wanted returns which warm kernels there shall be. nil: this gateway has none, and leaves those of others alone.
	Wanted func() []launcher.Warm

	Bound      func(context.Context) (context.Context, context.CancelFunc) // bounds one request
	Now        func() time.Time                                            // by the clock of this process
	ClusterNow func() time.Time                                            // by the cluster's clock
	Resync     time.Duration                                               // of the informer
	Life       context.Context
	Goroutines *goroutines.Group
	Log        *slog.Logger
}

// Store is the warm kernels of one cluster, as package warm keeps them. All methods may be called concurrently, Rest
// and Keep by one goroutine at a time.
type Store struct {
	*warm.Pool[podbuild.WarmKind]

	// Fixed.
	o      Options
	pods   cache.SharedIndexInformer // nil: this gateway has no warm kernels
	urgent chan struct{}             // capacity 1: a pod waits for GPUs

	// Owned by Keep.
	rooms  map[types.UID]madeRoom       // of pods that wait for GPUs
	waited map[corev1.ResourceName]bool // what pods wait for in this round
	listed map[string]*corev1.Pod       // by kernel, in this round

	refused atomic.Int64 // starts that wait until a quota does not count a warm kernel any more

	mu   sync.Mutex
	made map[string]madeWarm // by id: created ones that the watch has not reported
}

// madeWarm is a warm kernel that this gateway has created.
type madeWarm struct {
	spec string
	pod  string // name
	at   time.Time
}

// New returns a Store that watches the pods of warm kernels until Life ends.
func New(o Options) (*Store, error) {
	s := &Store{o: o, urgent: make(chan struct{}, 1), made: map[string]madeWarm{}}
	s.Pool = warm.NewPool(o.Wanted, s, o.Now, o.Log)
	if o.Wanted == nil {
		return s, nil
	}
	lists := gpuview.ListWatch(o.Pods, func(lo *metav1.ListOptions) { lo.LabelSelector = selectWarm })
	s.pods = cache.NewSharedIndexInformer(lists, &corev1.Pod{}, o.Resync, nil)
	_, err := s.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) {
		if pod, ok := o.(*corev1.Pod); ok {
			s.forgetMade(pod.Labels[podspec.LabelKernel])
		}
	}})
	if err := errors.Join(err, s.pods.SetTransform(podbuild.TrimmedObject), s.pods.SetWatchErrorHandlerWithContext(
		func(_ context.Context, _ *cache.Reflector, err error) {
			o.Log.Warn("warm kernels cannot be watched; this is tried again", logkey.Err, err)
		})); err != nil {
		return nil, err
	}
	o.Goroutines.Go(func() { s.pods.Run(o.Life.Done()) })
	return s, nil
}

// Pods returns the pods of warm kernels, the oldest first.
func (s *Store) Pods() (all []*corev1.Pod) {
	if s.pods == nil {
		return nil
	}
	for _, o := range s.pods.GetStore().List() {
		if pod, ok := o.(*corev1.Pod); ok && pod.Labels[podspec.LabelManagedBy] == podspec.ManagerWarm {
			all = append(all, pod)
		}
	}
	slices.SortFunc(all, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// staying returns the pods of warm kernels that are not being deleted, the oldest first.
func (s *Store) staying() []*corev1.Pod {
	return slices.DeleteFunc(s.Pods(), func(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil })
}

// Runs reports whether both containers of a pod run.
func Runs(pod *corev1.Pod) bool {
	for _, name := range []string{podspec.ContainerSupervisor, podspec.ContainerKernel} {
		if st := podstatus.ContainerStatus(pod, name); st == nil || st.State.Running == nil {
			return false
		}
	}
	return true
}

// Rest waits until the reaper's next round. It keeps the warm kernels meanwhile if a pod waits for GPUs. The error is
// that of ctx.
func (s *Store) Rest(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return nil
		case <-s.urgent:
			s.Keep(ctx)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Notice wakes the reaper if the scheduler finds too few GPUs for a kernel's pod.
func (s *Store) Notice(pod *corev1.Pod) {
	if _, waits := gpuview.WaitOf(pod); waits && pod.DeletionTimestamp == nil {
		goroutines.Wake(s.urgent)
	}
}

// Keep ends warm kernels that are not wanted, and creates those that are missing. The reaper calls it.
func (s *Store) Keep(ctx context.Context) {
	if s.pods == nil || !s.pods.HasSynced() {
		return
	}
	if err := s.Round(ctx); err != nil {
		s.o.Log.Warn("warm kernels cannot be kept; this is tried again", logkey.Err, err)
	}
}

// missing is the reason where fewer warm kernels exist than are wanted, and nothing else is known.
const missing = "not all of its pods have been created"

// Ahead returns the warm kernels of each kernelspec that wants some.
func (s *Store) Ahead() (all []launcher.Ahead) {
	pods := map[string][]*corev1.Pod{}
	for _, pod := range s.staying() {
		name := specOf(pod)
		pods[name] = append(pods[name], pod)
	}
	for _, a := range s.Pool.Ahead() {
		waits := ""
		for _, pod := range pods[a.SpecName] {
			if pod.Spec.NodeName != "" {
				a.Ready++
				continue
			}
			if a.Waiting++; waits == "" {
				waits = s.o.Kernels.Why(pod)
			}
		}
		switch {
		case waits != "":
			a.Reason = waits
		case a.Ready+a.Waiting < a.Wanted:
			a.Reason = cmp.Or(a.Reason, missing)
		default:
			a.Reason = ""
		}
		all = append(all, a)
	}
	return all
}

// Kind returns from what the warm kernels of a plain start are created.
func (s *Store) Kind(start launcher.Request) (kind podbuild.WarmKind, content string, err error) {
	kind, err = podbuild.NewWarmKind(s.o.Build, start)
	return kind, kind.Content, err
}

// List returns the warm kernels, after some have given way to pods that wait for GPUs. A pod that was taken and has no
// owner counts for no limit, so no other pod replaces it before it is gone.
func (s *Store) List(ctx context.Context) (all []warm.Kernel, err error) {
	for _, pod := range s.o.Kernels.Unowned() {
		if rec, err := podspec.ReadRecord(pod); err == nil {
			all = append(all, warm.Kernel{ID: rec.ID, SpecName: rec.SpecName, State: warm.Leaving})
		}
	}
	var ended map[types.UID]bool
	s.waited, ended = s.giveWay(ctx)
	s.listed = map[string]*corev1.Pod{}
	unreported := s.unreported(ctx) // first: the watch may report one meanwhile
	for _, pod := range s.Pods() {
		rec, err := podspec.ReadRecord(pod)
		if err != nil {
			continue
		}
		delete(unreported, rec.ID)
		s.listed[rec.ID] = pod
		k := s.look(pod, rec)
		if ended[pod.UID] {
			k.State = warm.Leaving
		}
		all = append(all, k)
	}
	for id, spec := range unreported {
		all = append(all, warm.Kernel{ID: id, SpecName: spec, State: warm.Created})
	}
	return all, nil
}

// WhyNot says whether pods wait for the GPUs of a kind.
func (s *Store) WhyNot(kind podbuild.WarmKind) string {
	if s.refused.Load() > 0 && len(kind.GPUs) > 0 ||
		slices.ContainsFunc(kind.GPUs, func(name corev1.ResourceName) bool { return s.waited[name] }) {
		return launcher.WaitsForGPU
	}
	return ""
}

// look returns what a pod says about its warm kernel.
func (s *Store) look(pod *corev1.Pod, rec podspec.Record) warm.Kernel {
	k := warm.Kernel{ID: rec.ID, SpecName: rec.SpecName, Content: pod.Annotations[podspec.AnnotationWarm]}
	age, runs := s.o.ClusterNow().Sub(since(pod)), Runs(pod)
	waits := pod.Spec.NodeName == "" && len(podspec.GPUAmounts(pod)) > 0 // for as long as it takes
	switch {
	case pod.DeletionTimestamp != nil:
		k.State = warm.Leaving
	case podstatus.HasEnded(pod), !runs && hasRun(pod), !runs && !waits && age > startLimit:
		k.State = warm.Failed
		k.Reason = cmp.Or(s.o.Kernels.Why(pod), "its containers do not run")
	case runs && age > proof:
		k.State = warm.Proven
	case pod.Spec.NodeName == "":
		k.Reason = s.o.Kernels.Why(pod)
	}
	return k
}

// Delete deletes the pod of a warm kernel that is not wanted. It counts until it is gone.
func (s *Store) Delete(ctx context.Context, k warm.Kernel) bool {
	pod := s.listed[k.ID]
	asking, cancel := s.o.Bound(ctx)
	defer cancel()
	err := s.delete(asking, pod, nil)
	switch {
	case err == nil:
		s.o.Log.Info("warm kernel is not wanted any more", logkey.Kernel, k.ID, logkey.Spec, k.SpecName)
	case !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil:
		s.warnOf(pod, err)
	}
	return true
}

// warnOf says that a pod could not be deleted.
func (s *Store) warnOf(pod *corev1.Pod, err error) {
	s.o.Log.Warn("the pod of a warm kernel could not be removed; this is tried again", logkey.Pod, pod.Name,
		logkey.Err, err)
}

// since returns when a pod was scheduled, or created if it has no node.
func since(pod *corev1.Pod) time.Time {
	since := pod.CreationTimestamp.Time
	if c := gpuview.PodScheduled(pod); c != nil && c.Status == corev1.ConditionTrue && c.LastTransitionTime.After(since) {
		since = c.LastTransitionTime.Time
	}
	return since
}

// hasRun reports whether a container of a pod has ended.
func hasRun(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(st corev1.ContainerStatus) bool {
		return st.RestartCount > 0 || st.State.Terminated != nil
	})
}

// specOf returns the name of the kernelspec of a pod.
func specOf(pod *corev1.Pod) string {
	rec, err := podspec.ReadRecord(pod)
	if err != nil {
		return ""
	}
	return rec.SpecName
}

// Create creates the pod and the secret of a warm kernel.
func (s *Store) Create(ctx context.Context, kind podbuild.WarmKind) error {
	id := uuid.NewString()
	pod, err := kind.Build(s.o.Build,
		podspec.Record{ID: id, Created: s.o.ClusterNow().UTC().Round(0), MasterKey: s.o.MasterKey})
	if err != nil {
		return err
	}
	name := specOf(pod)
	s.noteMade(id, name, pod.Name)
	asking, cancel := s.o.Bound(ctx)
	defer cancel()
	made, err := s.o.Pods.Create(asking, pod, metav1.CreateOptions{})
	if err != nil {
		s.forgetMade(id)
		return errors.New(podstatus.ExplainError(err).Text)
	}
	if err := s.o.Kernels.CreateParts(ctx, made); err != nil {
		s.forgetMade(id)
		return err
	}
	s.o.Log.Info("warm kernel was created", logkey.Kernel, id, logkey.Spec, name, logkey.Pod, made.Name)
	return nil
}

// noteMade notes that a warm kernel is about to be created. Until the watch reports it, the reaper counts it: the next
// round would create another one. The store of the watch is not changed, since it may have a newer state already.
func (s *Store) noteMade(id, spec, pod string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made[id] = madeWarm{spec, pod, s.o.Now()}
}

func (s *Store) forgetMade(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.made, id)
}

// unreported returns the kernelspecs of the warm kernels that were created and that the watch has not reported, by id.
// A watch may be late, so it reads the pod of one that was created long ago.
func (s *Store) unreported(ctx context.Context) map[string]string {
	specs, late := map[string]string{}, map[string]string{}
	s.mu.Lock()
	for id, m := range s.made {
		specs[id] = m.spec
		if now := s.o.Now(); now.Sub(m.at) > reportTime {
			late[id] = m.pod
			m.at = now
			s.made[id] = m
		}
	}
	s.mu.Unlock()
	for id, pod := range late {
		asking, cancel := s.o.Bound(ctx)
		_, err := s.o.Pods.Get(asking, pod, metav1.GetOptions{})
		cancel()
		if apierrors.IsNotFound(err) {
			s.forgetMade(id)
			delete(specs, id)
		}
	}
	return specs
}
