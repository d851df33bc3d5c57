package kube

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// podRequests returns the verbs of the requests for pods so far, besides watches.
func (c *testCluster) podRequests() (verbs []string) {
	for _, a := range c.Actions() {
		if a.GetResource().Resource == "pods" && a.GetVerb() != "watch" {
			verbs = append(verbs, a.GetVerb())
		}
	}
	return verbs
}

// podLists returns the requests for lists of all pods so far.
func (c *testCluster) podLists() (all []k8stesting.Action) {
	for _, a := range c.Actions() {
		if list, ok := a.(k8stesting.ListAction); ok && a.GetResource().Resource == "pods" &&
			list.GetListRestrictions().Labels.String() == podspec.SelectManaged {
			all = append(all, a)
		}
	}
	return all
}

// TestLookup: an unknown kernel costs one GET by name while memory is proved to have all pods, one LIST more after
// that, and nothing if it was looked for in the last second.
func TestLookup(t *testing.T) {
	c := newTestCluster(t)
	now := atomic.Int64{}
	now.Store(time.Now().UnixNano())
	l := openTest(t, c, func(_ *Options, tm *timing) { tm.now = func() time.Time { return time.Unix(0, now.Load()) } })
	ask := func(what, id string, want ...string) {
		t.Helper()
		before := len(c.podRequests())
		if _, err := l.Kernel(t.Context(), id); !errors.Is(err, launcher.ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
		if got := c.podRequests()[before:]; !slices.Equal(got, want) {
			t.Errorf("%s: requests %v, want %v", what, got, want)
		}
	}
	if _, err := l.Kernels(t.Context()); err != nil {
		t.Fatal(err)
	}
	ask("after a proof", idA, "get")
	for range 100 {
		ask("at once again", idA)
	}
	ask("another one", idB, "get")
	now.Add(int64(absentTime))
	ask("after a second", idA, "get")
	now.Add(int64(l.timing.fresh))
	ask("after an old proof", idA, "get", "list")
	settled := l.freshness.markStale()
	ask("while there is a doubt", idA, "get", "list")
	settled()
	ask("after the doubt", idA)
}

// TestLookup_Found: a kernel that no watch has reported is found by the name of its first pod. A later pod is found by
// its label. A kernel that did not exist a moment ago is found as soon as it is in memory.
func TestLookup_Found(t *testing.T) {
	c := newTestCluster(t)
	silent := c.silence()
	other := openTest(t, c, nil)
	silent.Store(true)
	now := atomic.Int64{}
	now.Store(time.Now().UnixNano())
	l := openTest(t, c, func(_ *Options, tm *timing) { tm.now = func() time.Time { return time.Unix(0, now.Load()) } })
	now.Add(int64(time.Minute)) // its proof is old
	for _, id := range []string{idA, idB} {
		startTest(t, other, id)
	}
	before := len(c.podRequests())
	if k, err := l.Kernel(t.Context(), idA); err != nil || k.ID != idA {
		t.Errorf("%+v, %v", k, err)
	}
	if got := c.podRequests()[before:]; !slices.Equal(got, []string{"get"}) {
		t.Errorf("the first pod: requests %v", got)
	}
	second := c.pod(t, idB+"-1").DeepCopy()
	rec, err := podspec.ReadRecord(second)
	rec.Generation = 2
	rec.Write(second) // also its name
	second.UID, second.ResourceVersion = "", ""
	pods := c.CoreV1().Pods("ns")
	_, createErr := pods.Create(t.Context(), second, metav1.CreateOptions{})
	if err := errors.Join(err, createErr, pods.Delete(t.Context(), idB+"-1", metav1.DeleteOptions{})); err != nil {
		t.Fatal(err)
	}
	if k, err := l.Kernel(t.Context(), idB); err != nil || k.ID != idB {
		t.Errorf("with a later pod: %+v, %v", k, err)
	}

	id := numberedID(1)
	if _, err := l.Kernel(t.Context(), id); !errors.Is(err, launcher.ErrNotFound) {
		t.Errorf("before its start: %v", err)
	}
	startTest(t, other, id)
	if err := l.refresh(t.Context(), id); err != nil { // as another replica's notification does
		t.Fatal(err)
	}
	if k, err := l.Kernel(t.Context(), id); err != nil || k.ID != id {
		t.Errorf("after its start: %+v, %v", k, err)
	}
}

// TestLookup_Counted: only requests that the cluster has to answer are counted. A lookup that is refused makes none.
func TestLookup_Counted(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, nil)
	startTest(t, l, idA)
	counted, tooMany := 0, errors.New("too many")
	ctx := launcher.WithLookups(t.Context(), func() error {
		if counted++; counted > 2 {
			return tooMany
		}
		return nil
	})
	for range 5 {
		if _, err := l.Kernel(ctx, idA); err != nil || counted != 0 {
			t.Errorf("a known kernel: %v, counted %d times", err, counted)
		}
	}
	for n, want := range []error{launcher.ErrNotFound, launcher.ErrNotFound, tooMany} {
		before := len(c.podRequests())
		if _, err := l.Kernel(ctx, numberedID(n)); !errors.Is(err, want) {
			t.Errorf("lookup %d: %v, want %v", n, err, want)
		}
		if asked := len(c.podRequests()) > before; asked != (n < 2) {
			t.Errorf("lookup %d has asked the cluster: %v", n, asked)
		}
	}
}

// TestLookup_Fails: a cluster that does not answer hides no kernel.
func TestLookup_Fails(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, nil)
	c.PrependReactor("get", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, (*corev1.Pod)(nil), errors.New("connection refused")
	})
	for range 2 {
		if _, err := l.Kernel(t.Context(), idA); !errors.Is(err, launcher.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
	}
}
