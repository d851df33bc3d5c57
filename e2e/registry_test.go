//go:build e2e

package e2e

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

// registry is an image registry on this machine. The node of deploy/devcluster pulls from it by HTTP. The node already
// has the image's layers.
type registry struct {
	image string // its name in the registry

	mu     sync.Mutex
	status int           // of every answer; 0 delays answers until there is another status
	change chan struct{} // closed at the next change
}

// newRegistry starts a registry that does not answer yet. It offers one of the tests' images as a new image. Since 1.35
// a kubelet pulls a known image again for any other name of it.
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
	t.Cleanup(func() { r.answer(http.StatusServiceUnavailable) }) // runs before server.Close, which waits for all answers
	r.image = strings.TrimPrefix(server.URL, "http://") + "/" + name + ":dev"
	return r
}

// answer sets the status of all later answers and of the delayed ones. With 0 all requests wait.
func (r *registry) answer(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = status
	close(r.change)
	r.change = make(chan struct{})
}

// wait waits until the status is not 0, and returns it.
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
			return http.StatusServiceUnavailable // the client has gone
		}
	}
}
