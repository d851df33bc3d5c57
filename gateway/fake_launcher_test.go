package gateway

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// fakeLauncher keeps kernels in memory, each with a supervisor that is a real HTTP server on a unix socket. A function
// field that is set replaces one method.
type fakeLauncher struct {
	launchertest.MemoryRecords

	t   testing.TB
	dir string

	start func(context.Context, launcher.Request) (launcher.Kernel, bool, error)
	dial  func(context.Context, string) (net.Conn, error)
	list  func() ([]launcher.Kernel, error)

	restarting func(id string) (func(), error)

	// stopping is called before a kernel is stopped.
	stopping func(id string)

	ended    []launcher.EndedKernel
	endedErr error
	usage    []launcher.KernelUsage
	usageErr error
	// measures are what it says besides its kernels.
	measures launcher.Measures

	// token is what supervisors demand.
	token string

	// newState is the state of a kernel that Start has made.
	newState api.State

	mu           sync.Mutex
	kernels      map[string]*fakeKernel
	gone         map[string]*launcher.GoneError
	reqs         []launcher.Request
	stops        map[string]string // reason by id
	stopRequests map[string]string // the request's id by id
	claims       []string
	dials        int
	changed      chan struct{} // closed at every change
}

type fakeKernel struct {
	launcher.Kernel
	super *fakeSupervisor // nil once it has ended
}

func newFakeLauncher(t testing.TB) *fakeLauncher {
	t.Helper()
	dir, err := os.MkdirTemp("", "ekg-gw")
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeLauncher{t: t, dir: dir, newState: api.Idle, kernels: map[string]*fakeKernel{},
		gone: map[string]*launcher.GoneError{}, stops: map[string]string{}, stopRequests: map[string]string{},
		changed: make(chan struct{})}
	t.Cleanup(func() {
		for _, k := range f.kernels {
			if k.super != nil {
				k.super.close()
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return f
}

// change runs f under the lock and wakes everyone in Wait.
func (f *fakeLauncher) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeLauncher) add(id, spec string, state api.State) *fakeSupervisor {
	var s *fakeSupervisor
	f.change(func() {
		s = newFakeSupervisor(f.t, id, filepath.Join(f.dir, id[len(id)-12:]+fmt.Sprint(len(f.reqs))))
		f.kernels[id] = &fakeKernel{Kernel: launcher.Kernel{ID: id, SpecName: spec, State: state,
			Created: time.Date(2026, 11, 21, 5, 53, 26, 0, time.UTC).Add(time.Duration(len(f.kernels)) * time.Second)}, super: s}
	})
	return s
}

// addStarting adds a kernel that has no supervisor yet. One is made with give.
func (f *fakeLauncher) addStarting(id, reason string) {
	f.change(func() {
		f.kernels[id] = &fakeKernel{Kernel: launcher.Kernel{ID: id, SpecName: "python3", State: api.Starting, Reason: reason,
			Stale: true, Created: time.Date(2026, 11, 21, 5, 53, 26, 0, time.UTC)}}
	})
}

// give gives a kernel its supervisor, which is as prepare leaves it when the first connection comes.
func (f *fakeLauncher) give(id string, prepare func(*fakeSupervisor)) {
	s := newFakeSupervisor(f.t, id, filepath.Join(f.dir, id[len(id)-12:]))
	prepare(s)
	f.change(func() { f.kernels[id].super, f.kernels[id].Stale, f.kernels[id].Reason = s, false, "" })
}

func (f *fakeLauncher) set(id string, state api.State, reason string) {
	f.change(func() { f.kernels[id].State, f.kernels[id].Reason = state, reason })
}

func (f *fakeLauncher) stopped() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := map[string]string{}
	for k, v := range f.stops {
		m[k] = v
	}
	return m
}

func (f *fakeLauncher) requests() []launcher.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.reqs)
}

func (f *fakeLauncher) Start(ctx context.Context, req launcher.Request) (launcher.Kernel, bool, error) {
	if f.start != nil {
		return f.start(ctx, req)
	}
	return f.startForReal(req)
}

func (f *fakeLauncher) startForReal(req launcher.Request) (launcher.Kernel, bool, error) {
	f.mu.Lock()
	k, there := f.kernels[req.ID]
	f.reqs = append(f.reqs, req)
	f.mu.Unlock()
	if there {
		if k.SpecName != req.Spec.Name || k.Owner != req.Owner {
			return launcher.Kernel{}, false, launcher.ErrConflict
		}
		return k.Kernel, false, nil
	}
	f.add(req.ID, req.Spec.Name, f.newState)
	f.change(func() {
		f.kernels[req.ID].Owner = req.Owner
		f.kernels[req.ID].Profile = req.Spec.Profile
		if req.Flavor != nil {
			f.kernels[req.ID].Flavor = req.Flavor.Name
		}
	})
	k2, err := f.Kernel(context.Background(), req.ID)
	return k2, true, err
}

func (f *fakeLauncher) Kernel(ctx context.Context, id string) (launcher.Kernel, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if k, ok := f.kernels[id]; ok {
		return k.Kernel, nil
	}
	if err := launcher.CountLookup(ctx); err != nil {
		return launcher.Kernel{}, err
	}
	if gone, ok := f.gone[id]; ok {
		return launcher.Kernel{}, gone
	}
	return launcher.Kernel{}, fmt.Errorf("fake: %w", launcher.ErrNotFound)
}

func (f *fakeLauncher) Kernels(context.Context) ([]launcher.Kernel, error) {
	if f.list != nil {
		return f.list()
	}
	return f.listForReal()
}

func (f *fakeLauncher) KernelsFor(ctx context.Context, _ string, _ []string) ([]launcher.Kernel, error) {
	return f.Kernels(ctx)
}

func (f *fakeLauncher) ViewGPUs(context.Context) (launcher.GPUs, error) { return launcher.GPUs{}, nil }

func (f *fakeLauncher) FlavorRoom(context.Context, []flavor.Flavor) (
	map[string]launcher.GPURoom, launcher.GPUs, error,
) {
	return nil, launcher.GPUs{}, nil
}

func (f *fakeLauncher) GPUWaits(context.Context) ([]launcher.GPUWait, error) { return nil, nil }

func (f *fakeLauncher) listForReal() ([]launcher.Kernel, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []launcher.Kernel
	for _, k := range f.kernels {
		all = append(all, k.Kernel)
		all[len(all)-1].Notes = k.Notes.Clone()
	}
	slices.SortFunc(all, func(a, b launcher.Kernel) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return all, nil
}

func (f *fakeLauncher) Ended(context.Context, string) ([]launcher.EndedKernel, error) {
	return f.ended, f.endedErr
}

func (f *fakeLauncher) Usage(context.Context, string) ([]launcher.KernelUsage, error) {
	return f.usage, f.usageErr
}

func (f *fakeLauncher) Wait(ctx context.Context, id string, cond func(launcher.Kernel) bool) (launcher.Kernel, error) {
	for {
		f.mu.Lock()
		changed := f.changed
		f.mu.Unlock()
		k, err := f.Kernel(ctx, id)
		if err != nil || cond(k) {
			return k, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return k, ctx.Err()
		}
	}
}

func (f *fakeLauncher) Claim(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.claims = append(f.claims, id)
}

// claimed returns how often a kernel was claimed.
func (f *fakeLauncher) claimed(id string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(f.claims), func(c string) bool { return c != id }))
}

func (f *fakeLauncher) Revive(_ context.Context, id string) (launcher.Kernel, error) {
	f.mu.Lock()
	if k := f.kernels[id]; k.super != nil {
		defer f.mu.Unlock()
		return k.Kernel, nil
	}
	spec := f.kernels[id].SpecName
	f.reqs = append(f.reqs, launcher.Request{ID: id})
	f.mu.Unlock()
	f.add(id, spec, f.newState)
	return f.Kernel(context.Background(), id)
}

func (f *fakeLauncher) Restarting(_ context.Context, id string) (func(), error) {
	if f.restarting != nil {
		return f.restarting(id)
	}
	return func() {}, nil
}

func (f *fakeLauncher) Stop(ctx context.Context, id, reason string) error {
	f.mu.Lock()
	k, ok := f.kernels[id]
	f.mu.Unlock()
	if !ok {
		return launcher.ErrNotFound
	}
	if f.stopping != nil {
		f.stopping(id)
	}
	if k.super != nil {
		k.super.close()
	}
	f.change(func() {
		delete(f.kernels, id)
		f.stops[id] = reason
		f.stopRequests[id] = launcher.RequestID(ctx)
	})
	return nil
}

func (f *fakeLauncher) UpdateNotes(
	_ context.Context, id string, change func(launcher.Notes) (launcher.Notes, error),
) (launcher.Notes, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k, ok := f.kernels[id]
	if !ok {
		return launcher.Notes{}, launcher.ErrNotFound
	}
	next, err := change(k.Notes.Clone())
	if err == nil {
		k.Notes = next.Clone()
	}
	return next, err
}

func (f *fakeLauncher) Token(string) string { return f.token }

func (f *fakeLauncher) Measure() launcher.Measures {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.measures
	for _, k := range f.kernels {
		m.Kernels = append(slices.Clip(m.Kernels), k.Kernel)
	}
	return m
}

func (f *fakeLauncher) Dial(ctx context.Context, id string) (net.Conn, error) {
	if f.dial != nil {
		return f.dial(ctx, id)
	}
	f.mu.Lock()
	k, ok := f.kernels[id]
	f.dials++
	var now fakeKernel
	if ok {
		now = *k
	}
	f.mu.Unlock()
	switch {
	case !ok:
		return nil, launcher.ErrNotFound
	case now.super == nil && now.State == api.Starting:
		return nil, launcher.ErrNoSupervisor
	case now.super == nil:
		return nil, &launcher.GoneError{ID: id, Reason: now.Reason}
	}
	return (&net.Dialer{}).DialContext(ctx, "unix", now.super.path)
}

func (f *fakeLauncher) Close() error { return nil }
