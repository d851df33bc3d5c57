package seats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	leases "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"pgregory.net/rapid"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gpumemory"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/podseat"
)

var resource = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

const testGPU = "GPU-0A7E3F52"

// server is an API server with one lease. It rejects what does not follow from the present version.
type server struct {
	leases.LeaseInterface
	mu      sync.Mutex
	lease   *coordinationv1.Lease
	version int
	down    bool   // no request is answered, and none is carried out
	lost    bool   // answers of changes are lost
	between func() // called once, before the next change is compared
}

func (s *server) Get(_ context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.down:
		return nil, errors.New("connection refused")
	case s.lease == nil || s.lease.Name != name:
		return nil, apierrors.NewNotFound(resource, name)
	}
	return s.lease.DeepCopy(), nil
}

func (s *server) Create(_ context.Context, l *coordinationv1.Lease, _ metav1.CreateOptions,
) (*coordinationv1.Lease, error) {
	return s.store(l, func() error {
		if s.lease != nil {
			return apierrors.NewAlreadyExists(resource, l.Name)
		}
		return nil
	})
}

func (s *server) Update(_ context.Context, l *coordinationv1.Lease, _ metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	return s.store(l, func() error {
		if s.lease == nil || s.lease.ResourceVersion != l.ResourceVersion {
			return apierrors.NewConflict(resource, l.Name, errors.New("it has changed"))
		}
		return nil
	})
}

func (s *server) store(l *coordinationv1.Lease, refused func() error) (*coordinationv1.Lease, error) {
	if f := s.between; f != nil {
		s.between = nil
		f()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return nil, errors.New("connection refused")
	}
	if err := refused(); err != nil {
		return nil, err
	}
	l = l.DeepCopy()
	s.version++
	l.ResourceVersion = strconv.Itoa(s.version)
	s.lease = l
	if s.lost {
		return nil, errors.New("no answer")
	}
	return l.DeepCopy(), nil
}

// line returns what the lease says.
func (s *server) line() Line {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease == nil {
		return Line{}
	}
	l, err := read(s.lease)
	if err != nil {
		panic(err)
	}
	return l
}

// pod is a kernel's pod, with the seat of a real supervisor.
type pod struct {
	place Place
	job   bool
	file  string
	seat  *podseat.Seat
	turn  gpumemory.Turn // not nil: it waits
	own   bool           // it computes on the GPU
	gone  bool
	order *[]string // of those that got the GPU
}

func (p *pod) open(t require, w *world) {
	seat, err := podseat.Open(p.file, p.job, w.changed, w.clock)
	if err != nil {
		t.Fatal(err)
	}
	p.seat, p.turn = seat, nil
	own, err := seat.Owns()
	if err != nil || p.own && !own {
		t.Fatalf("%s is started again and has lost its GPU: %v", p.place.Kernel, err)
	}
	p.own = own
}

// look takes the GPU if it was granted to a kernel that waits.
func (p *pod) look(t require) {
	if p.turn == nil {
		return
	}
	taken, _, err := p.turn.Take()
	if err != nil {
		t.Fatal(err)
	}
	if taken {
		p.own = true
		p.turn.Leave()
		p.turn = nil
		*p.order = append(*p.order, p.place.Kernel)
	}
}

type require interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// told is what a supervisor is told later.
type told struct {
	to   *podseat.Seat
	news api.SeatNews
}

// world is some pods that share a GPU, and two gateways.
type world struct {
	server  *server
	pods    []*pod
	now     time.Time
	clock   func() time.Time
	order   []string
	servers [2]*Server
	views   [2]map[string]Member // what each gateway has heard last
	lines   [2]*gpu
	late    []told
	tells   string // "now", "late", or "never"
	mu      sync.Mutex
	changed func()
}

func newWorld(t require, dir string, n int, clock func() time.Time) *world {
	w := &world{server: &server{}, now: time.Unix(1e9, 0), tells: "now", changed: func() {}}
	w.clock = func() time.Time { return w.now }
	if clock != nil {
		w.clock = clock
	}
	for i := range n {
		name := fmt.Sprint("k", i)
		p := &pod{place: Place{Kernel: name, Namespace: "ns", Pod: name + "-1", UID: "uid-" + name}, job: i == n-1,
			file: filepath.Join(dir, name), order: &w.order}
		p.open(t, w)
		w.pods = append(w.pods, p)
	}
	for i := range w.servers {
		w.views[i] = map[string]Member{}
		w.lines[i] = &gpu{told: map[string]time.Time{}}
		w.servers[i] = New(Options{Leases: w.server, Gone: w.gone, Tell: w.tell, Log: slog.New(slog.DiscardHandler),
			Now:     w.clock,
			Members: func() []Member { return w.members(i) }})
	}
	return w
}

func (w *world) pod(uid string) *pod {
	return w.pods[slices.IndexFunc(w.pods, func(p *pod) bool { return p.place.UID == uid })]
}

func (w *world) gone(_ context.Context, p Place) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod(p.UID).gone, nil
}

func (w *world) tell(_ context.Context, m Member, n api.SeatNews) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pod(m.UID)
	switch {
	case p.gone:
		return errors.New("no such pod")
	case w.tells == "late":
		w.late = append(w.late, told{p.seat, n})
		return errors.New("no answer")
	case w.tells == "never":
		return errors.New("no route")
	}
	return p.seat.Told(n)
}

// hear lets a gateway hear what a pod's supervisor says now.
func (w *world) hear(gateway int, p *pod) {
	if p.gone {
		delete(w.views[gateway], p.place.UID)
		return
	}
	w.views[gateway][p.place.UID] = Member{p.place, p.seat.Say([]api.GPU{{UUID: testGPU}})}
}

func (w *world) members(gateway int) (all []Member) {
	for _, p := range w.pods {
		if m, ok := w.views[gateway][p.place.UID]; ok {
			all = append(all, m)
		}
	}
	return all
}

func (w *world) serve(ctx context.Context, gateway int) {
	w.servers[gateway].serve(ctx, testGPU, w.lines[gateway], w.members(gateway))
}

// check fails if two pods have the GPU, or one that the lease does not name.
func (w *world) check(t require) {
	line := w.server.line()
	for _, p := range w.pods {
		if s := p.seat.Say(nil); !p.gone && (s.Holds != 0 || p.own) &&
			(line.Holder == nil || line.Holder.UID != p.place.UID || line.Grant != s.Holds) {
			t.Fatalf("%s has the GPU by grant %d, and the lease says %+v", p.place.Kernel, s.Holds, line)
		}
	}
}

// TestServer_Model: whatever gateways and supervisors hear late, lose, repeat or forget, and whatever is killed: no two
// kernels have the GPU. When all is heard again, each kernel that waits gets its turn: the first that asked first, and
// jobs last.
func TestServer_Model(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		one, err := os.MkdirTemp(dir, "")
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, one, 4, nil)
		gateway, which := rapid.IntRange(0, 1), rapid.IntRange(0, len(w.pods)-1)
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { w.check(t) },
			"time passes": func(t *rapid.T) {
				w.now = w.now.Add(rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, time.Minute}).Draw(t, "time"))
			},
			"a kernel needs the GPU": func(t *rapid.T) {
				p := w.pods[which.Draw(t, "pod")]
				if p.gone || p.own || p.turn != nil {
					t.Skip("it has it, or waits")
				}
				w.now = w.now.Add(time.Millisecond)
				turn, err := p.seat.Wait(w.now)
				if err != nil {
					t.Fatal(err)
				}
				p.turn = turn
			},
			"a kernel looks": func(t *rapid.T) { w.pods[which.Draw(t, "pod")].look(t) },
			"a kernel is interrupted": func(t *rapid.T) {
				if p := w.pods[which.Draw(t, "pod")]; p.turn != nil {
					p.turn.Leave()
					p.turn = nil
				}
			},
			"a kernel gives the GPU back": func(t *rapid.T) {
				p := w.pods[which.Draw(t, "pod")]
				if !p.own || p.gone {
					t.Skip("it has none")
				}
				p.own = false
				if err := p.seat.Return(); err != nil {
					t.Fatal(err)
				}
			},
			"a supervisor is killed": func(t *rapid.T) {
				if p := w.pods[which.Draw(t, "pod")]; !p.gone {
					p.open(t, w)
				}
			},
			"a pod ends": func(t *rapid.T) {
				if i := which.Draw(t, "pod"); i > 1 { // two stay
					w.pods[i].gone, w.pods[i].own, w.pods[i].turn = true, false, nil
				}
			},
			"a gateway hears a pod": func(t *rapid.T) { w.hear(gateway.Draw(t, "gateway"), w.pods[which.Draw(t, "pod")]) },
			"a gateway loses a pod": func(t *rapid.T) {
				delete(w.views[gateway.Draw(t, "gateway")], w.pods[which.Draw(t, "pod")].place.UID)
			},
			"a gateway acts": func(t *rapid.T) {
				i := gateway.Draw(t, "gateway")
				w.tells = rapid.SampledFrom([]string{"now", "late", "never"}).Draw(t, "tells")
				switch rapid.SampledFrom([]string{"", "", "down", "lost", "race"}).Draw(t, "fault") {
				case "down":
					w.server.down = true
				case "lost":
					w.server.lost = true
				case "race":
					w.server.between = func() { w.serve(t.Context(), 1-i) }
				}
				w.serve(t.Context(), i)
				w.server.down, w.server.lost, w.server.between = false, false, nil
			},
			"a supervisor is told late": func(t *rapid.T) {
				if len(w.late) == 0 {
					t.Skip("nothing")
				}
				i := rapid.IntRange(0, len(w.late)-1).Draw(t, "what")
				// The supervisor that was to hear it may have been replaced: then the connection is broken.
				if p := slices.IndexFunc(w.pods, func(p *pod) bool { return p.seat == w.late[i].to }); p >= 0 && !w.pods[p].gone {
					if err := w.late[i].to.Told(w.late[i].news); err != nil {
						t.Fatal(err)
					}
				}
				w.late = slices.Delete(w.late, i, i+1)
			},
		})
		w.settle(t)
	})
}

// settle lets all hear each other, and checks that all that wait get their turn.
func (w *world) settle(t *rapid.T) {
	w.tells = "now"
	round := func() {
		for i := range w.servers {
			for _, p := range w.pods {
				w.hear(i, p)
			}
			w.serve(t.Context(), i)
			w.check(t)
		}
		for _, p := range w.pods {
			p.look(t)
		}
		w.check(t)
	}
	round()
	w.order = nil
	var waiting []Place
	for _, p := range w.pods {
		if p.turn != nil {
			s := p.seat.Say(nil)
			waiting = append(waiting, Place{Kernel: p.place.Kernel, Since: s.Since, Last: s.Last})
		}
	}
	slices.SortFunc(waiting, func(a, b Place) int {
		if a.Last != b.Last {
			return map[bool]int{true: 1, false: -1}[a.Last]
		}
		return a.Since.Compare(b.Since)
	})
	for range 3 * len(w.pods) {
		for _, p := range w.pods {
			if p.own {
				p.own = false
				if err := p.seat.Return(); err != nil {
					t.Fatal(err)
				}
			}
		}
		round()
	}
	var want []string
	for _, p := range waiting {
		want = append(want, p.Kernel)
	}
	if !slices.Equal(w.order, want) {
		t.Fatalf("the GPU went to %v, not to %v; %+v", w.order, want, w.server.line())
	}
	if line := w.server.line(); line.Holder != nil || len(line.Waiting) != 0 {
		t.Fatalf("nobody has it or waits, and the lease says %+v", line)
	}
}

// TestServer_Run: Run serves what changes, tells those that wait why, and ends with its context.
func TestServer_Run(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, t.TempDir(), 3, time.Now)
		ctx, end := context.WithCancel(t.Context())
		var running sync.WaitGroup
		heard := func(i int) {
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, p := range w.pods {
				w.hear(i, p)
			}
		}
		members := w.servers[0].opts.Members
		w.servers[0].opts.Members = func() []Member {
			heard(0)
			w.mu.Lock()
			defer w.mu.Unlock()
			return members()
		}
		running.Go(func() { w.servers[0].Run(ctx) })
		wait := func(p *pod) {
			turn, err := p.seat.Wait(time.Now())
			if err != nil {
				t.Fatal(err)
			}
			p.turn = turn
			w.servers[0].Changed()
			synctest.Wait()
			p.look(t)
		}
		a, b := w.pods[0], w.pods[1]
		if wait(a); !a.own {
			t.Fatalf("a free GPU is not granted: %+v", w.server.line())
		}
		wait(b)
		if b.own || !a.seat.Wanted() || gpumemory.Waits(b.seat, 0) != "another kernel has it" {
			t.Fatalf("%v %v %q", b.own, a.seat.Wanted(), gpumemory.Waits(b.seat, 0))
		}
		until := time.Now().Add(time.Hour)
		if err := a.seat.Keep(until); err != nil {
			t.Fatal(err)
		}
		w.servers[0].Changed()
		time.Sleep(time.Second)
		synctest.Wait()
		if text := gpumemory.Waits(b.seat, 0); !strings.Contains(text, "kept until") {
			t.Errorf("%q", text)
		}

		// Without the API server, those that wait say so, and the holder keeps what it has.
		w.server.mu.Lock()
		w.server.down = true
		w.server.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		if text := gpumemory.Waits(b.seat, 0); text != unreachable {
			t.Errorf("%q", text)
		}
		w.server.mu.Lock()
		w.server.down = false
		w.server.mu.Unlock()
		w.mu.Lock()
		a.gone = true
		w.mu.Unlock()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if b.look(t); !b.own {
			t.Errorf("the GPU of a pod that has ended is not granted: %+v", w.server.line())
		}
		end()
		running.Wait()
		wait(w.pods[2])
		time.Sleep(time.Minute)
		if text := gpumemory.Waits(w.pods[2].seat, 0); text != "no gateway answers" {
			t.Errorf("%q", text)
		}
	})
}

// TestLine_Next: what a line becomes in cases that the model meets rarely.
func TestLine_Next(t *testing.T) {
	now := time.Unix(1e9, 0).UTC()
	place := func(id string, since time.Duration) Place {
		return Place{Kernel: id, Namespace: "ns", Pod: id + "-1", UID: id, Since: now.Add(since)}
	}
	member := func(id string, seat api.Seat) Member { return Member{place(id, 0), seat} }
	waits := func(id string, since time.Duration, last bool) Member {
		return member(id, api.Seat{Since: now.Add(since), Last: last})
	}
	names := func(l Line) string {
		text := "-"
		if l.Holder != nil {
			text = l.Holder.Kernel
		}
		for _, p := range l.Waiting {
			text += " " + p.Kernel
		}
		return text
	}
	a := place("a", 0)
	for _, c := range []struct {
		name    string
		line    Line
		members []Member
		want    string
	}{
		{"one that is not heard is passed over, and keeps its place", Line{Waiting: []Place{place("b", 1)}},
			[]Member{waits("c", 2, false)}, "c b"},
		{"a pod that is gone has no place", Line{Grant: 1, Holder: &a, Waiting: []Place{place("gone", 1), place("b", 2)}},
			[]Member{member("a", api.Seat{Holds: 1})}, "a b"},
		{"jobs come last", Line{Grant: 1, Holder: &a}, []Member{waits("job", 1, true), waits("c", 3, false),
			waits("b", 2, false), member("a", api.Seat{Holds: 1})}, "a b c job"},
		{"a pod that is gone has no GPU", Line{Grant: 1, Holder: &Place{Kernel: "gone", UID: "gone"}},
			[]Member{waits("b", 1, false)}, "b"},
		{"a holder that is not heard keeps the GPU", Line{Grant: 1, Holder: &a}, []Member{waits("b", 1, false)}, "a b"},
		{"what an earlier grant says changes nothing", Line{Grant: 2, Holder: &a},
			[]Member{member("a", api.Seat{Returned: 1}), waits("b", 1, false)}, "a b"},
		{"a removed Lease is made again", Line{}, []Member{waits("b", 1, false), member("a", api.Seat{Holds: 7})}, "a b"},
		{"one that waits no more leaves", Line{Grant: 1, Holder: &a, Waiting: []Place{place("b", 1), place("c", 2)}},
			[]Member{member("a", api.Seat{Holds: 1}), member("b", api.Seat{}), waits("c", 2, false)}, "a c"},
	} {
		got := c.line.Next(c.members, func(p Place) bool { return p.Kernel == "gone" }, now)
		if names(got) != c.want || got.Grant < c.line.Grant || (got.Grant == c.line.Grant) != (got.Holder == c.line.Holder) {
			t.Errorf("%s: %s by grant %d, want %s", c.name, names(got), got.Grant, c.want)
		}
	}
}

// TestServer_Conflict: a gateway whose change is refused tries again with what the other one has written.
func TestServer_Conflict(t *testing.T) {
	w := newWorld(t, t.TempDir(), 3, nil)
	for i, p := range w.pods {
		w.now = w.now.Add(time.Second)
		if _, err := p.seat.Wait(w.now); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			w.hear(0, p)
			w.serve(t.Context(), 0)
		}
		w.hear(i%2, p)
	}
	w.server.between = func() { w.serve(t.Context(), 1) }
	w.serve(t.Context(), 0)
	l := w.server.line()
	if l.Holder == nil || l.Holder.Kernel != "k0" || len(l.Waiting) != 2 || l.Waiting[0].Kernel != "k1" {
		t.Errorf("%+v", l)
	}
}
