package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestPeers: a notified replica knows a kernel at once, however late its watch is.
func TestPeers(t *testing.T) {
	c := newTestCluster(t)
	silent := c.silence()
	first := openTest(t, c, rarely)
	silent.Store(true)
	late := openTest(t, c, rarely)
	n := newReplicaNet(t, c)
	n.join(first, ip1)
	n.join(late, ip2)
	listed := func() bool {
		all, err := late.Kernels(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(all, func(k launcher.Kernel) bool { return k.ID == idA })
	}
	n.cutOff(ip2, true)
	startTest(t, first, idA)
	if listed() {
		t.Fatal("its watch is not late; the test proves nothing")
	}
	n.cutOff(ip2, false)
	notify := func() { first.replicas.Maintain(t.Context()); first.replicas.Notify(t.Context(), idA) }
	if notify(); !listed() {
		t.Error("after the notification of a kernel it is not listed")
	}
	n.cutOff(ip2, true)
	if err := first.Stop(t.Context(), idA, "not needed"); err != nil {
		t.Fatal(err)
	}
	if !listed() {
		t.Fatal("its watch is not late; the test proves nothing")
	}
	late.mu.Lock()
	pod := late.kernels[idA].pod
	late.mu.Unlock()
	n.cutOff(ip2, false)
	if notify(); listed() {
		t.Error("after the notification of an end it is listed")
	}
	late.updatePod(pod) // its watch, at last
	var gone *launcher.GoneError
	if _, err := late.Kernel(t.Context(), idA); !errors.As(err, &gone) || gone.Reason != "not needed" {
		t.Errorf("after its end: %v", err)
	}
}

// rarely makes a launcher do nothing at intervals.
func rarely(_ *Options, tm *timing) { tm.maintenance = time.Hour }

// TestPeers_PeerThatDoesNotAnswer: a list never lacks a kernel that a peer has announced, even if reading that kernel
// failed.
func TestPeers_PeerThatDoesNotAnswer(t *testing.T) {
	c := newTestCluster(t)
	silent := c.silence()
	var refused atomic.Bool
	c.PrependReactor("list", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		return refused.Load() && a.GetNamespace() == "ns", nil, errors.New("the server is busy")
	})
	first := openTest(t, c, rarely)
	silent.Store(true)
	late := openTest(t, c, rarely)
	n := newReplicaNet(t, c)
	n.join(first, ip1)
	n.join(late, ip2)
	refused.Store(true)
	startTest(t, first, idA)
	refused.Store(false)
	late.mu.Lock()
	known := late.kernels[idA] != nil
	late.mu.Unlock()
	if known {
		t.Fatal("the kernel was read; the test proves nothing")
	}
	if all, err := late.Kernels(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("there are %+v, %v", all, err)
	}
	before := c.requests()
	if _, err := late.Kernels(t.Context()); err != nil || c.requests() != before {
		t.Errorf("the cluster is asked again: %v", err)
	}
}

// TestPeers_Culled: a replica that is notified of an ending knows that the kernel was culled and whose it was, whether
// or not it knew the kernel. It also knows the usage, unless the other gateway's version is too old to send it.
func TestPeers_Culled(t *testing.T) {
	for n := range 4 {
		known, sendsUsage := n&1 == 0, n&2 == 0
		t.Run(fmt.Sprintf("known %v, usage sent %v", known, sendsUsage), func(t *testing.T) {
			c := newTestCluster(t)
			silent := c.silence()
			first := openTest(t, c, nil)
			silent.Store(true)
			late := openTest(t, c, nil)
			if _, _, err := first.Start(t.Context(), testRequest(idA)); err != nil {
				t.Fatal(err)
			}
			if known {
				late.updatePod(c.pod(t, idA+"-1"))
			}
			end := api.Ending{
				KernelID:  idA,
				Reason:    "it was idle for 1h0m0s",
				At:        time.Now().Add(time.Second).UTC().Truncate(time.Second),
				Culled:    true,
				CulledFor: api.LimitIdle,
			}
			c.setPod(t, idA+"-1", func(pod *corev1.Pod) {
				scheduledFor(pod, end.At, time.Hour)
				succeedWith(t, pod, end)
			})
			waitFor(t, first, idA, func(k launcher.Kernel) bool { return k.State == api.Dead })
			if err := first.Stop(t.Context(), idA, "it was shut down on request"); err != nil {
				t.Fatal(err)
			}
			text := sharedKernels{first}.Ending(idA)
			if !sendsUsage {
				var ending peerEnding
				if err := json.Unmarshal(text, &ending); err != nil {
					t.Fatal(err)
				}
				ending.Usage = launcher.Usage{}
				var err error
				if text, err = json.Marshal(ending); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // notifications may be repeated
				if err := (sharedKernels{late}).EnterEnding(idA, text); err != nil {
					t.Fatal(err)
				}
			}
			want := launcher.EndedKernel{ID: idA, SpecName: "python3", Owner: "ann", Reason: end.Reason, Culled: true,
				At: end.At, Usage: launcher.Usage{Started: end.At.Add(-time.Hour), Seconds: 3600}}
			for name, l := range map[string]*Launcher{"first": first, "late": late} {
				want := want
				if l == late && !sendsUsage {
					want.Usage = launcher.Usage{}
				}
				if all, err := l.Ended(t.Context(), ""); err != nil || !slices.Equal(all, []launcher.EndedKernel{want}) {
					t.Errorf("%s: on record are %+v, %v", name, all, err)
				}
				counted, wanted := l.Measure().Culls, (map[launcher.CullLabels]int64{{SpecName: "python3", Limit: "idle"}: 1})
				if !maps.Equal(counted, wanted) {
					t.Errorf("%s: counted are %v", name, counted)
				}
			}
		})
	}
}
