//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// This file breaks pods with running kernels, and takes rights from gateways.

// TestE2E_KubeFaults breaks pods with a running kernel.
func TestE2E_KubeFaults(t *testing.T) {
	k := newKubeGateway(t, "--start-wait", "30s", "--log-level", "debug")
	k.podSpec("small", map[string]any{
		"image":     "localhost/kernel-py:dev",
		"resources": map[string]any{"limits": map[string]any{"memory": "300Mi"}},
	})
	k.start()
	k.cluster.needsOwn(t, "processes in its containers are killed")
	for name, test := range map[string]func(*inCluster){
		"a cell runs out of memory":                                            (*inCluster).cellRunsOutOfMemory,
		"the kernel's container is killed as a whole":                          (*inCluster).kernelContainerKilled,
		"the kernel is killed while it does nothing":                           (*inCluster).idleKernelKilled,
		"the supervisor's container is killed while a cell prints":             (*inCluster).supervisorContainerKilled,
		"another program deletes the pod":                                      (*inCluster).podDeleted,
		"the secret is deleted, and then the supervisor's container is killed": (*inCluster).secretDeleted,
		"values of variables arrive as they were sent":                         (*inCluster).variablesArrive,
		"the same POST five times at once":                                     (*inCluster).samePostAtOnce,
		"the volume of the log is full":                                        (*inCluster).logVolumeFull,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(k.in(t))
		})
	}
}

// shows reads until the session has received this text in an output.
func (c *client) shows(text string, limit time.Duration) {
	c.t.Helper()
	c.until(limit, fmt.Sprintf("%q in an output", text), func(m message) bool {
		return strings.Contains(m.field("text"), text) || strings.Contains(m.field("evalue"), text)
	})
}

func (k *inCluster) cellRunsOutOfMemory() {
	t := k.t
	id := k.kernel("small")
	c := k.dial(t, id, "s", true)
	c.begin("data = [bytes([1]) * (50 << 20) for i in range(20)]")
	c.shows("memory", 60*time.Second)
	k.state(id, "idle", 60*time.Second)
	if r := c.finish(c.begin("print('again')"), 60*time.Second); r.stdout != "again\n" {
		t.Errorf("got %q", r.stdout)
	}
	if pods := k.podsOf(id); len(pods) != 1 || pods[0].Metadata.Name != id+"-1" {
		t.Errorf("it is not the same pod: %+v", pods)
	}
}

func (k *inCluster) kernelContainerKilled() {
	t := k.t
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
}

// idleKernelKilled: the last cell of a session says that the kernel died, also if its page is closed at the time. The
// model keeps it.
func (k *inCluster) idleKernelKilled() {
	t := k.t
	id := k.kernel("pod")
	open, closed := k.dial(t, id, "open", true), k.dial(t, id, "closed", true)
	closed.says("print(1)", "1\n")
	_ = closed.ws.Close()
	open.finish(open.begin(`import os, signal, threading
threading.Timer(1, os.kill, (os.getpid(), signal.SIGKILL)).start()`), 60*time.Second)
	const died, gone = "The kernel died: the kernel's process was killed (SIGKILL)", "Its variables are gone."
	open.shows(died, 60*time.Second)
	closed = k.dial(t, id, "closed", true)
	closed.shows(gone, 60*time.Second)
	var m struct {
		Death struct{ At, Reason string } `json:"last_death"`
	}
	_, b := k.ask("GET", "/api/kernels/"+id, "")
	if err := json.Unmarshal(b, &m); err != nil || m.Death.At == "" || !strings.Contains(m.Death.Reason, "SIGKILL") {
		t.Errorf("the model is %s: %v", b, err)
	}
	closed.says("print('again')", "again\n")
}

func (k *inCluster) supervisorContainerKilled() {
	t := k.t
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
		c.shows("Output that had not reached this page by then is lost", 20*time.Second)
		if r := c.finish(c.begin("print(x + 1)"), 60*time.Second); r.stdout != "42\n" {
			return fmt.Errorf("got %q", r.stdout)
		}
		return nil
	})
}

// logVolumeFull: a cell displays 150 MB while its page is away, and the volume of the log takes 4 MiB. The kernel goes
// on. The page gets what the log keeps in memory. The cell says that the disk is full, and how many messages are
// missing.
func (k *inCluster) logVolumeFull() {
	const displays, size = 1500, 100_000
	t := k.t
	id := k.kernel("pod")
	page := k.dial(t, id, "page", true)
	page.says("x = 41\nprint(x)", "41\n")
	supervisor := k.mainProcess(t, k.namespace, id+"-1", "supervisor")
	if err := mountTmpfs(supervisor, "/ekg-spill", "size=4m,mode=1777"); err != nil {
		t.Fatal(err)
	}
	cell := page.begin(fmt.Sprintf(`import time
from IPython.display import display
print('begun', 1, flush=True)
for i in range(%d):
    display({'text/plain': '%%%dd' %% i}, raw=True)
    time.sleep(0.005)  # no faster than the kernel can send`, displays, size))
	page.begun(cell)
	_ = page.ws.Close()
	k.state(id, "idle", 3*time.Minute)
	page = k.dial(t, id, "page", true)
	got := countDisplays(t, page, cell, time.Minute)
	if !strings.Contains(got.others, "disk takes no more") || strings.Count(got.others, "\n") != 1 {
		t.Errorf("the cell says %q", got.others)
	}
	got.others = ""
	got.check(t, "the page", displays)
	if kept := got.displays * size; kept < 32<<20 {
		t.Errorf("%d bytes of %d are kept in memory", kept, displays*size)
	}
	page.says("print(x + 1)", "42\n")
	if pods := k.podsOf(id); len(pods) != 1 || pods[0].Metadata.Name != id+"-1" {
		t.Errorf("it is not the same pod: %+v", pods)
	}
	if now := k.mainProcess(t, k.namespace, id+"-1", "supervisor"); now != supervisor {
		t.Errorf("the supervisor was process %d and is %d", supervisor, now)
	}
}

// mountTmpfs mounts a file system in memory over a folder, as the process pid sees it.
func mountTmpfs(pid int, dir, options string) error {
	mounted := make(chan error)
	go func() {
		runtime.LockOSThread() // it is never unlocked, so the thread ends with this goroutine
		mounted <- func() error {
			namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
			if err != nil {
				return err
			}
			defer func() { _ = namespace.Close() }()
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return err
			}
			if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNS); err != nil {
				return err
			}
			return unix.Mount("tmpfs", dir, "tmpfs", 0, options)
		}()
	}()
	return <-mounted
}

func (k *inCluster) podDeleted() {
	t := k.t
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
}

func (k *inCluster) secretDeleted() {
	t := k.t
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
}

func (k *inCluster) variablesArrive() {
	t := k.t
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
}

func (k *inCluster) samePostAtOnce() {
	t := k.t
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
	if !why.MatchString(answer.Message) || answer.Reason == "" {
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
