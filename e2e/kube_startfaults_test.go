//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// This file breaks pods that are starting.

// TestE2E_KubeStartFaults: faults interrupt a start at each of its steps. Afterwards there is a kernel, or there is no
// trace of one. The methods leavesNoTrace and startsUnclaimed define these states.
func TestE2E_KubeStartFaults(t *testing.T) {
	c := theCluster(t)
	t.Run("the client goes away before the pod is created", func(t *testing.T) {
		t.Parallel()
		k, id := clientLeaves(t, c, "pods", false, true)
		k.leavesNoTrace(id, "")
	})
	t.Run("the client goes away while the pod is created, and the answer is lost", func(t *testing.T) {
		t.Parallel()
		k, id := clientLeaves(t, c, "pods", true, true)
		k.startsUnclaimed(id)
	})
	t.Run("the client goes away between pod and secret", func(t *testing.T) {
		t.Parallel()
		k, id := clientLeaves(t, c, "secrets", false, false)
		k.leavesNoTrace(id, "no client waited for its start")
	})
	t.Run("the client goes away while the kernel starts", clientLeavesWhileKernelStarts)
	t.Run("the secret is deleted while the pod waits for a node", func(t *testing.T) { secretDeletedWhilePodWaits(t, c) })
	for _, when := range []struct {
		name, resource string
		then           func(k *inCluster, id string)
	}{
		{"the gateway is killed before the pod is created", "pods", func(k *inCluster, id string) {
			k.leavesNoTrace(id, "")
		}},
		{"the gateway is killed between pod and secret", "secrets", (*inCluster).startsUnclaimed},
	} {
		t.Run(when.name, func(t *testing.T) {
			t.Parallel()
			k, id := c.newGateway(t, c.newNamespace(t), c.kubeconfig), uuid.NewString()
			k.killedBefore(id, when.resource)
			when.then(k, id)
		})
	}
}

// killedBefore starts a kernel with this id, and kills the gateway when it creates an object of this resource. Then it
// starts the gateway again.
func (k *inCluster) killedBefore(id, resource string) {
	k.t.Helper()
	proxy := k.cluster.newAPIProxy(k.t)
	held := make(chan struct{}, 1)
	proxy.before = func(r *http.Request) bool {
		if !isPOST(r, resource) {
			return true
		}
		held <- struct{}{}
		gone(r)
		return false
	}
	at := slices.Index(k.args, "--kubeconfig") + 1
	direct := k.args[at]
	k.args[at] = proxy.kubeconfig(k.t, k.cluster)
	k.start()
	answered := k.post(k.t.Context(), id)
	select {
	case <-held:
	case err := <-answered:
		k.t.Fatalf("the POST ended before that: %v", err)
	}
	k.kill()
	if err := <-answered; err == nil {
		k.t.Fatal("the POST was answered")
	}
	k.args[at] = direct
	k.start()
}

// isPOST reports whether a request creates an object of this resource.
func isPOST(r *http.Request, resource string) bool {
	return r.Method == "POST" && strings.HasSuffix(r.URL.Path, "/"+resource)
}

// leavesNoTrace checks that in the end there is no kernel and no pod. The 404 must name why as the reason for the
// kernel's removal. An empty why means that the kernel never existed.
func (k *inCluster) leavesNoTrace(id, why string) {
	k.t.Helper()
	k.nothingLeft()
	k.eventually(10*time.Second, "it is 404", func() error {
		var all []model
		var answer struct{ Message string }
		k.want(200, "GET", "/api/kernels", "", &all)
		status, b := k.ask("GET", "/api/kernels/"+id, "")
		if err := json.Unmarshal(b, &answer); err != nil {
			return err
		}
		if len(all) != 0 || status != 404 || !strings.HasSuffix(answer.Message, cmp.Or(why, id)) {
			return fmt.Errorf("%d %s, and there are %+v", status, b, all)
		}
		return nil
	})
}

// startsUnclaimed checks that the kernel comes up in its first pod, although no client has received its id. A client
// that requests this id later gets the same kernel.
func (k *inCluster) startsUnclaimed(id string) {
	k.t.Helper()
	k.eventually(60*time.Second, "the kernel is listed, and up", func() error {
		var all []model
		if k.want(200, "GET", "/api/kernels", "", &all); len(all) != 1 || all[0].ID != id ||
			all[0].ExecutionState != "idle" {
			return fmt.Errorf("there are %+v", all)
		}
		return nil
	})
	only := func(claimed string) (uid string, err error) {
		pods := k.pods()
		if len(pods) != 1 || pods[0].Metadata.Name != id+"-1" || pods[0].Metadata.Annotations[claimedAnnotation] != claimed {
			return "", fmt.Errorf("there are %+v", pods)
		}
		return pods[0].Metadata.UID, nil
	}
	before, err := only("false")
	if err != nil {
		k.t.Error(err)
	}
	if err := <-k.post(k.t.Context(), id); err != nil {
		k.t.Error(err)
	}
	k.eventually(10*time.Second, "the same pod is claimed", func() error {
		uid, err := only("true")
		if err == nil && uid != before {
			err = fmt.Errorf("it was %s and is %s", before, uid)
		}
		return err
	})
	k.deleteAll()
}

// clientLeaves requests a kernel, and its client leaves during the start: when the gateway's POST of this resource is
// sent to the API server, or when it was answered. If lost is set, the gateway gets no answer to that POST.
func clientLeaves(t *testing.T, c *cluster, resource string, answered, lost bool) (*inCluster, string) {
	t.Helper()
	proxy := c.newAPIProxy(t)
	ctx, leave := context.WithCancel(t.Context())
	leaves := func(r *http.Request) bool {
		if !isPOST(r, resource) {
			return true
		}
		leave()
		if lost { // the gateway cancels its own request
			gone(r)
		}
		return !lost
	}
	if answered {
		proxy.after = func(r *http.Response) bool { return leaves(r.Request) }
	} else {
		proxy.before = leaves
	}
	k := c.newGateway(t, c.newNamespace(t), proxy.kubeconfig(t, c), "--start-wait", "60s")
	k.start()
	id := uuid.NewString()
	if err := <-k.post(ctx, id); !errors.Is(err, context.Canceled) {
		t.Fatalf("the client was not away: %v", err)
	}
	return k, id
}

func clientLeavesWhileKernelStarts(t *testing.T) {
	t.Parallel()
	k := newKubeGateway(t, "--start-wait", "60s")
	k.podSpec("pod", map[string]any{"image": "localhost/kernel-py:dev"}, "/bin/sh", "-c", "while :; do sleep 0.1; done",
		"{connection_file}")
	k.start()
	id := uuid.NewString()
	ctx, leave := context.WithCancel(t.Context())
	answered := k.post(ctx, id)
	k.eventually(60*time.Second, "the kernel's container runs", func() error {
		if k.containerProcess(k.namespace, id+"-1", "kernel") == 0 {
			return errors.New("it does not")
		}
		return nil
	})
	leave()
	if err := <-answered; !errors.Is(err, context.Canceled) {
		t.Fatalf("the client was not away: %v", err)
	}
	k.leavesNoTrace(id, "no client waited for its start")
}

func secretDeletedWhilePodWaits(t *testing.T, c *cluster) {
	t.Parallel()
	proxy := c.newAPIProxy(t)
	made := make(chan struct{}, 8) // receives once per created secret
	proxy.after = func(r *http.Response) bool {
		if isPOST(r.Request, "secrets") {
			made <- struct{}{}
		}
		return true
	}
	ns := c.newNamespace(t)
	k := c.newGateway(t, ns, proxy.kubeconfig(t, c), "--start-wait", "1s")
	k.podSpec("pod", map[string]any{"image": "localhost/kernel-py:dev", "nodeSelector": map[string]string{"test": ns}})
	k.start()
	id := k.kernel("pod")
	// The start creates the secret once, and the loop that repeats unfinished starts creates it again.
	for i, limit := 0, time.After(30*time.Second); i < 2; i++ {
		select {
		case <-made:
		case <-limit:
			t.Fatalf("the secret was created %d times", i)
		}
	}
	c.kubectl(t, "", "-n", ns, "delete", "secret", "ekg-"+id+"-1")
	began := time.Now()
	t.Cleanup(func() { c.kubectl(t, "", "label", "node", "node1", "test-") })
	c.kubectl(t, "", "label", "node", "node1", "test="+ns)
	k.state(id, "idle", 90*time.Second)
	t.Logf("it was up after %v", time.Since(began).Round(100*time.Millisecond))
	k.deleteAll()
}

// claimedAnnotation records whether a client knows the pod's kernel.
const claimedAnnotation = "elastic-kernel-gateway.github.io/claimed"

// post requests a kernel with this id and the spec pod. The returned channel receives the error if there was no answer.
func (k *inCluster) post(ctx context.Context, id string) <-chan error {
	answered := make(chan error, 1)
	go func() {
		req, err := http.NewRequestWithContext(ctx, "POST", k.url+"/api/kernels",
			strings.NewReader(fmt.Sprintf(`{"name": "pod", "kernel_id": %q}`, id)))
		if err == nil {
			req.Header.Set("Authorization", "token "+k.token)
			var resp *http.Response
			if resp, err = http.DefaultClient.Do(req); err == nil {
				err = resp.Body.Close()
			}
		}
		answered <- err
	}()
	return answered
}
