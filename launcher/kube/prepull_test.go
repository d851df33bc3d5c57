package kube

import (
	"encoding/json"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// plainStarts are starts of kernelspecs with these values of metadata.ekg.
func plainStarts(ekg ...string) *atomic.Pointer[[]launcher.Request] {
	var starts []launcher.Request
	for i, e := range ekg {
		starts = append(starts, launcher.Request{ID: idA, Spec: kernelspecs.Spec{Name: "spec" + string(rune('a'+i)),
			Argv: []string{"python3", "-f", "{connection_file}"}, Metadata: json.RawMessage(`{"ekg": ` + e + `}`)}})
	}
	p := new(atomic.Pointer[[]launcher.Request])
	p.Store(&starts)
	return p
}

// pulls returns the images that the cluster's DaemonSets pull, sorted, and how many DaemonSets there are.
func (c *testCluster) pulls(t *testing.T) (images []string, sets int) {
	t.Helper()
	list, err := c.AppsV1().DaemonSets("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		images = append(images, podspec.PulledImages(&list.Items[i])...)
	}
	slices.Sort(images)
	return images, len(list.Items)
}

// countWrites counts the requests that change DaemonSets.
func (c *testCluster) countWrites() (n int) {
	for _, a := range c.Actions() {
		if a.GetResource().Resource == "daemonsets" && a.GetVerb() != "list" {
			n++
		}
	}
	return n
}

// looks counts the lists of DaemonSets that a gateway has asked for.
func (c *testCluster) looks() (n int) {
	for _, a := range c.Actions() {
		if list, ok := a.(k8stesting.ListActionImpl); ok && a.Matches("list", "daemonsets") &&
			!list.GetListRestrictions().Labels.Empty() {
			n++
		}
	}
	return n
}

// The reaper creates a DaemonSet for each placement, follows changes of kernelspecs, repairs what others remove, and
// writes nothing while nothing changes. A gateway without the setting removes them.
func TestPrePull(t *testing.T) {
	c := newTestCluster(t)
	var now atomic.Int64
	starts := plainStarts(`{"image": "a:1"}`, `{"image": "b:1"}`, `{"image": "gpu:1", "nodeSelector": {"gpu": "yes"}}`)
	on := func(o *Options, tm *timing) {
		fastReaper(&now)(o, tm)
		o.PrePull = func() []launcher.Request { return *starts.Load() }
	}
	follows := func(sets int, want ...string) {
		t.Helper()
		eventually(t, "the DaemonSets follow", func() bool {
			got, n := c.pulls(t)
			return n == sets && slices.Equal(got, want)
		})
	}
	l := openTest(t, c, on)
	follows(2, "a:1", "b:1", "gpu:1")
	starts.Store(plainStarts(`{"image": "a:2"}`, `{"image": "b:1"}`).Load())
	follows(1, "a:2", "b:1")
	list, err := c.AppsV1().DaemonSets("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	written := c.countWrites()
	if err := c.AppsV1().DaemonSets("ns").Delete(t.Context(), list.Items[0].Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	now.Add(int64(prePullLook))
	follows(1, "a:2", "b:1")
	looked := c.looks()
	now.Add(int64(prePullLook))
	eventually(t, "it has looked again", func() bool { return c.looks() > looked })
	if got := c.countWrites() - written; got != 2 { // the removal by the test, and its repair
		t.Errorf("%d writes after the last change", got)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	openTest(t, c, fastReaper(&now))
	follows(0)
}

// A gateway keeps its kernelspecs' images apart from DaemonSets of others, and goes on after the cluster has failed.
func TestPrePull_Failures(t *testing.T) {
	c := newTestCluster(t)
	other := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "other"}}
	if _, err := c.AppsV1().DaemonSets("ns").Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var denied atomic.Bool
	denied.Store(true)
	c.PrependReactor("create", "daemonsets", func(k8stesting.Action) (bool, runtime.Object, error) {
		return denied.Load(), nil, apierrors.NewForbidden(schema.GroupResource{Resource: "daemonsets"}, "",
			errors.New("no right"))
	})
	var now atomic.Int64
	starts := plainStarts(`{"image": "a:1"}`)
	openTest(t, c, func(o *Options, tm *timing) {
		fastReaper(&now)(o, tm)
		o.PrePull = func() []launcher.Request { return *starts.Load() }
	})
	eventually(t, "a DaemonSet was tried", func() bool {
		return c.countWrites() >= 2 // the first is the test's own
	})
	denied.Store(false)
	now.Add(int64(prePullLook))
	eventually(t, "the DaemonSet is there, beside the other", func() bool {
		got, n := c.pulls(t)
		return n == 2 && slices.Equal(got, []string{"a:1"})
	})
}
