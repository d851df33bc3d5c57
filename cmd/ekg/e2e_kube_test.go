//go:build e2e

package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
)

// This file runs kernels as pods of a real cluster: that of KUBECONFIG, or deploy/devcluster's.

// cluster is a Kubernetes cluster that has the tests' images.
type cluster struct {
	kubeconfig string
	script     string // deploy/devcluster/devcluster; "": it is somebody else's cluster, where no program may be stopped
}

// TestMain ends the cluster if these tests have started it.
func TestMain(m *testing.M) {
	code := m.Run()
	if clusterStarted {
		if _, err := (&cluster{script: clusterScript}).run("down"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

var (
	clusterStarted bool // by these tests
	clusterScript  string
)

// startCluster brings the cluster up, with the images of this checkout, once.
var startCluster = sync.OnceValues(func() (*cluster, error) {
	if given := os.Getenv("KUBECONFIG"); given != "" {
		return &cluster{kubeconfig: given}, nil
	}
	repository, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	c := &cluster{script: filepath.Join(repository, "deploy/devcluster/devcluster")}
	_, err = c.run("kubectl", "--request-timeout=5s", "get", "--raw", "/readyz")
	clusterStarted, clusterScript = err != nil, c.script
	out, err := c.run("up")
	if err != nil {
		return nil, err
	}
	if _, err := c.run("images"); err != nil {
		return nil, err
	}
	c.kubeconfig = strings.TrimPrefix(strings.TrimSpace(out), "export KUBECONFIG=")
	return c, nil
})

func theCluster(t *testing.T) *cluster {
	t.Helper()
	if os.Getenv("KUBECONFIG") == "" && os.Getuid() != 0 {
		t.Skip("a cluster of its own needs root; name another by KUBECONFIG")
	}
	c, err := startCluster()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// run runs the cluster's script.
func (c *cluster) run(args ...string) (string, error) {
	cmd := exec.Command(c.script, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("devcluster %s: %w\n%s", strings.Join(args, " "), err, &stderr)
	}
	return string(out), err
}

// kubectl runs kubectl and returns what it prints.
func (c *cluster) kubectl(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	out, err := c.tryKubectl(stdin, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (c *cluster) tryKubectl(stdin string, args ...string) (string, error) {
	program := "kubectl"
	if c.script != "" {
		program, args = c.script, append([]string{"kubectl"}, args...)
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, &stderr)
	}
	return string(out), err
}

// inCluster is a gateway outside of the cluster, and a namespace of its own in it.
type inCluster struct {
	*gateway
	cluster   *cluster
	namespace string
}

// newNamespace makes a namespace for a test.
func (c *cluster) newNamespace(t *testing.T) string {
	t.Helper()
	ns := "e2e-" + strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(strings.TrimPrefix(t.Name(), "TestE2E_")))
	ns = ns[:min(len(ns), 40)] + fmt.Sprintf("-%d", time.Now().UnixNano()%1e6)
	c.kubectl(t, "", "create", "namespace", ns)
	t.Cleanup(func() { c.kubectl(t, "", "delete", "namespace", ns, "--wait=false") })
	return ns
}

// newKubeGateway prepares a gateway that reaches the cluster by a kubeconfig. Its specs are pod, which is ipykernel, and what the
// test adds before it starts the gateway.
func newKubeGateway(t *testing.T, args ...string) *inCluster {
	t.Helper()
	c := theCluster(t)
	ns := c.newNamespace(t)
	g := prepare(t, "", append([]string{"--launcher", "kubernetes", "--kubeconfig", c.kubeconfig, "--kube-namespace", ns,
		"--supervisor-image", "localhost/ekg:dev"}, args...)...)
	k := &inCluster{g, c, ns}
	k.podSpec("pod", map[string]any{"image": "localhost/kernel-py:dev"})
	return k
}

// in is the same gateway for a test of its own, beside others.
func (k *inCluster) in(t *testing.T) *inCluster {
	g := *k.gateway
	g.t = t
	return &inCluster{&g, k.cluster, k.namespace}
}

// podSpec writes a kernelspec of ipykernel whose pod is described so.
func (k *inCluster) podSpec(name string, ekg map[string]any, argv ...string) {
	k.t.Helper()
	if len(argv) == 0 {
		argv = []string{"python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"}
	}
	k.specWith(name, map[string]any{"metadata": map[string]any{"ekg": ekg}}, argv...)
}

// pods lists the kernels' pods of the namespace.
func (k *inCluster) pods() []podObject {
	k.t.Helper()
	var list struct{ Items []podObject }
	out := k.cluster.kubectl(k.t, "", "-n", k.namespace, "get", "pods", "-o", "json")
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		k.t.Fatal(err)
	}
	return list.Items
}

// podObject is what these tests read of a pod.
type podObject struct {
	Metadata struct {
		Name, UID   string
		Labels      map[string]string
		Annotations map[string]string
	}
	Status struct {
		Phase             string
		ContainerStatuses []struct {
			Name         string
			RestartCount int
			ContainerID  string
		}
	}
}

// nothingLeft holds that no pod and no secret is left of the namespace's kernels.
func (k *inCluster) nothingLeft() {
	k.t.Helper()
	k.eventually(60*time.Second, "no pod and no secret is left", func() error {
		out, err := k.cluster.tryKubectl("", "-n", k.namespace, "get", "pods,secrets", "-l", "app.kubernetes.io/managed-by=ekg", "-o", "name")
		if err == nil && strings.TrimSpace(out) != "" {
			err = fmt.Errorf("there are %s", strings.Fields(out))
		}
		return err
	})
}

// TestE2E_KubeLife is a kernel in a pod from its start to its end, by a gateway outside of the cluster.
func TestE2E_KubeLife(t *testing.T) {
	k := newKubeGateway(t)
	k.start()
	began := time.Now()
	id := k.kernel("pod")
	c := k.dial(t, id, "s", true)
	r := c.finish(c.begin("x = 41\nprint('in a pod')"), 60*time.Second)
	t.Logf("POST to the first execute_reply: %v", time.Since(began).Round(10*time.Millisecond))
	if r.stdout != "in a pod\n" {
		t.Errorf("got %q", r.stdout)
	}
	if pods := k.pods(); len(pods) != 1 || pods[0].Metadata.Name != id+"-1" {
		t.Errorf("pods: %+v", pods)
	}
	t.Run("variables survive the gateway", func(t *testing.T) {
		k.kill()
		k.start()
		c := k.dial(t, id, "s", true)
		if r := c.finish(c.begin("print(x + 1)"), 60*time.Second); r.stdout != "42\n" {
			t.Errorf("got %q", r.stdout)
		}
	})
	t.Run("interrupt", func(t *testing.T) {
		c := k.dial(t, id, "s", true)
		cell := c.begin("import time\nprint('begun', 1, flush=True)\ntime.sleep(60)")
		c.begun(cell)
		k.want(204, "POST", "/api/kernels/"+id+"/interrupt", "", nil)
		if r := c.finish(cell, 20*time.Second); r.reply.field("status") != "error" {
			t.Errorf("got %s", r.reply.Content)
		}
	})
	t.Run("restart", func(t *testing.T) {
		k.want(200, "POST", "/api/kernels/"+id+"/restart", "", nil)
		c := k.dial(t, id, "again", true)
		if r := c.finish(c.begin("print('x' in globals())"), 60*time.Second); r.stdout != "False\n" {
			t.Errorf("got %q", r.stdout)
		}
	})
	began = time.Now()
	k.want(204, "DELETE", "/api/kernels/"+id, "", nil)
	t.Logf("DELETE: %v", time.Since(began).Round(10*time.Millisecond))
	k.want(404, "GET", "/api/kernels/"+id, "", nil)
	k.nothingLeft()
}

// startsBadly holds that a POST fails soon, with a reason that contains this, and that nothing is left.
func (k *inCluster) startsBadly(t *testing.T, spec, why string) {
	t.Helper()
	began := time.Now()
	status, body := k.ask("POST", "/api/kernels", fmt.Sprintf(`{"name": %q}`, spec))
	var answer struct{ Reason, Message string }
	if err := json.Unmarshal(body, &answer); err != nil || status < 400 || !strings.Contains(answer.Reason, why) || answer.Message == "" {
		t.Errorf("%s: %d %s", spec, status, body)
	}
	t.Logf("%s: %s (%v)", spec, answer.Reason, time.Since(began).Round(100*time.Millisecond))
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestE2E_KubeBadStarts: what can never run is said so at once.
func TestE2E_KubeBadStarts(t *testing.T) {
	k := newKubeGateway(t, "--start-wait", "20s")
	image := map[string]any{"image": "localhost/kernel-py:dev"}
	k.podSpec("no-image", map[string]any{"image": "localhost/no-such-image:dev", "imagePullPolicy": "Never"})
	k.podSpec("empty", map[string]any{"image": "localhost/empty:dev"})
	k.podSpec("no-program", image, "/opt/no-such-program", "{connection_file}")
	k.podSpec("exits", image, "/bin/sh", "-c", "echo these are my last words >&2; exit 3")
	k.podSpec("privileged", map[string]any{"image": "localhost/kernel-py:dev", "securityContext": map[string]any{"privileged": true}})
	k.start()
	for spec, why := range map[string]string{
		"no-image":   "localhost/no-such-image:dev",
		"empty":      "no program",
		"no-program": "/opt/no-such-program",
		"exits":      "these are my last words",
		"privileged": "privileged",
	} {
		t.Run(spec, func(t *testing.T) {
			t.Parallel()
			k.in(t).startsBadly(t, spec, why)
		})
	}
	t.Cleanup(k.nothingLeft)
}

// mainProcess returns a process of a pod's container: its first one.
func (k *inCluster) mainProcess(t *testing.T, pod, container string) int {
	t.Helper()
	if pid := k.containerProcess(k.namespace, pod, container); pid != 0 {
		return pid
	}
	t.Fatalf("container %s of %s has no first process", container, pod)
	return 0
}

// containerProcess returns the process id of a container's first process, 0 if it has none.
func (k *inCluster) containerProcess(namespace, pod, container string) int {
	out, err := k.cluster.tryKubectl("", "-n", namespace, "get", "pod", pod, "-o", `jsonpath={.status.containerStatuses[?(@.name=="`+container+`")].containerID}`)
	id := strings.TrimPrefix(out, "containerd://")
	if err != nil || id == "" {
		return 0
	}
	for _, p := range processes(k.t, func(process) bool { return true }) {
		group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.pid))
		if err != nil || !bytes.Contains(group, []byte(id)) {
			continue // gone, or another's
		}
		if status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid)); err == nil && namespacePID(string(status)) == "1" {
			return p.pid
		}
	}
	return 0
}

// namespacePID is the process id in the innermost namespace.
func namespacePID(status string) string {
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
			f := strings.Fields(rest)
			return f[len(f)-1]
		}
	}
	return ""
}

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
		if err := syscall.Kill(k.mainProcess(t, id+"-1", "kernel"), syscall.SIGKILL); err != nil {
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
		if err := syscall.Kill(k.mainProcess(t, id+"-1", "supervisor"), syscall.SIGKILL); err != nil {
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

// podsOf lists one kernel's pods.
func (k *inCluster) podsOf(id string) (all []podObject) {
	k.t.Helper()
	for _, p := range k.pods() {
		if p.Metadata.Labels["elastic-kernel-gateway.github.io/kernel-id"] == id {
			all = append(all, p)
		}
	}
	return all
}

// TestE2E_KubeGPU: who waits for a GPU is told so, and starts by itself when one is given back.
func TestE2E_KubeGPU(t *testing.T) {
	k := newKubeGateway(t, "--start-wait", "4s")
	k.podSpec("gpu", map[string]any{"image": "localhost/kernel-py:dev", "resources": map[string]any{"limits": map[string]any{"nvidia.com/gpu": "1"}}})
	k.start()
	var ids []string
	for range 4 {
		id := k.kernel("gpu")
		k.state(id, "idle", 60*time.Second)
		ids = append(ids, id)
	}
	began := time.Now()
	fifth := k.kernel("gpu")
	m := k.state(fifth, "starting", time.Second)
	if !strings.Contains(m.Reason, "nvidia.com/gpu") || time.Since(began) > 6*time.Second {
		t.Errorf("after %v the model says %q", time.Since(began), m.Reason)
	}
	t.Logf("waiting: %s", m.Reason)
	c := k.dial(t, fifth, "s", true)
	cell := c.begin("print('with a GPU')")
	c.until(20*time.Second, "the reason in the cell", func(m message) bool {
		return m.Parent.MsgID == cell && bytes.Contains(m.Content, []byte("nvidia.com/gpu"))
	})
	k.want(204, "DELETE", "/api/kernels/"+ids[0], "", nil)
	if r := c.finish(cell, 60*time.Second); r.stdout != "with a GPU\n" {
		t.Errorf("got %q", r.stdout)
	}
}

// TestE2E_KubeLauncher is the suite that every launcher must pass, on the cluster.
func TestE2E_KubeLauncher(t *testing.T) {
	c := theCluster(t)
	ns := c.newNamespace(t)
	open := func(t *testing.T) launcher.Launcher {
		t.Helper()
		cluster, err := kube.Connect(c.kubeconfig, "")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		l, err := kube.Open(ctx, kube.Options{Cluster: cluster, MasterKey: []byte(strings.Repeat("k", 32)),
			Pods: kube.PodOptions{Namespace: ns, SupervisorImage: "localhost/ekg:dev", KernelImage: "localhost/kernel-py:dev"}})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	launchertest.Run(t, open, kernelspecs.Spec{Name: "pod", Language: "python", DisplayName: "pod",
		Argv: []string{"python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"}})
	left := c.kubectl(t, "", "-n", ns, "get", "pods,secrets", "-o", "name")
	if strings.TrimSpace(left) != "" {
		t.Errorf("there are left: %s", left)
	}
}

// TestE2E_KubeImages: images that know nothing of ekg, as other users and with nothing writable.
func TestE2E_KubeImages(t *testing.T) {
	k := newKubeGateway(t, "--start-wait", "60s")
	k.podSpec("locked", map[string]any{"image": "localhost/kernel-py:dev",
		"securityContext": map[string]any{"readOnlyRootFilesystem": true, "runAsUser": 12345, "runAsGroup": 12345, "runAsNonRoot": true}})
	r := filepath.Join(k.dir, "specs", "r")
	if err := os.MkdirAll(r, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r, "kernel.json"), []byte(`{"display_name": "R", "language": "R",
		"metadata": {"ekg": {"image": "localhost/kernel-other:dev", "imageKernelspec": "ir"}}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	k.start()
	for spec, cell := range map[string][2]string{
		"r": {`cat(R.version$language, Sys.info()[["user"]] != "root", "\n")`, "R TRUE \n"},
		"locked": {"import os, tempfile, pathlib\npathlib.Path.home().joinpath('x').write_text('x')\ntempfile.NamedTemporaryFile().close()\nprint(os.getuid(), os.access('/usr', os.W_OK))",
			"12345 False\n"},
	} {
		t.Run(spec, func(t *testing.T) {
			t.Parallel()
			k := k.in(t)
			id := k.kernel(spec)
			c := k.dial(t, id, "s", true)
			if r := c.finish(c.begin(cell[0]), 60*time.Second); r.stdout != cell[1] {
				t.Errorf("got %q, %s", r.stdout, r.reply.Content)
			}
			k.want(204, "DELETE", "/api/kernels/"+id, "", nil)
		})
	}
	t.Cleanup(k.nothingLeft)
}

// TestE2E_KubeMany: a quota is named, and many starts at once leave as many kernels.
func TestE2E_KubeMany(t *testing.T) {
	k := newKubeGateway(t, "--start-wait", "60s")
	k.start()
	const n = 12
	k.cluster.kubectl(t, "", "-n", k.namespace, "create", "quota", "few", fmt.Sprintf("--hard=pods=%d", n))
	var wg sync.WaitGroup
	ids := make([]string, n)
	began := time.Now()
	for i := range n {
		wg.Go(func() {
			status, b := k.ask("POST", "/api/kernels", `{"name": "pod"}`)
			var m model
			if err := json.Unmarshal(b, &m); err != nil || status != 201 || m.ExecutionState == "dead" {
				t.Errorf("%d %s", status, b)
			}
			ids[i] = m.ID
		})
	}
	wg.Wait()
	t.Logf("%d kernels at once: %v", n, time.Since(began).Round(10*time.Millisecond))
	k.startsBadly(t, "pod", "quota")
	if pods := k.pods(); len(pods) != n {
		t.Errorf("%d kernels have %d pods", n, len(pods))
	}
	for _, id := range ids {
		k.state(id, "idle", 60*time.Second)
		wg.Go(func() {
			if status, b := k.ask("DELETE", "/api/kernels/"+id, ""); status != 204 {
				t.Errorf("%d %s", status, b)
			}
		})
	}
	wg.Wait()
	k.nothingLeft()
}
