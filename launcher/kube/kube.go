// Package kube runs kernels as pods of a Kubernetes cluster: each kernel's supervisor and the kernel itself are two containers
// of one pod, and that pod is the record of the kernel.
//
// The cluster is the only database. A launcher holds in memory what its informers have told it and what the supervisors say on
// their status streams; any number of launchers, in any number of gateways, serve the same kernels, and each can finish or
// undo what another has begun. A pod is made by one atomic create; its secret is derived from a master key that all gateways
// share, so that nobody has to read secrets. When a kernel has ended, its finished pod is its tombstone.
//
// Goroutines, all waited for by Close: the informers' own; one watch per kernel whose supervisor is there; tend, which looks
// now and then at what is due; reaping, which clears away while this gateway is the one chosen for that; admitting, which decides about limits likewise, where
// there are any; writeEndings; and what a call has to go on with after its caller has gone. Lock order: Launcher.mu is the only
// lock, and nothing is asked of the cluster while it is held.
package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// Defaults of Options.
const (
	DefaultDeadLinger = 15 * time.Minute
	DefaultStartLimit = 30 * time.Minute
	// DefaultKeepEndings is how long the reason of a kernel's end can be asked for.
	DefaultKeepEndings = 7 * 24 * time.Hour
)

const (
	apiTime     = 10 * time.Second // for one request to the API server: a frozen one must not freeze the gateway
	openStreams = 64               // status streams that are being opened at one time
)

// Options says where and how kernels are run.
type Options struct {
	Cluster   *Cluster
	Pods      PodOptions // what kernels' pods are made of, and where
	MasterKey []byte     // at least 32 bytes, the same in all gateways; not modified
	Peers     *Peers     // other replicas of this gateway; nil: there are none

	DeadLinger time.Duration // how long a dead kernel is shown; 0 for DefaultDeadLinger
	StartLimit time.Duration // after which a kernel that has never been up, and whose start makes no progress, is given up; 0 for DefaultStartLimit
	Log        *slog.Logger
	Observer   launcher.Observer // nil: nobody
	Limits     launcher.Limits   // of all gateways of the same kernels; nil: there are none

	// KeepEndings is how long the cluster keeps the reasons of kernels' ends, to the hour; 0 for DefaultKeepEndings.
	KeepEndings time.Duration
}

// timing is what tests shorten.
type timing struct {
	api         time.Duration // apiTime
	firstWord   time.Duration // for the first status, before a kernel is shown without any
	stop        time.Duration // for a supervisor to end its kernel, before its pod is deleted over its head
	removal     time.Duration // for a deleted pod to go
	fresh       time.Duration // how long the informer counts as fresh after the last proof
	tend        time.Duration // between two looks at all kernels
	half        time.Duration // age at which a pod without its secret is somebody else's business, too
	claim       time.Duration // for a client to learn of its kernel
	grace       time.Duration // for whoever has ended a kernel to delete its pod
	gather      time.Duration // for ends of kernels to come together, before they are written
	lease       leaseTiming
	admission   leaseTiming   // of who decides about limits
	decision    time.Duration // for a start to be decided about, before its client is told that it waits
	firstRedial time.Duration
	lastRedial  time.Duration
	resync      time.Duration // between two times that all that is known is entered anew; 0: never
	now         func() time.Time
}

// leaseTiming is how one gateway of all is chosen. Each retry is a request to the API server.
type leaseTiming struct {
	duration, renew, retry time.Duration
	release                bool // it is given back at the end, for which a cluster that does not answer is given as long as for a renewal
}

func realTiming() timing {
	return timing{api: apiTime, firstWord: time.Second, stop: 15 * time.Second, removal: 45 * time.Second, fresh: 10 * time.Second,
		tend: 5 * time.Second, half: 5 * time.Second, claim: 5 * time.Minute, grace: 10 * time.Second, gather: 200 * time.Millisecond,
		lease:     leaseTiming{duration: 30 * time.Second, renew: 20 * time.Second, retry: 5 * time.Second}, // nobody waits for it
		admission: leaseTiming{duration: 5 * time.Second, renew: 3 * time.Second, retry: time.Second, release: true}, decision: 20 * time.Second,
		firstRedial: 50 * time.Millisecond, lastRedial: 5 * time.Second, now: time.Now}
}

// Launcher runs kernels in pods; it implements launcher.Launcher.
type Launcher struct {
	// Fixed.
	opts       Options
	client     kubernetes.Interface
	namespaces []string // in which kernels may be
	timing     timing
	log        *slog.Logger
	informers  []cache.SharedIndexInformer // of pods, one for each namespace
	dialer     dialer
	opening    chan struct{} // a place for every status stream being opened
	cancel     context.CancelCauseFunc
	ctx        context.Context // the launcher's own life, ended by Close

	peers     *peers // nil: there are none
	opened    time.Time
	freshness freshness
	rights    rights

	// Guarded by mu.
	mu         sync.Mutex
	kernels    map[string]*kernel
	events     map[types.UID][]corev1.Event // newest of each pod, oldest first; a list is replaced, never changed
	endings    endings
	tally      supervisor.Tally
	gpuSeconds map[string]float64 // by kernelspec
	culls      map[launcher.Cull]int64
	unwatched  map[watched]bool // what cannot be watched at this moment
	term       *term            // not nil: this gateway decides about limits
	closed     bool
	running    sync.WaitGroup // added to under mu, while closed is false
}

var (
	errClosed   = fmt.Errorf("%w: this gateway is ending", launcher.ErrUnavailable)
	errNoAnswer = fmt.Errorf("%w: the cluster does not answer", launcher.ErrUnavailable)
)

// Open starts to watch the cluster and returns when it knows all kernels that there are. Status streams are opened in the
// background: a kernel that has not been heard of is Stale.
func Open(ctx context.Context, o Options) (*Launcher, error) {
	return open(ctx, o, realTiming(), newDialer)
}

func open(ctx context.Context, o Options, tm timing, reach func(*Cluster) dialer) (*Launcher, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	life, cancel := context.WithCancelCause(context.Background())
	past, err := newEndings()
	if err != nil {
		cancel(nil)
		return nil, err
	}
	l := &Launcher{opts: o, client: o.Cluster.client, namespaces: o.namespaces(), timing: tm, log: o.Log.With("component", "kube"), opening: make(chan struct{}, openStreams),
		cancel: cancel, ctx: life, kernels: map[string]*kernel{}, events: map[types.UID][]corev1.Event{}, endings: past,
		opened: tm.now(), tally: supervisor.NewTally(tm.now()), gpuSeconds: map[string]float64{}, culls: map[launcher.Cull]int64{}, unwatched: map[watched]bool{}}
	if o.Cluster.asked != nil {
		o.Cluster.asked.tell(o.Observer)
	}
	l.dialer = reach(o.Cluster)
	l.readEndings(ctx)
	if err := l.startInformers(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	if o.Peers != nil {
		if l.peers, err = l.startPeers(*o.Peers); err != nil {
			return nil, errors.Join(fmt.Errorf("replicas: %w", err), l.Close())
		}
	}
	for _, f := range []func(){l.tend, l.reaping, l.writeEndings} {
		l.own(f)
	}
	if o.Limits != nil {
		l.own(l.admitting)
	}
	return l, nil
}

// complete sets defaults and names a bad option.
func (o *Options) complete() error {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Observer == nil {
		o.Observer = launcher.Unobserved
	}
	o.DeadLinger = cmp.Or(o.DeadLinger, DefaultDeadLinger)
	o.StartLimit = cmp.Or(o.StartLimit, DefaultStartLimit)
	o.KeepEndings = cmp.Or(o.KeepEndings, DefaultKeepEndings)
	switch {
	case o.Cluster == nil:
		return errors.New("Cluster: none given")
	case len(o.MasterKey) < minMasterKey:
		return fmt.Errorf("MasterKey: %d bytes, %d are needed", len(o.MasterKey), minMasterKey)
	case o.DeadLinger < 0 || o.StartLimit < 0 || o.KeepEndings < 0:
		return errors.New("DeadLinger, StartLimit, KeepEndings: negative")
	}
	if err := o.Pods.Validate(); err != nil {
		return fmt.Errorf("Pods.%w", err)
	}
	return nil
}

// namespaces are all in which kernels may be.
func (o *Options) namespaces() []string {
	all := []string{o.Pods.Namespace}
	policy := o.Pods.Policy
	if policy == nil {
		policy = DefaultPolicy()
	}
	for _, ns := range policy.Namespaces() {
		if !slices.Contains(all, ns) {
			all = append(all, ns)
		}
	}
	return all
}

// Close stops watching and waits for every goroutine. Kernels go on.
func (l *Launcher) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cancel(errClosed)
	if l.peers != nil {
		l.peers.close()
	}
	l.running.Wait()
	l.dialer.close()
	return nil
}

// own runs f in a goroutine that Close waits for. It reports false if the launcher is closed.
func (l *Launcher) own(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ownLocked(f)
}

func (l *Launcher) ownLocked(f func()) bool {
	if l.closed {
		return false
	}
	l.running.Go(f)
	return true
}

// asking bounds one request to the API server. It ends with the launcher, too.
func (l *Launcher) asking(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, l.timing.api)
	stop := context.AfterFunc(l.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
