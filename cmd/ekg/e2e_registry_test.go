//go:build e2e

package main_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// registry is one that deploy/devcluster's node pulls an image from, by HTTP since it is on this machine. The image's layers the node
// has already.
type registry struct {
	image string // its name there

	mu     sync.Mutex
	status int           // of every answer; 0: there is none, until there is another status
	change chan struct{} // closed at the next change
}

// newRegistry starts a registry that does not answer yet. It has one of the tests' images, as an image of its own: since 1.35 a kubelet
// that has pulled an image wants to do so again for any other name of it.
func (c *cluster) newRegistry(t *testing.T, name string) *registry {
	t.Helper()
	ctr := func(args ...string) string {
		t.Helper()
		out, err := c.run(append([]string{"ctr"}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	fields := strings.Fields(ctr("images", "list", "name==localhost/"+name+":dev")) // REF TYPE DIGEST and more, twice
	at := slices.Index(fields, "localhost/"+name+":dev")
	if at < 0 {
		t.Fatalf("the node has no image %s", name)
	}
	kind, content := fields[at+1], map[string][]byte{}
	add := func(v any) map[string]any {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		digest := fmt.Sprintf("sha256:%x", sha256.Sum256(b))
		content[digest] = b
		return map[string]any{"digest": digest, "size": len(b)}
	}
	var manifest, config map[string]any
	if err := json.Unmarshal([]byte(ctr("content", "get", fields[at+2])), &manifest); err != nil {
		t.Fatal(err)
	}
	described := manifest["config"].(map[string]any)
	if err := json.Unmarshal([]byte(ctr("content", "get", described["digest"].(string))), &config); err != nil {
		t.Fatal(err)
	}
	config["author"] = "a registry"
	maps.Copy(described, add(config))
	top := add(manifest)["digest"].(string)

	r := &registry{change: make(chan struct{})}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if status := r.wait(req); status != http.StatusOK {
			w.WriteHeader(status)
			return
		}
		digest := path.Base(req.URL.Path)
		if strings.Contains(req.URL.Path, "/manifests/") {
			digest = top
			w.Header().Set("Content-Type", kind)
		}
		b, ok := content[digest]
		if !ok {
			http.NotFound(w, req)
			return
		}
		w.Header().Set("Docker-Content-Digest", digest)
		http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(b))
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { r.answer(http.StatusServiceUnavailable) }) // before that: it waits for its answers
	r.image = strings.TrimPrefix(server.URL, "http://") + "/" + name + ":dev"
	return r
}

// answer has all requests answered with this status from now on, also those that wait. With 0 none is answered.
func (r *registry) answer(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = status
	close(r.change)
	r.change = make(chan struct{})
}

// wait waits until there are answers, and returns their status.
func (r *registry) wait(req *http.Request) int {
	for {
		r.mu.Lock()
		status, change := r.status, r.change
		r.mu.Unlock()
		if status != 0 {
			return status
		}
		select {
		case <-change:
		case <-req.Context().Done():
			return http.StatusServiceUnavailable // for nobody
		}
	}
}
