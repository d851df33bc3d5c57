//go:build e2e

package main_test

import (
	"encoding/json"
	"fmt"
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
	t.Run("the supervisor's container is killed", func(t *testing.T) {
		t.Parallel()
		k := k.in(t)
		id := k.kernel("pod")
		c := k.dial(t, id, "s", true)
		c.finish(c.begin("x = 41"), 60*time.Second)
		if err := syscall.Kill(k.mainProcess(t, k.namespace, id+"-1", "supervisor"), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		k.eventually(90*time.Second, "the kernel answers with its variables", func() error {
			c, err := k.tryDial(t, id, "s", true)
			if err != nil {
				return err
			}
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
		k.eventually(60*time.Second, "it is dead, because its pod was deleted", func() error {
			if m := k.state(id, "dead", 60*time.Second); m.Reason != "its pod was deleted" {
				return fmt.Errorf("the reason is %q", m.Reason) // the supervisor's own, until it has ended
			}
			return nil
		})
		k.eventually(20*time.Second, "it is restarted", func() error {
			if status, b := k.ask("POST", "/api/kernels/"+id+"/restart", ""); status != 200 {
				return fmt.Errorf("%d %s", status, b) // 503 while its supervisor is ending
			}
			return nil
		})
		k.state(id, "idle", 60*time.Second)
		back := k.dial(t, id, "s2", true)
		if r := back.finish(back.begin("print('revived')"), 60*time.Second); r.stdout != "revived\n" {
			t.Errorf("got %q", r.stdout)
		}
		k.want(204, "DELETE", "/api/kernels/"+id, "", nil)
		k.want(404, "GET", "/api/kernels/"+id, "", nil)
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
