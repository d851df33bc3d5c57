package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/watch"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// TestPeers: who is told of a kernel knows it at once, however late its watch is.
func TestPeers(t *testing.T) {
	c := newTestCluster(t)
	first := openTest(t, c, nil)
	c.PrependWatchReactor("pods", func(k8stesting.Action) (bool, watch.Interface, error) { return true, watch.NewFake(), nil }) // it says nothing
	late := openTest(t, c, nil)
	keys, err := deriveKeys(testKey, peerName, keyVersion)
	if err != nil {
		t.Fatal(err)
	}
	p := &peers{l: late, keys: keys, asking: make(chan struct{}, 1)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /kernels/{id}", p.told)
	tell := func(id, token string) int {
		body := new(bytes.Buffer)
		if end := first.endingToTell(id); end != nil {
			if err := json.NewEncoder(body).Encode(end); err != nil {
				t.Fatal(err)
			}
		}
		w, r := httptest.NewRecorder(), httptest.NewRequest("POST", "/kernels/"+id, body)
		r.Header.Set("Authorization", "Bearer "+token)
		mux.ServeHTTP(w, r)
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
	}{{idA, "wrong", 403}, {idA, "", 403}, {"x", keys.token, 400}} {
		if got := tell(bad.id, bad.token); got != bad.want {
			t.Errorf("%q with %q: %d", bad.id, bad.token, got)
		}
	}
	if listed() {
		t.Error("somebody without the token was believed")
	}
	if got := tell(idA, keys.token); got != 204 || !listed() {
		t.Errorf("told of a kernel: %d, listed %v", got, listed())
	}
	if err := first.Stop(t.Context(), idA, "not needed"); err != nil {
		t.Fatal(err)
	}
	if !listed() {
		t.Fatal("its watch is not late; the test proves nothing")
	}
	pod := late.known()[0].pod
	if got := tell(idA, keys.token); got != 204 || listed() {
		t.Errorf("told of an end: %d, listed %v", got, listed())
	}
	late.enterPod(pod) // its watch, at last
	var gone *launcher.GoneError
	if _, err := late.Kernel(t.Context(), idA); !errors.As(err, &gone) || gone.Reason != "not needed" {
		t.Errorf("after its end: %v", err)
	}
}
