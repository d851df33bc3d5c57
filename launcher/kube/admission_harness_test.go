package kube

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/cluster"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/election"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
)

// testLimits limits the kernels, in all and for each owner.
type testLimits struct {
	all, each int
	off       atomic.Bool
}

func (l *testLimits) Set() bool { return !l.off.Load() }

func (l *testLimits) Decide(start launcher.Held, held []launcher.Held) (v launcher.Verdict) {
	own := 0
	for _, h := range held {
		if h.Owner == start.Owner {
			own++
		}
	}
	if len(held) >= l.all || own >= l.each {
		for _, h := range held {
			v.Against = append(v.Against, h.ID)
		}
		v.Refused = &launcher.LimitError{Limit: "test",
			Reason: fmt.Sprintf("there are %d of %d, %d of them of %s", len(held), l.all, own, start.Owner)}
	}
	return v
}

// fastAdmission makes elections take a second or two.
func fastAdmission(limits launcher.Limits) func(*Options, *timing) {
	return func(o *Options, tm *timing) {
		o.Limits = limits
		tm.maintenance = 20 * time.Millisecond
		tm.admission = election.Timing{
			Duration: 2 * time.Second,
			Renew:    1500 * time.Millisecond,
			Retry:    200 * time.Millisecond,
			Release:  true,
		}
	}
}

// replica is a gateway whose process can be stopped while it sends a decision.
type replica struct {
	*Launcher
	process *process
}

// process is a process that can be stopped and continued. While it is stopped, none of its requests reaches the
// cluster.
type process struct {
	mu      sync.Mutex
	strike  int           // number of the decision at which it is stopped; 0: never
	stopped chan struct{} // closed when it continues; nil: it runs
	struck  chan struct{} // closed when it was stopped
	late    error         // result of the decision at which it was stopped
	sent    chan struct{} // closed when late is set
}

func newProcess() *process { return &process{struck: make(chan struct{}), sent: make(chan struct{})} }

func (p *process) wait() {
	p.mu.Lock()
	stopped := p.stopped
	p.mu.Unlock()
	if stopped != nil {
		<-stopped
	}
}

// decides is called with a decision. It reports whether the process is stopped at it.
func (p *process) decides() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.strike == 0 {
		return false
	}
	if p.strike--; p.strike > 0 {
		return false
	}
	p.stopped = make(chan struct{})
	close(p.struck)
	return true
}

func (p *process) strikeAt(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.strike = n
}

func (p *process) goOn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped != nil {
		close(p.stopped)
		p.stopped = nil
	}
}

// isLate lets a stopped replica continue. Its decision must be rejected.
func (r *replica) isLate(t *testing.T) {
	t.Helper()
	r.process.goOn()
	<-r.process.sent
	if err := r.process.late; !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		t.Errorf("what was decided long ago is carried out: %v", err)
	}
}

// replicaClient is a replica's connection to the cluster.
type replicaClient struct {
	kubernetes.Interface
	p *process
}

func (c replicaClient) CoreV1() coreclient.CoreV1Interface {
	return replicaCore{c.Interface.CoreV1(), c.p}
}

func (c replicaClient) CoordinationV1() coordinationclient.CoordinationV1Interface {
	return replicaCoordination{c.Interface.CoordinationV1(), c.p}
}

type replicaCore struct {
	coreclient.CoreV1Interface
	p *process
}

func (c replicaCore) Pods(ns string) coreclient.PodInterface {
	return replicaPods{c.CoreV1Interface.Pods(ns), c.p}
}

type replicaPods struct {
	coreclient.PodInterface
	p *process
}

func (r replicaPods) Create(ctx context.Context, pod *corev1.Pod, o metav1.CreateOptions) (*corev1.Pod, error) {
	r.p.wait()
	return r.PodInterface.Create(ctx, pod, o)
}

func (r replicaPods) List(ctx context.Context, o metav1.ListOptions) (*corev1.PodList, error) {
	r.p.wait()
	return r.PodInterface.List(ctx, o)
}

func (r replicaPods) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions,
	sub ...string) (*corev1.Pod, error) {
	if strings.Contains(string(data), "schedulingGates") && r.p.decides() {
		r.p.wait()
		pod, err := r.PodInterface.Patch(context.WithoutCancel(ctx), name, pt, data, o, sub...)
		r.p.late = err
		close(r.p.sent)
		return pod, err
	}
	r.p.wait()
	return r.PodInterface.Patch(ctx, name, pt, data, o, sub...)
}

type replicaCoordination struct {
	coordinationclient.CoordinationV1Interface
	p *process
}

func (c replicaCoordination) Leases(ns string) coordinationclient.LeaseInterface {
	return replicaLeases{c.CoordinationV1Interface.Leases(ns), c.p}
}

type replicaLeases struct {
	coordinationclient.LeaseInterface
	p *process
}

func (r replicaLeases) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error) {
	r.p.wait()
	return r.LeaseInterface.Get(ctx, name, o)
}

func (r replicaLeases) Update(ctx context.Context, lease *coordinationv1.Lease,
	o metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	r.p.wait()
	return r.LeaseInterface.Update(ctx, lease, o)
}

// openReplica opens another gateway of a cluster. Its lease lasts for the given time after its process was stopped.
func openReplica(t *testing.T, c *testCluster, limits launcher.Limits, lease time.Duration) *replica {
	t.Helper()
	p := newProcess()
	l := openTest(t, c, func(o *Options, tm *timing) {
		fastAdmission(limits)(o, tm)
		tm.admission.Duration, tm.admission.Renew = lease, lease*3/4
		client := replicaClient{c.Clientset, p}
		o.Cluster = &cluster.Cluster{Client: client, Leases: client, Namespace: "ns"}
	})
	t.Cleanup(p.goOn) // before Close
	return &replica{l, p}
}

// census counts the cluster's kernels at one moment.
type census struct {
	admitted, waiting int
	byOwner           map[string]int
}

// census counts the kernels. Its callers hold the fake's lock, or no request is running.
func (c *testCluster) census() census {
	now := census{byOwner: map[string]int{}}
	list, err := c.Tracker().List(corev1.SchemeGroupVersion.WithResource("pods"),
		corev1.SchemeGroupVersion.WithKind("Pod"), "ns")
	if err != nil {
		panic(err)
	}
	for _, pod := range list.(*corev1.PodList).Items {
		switch {
		case podstatus.IsUndecided(&pod):
			now.waiting++
		case !podstatus.IsGated(&pod) && !podstatus.HasEnded(&pod):
			now.admitted++
			now.byOwner[pod.Annotations[podspec.AnnotationOwner]]++
		}
	}
	return now
}

// watchLimits checks that no change of a pod exceeds the limits.
func (c *testCluster) watchLimits(t *testing.T, limits *testLimits) {
	c.PrependReactor("patch", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		patch, ok := a.(k8stesting.PatchActionImpl)
		if !ok {
			return false, nil, nil
		}
		_, o, err := c.patchPod(patch)
		if now := c.census(); err == nil && limits.Set() {
			if now.admitted > limits.all {
				t.Errorf("%d kernels are there, %d may be", now.admitted, limits.all)
			}
			for owner, n := range now.byOwner {
				if n > limits.each {
					t.Errorf("%d kernels of %s are there, %d may be", n, owner, limits.each)
				}
			}
		}
		return true, o, err
	})
}

// leader returns the replica that decides, nil if no replica does.
func leader(all []*replica) *replica {
	for _, r := range all {
		r.mu.Lock()
		leads := r.term.Holds()
		r.mu.Unlock()
		if leads {
			return r
		}
	}
	return nil
}

func awaitLeader(t *testing.T, all []*replica) *replica {
	t.Helper()
	eventually(t, "one decides", func() bool { return leader(all) != nil })
	return leader(all)
}

func (c *testCluster) pod(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	pod, err := c.CoreV1().Pods("ns").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// openWithoutLease opens a gateway that never gets the lease, with a clock that the test moves.
func openWithoutLease(t *testing.T, c *testCluster, limits launcher.Limits) (*Launcher, *atomic.Int64) {
	t.Helper()
	var now atomic.Int64
	l := openTest(t, c, func(o *Options, tm *timing) {
		fastReaper(&now)(o, tm)
		o.Limits = limits
		tm.decision = 50 * time.Millisecond
		tm.admission = election.Timing{Duration: time.Hour, Renew: 30 * time.Minute, Retry: 20 * time.Minute}
	})
	return l, &now
}

// otherLeads makes another gateway, which does nothing, hold the lease.
func (c *testCluster) otherLeads(t *testing.T) {
	t.Helper()
	now := metav1.NowMicro()
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: admissionLease},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       new("another"),
			LeaseDurationSeconds: new(int32(3600)),
			AcquireTime:          &now,
			RenewTime:            &now,
		},
	}
	if _, err := c.CoordinationV1().Leases("ns").Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}
