//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
)

// This file breaks pods with running kernels, and pods that are starting.

// TestE2E_KubeFaults breaks pods with a running kernel.
func TestE2E_KubeFaults(t *testing.T) {
	k := newKubeGateway(t, "--start-wait", "30s", "--log-level", "debug")
	k.podSpec("small", map[string]any{
		"image":     "localhost/kernel-py:dev",
		"resources": map[string]any{"limits": map[string]any{"memory": "300Mi"}},
	})
	k.start()
	k.cluster.needsOwn(t, "processes in its containers are killed")
	// said reads until the session has received this text in an output.
	said := func(c *client, what string, limit time.Duration) {
		c.t.Helper()
		c.until(limit, fmt.Sprintf("%q in an output", what), func(m message) bool {
			return strings.Contains(m.field("text"), what) || strings.Contains(m.field("evalue"), what)
		})
	}
	t.Run("a cell runs out of memory", func(t *testing.T) {
		t.Parallel()
		k := k.in(t)
		id := k.kernel("small")
		c := k.dial(t, id, "s", true)
		c.begin("data = [bytes([1]) * (50 << 20) for i in range(20)]")
		said(c, "memory", 60*time.Second)
		k.state(id, "idle", 60*time.Second)
		if r := c.finish(c.begin("print('again')"), 60*time.Second); r.stdout != "again\n" {
			t.Errorf("got %q", r.stdout)
		}
		if pods := k.podsOf(id); len(pods) != 1 || pods[0].Metadata.Name != id+"-1" {
			t.Errorf("it is not the same pod: %+v", pods)
		}
	})
	t.Run("the kernel's container is killed as a whole", func(t *testing.T) {
		t.Parallel()
		k := k.in(t)
		id := k.kernel("pod")
		c := k.dial(t, id, "s", true)
		cell := c.begin("import time\nprint('begun', 1, flush=True)\ntime.sleep(600)")
		c.begun(cell)
		if err := syscall.Kill(k.mainProcess(t, k.namespace, id+"-1", "kernel"), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if r := c.finish(cell, 60*time.Second); r.reply.field("status") != "error" ||
			!strings.Contains(r.reply.field("evalue"), "signal 9") {
			t.Errorf("the cell ended with %s", r.reply.Content)
		}
		if r := c.finish(c.begin("print('again')"), 60*time.Second); r.stdout != "again\n" {
			t.Errorf("got %q", r.stdout)
		}
	})
	t.Run("the supervisor's container is killed while a cell prints", func(t *testing.T) {
		t.Parallel()
		k := k.in(t)
		id := k.kernel("pod")
		c := k.dial(t, id, "s", true)
		c.finish(c.begin("x = 41"), 60*time.Second)
		c.begun(c.begin("import time\nfor i in range(50):\n    print('begun', i, flush=True)\n    time.sleep(0.1)"))
		if err := syscall.Kill(k.mainProcess(t, k.namespace, id+"-1", "supervisor"), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		k.eventually(90*time.Second, "the kernel answers with its variables", func() error {
			c, err := k.tryDial(t, id, "s", true)
			if err != nil {
				return err
			}
			said(c, "Output that had not reached this page by then is lost", 20*time.Second)
			if r := c.finish(c.begin("print(x + 1)"), 60*time.Second); r.stdout != "42\n" {
				return fmt.Errorf("got %q", r.stdout)
			}
			return nil
		})
	})
	t.Run("another program deletes the pod", func(t *testing.T) {
		t.Parallel()
		k := k.in(t)
		id := k.kernel("pod")
		c := k.dial(t, id, "s", true)
		c.finish(c.begin("x = 41"), 60*time.Second)
		k.cluster.kubectl(t, "", "-n", k.namespace, "delete", "pod", id+"-1", "--wait=false")
		if m := k.state(id, "dead", 60*time.Second); m.Reason != "its pod was deleted" {
			t.Errorf("the reason is %q", m.Reason)
		}
		k.want(200, "POST", "/api/kernels/"+id+"/restart", "", nil)
		k.state(id, "idle", 60*time.Second)
		back := k.dial(t, id, "s2", true)
		if r := back.finish(back.begin("print('revived')"), 60*time.Second); r.stdout != "revived\n" {
			t.Errorf("got %q", r.stdout)
		}
		k.want(204, "DELETE", "/api/kernels/"+id, "", nil)
		k.want(404, "GET", "/api/kernels/"+id, "", nil)
	})
	t.Run("the secret is deleted, and then the supervisor's container is killed", func(t *testing.T) {
		t.Parallel()
		k := k.in(t)
		id := k.kernel("pod")
		c := k.dial(t, id, "s", true)
		c.says("x = 41", "")
		k.cluster.kubectl(t, "", "-n", k.namespace, "delete", "secret", "ekg-"+id+"-1")
		c.says("print(x)", "41\n")
		if err := syscall.Kill(k.mainProcess(t, k.namespace, id+"-1", "supervisor"), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		k.eventually(150*time.Second, "the kernel answers with its variables", func() error {
			c, err := k.tryDial(t, id, "s", true)
			if err != nil {
				return err
			}
			if r := c.execute("print(x + 1)", 60*time.Second); r.stdout != "42\n" {
				return fmt.Errorf("got %q", r.stdout)
			}
			return nil
		})
		t.Logf("it was back after %v", time.Since(began).Round(100*time.Millisecond))
	})
	t.Run("values of variables arrive as they were sent", func(t *testing.T) {
		t.Parallel()
		k := k.in(t)
		value := "$(HOME) $$ $(KUBERNETES_SERVICE_HOST) \"'`$HOME`\n{{.x}} \\ ü"
		body, err := json.Marshal(map[string]any{"name": "pod", "env": map[string]string{"KERNEL_ODD": value}})
		if err != nil {
			t.Fatal(err)
		}
		var m model
		k.want(201, "POST", "/api/kernels", string(body), &m)
		c := k.dial(t, m.ID, "s", true)
		r := c.execute(`import os, json
print(json.dumps([os.environ['KERNEL_ODD'], os.environ['NVIDIA_VISIBLE_DEVICES'], os.getuid()]))`, 60*time.Second)
		var got [3]any
		if err := json.Unmarshal([]byte(r.stdout), &got); err != nil || got[0] != value || got[1] != "void" {
			t.Errorf("got %q, %v", r.stdout, err)
		}
	})
	t.Run("the same POST five times at once", func(t *testing.T) {
		t.Parallel()
		k := k.in(t)
		id := uuid.NewString()
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				status, b := k.ask("POST", "/api/kernels", fmt.Sprintf(`{"name": "pod", "kernel_id": %q}`, id))
				if status != 201 {
					t.Errorf("%d %s", status, b)
				}
			})
		}
		wg.Wait()
		if pods := k.podsOf(id); len(pods) != 1 {
			t.Errorf("%d pods", len(pods))
		}
	})
}

// TestE2E_KubeStartFaults: faults interrupt a start at each of its steps. Afterwards there is a kernel, or there is no
// trace of one. The two functions nothing and unclaimed define these states.
func TestE2E_KubeStartFaults(t *testing.T) {
	c := theCluster(t)
	// isPOST reports whether a request creates an object of this resource.
	isPOST := func(r *http.Request, what string) bool {
		return r.Method == "POST" && strings.HasSuffix(r.URL.Path, "/"+what)
	}
	// nothing checks that in the end there is no kernel and no pod. The answer must give why as the reason for the
	// kernel's removal. An empty why means that the kernel never existed.
	nothing := func(k *inCluster, id, why string) {
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
	// unclaimed checks that the kernel comes up in its first pod, although no client has received its id. A client that
	// asks for this id later gets the same kernel.
	unclaimed := func(k *inCluster, id string) {
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
	// clientLeaves requests a kernel. Its client leaves when the POST of one of these objects reaches the API server, or
	// when its answer returns.
	clientLeaves := func(t *testing.T, made string, answered, lost bool) (*inCluster, string) {
		t.Helper()
		proxy := c.newAPIProxy(t)
		ctx, leave := context.WithCancel(t.Context())
		leaves := func(r *http.Request) bool {
			if !isPOST(r, made) {
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
	t.Run("the client goes away before the pod is created", func(t *testing.T) {
		t.Parallel()
		k, id := clientLeaves(t, "pods", false, true)
		nothing(k, id, "")
	})
	t.Run("the client goes away while the pod is created, and the answer is lost", func(t *testing.T) {
		t.Parallel()
		k, id := clientLeaves(t, "pods", true, true)
		unclaimed(k, id)
	})
	t.Run("the client goes away between pod and secret", func(t *testing.T) {
		t.Parallel()
		k, id := clientLeaves(t, "secrets", false, false)
		nothing(k, id, "no client waited for its start")
	})
	t.Run("the client goes away while the kernel starts", func(t *testing.T) {
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
		nothing(k, id, "no client waited for its start")
	})
	t.Run("the secret is deleted while the pod waits for a node", func(t *testing.T) {
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
	})
	for _, when := range []struct {
		name, making string
		then         func(k *inCluster, id string)
	}{
		{"the gateway is killed before the pod is created", "pods", func(k *inCluster, id string) { nothing(k, id, "") }},
		{"the gateway is killed between pod and secret", "secrets", unclaimed},
	} {
		t.Run(when.name, func(t *testing.T) {
			t.Parallel()
			proxy := c.newAPIProxy(t)
			held := make(chan struct{}, 1)
			proxy.before = func(r *http.Request) bool {
				if !isPOST(r, when.making) {
					return true
				}
				held <- struct{}{}
				gone(r)
				return false
			}
			k := c.newGateway(t, c.newNamespace(t), proxy.kubeconfig(t, c))
			k.start()
			id := uuid.NewString()
			answered := k.post(t.Context(), id)
			select {
			case <-held:
			case err := <-answered:
				t.Fatalf("the POST ended before that: %v", err)
			}
			k.kill()
			if err := <-answered; err == nil {
				t.Fatal("the POST was answered")
			}
			k.args[slices.Index(k.args, "--kubeconfig")+1] = c.kubeconfig
			k.start()
			when.then(k, id)
		})
	}
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

// TestE2E_KubeForbidden: the gateway lacks rights in one namespace. A client that asks for a kernel there gets this as
// the reason. Other namespaces are not affected.
func TestE2E_KubeForbidden(t *testing.T) {
	c := theCluster(t)
	c.needsOwn(t, "service accounts and roles are created in it")
	allowed, forbidden := c.newNamespace(t), c.newNamespace(t)
	c.kubectl(t, "", "-n", allowed, "create", "serviceaccount", "gateway")
	c.kubectl(t, "", "-n", allowed, "create", "role", "gateway", "--verb=*",
		"--resource=pods,pods/portforward,secrets,events")
	c.kubectl(t, "", "-n", allowed, "create", "rolebinding", "gateway", "--role=gateway",
		"--serviceaccount="+allowed+":gateway")
	token := strings.TrimSpace(c.kubectl(t, "", "-n", allowed, "create", "token", "gateway"))
	config := c.writeKubeconfig(t, "https://"+nodeIP+":6443", fmt.Sprintf(`{"token": %q}`, token))
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, fmt.Appendf(nil, "clients: {allow: [KERNEL_NAMESPACE], namespaces: [%s]}\n", forbidden),
		0o600); err != nil {
		t.Fatal(err)
	}
	k := c.newGateway(t, allowed, config, "--kube-policy", policy)
	began := time.Now()
	k.start()
	t.Logf("ready after %v", time.Since(began).Round(100*time.Millisecond))
	there := fmt.Sprintf(`{"name": "pod", "env": {"KERNEL_NAMESPACE": %q}}`, forbidden)
	var answer struct{ Reason, Message string }
	k.want(500, "POST", "/api/kernels", there, &answer)
	why := regexp.MustCompile(fmt.Sprintf(`^the gateway may not list (pods|events) in the namespace "%s"$`, forbidden))
	if !why.MatchString(answer.Reason) || answer.Message != answer.Reason {
		t.Errorf("got %+v", answer)
	}
	id := k.kernel("pod")
	k.dial(t, id, "s", true).says("print('allowed')", "allowed\n")
	k.want(404, "GET", "/api/kernels/00000000-0000-4000-8000-00000000000f", "", nil)
	var all []model
	if k.want(200, "GET", "/api/kernels", "", &all); len(all) != 1 || all[0].ID != id {
		t.Errorf("got %+v", all)
	}
	k.deleteAll()
}
