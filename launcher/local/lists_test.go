package local

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/follow"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// checkLists describes all kernels again after each settleLocked of all tests, and compares them with what lists keep.
// So each change that a test makes without a touchLocked ends the test.
func checkLists(l *Launcher) {
	if why := l.listsDifferLocked(); why != "" {
		panic(why)
	}
}

// listsDifferLocked says what lists keep that is not so.
func (l *Launcher) listsDifferLocked() string {
	owned := map[string][]*kernel{}
	for i, k := range l.ordered {
		owned[k.rec.Owner] = append(owned[k.rec.Owner], k)
		var want *launcher.Kernel
		if l.inMemoryLocked(k) {
			want = new(launcher.Kernel)
			k.describeLocked(want)
			want.Notes = k.notes.notes.Clone()
		}
		if !reflect.DeepEqual(k.listed, want) {
			return fmt.Sprintf("kernel %s is listed as %+v, and is %+v", k.id, k.listed, want)
		}
		if whole := l.lists.whole; whole != nil && (len(whole.Kernels) != len(l.ordered) || whole.Kernels[i] != k.listed) {
			return fmt.Sprintf("kernel %s has another description in the whole list", k.id)
		}
		for name, has := range map[string][2]bool{
			"looks":  {in(l.lists.looks, k), k.lookLocked()},
			"slow":   {in(l.lists.slow, k), want == nil},
			"shared": {in(l.lists.shared, k), !k.notes.current || len(k.notes.notes.SharedWith) > 0},
		} {
			if has[0] != has[1] {
				return fmt.Sprintf("kernel %s in %s: %v, and should be %v", k.id, name, has[0], has[1])
			}
		}
	}
	for name, set := range map[string]map[*kernel]struct{}{"looks": l.lists.looks, "slow": l.lists.slow,
		"shared": l.lists.shared} {
		for k := range set {
			if l.kernels[k.id] != k {
				return fmt.Sprintf("%s has kernel %s, which is gone", name, k.id)
			}
		}
	}
	for owner, all := range l.lists.owned {
		if !slices.Equal(all, owned[owner]) {
			return fmt.Sprintf("%q owns %v, and is listed with %v", owner, owned[owner], all)
		}
	}
	if len(owned) != len(l.lists.owned) {
		return fmt.Sprintf("%d owners have kernels, and %d are listed", len(owned), len(l.lists.owned))
	}
	return ""
}

func in(set map[*kernel]struct{}, k *kernel) bool {
	_, there := set[k]
	return there
}

// TestListShared: a list without a change is the same list. After a change it is another one, in which only the changed
// kernel is another one. A list that was returned is never modified.
func TestListShared(t *testing.T) {
	p := newPlace(t)
	rounds := make(chan time.Time)
	p.change = func(o *Options, tm *timing) { // so that nothing else changes, not even limits of logs
		o.LogLimit, o.LogTotal, tm.rounds = 1<<20, 1<<40, rounds
	}
	l := p.launcher()
	p.change = func(o *Options, tm *timing) { o.LogLimit, o.LogTotal, tm.maintenance = 1<<20, 1<<40, time.Hour }
	other := p.launcher()
	for n := 1; n <= 3; n++ {
		p.start(l, n, "fine")
		wait(t, l, n, "idle", isIdle)
		wait(t, other, n, "idle", isIdle)
	}
	shared := func() *launcher.List {
		t.Helper()
		list, err := l.ListShared(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	shared() // it reads the notes
	status := func(change func(*api.Status)) {
		l.mu.Lock()
		defer l.mu.Unlock()
		k := l.kernels[id(2)]
		st := k.supervisor.Status
		change(&st)
		l.follower.EnterLocked(&k.supervisor, st)
	}
	last := shared()
	for _, step := range []struct {
		name    string
		do      func()
		another []int // the numbers of kernels that change
	}{
		{"nothing", func() {}, nil},
		{"a status", func() { status(func(st *api.Status) { st.Connections++ }) }, []int{2}},
		{"its activity", func() { status(func(st *api.Status) { st.LastActivity = time.Now().Add(time.Minute) }) }, []int{2}},
		{"nothing but the limit of its log", func() { status(func(st *api.Status) { st.LogLimit++ }) }, nil},
		{"its memory", func() { status(func(st *api.Status) { st.Memory = 5 }) }, []int{2}},
		{"its GPUs", func() { status(func(st *api.Status) { st.GPU = []api.GPU{{UUID: "one"}} }) }, []int{2}},
		{"the time of its end", func() { status(func(st *api.Status) { st.CullAt = time.Now() }) }, []int{2}},
		{"the time for which it is kept", func() { status(func(st *api.Status) { st.KeepUntil = time.Now() }) }, []int{2}},
		{"nothing again", func() {}, nil},
		{"a session of another gateway", func() { other.setPath(t, "new") }, []int{1}},
		{"a grant of another gateway", func() {
			other.share(t, 3, launcher.Grant{User: "bob", Right: launcher.Use})
		}, []int{3}},
		{"all notes again", func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			for _, k := range l.ordered {
				l.notesChangedLocked(k)
			}
			// The list that reads them is another one, as is the list after it.
		}, []int{1, 2, 3}},
		{"a start of another gateway", func() { p.start(other, 4, "fine"); wait(t, l, 4, "idle", isIdle) }, []int{4}},
		{"a death", func() {
			kill(t, processesOf(t, p, 2).Supervisor)
			wait(t, l, 2, "dead", isDead)
		}, []int{2}},
		{"nothing after it", func() {}, nil},
		{"its restart", func() {
			if _, err := l.Revive(t.Context(), id(2)); err != nil {
				t.Fatal(err)
			}
			wait(t, l, 2, "idle", isIdle)
		}, []int{2}},
		{"a stop", func() {
			if err := l.Stop(t.Context(), id(1), "enough"); err != nil {
				t.Fatal(err)
			}
		}, nil},
	} {
		was := deepCopy(last)
		step.do()
		first := shared()
		now := shared()
		if strings.HasPrefix(step.name, "nothing") {
			if first != last || now != last {
				t.Errorf("after %s, the list is another one", step.name)
			}
		} else if now == last {
			t.Errorf("after %s, the list is the same", step.name)
		}
		if !reflect.DeepEqual(deepCopy(last), was) {
			t.Errorf("%s modifies an earlier list", step.name)
		}
		for _, k := range now.Kernels {
			same := slices.Contains(last.Kernels, k)
			changed := slices.ContainsFunc(step.another, func(n int) bool { return id(n) == k.ID })
			if same == changed {
				t.Errorf("after %s, kernel %s is the same: %v", step.name, k.ID, same)
			}
		}
		last = now
	}
	if len(last.Kernels) != 3 {
		t.Errorf("%d kernels are listed", len(last.Kernels))
	}
	// A gateway without lists remembers no kernels that are gone.
	if err := l.Stop(t.Context(), id(2), "enough"); err != nil {
		t.Fatal(err)
	}
	rounds <- time.Now()
	rounds <- time.Now() // is received after the first round
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.lists.touched); n > 0 {
		t.Errorf("%d kernels are to be described", n)
	}
}

// TestLists_Random: after random changes of few of many kernels, all that lists keep is right, and no earlier list is
// modified.
func TestLists_Random(t *testing.T) {
	l := &Launcher{kernels: map[string]*kernel{}, ended: map[*kernel]struct{}{}, lists: newLists()}
	l.follower = follow.New(t.Context(), follow.Options{Lock: &l.mu, Goroutines: &l.goroutines})
	random := rand.New(rand.NewPCG(1, 2))
	created := time.Now()
	add := func(n int) {
		k := l.newKernel(record{ID: id(n), Owner: fmt.Sprint(n % 7), Created: created.Add(time.Duration(n) * time.Second)})
		k.notes.current = true
		l.addLocked(k)
		l.follower.EnterLocked(&k.supervisor, api.Status{State: api.Idle})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	next := 0
	for ; next < 100; next++ {
		add(next)
	}
	var last *launcher.List
	var was []launcher.Kernel
	patched := 0 // lists of the same kernels, a few of which have changed
	for range 500 {
		members := false
		for range random.IntN(4) {
			k := l.ordered[random.IntN(len(l.ordered))]
			switch random.IntN(8) {
			case 0:
				add(next)
				next, members = next+1, true
			case 1:
				k.gone = launcher.ErrNotFound
				l.forgetLocked(k)
				members = true
			case 2:
				k.supervisor.LeaveLocked()
			case 3:
				l.setEndLocked(k, &api.Ending{Reason: fmt.Sprint(random.IntN(3))})
			case 4:
				l.notesChangedLocked(k)
				k.notes.current = random.IntN(2) == 0
				k.notes.notes.SharedWith = []launcher.Grant{{User: fmt.Sprint(random.IntN(3))}}
			default:
				l.follower.EnterLocked(&k.supervisor, api.Status{State: api.Idle, Connections: random.IntN(3)})
			}
		}
		l.settleLocked()
		list := l.wholeLocked()
		if why := l.listsDifferLocked(); why != "" {
			t.Fatal(why)
		}
		if last != nil && !reflect.DeepEqual(copyOfAll(last), was) {
			t.Fatal("an earlier list was modified")
		}
		if !members && list != last {
			patched++
		}
		last, was = list, copyOfAll(list)
	}
	if patched < 50 {
		t.Errorf("%d lists were patched", patched)
	}
}

// copyOfAll is deepCopy for lists with kernels that are nil.
func copyOfAll(list *launcher.List) []launcher.Kernel {
	all := make([]launcher.Kernel, len(list.Kernels))
	for i, k := range list.Kernels {
		if k != nil {
			all[i] = *k
		}
	}
	return all
}

// deepCopy returns the kernels of a list.
func deepCopy(list *launcher.List) []launcher.Kernel { return ownCopies(list.Kernels) }
