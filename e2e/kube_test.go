//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube"
	kubecluster "github.com/elastic-kernel-gateway/ekg/launcher/kube/cluster"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
)

// This file runs kernels as pods of a real cluster, with a gateway outside of it.

// TestE2E_KubeLife runs a kernel in a pod from its start to its end, with a gateway outside of the cluster.
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
	t.Run("only the supervisor's port is open to other pods", func(t *testing.T) {
		r := c.execute(`loopback = '0100007F', '00000000000000000000000001000000'
for file in '/proc/net/tcp', '/proc/net/tcp6':
    for line in list(open(file))[1:]:
        address, port = line.split()[1].split(':')
        if line.split()[3] == '0A' and address not in loopback: print(int(port, 16))`, 20*time.Second)
		if r.stdout != "8889\n" {
			t.Errorf("the open ports are %q", r.stdout)
		}
	})
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

// startsBadly checks that a POST fails soon with a reason that contains why, and that nothing is left.
func (k *inCluster) startsBadly(t *testing.T, spec, why string) {
	t.Helper()
	began := time.Now()
	status, body := k.ask("POST", "/api/kernels", fmt.Sprintf(`{"name": %q}`, spec))
	var answer struct{ Reason, Message string }
	if err := json.Unmarshal(body, &answer); err != nil || status < 400 || !strings.Contains(answer.Message, why) ||
		answer.Reason == "" {
		t.Errorf("%s: %d %s", spec, status, body)
	}
	t.Logf("%s: %s (%v)", spec, answer.Message, time.Since(began).Round(100*time.Millisecond))
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("the error took %v", took)
	}
}

// TestE2E_KubeBadStarts: a start that can never succeed fails at once.
func TestE2E_KubeBadStarts(t *testing.T) {
	k := newKubeGateway(t, "--start-wait", "20s")
	image := map[string]any{"image": "localhost/kernel-py:dev"}
	k.podSpec("no-image", map[string]any{"image": "localhost/no-such-image:dev", "imagePullPolicy": "Never"})
	k.podSpec("empty", map[string]any{"image": "localhost/empty:dev"})
	k.podSpec("no-program", image, "/opt/no-such-program", "{connection_file}")
	k.podSpec("exits", image, "/bin/sh", "-c", "echo these are my last words >&2; exit 3")
	k.podSpec("privileged",
		map[string]any{"image": "localhost/kernel-py:dev", "securityContext": map[string]any{"privileged": true}})
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

// TestE2E_KubePull: a registry does not answer, fails and recovers, while the kernel's supervisor already runs. The
// reason in the model and the text under a cell follow each change.
func TestE2E_KubePull(t *testing.T) {
	t.Parallel() // it mostly waits
	k := newKubeGateway(t, "--start-wait", "1s")
	k.cluster.needsOwn(t, "its node pulls from a registry on this machine")
	registry := k.cluster.newRegistry(t, "kernel-py")
	k.podSpec("pulled", map[string]any{"image": registry.image})
	k.start()
	id := k.kernel("pulled")
	c := k.dial(t, id, "s", true)
	cell := c.begin("print('pulled')")
	waits := func(why string) {
		t.Helper()
		k.waits(id, why)
		c.until(20*time.Second, why+" under the cell", func(m message) bool {
			return m.Parent.MsgID == cell && strings.HasSuffix(m.Header.MsgType, "display_data") &&
				bytes.Contains(m.Content, []byte(why))
		})
	}
	waits("is being pulled")
	registry.answer(http.StatusServiceUnavailable)
	waits("503 Service Unavailable")
	registry.answer(http.StatusOK)
	r := c.finish(cell, 90*time.Second)
	var last struct{ Data map[string]string }
	for _, m := range r.all {
		if strings.HasSuffix(m.Header.MsgType, "display_data") {
			if err := json.Unmarshal(m.Content, &last); err != nil {
				t.Fatal(err)
			}
		}
	}
	if r.stdout != "pulled\n" || last.Data == nil || len(last.Data) != 0 {
		t.Errorf("the cell printed %q, and below it stands %q", r.stdout, last.Data)
	}
	if m := k.state(id, "idle", 10*time.Second); m.Reason != "" {
		t.Errorf("the reason is %q", m.Reason)
	}
}

// TestE2E_KubeGPU: a kernel that waits for a GPU reports this, and starts by itself when a GPU becomes free.
func TestE2E_KubeGPU(t *testing.T) {
	k := newKubeGateway(t, "--start-wait", "4s")
	k.podSpec("gpu", map[string]any{
		"image":     "localhost/kernel-py:dev",
		"resources": map[string]any{"limits": map[string]any{"nvidia.com/gpu": "1"}},
	})
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

// TestE2E_KubeClaims: a kernel waits for a device that does not exist or is in use. It reports this, and starts by
// itself when it gets the device.
func TestE2E_KubeClaims(t *testing.T) {
	t.Parallel() // it mostly waits
	k := newKubeGateway(t, "--start-wait", "1s")
	class := k.namespace
	deviceClass := fmt.Sprintf(`{"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": %q},
		"spec": {"selectors": [{"cel": {"expression": "device.driver == 'devcluster'"}}]}}`, class)
	k.cluster.kubectl(t, deviceClass, "create", "-f", "-")
	t.Cleanup(func() { k.cluster.kubectl(t, "", "delete", "deviceclass", class) })
	template := fmt.Sprintf(`{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
		"metadata": {"name": "one"},
		"spec": {"spec": {"devices": {"requests": [{"name": "device", "exactly": {"deviceClassName": %q}}]}}}}`, class)
	k.cluster.kubectl(t, template, "-n", k.namespace, "create", "-f", "-")
	k.podSpec("claims", map[string]any{
		"image":          "localhost/kernel-py:dev",
		"resourceClaims": []map[string]string{{"name": "device", "resourceClaimTemplateName": "one"}},
	})
	k.podSpec("no-template", map[string]any{
		"image":          "localhost/kernel-py:dev",
		"resourceClaims": []map[string]string{{"name": "device", "resourceClaimTemplateName": "none"}},
	})
	k.start()
	k.waits(k.kernel("no-template"), `"none" not found`)
	first := k.kernel("claims")
	k.waits(first, "no device is free")
	if k.cluster.script == "" {
		k.deleteAll()
	}
	k.cluster.needsOwn(t, "its driver of devices is started")
	if _, err := k.cluster.run("start", "devices"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := k.cluster.run("stop", "devices"); err != nil {
			t.Error(err)
		}
	})
	second := k.kernel("claims")
	for _, id := range []string{first, second} {
		k.state(id, "idle", 60*time.Second)
	}
	if one, other := k.deviceOf(first), k.deviceOf(second); one == other {
		t.Errorf("both kernels have %s", one)
	}
	k.eventually(20*time.Second, "both devices are shown as held", func() error {
		var view struct {
			Nodes []struct {
				Pools []struct {
					Resource    string
					Total, Held float64
					Holders     []struct{ Kernel string }
				}
			}
		}
		k.want(200, "GET", "/api/gpus", "", &view)
		for _, n := range view.Nodes {
			for _, p := range n.Pools {
				if p.Resource == "devcluster" && p.Total == 2 && p.Held == 2 && len(p.Holders) == 2 {
					return nil
				}
			}
		}
		return fmt.Errorf("%+v", view)
	})
	k.agentSees(first, second)
	third := k.kernel("claims")
	k.waits(third, "no device is free")
	device := k.deviceOf(first)
	k.want(204, "DELETE", "/api/kernels/"+first, "", nil)
	k.state(third, "idle", 60*time.Second)
	if got := k.deviceOf(third); got != device {
		t.Errorf("the third kernel has %s, and %s was free", got, device)
	}
	k.dial(t, third, "s", true).says("print('with a device')", "with a device\n")
	k.deleteAll()
}

// agentSees checks that the agent of GPUs on the node lists the devices of kernels, as its kubelet has given them.
func (k *inCluster) agentSees(ids ...string) {
	k.t.Helper()
	socket := filepath.Join(filepath.Dir(filepath.Dir(k.cluster.kubeconfig)), "kubelet/pod-resources/kubelet.sock")
	ctx, cancel := context.WithCancel(k.t.Context())
	cmd := exec.CommandContext(ctx, filepath.Join(k.gateway.in.bin, "ekg-gpu"), "agent", "--listen", "127.0.0.1:0",
		"--pod-resources", socket)
	cmd.Env = append(os.Environ(), "NODE_NAME=node1")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	said, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		k.t.Fatal(err)
	}
	defer func() {
		cancel()
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 0 {
			k.t.Errorf("the agent: %v", err)
		}
	}()
	line, err := bufio.NewReader(said).ReadString('\n')
	_, address, ok := strings.Cut(strings.TrimSpace(line), "listens on ")
	if err != nil || !ok {
		k.t.Fatalf("the agent says %q, %v", line, err)
	}
	resp, err := http.Get("http://" + address + "/gpus")
	if err != nil {
		k.t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // it was only read
	var report struct {
		Node string
		Pods []struct {
			Pod, Resource string
			Devices       []string
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&report); err != nil {
		k.t.Fatal(err)
	}
	for _, id := range ids {
		want := "/" + k.deviceOf(id)
		found := false
		for _, p := range report.Pods {
			found = found || p.Pod == id+"-1" && p.Resource == "devcluster" && len(p.Devices) == 1 &&
				strings.HasSuffix(p.Devices[0], want)
		}
		if !found || report.Node != "node1" {
			k.t.Errorf("kernel %s with %s is not in %+v", id, want, report)
		}
	}
}

// deviceOf returns the one device that is allocated to a kernel.
func (k *inCluster) deviceOf(id string) string {
	k.t.Helper()
	var claims struct {
		Items []struct {
			Status struct {
				ReservedFor []struct{ Name string }
				Allocation  struct {
					Devices struct{ Results []struct{ Device string } }
				}
			}
		}
	}
	text := k.cluster.kubectl(k.t, "", "-n", k.namespace, "get", "resourceclaims", "-o", "json")
	if err := json.Unmarshal([]byte(text), &claims); err != nil {
		k.t.Fatal(err)
	}
	for _, c := range claims.Items {
		if s := c.Status; len(s.ReservedFor) == 1 && s.ReservedFor[0].Name == id+"-1" &&
			len(s.Allocation.Devices.Results) == 1 {
			return s.Allocation.Devices.Results[0].Device
		}
	}
	k.t.Fatalf("kernel %s has no device: %+v", id, claims)
	return ""
}

// TestE2E_KubeLauncher runs the suite for all launchers on the cluster.
func TestE2E_KubeLauncher(t *testing.T) {
	t.Parallel() // it mostly waits
	c := theCluster(t)
	ns := c.newNamespace(t)
	open := func(t *testing.T) launcher.Launcher {
		t.Helper()
		cluster, err := kubecluster.Connect(c.kubeconfig, "")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		l, err := kube.Open(ctx, kube.Options{Cluster: cluster, MasterKey: []byte(strings.Repeat("k", 32)),
			Pods: podbuild.Options{Namespace: ns, SupervisorImage: "localhost/ekg:dev", KernelImage: "localhost/kernel-py:dev"}})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	launchertest.Run(t, open, kernelspecs.Spec{Name: "pod", Language: "python", DisplayName: "pod",
		Argv: []string{"python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"}})
	left := c.kubectl(t, "", "-n", ns, "get", "pods,secrets", "-o", "name")
	if strings.TrimSpace(left) != "" {
		t.Errorf("%s are left", left)
	}
}

// TestE2E_KubeImages uses images that contain nothing of ekg, with other users and read-only file systems.
func TestE2E_KubeImages(t *testing.T) {
	k := newKubeGateway(t, "--start-wait", "60s")
	k.podSpec("locked", map[string]any{"image": "localhost/kernel-py:dev",
		"securityContext": map[string]any{
			"readOnlyRootFilesystem": true,
			"runAsUser":              12345,
			"runAsGroup":             12345,
			"runAsNonRoot":           true,
		}})
	r := filepath.Join(k.dir, "specs", "r")
	if err := os.MkdirAll(r, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r, "kernel.json"), []byte(`{"display_name": "R", "language": "R",
		"metadata": {"ekg": {"image": "localhost/kernel-other:dev", "imageKernelspec": "ir"}}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	k.podSpec("entrypoint", map[string]any{"image": "localhost/kernel-entry:dev", "entrypoint": "keep"})
	k.start()
	for spec, cell := range map[string][2]string{
		"entrypoint": {"import os\nprint(os.environ['ENTRY'])", "point\n"},
		"r":          {`cat(R.version$language, Sys.info()[["user"]] != "root", "\n")`, "R TRUE \n"},
		"locked": {`import os, tempfile, pathlib
pathlib.Path.home().joinpath('x').write_text('x')
tempfile.NamedTemporaryFile().close()
print(os.getuid(), os.access('/usr', os.W_OK))`, "12345 False\n"},
	} {
		t.Run(spec, func(t *testing.T) {
			t.Parallel()
			k := k.in(t)
			id := k.kernel(spec)
			c := k.dial(t, id, "s", true)
			if r := c.finish(c.begin(cell[0]), 60*time.Second); r.stdout != cell[1] {
				t.Errorf("got %q, %s", r.stdout, r.reply.Content)
			}
			if spec == "r" {
				c.abortsInR()
			}
			k.want(204, "DELETE", "/api/kernels/"+id, "", nil)
		})
	}
	t.Cleanup(k.nothingLeft)
}

// abortsInR: the R kernel sends neither busy nor idle for cells that it aborts. They end all the same, and none of them
// says that output is lost.
func (c *client) abortsInR() {
	c.t.Helper()
	failed := c.begin("Sys.sleep(1); stop('on purpose')")
	left := map[string]bool{c.begin("1"): true, c.begin("2"): true}
	_, before := c.until(60*time.Second, "the idle of the aborted cells", func(m message) bool {
		if m.field("execution_state") == "idle" {
			delete(left, m.Parent.MsgID)
		}
		return len(left) == 0
	})
	aborted := 0
	for _, m := range before {
		switch {
		case m.Parent.MsgID == failed:
		case m.field("status") == "aborted":
			aborted++
		case m.field("execution_state") == "":
			c.t.Errorf("an aborted cell got %s %s", m.Header.MsgType, m.Content)
		}
	}
	if aborted != 2 {
		c.t.Errorf("%d of 2 cells were aborted", aborted)
	}
}

// TestE2E_KubeMany: fifty starts at once create fifty pods, even if the node cannot run all of them. Fifty ends leave
// no pod. The reason names an exceeded quota.
func TestE2E_KubeMany(t *testing.T) {
	k := newKubeGateway(t, "--start-wait", "20s")
	k.start()
	const n = 50
	k.cluster.kubectl(t, "", "-n", k.namespace, "create", "quota", "few", fmt.Sprintf("--hard=pods=%d", n))
	var wg sync.WaitGroup
	began := time.Now()
	for range n {
		wg.Go(func() {
			if status, b, err := k.tryAsk("POST", "/api/kernels", `{"name": "pod"}`); err != nil || status != 201 {
				t.Errorf("%d %s %v", status, b, err)
			}
		})
	}
	wg.Wait()
	t.Logf("%d POSTs at once: %v", n, time.Since(began).Round(100*time.Millisecond))
	k.startsBadly(t, "pod", fmt.Sprintf(`the quota "few" of its namespace does not allow it: it asks for 1 pods, `+
		`and %[1]d of %[1]d are in use`, n))
	if pods := k.pods(); len(pods) != n {
		t.Errorf("%d kernels have %d pods", n, len(pods))
	}
	up := 0
	k.eventually(120*time.Second, "every kernel is up, or waits for a node with room", func() error {
		var all []model
		k.want(200, "GET", "/api/kernels", "", &all)
		if len(all) != n {
			return fmt.Errorf("%d are listed", len(all))
		}
		up = 0
		for _, m := range all {
			switch {
			case m.ExecutionState == "idle":
				up++
			case m.ExecutionState != "starting" || !strings.Contains(m.Reason, "not enough cpu"):
				return fmt.Errorf("%+v", m)
			}
		}
		return nil
	})
	t.Logf("%d of them up: %v", up, time.Since(began).Round(100*time.Millisecond))
	if up < n/2 {
		t.Errorf("only %d are up", up)
	}
	began = time.Now()
	k.deleteAll()
	t.Logf("%d DELETEs at once, until nothing was left: %v", n, time.Since(began).Round(100*time.Millisecond))
}
