package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
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

// peersOf is the HTTP handler for a launcher's peers.
func peersOf(t *testing.T, l *Launcher) *peers {
	t.Helper()
	keys, err := newPeerKeys(l.keys)
	if err != nil {
		t.Fatal(err)
	}
	p := l.newPeers(Peers{}, keys)
	p.answering = make(chan struct{}, 1)
	return p
}

// TestPeers: a notified replica knows a kernel at once, however late its watch is.
func TestPeers(t *testing.T) {
	c := newTestCluster(t)
	silent := c.silence()
	first := openTest(t, c, nil)
	silent.Store(true)
	late := openTest(t, c, nil)
	p := peersOf(t, late)
	routes := p.routes()
	notify := func(id, token string) int {
		body := new(bytes.Buffer)
		if end := first.endingForPeers(id); end != nil {
			if err := json.NewEncoder(body).Encode(end); err != nil {
				t.Fatal(err)
			}
		}
		w, r := httptest.NewRecorder(), httptest.NewRequest("POST", "/kernels/"+id, body)
		r.Header.Set("Authorization", "Bearer "+token)
		routes.ServeHTTP(w, r)
		return w.Code
	}
	listed := func() bool {
		all, err := late.Kernels(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(all, func(k launcher.Kernel) bool { return k.ID == idA })
	}
	if _, _, err := first.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	if listed() {
		t.Fatal("its watch is not late; the test proves nothing")
	}
	for _, bad := range []struct {
		id, token string
		want      int
	}{{idA, "wrong", 403}, {idA, "", 403}, {"x", p.keys[0].token, 400}} {
		if got := notify(bad.id, bad.token); got != bad.want {
			t.Errorf("%q with %q: %d", bad.id, bad.token, got)
		}
	}
	if listed() {
		t.Error("a notification without the token was accepted")
	}
	if got := notify(idA, p.keys[0].token); got != 204 || !listed() {
		t.Errorf("after the notification of a kernel: %d, listed %v", got, listed())
	}
	if err := first.Stop(t.Context(), idA, "not needed"); err != nil {
		t.Fatal(err)
	}
	if !listed() {
		t.Fatal("its watch is not late; the test proves nothing")
	}
	late.mu.Lock()
	pod := late.kernels[idA].pod
	late.mu.Unlock()
	if got := notify(idA, p.keys[0].token); got != 204 || listed() {
		t.Errorf("after the notification of an end: %d, listed %v", got, listed())
	}
	late.updatePod(pod) // its watch, at last
	var gone *launcher.GoneError
	if _, err := late.Kernel(t.Context(), idA); !errors.As(err, &gone) || gone.Reason != "not needed" {
		t.Errorf("after its end: %v", err)
	}
}

// TestPeers_PeerThatDoesNotAnswer: a list never lacks a kernel that a peer has announced, even if reading that kernel
// failed.
func TestPeers_PeerThatDoesNotAnswer(t *testing.T) {
	c := newTestCluster(t)
	silent := c.silence()
	var refused atomic.Bool
	c.PrependReactor("list", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
		return refused.Load(), nil, errors.New("the server is busy")
	})
	first := openTest(t, c, nil)
	silent.Store(true)
	late := openTest(t, c, nil)
	p := peersOf(t, late)
	notify := func(id string) int {
		w, r := httptest.NewRecorder(), httptest.NewRequest("POST", "/kernels/"+id, nil)
		r.SetPathValue("id", id)
		r.Header.Set("Authorization", "Bearer "+p.keys[0].token)
		p.serveKernel(w, r)
		return w.Code
	}
	for n, id := range []string{idA, idB} {
		if _, _, err := first.Start(t.Context(), testRequest(id)); err != nil {
			t.Fatal(err)
		}
		want := http.StatusTooManyRequests // in one case it sends no request
		if n == 0 {
			want = http.StatusServiceUnavailable
			refused.Store(true)
		} else {
			p.answering <- struct{}{}
		}
		if got := notify(id); got != want {
			t.Errorf("notification of %s: %d", id, got)
		}
		refused.Store(false)
		if all, err := late.Kernels(t.Context()); err != nil || len(all) != n+1 {
			t.Errorf("there are %+v, %v", all, err)
		}
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
			text, err := json.Marshal(first.endingForPeers(idA))
			if err != nil {
				t.Fatal(err)
			}
			var ending peerEnding
			if err := json.Unmarshal(text, &ending); err != nil {
				t.Fatal(err)
			}
			if !sendsUsage {
				ending.Usage = launcher.Usage{}
			}
			for range 2 { // notifications may be repeated
				late.enterPeerEnding(idA, ending)
			}
			want := launcher.EndedKernel{ID: idA, SpecName: "python3", Owner: "ann", Reason: end.Reason, Culled: true,
				At: end.At, Usage: launcher.Usage{Started: end.At.Add(-time.Hour), Seconds: 3600}}
			for name, l := range map[string]*Launcher{"first": first, "late": late} {
				want := want
				if l == late && !sendsUsage {
					want.Usage = launcher.Usage{}
				}
				if all, err := l.Ended(t.Context()); err != nil || !slices.Equal(all, []launcher.EndedKernel{want}) {
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
