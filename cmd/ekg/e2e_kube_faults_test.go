//go:build e2e

package main_test

import (
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

// This file breaks pods in which kernels run, and starts of such.

// TestE2E_KubeFaults breaks pods in which a kernel runs.
func TestE2E_KubeFaults(t *testing.T) {
	k := newKubeGateway(t, "--start-wait", "30s", "--log-level", "debug")
	k.podSpec("small", map[string]any{"image": "localhost/kernel-py:dev", "resources": map[string]any{"limits": map[string]any{"memory": "300Mi"}}})
	k.start()
	if k.cluster.script == "" {
		t.Skip("containers' processes can only be killed in a cluster on this machine")
	}
	// said reads until the session has seen this in an output.
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
		if r := c.finish(cell, 60*time.Second); r.reply.field("status") != "error" || !strings.Contains(r.reply.field("evalue"), "signal 9") {
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
			said(c, "output of before that had not arrived here is lost", 20*time.Second)
			if r := c.finish(c.begin("print(x + 1)"), 60*time.Second); r.stdout != "42\n" {
				return fmt.Errorf("got %q", r.stdout)
			}
			return nil
		})
	})
	t.Run("the pod is deleted behind our back", func(t *testing.T) {
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
	t.Run("its secret is deleted, and then its supervisor's container killed", func(t *testing.T) {
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
		r := c.finish(c.begin("import os, json\nprint(json.dumps([os.environ['KERNEL_ODD'], os.environ['NVIDIA_VISIBLE_DEVICES'], os.getuid()]))"), 60*time.Second)
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
				if status, b := k.ask("POST", "/api/kernels", fmt.Sprintf(`{"name": "pod", "kernel_id": %q}`, id)); status != 201 {
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

// TestE2E_KubeStartFaults: whatever happens in the middle of a start, afterwards there is a kernel or there is nothing.
func TestE2E_KubeStartFaults(t *testing.T) {
	c := theCluster(t)
	// oneOrNone waits until the kernel is up and listed, or has no pod.
	oneOrNone := func(k *inCluster, id string) {
		k.t.Helper()
		k.eventually(60*time.Second, "the kernel is up, or has no pod", func() error {
			var all []model
			k.want(200, "GET", "/api/kernels", "", &all)
			i := slices.IndexFunc(all, func(m model) bool { return m.ID == id })
			pods := len(k.podsOf(id))
			switch {
			case i < 0 && pods == 0:
				k.t.Log("there is nothing")
			case i >= 0 && all[i].ExecutionState == "idle" && pods == 1:
				k.t.Log("there is a kernel")
			default:
				return fmt.Errorf("%d pods, listed at %d: %+v", pods, i, all)
			}
			return nil
		})
		k.deleteAll()
	}
	t.Run("the client goes away while its kernel starts", func(t *testing.T) {
		t.Parallel()
		k := newKubeGateway(t, "--start-wait", "60s")
		k.podSpec("pod", map[string]any{"image": "localhost/kernel-py:dev"}, "/bin/sh", "-c",
			`i=0; while [ $i -lt 20 ]; do i=$((i+1)); sleep 0.1; done; exec python3 -m ipykernel_launcher -f "$0"`, "{connection_file}")
		k.start()
		id := uuid.NewString()
		ctx, leave := context.WithCancel(t.Context())
		answered := k.post(ctx, id)
		k.eventually(30*time.Second, "there is a pod", func() error {
			if len(k.podsOf(id)) == 0 {
				return errors.New("there is none")
			}
			return nil
		})
		leave()
		if err := <-answered; !errors.Is(err, context.Canceled) {
			t.Fatalf("the client was not away: %v", err)
		}
		oneOrNone(k, id)
	})
	t.Run("the client goes away while its pod is made", func(t *testing.T) {
		t.Parallel()
		proxy := c.newAPIProxy(t)
		id := uuid.NewString()
		ctx, leave := context.WithCancel(t.Context())
		proxy.after = func(r *http.Response) bool {
			if r.Request.Method != "POST" || !strings.HasSuffix(r.Request.URL.Path, "/pods") {
				return true
			}
			leave() // the pod is there, and the gateway does not know it yet
			gone(r.Request)
			return false
		}
		k := c.newGateway(t, c.newNamespace(t), proxy.kubeconfig(t, c), "--start-wait", "60s")
		k.start()
		if err := <-k.post(ctx, id); !errors.Is(err, context.Canceled) {
			t.Fatalf("the client was not away: %v", err)
		}
		oneOrNone(k, id)
	})
	t.Run("the secret is deleted while the pod waits for a node", func(t *testing.T) {
		t.Parallel()
		proxy := c.newAPIProxy(t)
		made := make(chan struct{}, 8) // how often the secret was
		proxy.after = func(r *http.Response) bool {
			if r.Request.Method == "POST" && strings.HasSuffix(r.Request.URL.Path, "/secrets") {
				made <- struct{}{}
			}
			return true
		}
		ns := c.newNamespace(t)
		k := c.newGateway(t, ns, proxy.kubeconfig(t, c), "--start-wait", "1s")
		k.podSpec("pod", map[string]any{"image": "localhost/kernel-py:dev", "nodeSelector": map[string]string{"test": ns}})
		k.start()
		id := k.kernel("pod")
		for i, limit := 0, time.After(30*time.Second); i < 2; i++ { // by the start, and by whoever looks after starts
			select {
			case <-made:
			case <-limit:
				t.Fatalf("the secret was made %d times", i)
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
	t.Run("the gateway is killed between pod and secret", func(t *testing.T) {
		t.Parallel()
		proxy := c.newAPIProxy(t)
		held := make(chan struct{}, 1)
		proxy.before = func(r *http.Request) bool {
			if r.Method != "POST" || !strings.HasSuffix(r.URL.Path, "/secrets") {
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
			t.Fatalf("the POST ended without a secret: %v", err)
		}
		if pods := k.podsOf(id); len(pods) != 1 {
			t.Fatalf("%d pods", len(pods))
		}
		k.kill()
		if err := <-answered; err == nil {
			t.Fatal("the POST was answered")
		}
		k.args[slices.Index(k.args, "--kubeconfig")+1] = c.kubeconfig
		k.start()
		oneOrNone(k, id)
	})
}

// post asks for a kernel of this id, of the spec pod. The error says why there was no answer.
func (k *inCluster) post(ctx context.Context, id string) <-chan error {
	answered := make(chan error, 1)
	go func() {
		req, err := http.NewRequestWithContext(ctx, "POST", k.url+"/api/kernels", strings.NewReader(fmt.Sprintf(`{"name": "pod", "kernel_id": %q}`, id)))
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

// TestE2E_KubeForbidden: what a gateway may not do in one namespace is told to whoever asks for it, and hinders nobody else.
func TestE2E_KubeForbidden(t *testing.T) {
	c := theCluster(t)
	if c.script == "" {
		t.Skip("accounts are made in the tests' own cluster only")
	}
	allowed, forbidden := c.newNamespace(t), c.newNamespace(t)
	c.kubectl(t, "", "-n", allowed, "create", "serviceaccount", "gateway")
	c.kubectl(t, "", "-n", allowed, "create", "role", "gateway", "--verb=*", "--resource=pods,pods/portforward,secrets,events")
	c.kubectl(t, "", "-n", allowed, "create", "rolebinding", "gateway", "--role=gateway", "--serviceaccount="+allowed+":gateway")
	token := strings.TrimSpace(c.kubectl(t, "", "-n", allowed, "create", "token", "gateway"))
	config := c.writeKubeconfig(t, "https://"+nodeIP+":6443", fmt.Sprintf(`{"token": %q}`, token))
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, fmt.Appendf(nil, "clients: {allow: [KERNEL_NAMESPACE], namespaces: [%s]}\n", forbidden), 0o600); err != nil {
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
