// Package seats lets the kernels of several pods take turns at one GPU. Their pods share it, as the replicas of
// time-slicing do, and each kernel gives it back while it is parked. Who has the GPU is written in a Lease of the
// cluster, which is named after the GPU's UUID; its annotation has those who wait. Any gateway changes it, and the API
// server rejects a change of a Lease that another gateway has changed meanwhile. Supervisors say in their status what
// they wish, and a gateway tells them what the Lease says. Begin with New and Server.Run; line.go has the rules.
//
// A GPU never has two holders. The Lease names the new holder before its supervisor is told. The Lease is freed after
// the supervisor has said that it has given the grant back, or when the pod is gone. Each grant has a number of its
// own, so what is said late about an earlier grant changes nothing.
//
// Run waits for the goroutines that it starts: one for each GPU whose line changes, at most linesAtOnce, and one for
// each supervisor that one of them tells something.
package seats

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	leases "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const (
	linesAtOnce = 16               // GPUs whose lines are being changed
	tellsAtOnce = 8                // supervisors of one GPU that are being told
	look        = time.Second      // between two rounds if nothing happens
	lookAgain   = 5 * time.Second  // until a line with kernels that wait is read again
	tellAgain   = 10 * time.Second // until a kernel that waits is told the same again
	changeTime  = 10 * time.Second // for the API server to take a change
	tellTime    = 5 * time.Second  // for a supervisor to take what it is told
	conflicts   = 20               // attempts to change a Lease that others change too
)

// unreachable is what kernels show that wait while this gateway cannot change the Lease.
const unreachable = "the gateway cannot reach the cluster"

// Options are the options of a Server. All are required.
type Options struct {
	Leases  leases.LeaseInterface // of the namespace of the Leases
	Labels  map[string]string     // of the Leases
	Members func() []Member       // the kernels that are heard now and whose GPU is known
	// Gone reports whether a pod has no processes any more.
	Gone func(ctx context.Context, p Place) (bool, error)
	// Tell tells a member's supervisor.
	Tell func(ctx context.Context, m Member, n api.SeatNews) error
	Now  func() time.Time // of the API server
	Log  *slog.Logger
}

// Server changes the lines as the kernels wish that one gateway hears.
type Server struct {
	opts    Options
	changed chan struct{} // capacity 1
	lines   map[string]*gpu
	busy    chan struct{} // capacity linesAtOnce; one element for each line that is being changed

	mu sync.Mutex // guards the fields of each gpu
}

// gpu is what a Server has done last about a GPU.
type gpu struct {
	busy    bool
	seen    uint64    // hash of what its members had said
	at      time.Time // when its line was read last; zero: it has to be read
	waiting bool      // somebody waited then
	failed  string
	told    map[string]time.Time // when a member was told last, by the pod's UID; the goroutine that is busy owns it
}

// New returns a Server that does nothing yet.
func New(o Options) *Server {
	return &Server{opts: o, changed: make(chan struct{}, 1), lines: map[string]*gpu{},
		busy: make(chan struct{}, linesAtOnce)}
}

// Changed notes that a member may have said something new. It does not wait.
func (s *Server) Changed() { goroutines.Wake(s.changed) }

// Run changes the lines until ctx ends.
func (s *Server) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		s.round(ctx, &running)
		select {
		case <-s.changed:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

var seed = maphash.MakeSeed() // of hashes that stay in the process

// round starts the work on the lines that may have to be changed.
func (s *Server) round(ctx context.Context, running *sync.WaitGroup) {
	members := map[string][]Member{}
	for _, m := range s.opts.Members() {
		members[m.Seat.GPU] = append(members[m.Seat.GPU], m)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for uuid := range members {
		if s.lines[uuid] == nil {
			s.lines[uuid] = &gpu{told: map[string]time.Time{}}
		}
	}
	for uuid, g := range s.lines {
		var h maphash.Hash
		h.SetSeed(seed)
		waiting := g.waiting
		for _, m := range members[uuid] {
			fmt.Fprintf(&h, "%s %+v\n", m.UID, m.Seat) //nolint:errcheck // a hash takes all
			waiting = waiting || m.waits()
		}
		seen := h.Sum64()
		if g.busy || seen == g.seen && (!waiting || time.Since(g.at) < lookAgain) {
			if !g.busy && len(members[uuid]) == 0 && !g.at.IsZero() && !g.waiting {
				delete(s.lines, uuid)
			}
			continue
		}
		if g.failed != "" && time.Since(g.at) < look {
			continue
		}
		select {
		case s.busy <- struct{}{}:
		default:
			continue // the next round does it
		}
		g.busy, g.seen = true, seen
		running.Go(func() {
			defer s.Changed()
			defer func() { <-s.busy }()
			s.serve(ctx, uuid, g, members[uuid])
		})
	}
}

// serve changes the line of one GPU, and tells its members.
func (s *Server) serve(ctx context.Context, uuid string, g *gpu, members []Member) {
	line, err := s.change(ctx, uuid, members)
	failure := ""
	if err != nil {
		failure = err.Error()
		if failure != g.failed && ctx.Err() == nil {
			s.opts.Log.Warn("the line of a GPU cannot be changed; this is tried again", logkey.Lease, leaseName(uuid),
				logkey.Err, err)
		}
	}
	s.tell(ctx, g, line, err, members)
	s.mu.Lock()
	defer s.mu.Unlock()
	g.busy, g.at, g.failed = false, time.Now(), failure
	g.waiting = err != nil || len(line.Waiting) > 0
	if err != nil {
		g.seen = 0
	}
}

// change writes the next line of a GPU, and returns it.
func (s *Server) change(ctx context.Context, uuid string, members []Member) (Line, error) {
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	for range conflicts {
		next, err := s.attempt(ctx, uuid, members)
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
			continue // another gateway was faster
		}
		return next, err
	}
	return Line{}, errors.New("other gateways change it all the time")
}

// attempt is change, and fails if another gateway changes the line meanwhile.
func (s *Server) attempt(ctx context.Context, uuid string, members []Member) (Line, error) {
	name := leaseName(uuid)
	lease, err := s.opts.Leases.Get(ctx, name, metav1.GetOptions{})
	absent := apierrors.IsNotFound(err)
	if absent {
		lease, err = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: s.opts.Labels}}, nil
	}
	if err != nil {
		return Line{}, fmt.Errorf("it cannot be read: %w", err)
	}
	line, err := read(lease)
	if err != nil {
		return Line{}, err
	}
	var failed error
	now := s.opts.Now()
	next := line.Next(members, func(p Place) bool {
		gone, err := s.opts.Gone(ctx, p)
		if err != nil {
			failed = fmt.Errorf("pod %s/%s: %w", p.Namespace, p.Pod, err)
		}
		return gone && err == nil
	}, now)
	if failed != nil {
		return Line{}, failed
	}
	if next.equal(&line) {
		return next, nil
	}
	lease = lease.DeepCopy()
	if err := next.write(lease, now); err != nil {
		return Line{}, err
	}
	if absent {
		_, err = s.opts.Leases.Create(ctx, lease, metav1.CreateOptions{})
	} else {
		_, err = s.opts.Leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if err != nil {
		return Line{}, fmt.Errorf("it cannot be written: %w", err)
	}
	if h := next.Holder; h != nil && next.Grant != line.Grant {
		s.opts.Log.Info("a kernel gets a GPU that pods share", logkey.Kernel, h.Kernel, logkey.Lease, leaseName(uuid))
	}
	return next, nil
}

// leaseName returns the name of a GPU's Lease.
func leaseName(uuid string) string {
	return "ekg-gpu-" + strings.TrimPrefix(strings.ToLower(uuid), "gpu-")
}

// tell tells the members what they do not know. If the line could not be changed, those that wait learn it.
func (s *Server) tell(ctx context.Context, g *gpu, line Line, failure error, members []Member) {
	var running sync.WaitGroup
	slots := make(chan struct{}, tellsAtOnce)
	heard := map[string]time.Time{}
	for _, m := range members {
		n, concerned := line.news(&m)
		if failure != nil {
			n, concerned = api.SeatNews{Problem: unreachable}, m.waits()
		}
		last := g.told[m.UID]
		heard[m.UID] = last
		stale := m.waits() && time.Since(last) >= tellAgain
		if !concerned || !stale && (failure != nil || n.Same(m.Seat.News)) {
			continue
		}
		heard[m.UID] = time.Now()
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			limited, cancel := context.WithTimeout(ctx, tellTime)
			defer cancel()
			if err := s.opts.Tell(limited, m, n); err != nil && ctx.Err() == nil {
				s.opts.Log.Debug("a supervisor does not hear whose turn it is", logkey.Kernel, m.Kernel, logkey.Err, err)
			}
		})
	}
	running.Wait()
	g.told = heard // those that are not heard any more are forgotten
}
