package kube

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/admission"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/endings"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestAdmission_Property: three replicas get 100 starts of several users, while the deciding replica ends, is killed,
// or is stopped between a decision and its request and continues after another has taken over. There are never too many
// kernels, and in the end exactly as many as the limits allow.
func TestAdmission_Property(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for leases to end")
	}
	for seed, fate := range []string{"lives", "is stopped", "is closed", "is killed", "is stopped, as is the next"} {
		t.Run(fmt.Sprintf("%d: the deciding gateway %s", seed, fate), func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, uint64(seed)))
			for n := 0; !admissionRound(t, random, fate); n++ {
				if n == 10 {
					t.Fatal("the deciding gateway has always lost its lease before it could be stopped")
				}
			}
		})
	}
}

// admissionRound reports false if the deciding gateway has lost its lease before its fate: the machine is busy.
func admissionRound(t *testing.T, random *rand.Rand, fate string) bool {
	const starts, users = 100, 5
	limits := &testLimits{all: 6 + random.IntN(6), each: 3}
	c := newTestCluster(t)
	c.watchLimits(t, limits)
	lease := 3 * time.Second // a busy machine may lose it; then this is another round
	if fate == "lives" || fate == "is closed" {
		lease = time.Minute // which is not awaited
	}
	var all []*replica
	for range 3 {
		all = append(all, openReplica(t, c, limits, lease))
	}
	first := awaitLeader(t, all)
	others := slices.DeleteFunc(slices.Clone(all), func(r *replica) bool { return r == first })
	if fate != "lives" && fate != "is closed" {
		first.process.strikeAt(1 + random.IntN(limits.all))
	}
	var asking sync.WaitGroup
	for n := range starts {
		r := all[random.IntN(len(all))]
		asking.Go(func() {
			req := testRequest(idOf(n))
			req.Owner = fmt.Sprint("user", n%users)
			k, _, err := r.Start(context.WithoutCancel(t.Context()), req)
			var refused *launcher.LimitError
			if err != nil && !errors.As(err, &refused) && !(r == first && errors.Is(err, launcher.ErrUnavailable)) {
				t.Errorf("start %d: %+v, %v", n, k, err)
			}
		})
	}
	if fate != "lives" && fate != "is closed" {
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			asking.Wait()
		}()
		select {
		case <-first.process.struck:
		case <-answered: // by another one
			return false
		}
	}
	switch fate {
	case "is closed":
		eventually(t, "some are admitted", func() bool { return c.census().admitted > 0 })
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
	case "is stopped":
		awaitLeader(t, others)
		eventually(t, "another has decided", func() bool { return c.census().waiting == 0 })
		first.isLate(t)
	case "is stopped, as is the next":
		// The first replica's decision arrives after the next has read all pods and before it has decided anything.
		for _, r := range others {
			r.process.strikeAt(1)
		}
		select {
		case <-others[0].process.struck:
		case <-others[1].process.struck:
		}
		first.isLate(t)
		for _, r := range others { // the other one, too, if it has the lease meanwhile
			r.process.strikeAt(0)
			r.process.goOn()
		}
	case "is killed":
		awaitLeader(t, others)
		eventually(t, "another has decided", func() bool { return c.census().waiting == 0 })
		all = others
		first.process.goOn() // for its goroutines
	}
	asking.Wait()
	eventually(t, "all is decided", func() bool { return c.census().waiting == 0 })
	if now := c.census(); now.admitted != limits.all {
		t.Errorf("%d kernels are there, %d may be: %v", now.admitted, limits.all, now.byOwner)
	}
	if fate == "is closed" {
		all = others
	}
	makeRoom(t, c, all, limits)
	return true
}

// makeRoom stops some kernels, so that exactly as many others can be started.
func makeRoom(t *testing.T, c *testCluster, all []*replica, limits *testLimits) {
	t.Helper()
	kernels, err := all[0].Kernels(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stopped := 0
	for _, k := range kernels {
		if k.State != api.Dead && stopped < 2 {
			if err := all[stopped%len(all)].Stop(t.Context(), k.ID, "to make room"); err != nil {
				t.Fatal(err)
			}
			stopped++
		}
	}
	for n := range stopped + 1 {
		req := testRequest(idOf(1000 + n))
		req.Owner = fmt.Sprint("newcomer", n)
		_, _, err := all[n%len(all)].Start(t.Context(), req)
		var refused *launcher.LimitError
		if tooMany := n == stopped; errors.As(err, &refused) != tooMany || !tooMany && err != nil {
			t.Errorf("start %d in the room of %d: %v", n, stopped, err)
		}
	}
	if now := c.census(); now.admitted != limits.all {
		t.Errorf("%d kernels are there, %d may be", now.admitted, limits.all)
	}
}

// Without limits, pods have no gate and there is no lease.
func TestAdmission_WithoutLimits(t *testing.T) {
	for name, limits := range map[string]launcher.Limits{"none": nil, "none at this moment": func() launcher.Limits {
		l := &testLimits{}
		l.off.Store(true)
		return l
	}()} {
		t.Run(name, func(t *testing.T) {
			c := newTestCluster(t)
			l := openTest(t, c, fastAdmission(limits))
			if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
				t.Fatal(err)
			}
			pod := c.pod(t, idA+"-1")
			if podstatus.IsGated(pod) {
				t.Error("it waits for a decision")
			}
			_, err := c.CoordinationV1().Leases("ns").Get(t.Context(), admissionLease, metav1.GetOptions{})
			if !apierrors.IsNotFound(err) {
				t.Errorf("there is a lease: %v", err)
			}
		})
	}
}

// A start without a decision shows that it waits, and is not given up. It becomes dead with the reason if it is refused
// later. The start of an admitted kernel begins at its admission.
//
// TestAdmission_SwitchedOff: pods are admitted if they wait for gateways with limits and no such gateway is left.
func TestAdmission_SwitchedOff(t *testing.T) {
	c := newTestCluster(t)
	c.otherLeads(t)
	l, _ := openWithoutLease(t, c, &testLimits{all: 1, each: 1})
	if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	if err := c.CoordinationV1().Leases("ns").Delete(t.Context(), admissionLease, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	none := &testLimits{all: 100, each: 100}
	none.off.Store(true)
	var now atomic.Int64
	now.Store(time.Now().UnixNano())
	fast := fastAdmission(none)
	openTest(t, c, func(o *Options, tm *timing) {
		fast(o, tm)
		tm.now, tm.maintenance = func() time.Time { return time.Unix(0, now.Load()) }, time.Millisecond
	})
	before := len(c.Actions())
	eventually(t, "some rounds", func() bool { return len(c.Actions()) > before+3 })
	if !podstatus.IsGated(c.pod(t, idA+"-1")) {
		t.Error("its gate is removed at once: a gateway with limits may be about to decide")
	}
	now.Add(int64(abandonedAfter + 2*time.Second))
	eventually(t, "its gate is removed", func() bool { return !podstatus.IsGated(c.pod(t, idA+"-1")) })
}

func TestAdmission_Undecided(t *testing.T) {
	c := newTestCluster(t)
	c.otherLeads(t)
	l, now := openWithoutLease(t, c, &testLimits{all: 1, each: 1})
	for _, id := range []string{idA, idB} {
		if k, created, err := l.Start(t.Context(), testRequest(id)); err != nil || !created || k.State != api.Starting ||
			k.Reason != "it waits for limits to admit it" {
			t.Fatalf("%+v, %v", k, err)
		}
		l.Claim(id)
		eventually(t, "the claim", func() bool {
			return c.pod(t, id+"-1").Annotations[podspec.AnnotationClaimed] == podspec.Claimed
		})
	}
	now.Add(int64(2*time.Hour + time.Minute)) // longer than any start limit
	k, err := l.Kernel(t.Context(), idA)
	want := "it has waited for 2 hours for limits to admit it; no gateway decides about limits at this moment"
	if err != nil ||
		k.State != api.Starting ||
		k.Reason != want {
		t.Errorf("%+v, %v", k, err)
	}
	before := len(c.Actions())
	eventually(t, "some rounds", func() bool { return len(c.Actions()) > before+3 })
	decide := func(id string, refused *launcher.LimitError) {
		pod := c.pod(t, id+"-1")
		patch, err := admission.DecisionPatch(pod, refused, l.timing.now())
		if err == nil {
			_, err = c.CoreV1().Pods("ns").Patch(t.Context(), pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	decide(idA, &launcher.LimitError{Limit: "kernels", Reason: "there are too many"})
	k = waitFor(t, l, idA, func(k launcher.Kernel) bool { return k.State == api.Dead })
	if k.Limit != "kernels" || k.Reason != "there are too many" ||
		podstatus.FailureOf(c.pod(t, idA+"-1")) != launcher.FailedLimit {
		t.Errorf("%+v", k)
	}
	decide(idB, nil)
	k = waitFor(t, l, idB, func(k launcher.Kernel) bool { return !strings.Contains(k.Reason, "limits") })
	if k.State != api.Starting || k.Reason != "it waits for the scheduler" {
		t.Errorf("%+v", k)
	}
	if pod := c.pod(t, idB+"-1"); !podstatus.Progress(pod, nil, l.timing.now()).Equal(l.timing.now()) {
		t.Errorf("its start began at %v", podstatus.Progress(pod, nil, l.timing.now()))
	}
	// The client has read that the kernel is starting, so the dead kernel is shown with its reason.
	now.Add(int64(10 * time.Minute))
	if l.reaper.isLeftover(c.pod(t, idA+"-1")) {
		t.Error("it is removed although its client knows of it")
	}
}

// A refused start that a dead gateway has left is removed, and is in no list until then.
func TestAdmission_RefusedStartIsNotListed(t *testing.T) {
	c := newTestCluster(t)
	c.otherLeads(t)
	l, now := openWithoutLease(t, c, &testLimits{all: 1, each: 1})
	if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	c.setPod(t, idA+"-1", func(pod *corev1.Pod) {
		for key, value := range endingAnnotation(pod, endings.Ending{Reason: "there are too many", At: l.timing.now()}) {
			pod.Annotations[key] = value
		}
		pod.Annotations[podspec.AnnotationLimit] = "kernels"
	})
	waitFor(t, l, idA, func(k launcher.Kernel) bool { return k.Limit == "kernels" })
	if all, err := l.Kernels(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
	if _, _, err := l.Start(t.Context(), testRequest(idA)); !errors.As(err, new(*launcher.LimitError)) {
		t.Errorf("the same request again: %v", err)
	}
	now.Add(int64(11 * time.Second))
	eventually(t, "its pod is removed", func() bool { return !c.podThere(t, idA+"-1") })
	eventually(t, "it is forgotten",
		func() bool { _, err := l.Kernel(t.Context(), idA); return errors.Is(err, launcher.ErrNotFound) })
	if maps, err := c.CoreV1().ConfigMaps("ns").List(t.Context(), metav1.ListOptions{}); err != nil ||
		len(maps.Items) != 0 {
		t.Errorf("its end is written down: %v, %v", maps, err)
	}
	if all, err := l.Ended(t.Context(), ""); err != nil || len(all) != 0 {
		t.Errorf("it is listed as a kernel that died: %+v, %v", all, err)
	}
}

// A restart counts as a start; the kernel's last pod does not count beside it.
func TestAdmission_Revive(t *testing.T) {
	c := newTestCluster(t)
	limits := &testLimits{all: 1, each: 1}
	l := openTest(t, c, fastAdmission(limits))
	if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	die := func(id string, generation int) {
		c.setPod(t, podspec.PodName(id, generation), func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed })
		waitFor(t, l, id, func(k launcher.Kernel) bool { return k.State == api.Dead })
	}
	die(idA, 1)
	if _, err := l.Revive(t.Context(), idA); err != nil {
		t.Fatal(err)
	}
	if pod := c.pod(t, idA+"-2"); podstatus.IsGated(pod) || pod.Annotations[podspec.AnnotationAdmitted] == "" {
		t.Errorf("it was not decided about: %v", pod.Annotations)
	}
	die(idA, 2)
	if _, _, err := l.Start(t.Context(), testRequest(idB)); err != nil {
		t.Fatalf("a dead one counts: %v", err)
	}
	var refused *launcher.LimitError
	if _, err := l.Revive(t.Context(), idA); !errors.As(err, &refused) {
		t.Fatalf("%v", err)
	}
	if k, err := l.Kernel(t.Context(), idA); err != nil || k.State != api.Dead || k.Reason != refused.Reason {
		t.Errorf("%+v, %v", k, err)
	}
	l.mu.Lock()
	noted, _ := l.endings.Get(idA)
	l.mu.Unlock()
	if noted == nil || noted.Reason != "its pod has ended" {
		t.Errorf("what is on record of its end: %+v", noted)
	}
	if err := l.Stop(t.Context(), idB, "to make room"); err != nil {
		t.Fatal(err)
	}
	if k, err := l.Revive(t.Context(), idA); err != nil || k.State != api.Starting {
		t.Errorf("there is room: %+v, %v", k, err)
	}
	if pod := c.pod(t, idA+"-4"); pod.Annotations[podspec.AnnotationLimit] != "" {
		t.Errorf("it still says %q", pod.Annotations[podspec.AnnotationLimit])
	}
}

// One list of all pods serves many refusals.
func TestAdmission_RefusalsShareAList(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, fastAdmission(&testLimits{all: 1, each: 1}))
	startTest(t, l, numberedID(0))
	before := len(c.podLists())
	began := time.Now()
	const refusals = 50
	for n := 1; n <= refusals; n++ {
		if _, _, err := l.Start(t.Context(), testRequest(numberedID(n))); !errors.As(err, new(*launcher.LimitError)) {
			t.Fatalf("start %d: %v", n, err)
		}
	}
	most := 2 + int(time.Since(began)/time.Second)
	if n := len(c.podLists()) - before; n > most {
		t.Errorf("%d refusals have listed all pods %d times, want at most %d", refusals, n, most)
	}
}
