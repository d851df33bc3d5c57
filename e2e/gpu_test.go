//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fakeNVML is a stand-in for NVIDIA's library, with one GPU.
type fakeNVML struct {
	t   *testing.T
	dir string // for the search path of libraries
}

func newFakeNVML(t *testing.T) *fakeNVML {
	t.Helper()
	n := &fakeNVML{t, t.TempDir()}
	if out, err := exec.Command("cc", "-Wall", "-Werror", "-shared", "-fPIC", "-o", n.library(),
		filepath.Join(theInstallation(t).repository, "e2e/testdata/nvml/nvml.c")).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	n.use(0, 0)
	return n
}

func (n *fakeNVML) library() string { return filepath.Join(n.dir, "libnvidia-ml.so.1") }

// use sets the GPU's utilization by a process, in percent.
func (n *fakeNVML) use(pid, percent int) {
	n.t.Helper()
	file := filepath.Join(n.dir, "use")
	if err := errors.Join(os.WriteFile(file+".new", fmt.Appendf(nil, "%d %d %d\n", percent, pid, percent), 0o644),
		os.Rename(file+".new", file)); err != nil {
		n.t.Fatal(err)
	}
}

// TestE2E_IdleGPU: a kernel is not idle while the GPU computes for it. Other kernels that could use the GPU are idle.
func TestE2E_IdleGPU(t *testing.T) {
	t.Parallel() // it mostly waits
	nvml := newFakeNVML(t)
	g := prepare(t, "", "--cull-idle-timeout", "10s", "--cull-warning", "0", "--cull-interval", "2s", "--cull-gpu", "0.05")
	g.vars = []string{"LD_LIBRARY_PATH=" + nvml.dir}
	g.start()
	trains := g.kernel("python3")
	var leader int
	for _, p := range g.kernelProcesses(trains) {
		leader = p.pid
	}
	nvml.use(leader, 60)
	began := time.Now()
	idle := g.kernel("python3")
	if ns, _ := os.Readlink("/proc/self/ns/pid"); ns == "pid:[4026531836]" {
		g.culledAt(idle, 30*time.Second)
	} else { // in a container the driver's process ids mean nothing: the GPU may compute for any of the kernels
		<-time.After(15 * time.Second)
		g.state(idle, "idle", time.Second)
	}
	if g.state(trains, "idle", time.Second); time.Since(began) < 10*time.Second {
		t.Errorf("only %v have passed: the test proves nothing", time.Since(began))
	}
	nvml.use(leader, 4)
	if _, reason := g.culledAt(trains, 30*time.Second); !strings.HasPrefix(reason, "it was idle for ") {
		t.Errorf("the reason of the cull is %q", reason)
	}
}

// TestE2E_KubeIdleGPU: the same in a pod. The program that queries the library runs in the kernel's container, and the
// image does not contain it.
func TestE2E_KubeIdleGPU(t *testing.T) {
	t.Parallel() // it mostly waits
	nvml := newFakeNVML(t)
	k := newKubeGateway(t, "--cull-idle-timeout", "10s", "--cull-warning", "0", "--cull-interval", "2s",
		"--cull-gpu", "0.05")
	k.cluster.kubectl(t, "", "-n", k.namespace, "create", "configmap", "nvml", "--from-file", nvml.library())
	k.podSpec("gpu", map[string]any{
		"image":        "localhost/kernel-py:dev",
		"resources":    map[string]any{"limits": map[string]any{"nvidia.com/gpu": "1"}},
		"env":          []map[string]string{{"name": "LD_LIBRARY_PATH", "value": "/tmp/nvml"}},
		"volumes":      []map[string]any{{"name": "nvml", "configMap": map[string]any{"name": "nvml"}}},
		"volumeMounts": []map[string]any{{"name": "nvml", "mountPath": "/opt/nvml"}},
	})
	k.start()
	id := k.kernel("gpu")
	k.state(id, "idle", 60*time.Second)
	c := k.dial(t, id, "s", true)
	c.says(`
import os, shutil
def use(percent):
    with open('/tmp/nvml/new', 'w') as f:
        print(percent, 0, 0, file=f)
    os.rename('/tmp/nvml/new', '/tmp/nvml/use')
os.mkdir('/tmp/nvml')
use(60)
shutil.copy('/opt/nvml/libnvidia-ml.so.1', '/tmp/nvml/')
`, "")
	<-time.After(20 * time.Second) // twice the idle timeout
	k.state(id, "idle", time.Second)
	c.says("use(4)", "")
	k.eventually(40*time.Second, "it is culled", func() error {
		_, b, err := k.tryAsk("GET", "/api/kernels?culled=1", "")
		if err == nil && !strings.Contains(string(b), id) {
			err = fmt.Errorf("the culled kernels are %s", b)
		}
		return err
	})
}
