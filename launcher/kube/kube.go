// Package kube runs kernels as pods of a Kubernetes cluster. A pod has two containers: the kernel's supervisor and the
// kernel itself. cmd/ekg opens a Launcher, which implements launcher.Launcher. Package podbuild decides what a pod
// looks like, podstatus explains why a pod is not running, and poddial connects to the supervisors in pods. Begin with
// Open and Start (start.go), then watch.go, which follows the pods, kernel.go, which derives a kernel's state from its
// pod, and maintain.go, which does what is due for each kernel.
//
// The pod is the record of its kernel, and the cluster is the only database. A launcher holds in memory what its
// informers and the supervisors' status streams report. Any number of launchers, in any number of gateways, serve the
// same kernels, and each can finish or undo what another has begun. A pod is created by one atomic request. Its secret
// is derived from a master key that all gateways share, so that no gateway needs to read secrets. When a kernel has
// ended, its finished pod tells why.
//
// Goroutines, all waited for by Close: two informers, of pods and of events, for each namespace or for all together;
// one for each followed supervisor (package follow); maintain; keepBeat, which notices that this process was frozen;
// reap, which removes leftovers and keeps warm kernels while this gateway is elected for that, with an informer of
// nodes if they are watched; that of package warmpods; those of package seats; decideAboutLimits, by election too, if
// there are limits; the writer of endings; with other replicas, those of package replicas; and calls that go on after
// their callers have left.
//
// Lock order: kernel.notesLock, replicas.Replicas.completing, freshness.mu, Launcher.mu; the locks namespaces.Set.mu,
// replicas.Replicas.mu, endings.Store.mu, warmpods.Store.mu, podevents.Store.mu, gpuview.Tally.mu, answers.mu,
// freshness.marksLock, watches.mu, election.Election.mu and admission.Term.mu are taken last. No request to the cluster
// is made while Launcher.mu is held.
package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/follow"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/admission"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/cluster"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/election"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/endings"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/gpuview"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/homes"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/namespaces"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/objects"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/poddial"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podevents"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/records"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/replicas"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/seats"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/warmpods"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// startLimit is how long a start may make no progress before it is given up.
const startLimit = 30 * time.Minute

// Options configures a Launcher.
type Options struct {
	Cluster   *cluster.Cluster
	Pods      podbuild.Options // how and where kernels' pods are built
	MasterKey []byte           // at least 32 bytes, the same in all gateways; not modified
	Version   string           // of this program, which its replicas show

	// SecondMasterKey is nil, or another key of at least 32 bytes. Kernels and replicas with this key are reached, too.
	// No new kernel gets it.
	SecondMasterKey []byte

	DeadLinger time.Duration // how long a dead kernel is shown; 0 for api.DefaultDeadLinger
	Log        *slog.Logger
	Observer   launcher.Observer // nil: events are ignored
	Limits     launcher.Limits   // the same for all gateways of the same kernels; nil: no limits

	// EvictIdleAfter is how long a kernel is idle before the cluster's autoscalers may evict its pod; 0: they never may.
	EvictIdleAfter time.Duration

	// Warm returns which warm kernels are wanted. It is called by several goroutines. nil: this gateway has none, and
	// leaves those of others alone.
	Warm func() []launcher.Warm
}

// timing holds the durations that tests shorten.
type timing struct {
	api           time.Duration // cluster.AnswerTime
	firstStatus   time.Duration // for the first status; after that the kernel is shown without a status
	stop          time.Duration // for a supervisor to end its kernel; after that the pod is deleted
	removal       time.Duration // for a deleted pod to disappear
	fresh         time.Duration // how long the informers count as fresh after a proof
	maintenance   time.Duration // between two rounds over all kernels
	secretOverdue time.Duration // age at which other gateways create a pod's missing secret, too
	claim         time.Duration // for a client to learn of its kernel
	grace         time.Duration // for the gateway that has ended a kernel to delete its pod
	gatherEndings time.Duration // for endings to be collected before they are written
	lease         election.Timing
	admission     election.Timing // of the gateway that decides about limits
	decision      time.Duration   // for a decision about a start; after that the client reads that the start waits
	rights        time.Duration   // between two looks at which machines this gateway may watch
	firstRedial   time.Duration
	lastRedial    time.Duration
	resync        time.Duration // between two resyncs of the informers; 0: never
	now           func() time.Time
}

func realTiming() timing {
	return timing{
		api:           cluster.AnswerTime,
		firstStatus:   time.Second,
		stop:          15 * time.Second,
		removal:       45 * time.Second,
		fresh:         10 * time.Second,
		maintenance:   5 * time.Second,
		secretOverdue: 5 * time.Second,
		claim:         5 * time.Minute,
		grace:         10 * time.Second,
		gatherEndings: 200 * time.Millisecond,
		// no client waits for it
		lease: election.Timing{Duration: 30 * time.Second, Renew: 25 * time.Second, Retry: 5 * time.Second},
		admission: election.Timing{
			Duration: 5 * time.Second,
			Renew:    4 * time.Second,
			Retry:    time.Second,
			Release:  true,
		},
		decision:    20 * time.Second,
		rights:      5 * time.Minute,
		firstRedial: 50 * time.Millisecond,
		lastRedial:  5 * time.Second,
		now:         time.Now,
	}
}

// Launcher runs kernels in pods. It implements launcher.Launcher. All methods may be called concurrently.
type Launcher struct {
	launcher.RecordKeeper // records
	bounded               // requests

	// Fixed.
	opts        Options
	keys        podspec.MasterKeys
	namespaces  *namespaces.Set
	timing      timing
	supervisors poddial.Supervisors
	follower    *follow.Follower
	cancel      context.CancelCauseFunc

	replicas  *replicas.Replicas // nil: none
	opened    time.Time
	freshness freshness
	answers   answers
	absent    *lru.Cache[string, time.Time] // when the cluster did not have a kernel, by its id
	homes     *homes.Homes
	objects   *objects.Objects
	records   *records.Store
	endings   *endings.Store
	reaper    *reaper
	machines  *gpuview.Machines
	warm      *warmpods.Store
	events    *podevents.Store
	watches   *watches
	gpuTime   gpuview.Tally
	seats     *seats.Server

	// Guarded by mu.
	mu          sync.Mutex
	kernels     map[string]*kernel
	ordered     []*kernel       // by creation; nil if it must be made; replaced, never changed
	readers     readerIndex     // the kernels that each user may see
	noticesSent int             // notices about nodes that are being sent
	term        *admission.Term // not nil: this gateway decides about limits

	goroutines goroutines.Group
}

var (
	errClosed   = fmt.Errorf("%w: this gateway is ending", launcher.ErrUnavailable)
	errNoAnswer = fmt.Errorf("%w: the cluster does not answer", launcher.ErrUnavailable)
)

// Open starts to watch the cluster. It returns when it knows all existing kernels. Status streams are opened in the
// background: a kernel without a status is Stale.
func Open(ctx context.Context, o Options) (*Launcher, error) {
	return open(ctx, o, realTiming(), (*cluster.Cluster).Dialer)
}

func open(ctx context.Context, o Options, tm timing, reach func(*cluster.Cluster) poddial.Dialer) (*Launcher, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	keys, err := podspec.NewMasterKeys(o.MasterKey, o.SecondMasterKey)
	if err != nil {
		return nil, err
	}
	life, cancel := context.WithCancelCause(context.Background())
	absent, err := lru.New[string, time.Time](absentKept)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	l := &Launcher{
		absent:     absent,
		opts:       o,
		bounded:    bounded{client: o.Cluster.Client, ctx: life, limit: tm.api, log: o.Log.With(logkey.Component, "kube")},
		keys:       keys,
		namespaces: namespaces.New(o.Pods),
		timing:     tm,
		cancel:     cancel,
		kernels:    map[string]*kernel{},
		readers:    readerIndex{},
		opened:     tm.now(),
	}
	l.events = podevents.New(l.namespaces.MayHave)
	l.watches = &watches{client: l.client, ctx: life, resync: tm.resync, namespaces: l.namespaces, answers: &l.answers,
		goroutines: &l.goroutines, log: l.log, broken: map[watchKey]bool{}}
	o.Cluster.Report(o.Observer, l.answers.kick)
	if o.Warm != nil && o.Pods.NamespacePerOwner() {
		l.log.Info("each owner's kernels have a namespace of their own: warm kernels are not used")
		l.opts.Warm = func() []launcher.Warm { return nil } // those of earlier gateways are ended
	}
	l.homes = homes.New(homes.Options{Cluster: o.Cluster, Pods: o.Pods, Watched: l.namespaces.Watched(),
		Bound: l.apiContext, Unavailable: l.unavailable, Now: l.clusterNow, Log: l.log})
	l.objects = objects.New(objects.Options{Cluster: o.Cluster, Pods: o.Pods, Keys: keys, Bound: l.apiContext, Life: life})
	l.reaper = &reaper{l: l}
	l.seats = turns{l}.newServer()
	second := "none"
	if len(keys) > 1 {
		second = keys[1].Fingerprint
	}
	l.log.Info("master keys", logkey.MasterKey, keys[0].Fingerprint, logkey.SecondKey, second)
	l.supervisors = poddial.Supervisors{Dialer: reach(o.Cluster), Keys: keys}
	l.follower = follow.New(life, follow.Options{Lock: &l.mu, Goroutines: &l.goroutines, FirstRedial: tm.firstRedial,
		LastRedial: tm.lastRedial, Since: l.opened, Log: l.log, Now: tm.now})
	at, err := findPeers(ctx, o.Cluster, l.apiContext, l.log)
	if at != nil {
		l.replicas, err = sharedKernels{l}.newReplicas(at, replicas.Options{Name: cmp.Or(hostName(l.log), "ekg")})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("replicas: %w", err), l.Close())
	}
	l.records = records.New(records.Options{
		ConfigMaps: l.client.CoreV1().ConfigMaps(o.Pods.Namespace),
		Keys:       keys,
		Log:        l.log,
		Metadata: func(ctx context.Context, lo metav1.ListOptions) ([]metav1.ObjectMeta, string, error) {
			return o.Cluster.ConfigMapsMetadata(ctx, o.Pods.Namespace, lo)
		},
		Bound:       l.apiContext,
		Unavailable: l.unavailable,
		Now:         l.clusterNow,
	})
	l.RecordKeeper = l.records
	l.endings, err = endings.New(endings.Options{
		ConfigMaps: l.client.CoreV1().ConfigMaps,
		Timeout:    tm.api,
		Now:        l.clusterNow,
		Opened:     func() time.Time { return o.Cluster.Time(l.opened) },
		Gather:     tm.gatherEndings,
		Log:        l.log,
	})
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	for _, ns := range l.namespaces.Common() {
		l.endings.Read(ctx, ns)
	}
	if err := l.watches.start(ctx, o.Pods.Namespace, handlers{
		updated:   func(pod *corev1.Pod) { l.handlePod(pod, l.updatePod) },
		removed:   func(pod *corev1.Pod) { l.handlePod(pod, l.podRemoved) },
		event:     l.handleEvent,
		trimEvent: l.events.Trim,
	}); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	l.freshness.proved(tm.now())
	if l.warm, err = newWarm(l); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	if l.replicas != nil {
		if err := (sharedKernels{l}).join(ctx); err != nil {
			return nil, errors.Join(fmt.Errorf("replicas: %w", err), l.Close())
		}
	}
	l.machines = gpuview.Watch(ctx, gpuview.Options{Client: l.client, Goroutines: &l.goroutines, Life: life,
		Review: tm.rights, Bound: l.apiContext, Log: l.log})
	l.goroutines.Go(func() { l.seats.Run(life) })
	keepBeat, writeEndings := func() { l.freshness.keepBeat(life) }, func() { l.endings.Write(life) }
	for _, f := range []func(){l.maintain, keepBeat, l.reaper.reap, writeEndings} {
		l.goroutines.Go(f)
	}
	if o.Limits != nil {
		l.goroutines.Go(admissionCluster{l}.decideAboutLimits)
	}
	return l, nil
}

// complete sets defaults and rejects bad options by name.
func (o *Options) complete() error {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Observer == nil {
		o.Observer = launcher.NoObserver
	}
	o.DeadLinger = cmp.Or(o.DeadLinger, api.DefaultDeadLinger)
	switch {
	case o.Cluster == nil:
		return errors.New("Cluster: none given")
	case o.DeadLinger < 0 || o.EvictIdleAfter < 0:
		return errors.New("DeadLinger, EvictIdleAfter: negative")
	}
	if err := o.Pods.Validate(); err != nil {
		return fmt.Errorf("Pods.%w", err)
	}
	return nil
}

// Close ends every goroutine of the launcher and waits for them. Kernels keep running.
func (l *Launcher) Close() error {
	l.goroutines.Close()
	l.cancel(errClosed)
	l.replicas.Close()
	l.goroutines.Wait()
	l.supervisors.Close(errClosed)
	return nil
}

// clusterNow is the time by the API server's clock.
func (l *Launcher) clusterNow() time.Time { return l.opts.Cluster.Time(l.timing.now()) }
