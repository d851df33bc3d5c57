package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// TestList_AgreesAtOnce changes kernels by one gateway, and lists them by another one after each change: with inotify,
// without it, with watches for some kernels only, and after the queue of events has been full.
func TestList_AgreesAtOnce(t *testing.T) {
	for name, prepare := range map[string]func(*Launcher){
		"with inotify":    func(*Launcher) {},
		"without":         func(l *Launcher) { l.changes.Close() },
		"too few watches": func(l *Launcher) { l.changes.Bound = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			p.change = func(_ *Options, tm *timing) { tm.maintenance = time.Hour } // so that only requests read the folder
			a, b := p.launcher(), p.launcher()
			prepare(b)
			p.start(a, 1, "fine")
			b.expect(t, "a start", 1, "")
			p.start(a, 2, "fine")
			b.expect(t, "another start", 2, "")
			for i := range 20 {
				a.setPath(t, strconv.Itoa(i))
				b.expect(t, "a change", 2, strconv.Itoa(i))
				b.setPath(t, "own "+strconv.Itoa(i))
				b.expect(t, "an own change", 2, "own "+strconv.Itoa(i))
			}
			if err := os.Remove(filepath.Join(p.state, "kernels", id(1), notesFile)); err != nil {
				t.Fatal(err)
			}
			b.expect(t, "the removal of notes", 2, "")
			b.overflow(t)
			a.setPath(t, "after an overflow")
			b.expect(t, "an overflow", 2, "after an overflow")
			if err := a.Stop(t.Context(), id(2), "enough"); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the other lists the stop", func() bool { // its stream may have just ended
				all, err := b.Kernels(t.Context())
				return err == nil && len(all) == 1
			})
		})
	}
}

// TestList_AgreesWhileOthersList has concurrent lists of one gateway, each of which must have the change before it.
func TestList_AgreesWhileOthersList(t *testing.T) {
	p := newPlace(t)
	a, b := p.launcher(), p.launcher()
	p.start(a, 1, "fine")
	done := make(chan struct{})
	var others sync.WaitGroup
	for range 3 {
		others.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					if _, err := b.Kernels(t.Context()); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	for i := range 300 {
		a.setPath(t, strconv.Itoa(i))
		b.expect(t, "a change", 1, strconv.Itoa(i))
	}
	close(done)
	others.Wait()
}

// TestList_FromMemory counts reads: a list of kernels of which nothing has changed looks at none of their folders.
func TestList_FromMemory(t *testing.T) {
	p := newPlace(t)
	l := p.launcher()
	p.start(l, 1, "fine")
	p.start(l, 2, "fine")
	wait(t, l, 1, "idle", isIdle)
	wait(t, l, 2, "idle", isIdle)
	l.setPath(t, "some")
	l.expect(t, "a change", 2, "some")
	if !l.changes.Known() {
		t.Error("the next list would read the folder of all kernels")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range l.kernels.ordered {
		if !k.inMemoryLocked() {
			t.Errorf("the next list would look at the folder of kernel %s", k.id)
		}
	}
}

// TestList_OtherFolder puts another folder in the place of the folder of all kernels, whose watch is then useless. A
// removed folder's inode number may be that of the next one.
func TestList_OtherFolder(t *testing.T) {
	for name, leave := range map[string]func(kernels string) error{
		"renamed": func(kernels string) error { return os.Rename(kernels, kernels+".old") },
		"removed": os.Remove,
		"with its state directory": func(kernels string) error {
			state := filepath.Dir(kernels)
			return errors.Join(os.Rename(state, state+".old"), os.Mkdir(state, 0o700))
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			p.change = func(_ *Options, tm *timing) { tm.maintenance = time.Hour }
			l := p.launcher()
			l.expect(t, "nothing", 0, "")
			kernels := filepath.Join(p.state, "kernels")
			if err := errors.Join(leave(kernels), os.Mkdir(kernels, 0o700)); err != nil {
				t.Fatal(err)
			}
			a := p.launcher()
			p.start(a, 1, "fine")
			l.expect(t, "a start", 1, "")
		})
	}
}

// expect lists kernels. It fails unless there are n, and the first one has a session of the path.
func (l *Launcher) expect(t *testing.T, after string, n int, path string) {
	t.Helper()
	all, err := l.Kernels(t.Context())
	got := ""
	if len(all) > 0 && len(all[0].Sessions) > 0 {
		got = all[0].Sessions[0].Path
	}
	if err != nil || len(all) != n || got != path {
		t.Errorf("after %s the list has %d kernels and path %q, want %d and %q: %v", after, len(all), got, n, path, err)
	}
	if !slices.IsSortedFunc(all, func(a, b launcher.Kernel) int {
		return launcher.CompareCreation(a.Created, a.ID, b.Created, b.ID)
	}) {
		t.Errorf("the list is not in order: %v", all)
	}
}

// setPath gives the first kernel one session.
func (l *Launcher) setPath(t *testing.T, path string) {
	t.Helper()
	_, err := l.UpdateNotes(t.Context(), id(1), func(n launcher.Notes) (launcher.Notes, error) {
		n.Sessions = []launcher.Session{{ID: "one", Path: path}}
		return n, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// overflow makes more events than the queue of the launcher holds.
func (l *Launcher) overflow(t *testing.T) {
	t.Helper()
	b, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Skipf("the length of inotify's queue cannot be read here: %v", err)
	}
	var bound int
	if _, err := fmt.Sscan(string(b), &bound); err != nil || bound > 1<<17 {
		t.Skipf("a queue of %d events: %v", bound, err)
	}
	names := [2]string{filepath.Join(l.layout.kernel(id(1)), "one"), filepath.Join(l.layout.kernel(id(1)), "two")}
	if err := os.WriteFile(names[0], nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range bound {
		if err := os.Rename(names[i%2], names[1-i%2]); err != nil {
			t.Fatal(err)
		}
	}
}

// TestKernelsFor lists the kernels of users at a gateway that learns of grants from another one. It omits no kernel
// that the user owns or may use, and after the first list it has no other.
func TestKernelsFor(t *testing.T) {
	p := newPlace(t)
	a, b := p.launcher(), p.launcher()
	for n, owner := range map[int]string{1: "ann", 2: "ann", 3: "bob"} {
		if _, _, err := a.Start(t.Context(), launcher.Request{ID: id(n), Owner: owner, Spec: fakeSpec("fine")}); err != nil {
			t.Fatal(err)
		}
		wait(t, b, n, "idle", isIdle)
	}
	want := func(user, group string, kernels ...int) {
		t.Helper()
		var ids []string
		for _, n := range kernels {
			ids = append(ids, id(n))
		}
		for _, l := range []*Launcher{a, b} {
			all, err := l.Kernels(t.Context()) // it reads the notes
			if err != nil || len(all) != 3 {
				t.Fatalf("all kernels are %v, %v", all, err)
			}
			list, err := l.KernelsFor(t.Context(), user, []string{group})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, k := range list {
				got = append(got, k.ID)
			}
			slices.Sort(got)
			if !slices.Equal(got, ids) {
				t.Errorf("%s of %s gets %v, want %v", user, group, got, ids)
			}
		}
	}
	want("ann", "", 1, 2)
	want("bob", "staff", 3)
	a.share(t, 1, launcher.Grant{User: "bob", Right: launcher.Read})
	a.share(t, 3, launcher.Grant{Group: "staff", Right: launcher.Use})
	// At once, without a list of all kernels in between: b has not read the new notes.
	if list, err := b.KernelsFor(t.Context(), "bob", nil); err != nil || len(list) < 2 {
		t.Errorf("bob gets %v, %v", list, err)
	}
	want("bob", "", 1, 3)
	want("cyd", "staff", 3)
	want("cyd", "")
	a.share(t, 1)
	want("bob", "", 3)
}

// TestList_OwnCopies: a caller may modify its list, and a later change does not modify it.
func TestList_OwnCopies(t *testing.T) {
	p := newPlace(t)
	l := p.launcher()
	p.start(l, 1, "fine")
	wait(t, l, 1, "idle", isIdle)
	l.setPath(t, "first")
	l.share(t, 1, launcher.Grant{User: "bob", Right: launcher.Read})
	for range 2 { // the first list may read the notes
		all, err := l.Kernels(t.Context())
		if err != nil || len(all) != 1 {
			t.Fatalf("%v, %v", all, err)
		}
		all[0].Sessions[0].Path, all[0].SharedWith[0].User = "mine", "eve"
		l.expect(t, "a change of the list by its caller", 1, "first")
	}
	before, err := l.KernelsFor(t.Context(), "bob", nil)
	if err != nil || len(before) != 1 {
		t.Fatalf("%v, %v", before, err)
	}
	l.setPath(t, "second")
	l.expect(t, "a change", 1, "second")
	if got := before[0].Sessions[0].Path; got != "first" {
		t.Errorf("the earlier list has %q now", got)
	}
}

// share replaces the grants of kernel n.
func (l *Launcher) share(t *testing.T, n int, grants ...launcher.Grant) {
	t.Helper()
	if _, err := l.UpdateNotes(t.Context(), id(n), func(n launcher.Notes) (launcher.Notes, error) {
		n.Share(grants)
		return n, nil
	}); err != nil {
		t.Fatal(err)
	}
}
