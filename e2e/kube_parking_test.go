//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// folderOfNode is a folder of the node, and a claim that has it.
const folderOfNode = homeVolume + `---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[2]s, namespace: %[1]s}
spec: {accessModes: [ReadWriteMany], storageClassName: "", resources: {requests: {storage: 1Gi}}}
`

// folder makes a folder of this machine that pods mount by a claim of this name.
func (k *inCluster) folder(name string) (dir string) {
	k.t.Helper()
	dir = k.t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		k.t.Fatal(err)
	}
	k.cluster.kubectl(k.t, fmt.Sprintf(folderOfNode, k.namespace, name, dir), "apply", "-f", "-")
	k.t.Cleanup(func() { k.cluster.kubectl(k.t, "", "delete", "persistentvolume", k.namespace+"-"+name, "--wait=false") })
	return dir
}

// TestE2E_KubeParking: three pods share one GPU, and their kernels take turns at it. Each starts without it, gets it by
// its first call of CUDA, and gives it back for another one; the variables in its memory stay. No two compute at once.
// A gateway and a supervisor are killed meanwhile, and a pod ends that has the GPU.
//
// The node has no GPU. Each pod has a stand-in for NVIDIA's libraries, which report the same GPU. They cannot count the
// memory of other pods, since each pod has process ids of its own. So a file that all pods lock shows whose turn it is.
func TestE2E_KubeParking(t *testing.T) {
	t.Parallel() // it mostly waits
	flavors := filepath.Join(t.TempDir(), "flavors.yaml")
	if err := os.WriteFile(flavors, []byte("flavors: [{name: turns, replica: {replicas: 4}, park: true}]\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	k := newKubeGateway(t, "--start-wait", "1s", "--flavors", flavors, "--park-idle", "1s")
	k.cluster.offer(t, map[string]string{"nvidia.com/gpu.shared": "4"})
	repository := theInstallation(t).repository
	k.folder("gpu")
	memory, err := os.ReadFile(filepath.Join(repository, "testdata/cuda/memory.py"))
	if err != nil {
		t.Fatal(err)
	}
	specs := []string{"ann", "bob", "cat"}
	for _, name := range specs {
		dir := k.folder(name)
		for _, l := range [][]string{{"libcuda.so.1", "testdata/cuda/cuda.c"},
			{"libnvidia-ml.so.1", "e2e/testdata/nvml/nvml.c"}} {
			if out, err := exec.Command("cc", "-shared", "-fPIC", "-pthread", "-o", filepath.Join(dir, l[0]),
				filepath.Join(repository, l[1])).CombinedOutput(); err != nil {
				t.Fatalf("cc: %v\n%s", err, out)
			}
		}
		if err := errors.Join(os.WriteFile(filepath.Join(dir, "use"), []byte("0 0 0 60"), 0o644),
			os.WriteFile(filepath.Join(dir, "memory.py"), memory, 0o644)); err != nil {
			t.Fatal(err)
		}
		volume := func(claim string) map[string]any {
			return map[string]any{"name": claim, "persistentVolumeClaim": map[string]any{"claimName": claim}}
		}
		k.podSpec(name, map[string]any{"image": "localhost/kernel-py:dev",
			"env":     []any{map[string]any{"name": "LD_LIBRARY_PATH", "value": "/cuda"}},
			"volumes": []any{volume(name), volume("gpu")},
			"volumeMounts": []any{map[string]any{"name": name, "mountPath": "/cuda"},
				map[string]any{"name": "gpu", "mountPath": "/gpu"}}})
	}
	k.start()
	kernels, dialed := map[string]string{}, map[string]*client{}
	for _, name := range specs {
		var m model
		k.want(201, "POST", "/api/kernels", fmt.Sprintf(`{"name": %q, "flavor": "turns"}`, name), &m)
		kernels[name] = m.ID
	}
	for _, name := range specs {
		k.state(kernels[name], "idle", 60*time.Second)
		dialed[name] = k.dial(t, kernels[name], name, true)
		k.gpuIs(kernels[name], "none", "")
	}
	a, b, c := dialed["ann"], dialed["bob"], dialed["cat"]
	for _, name := range specs { // each waits until the one before has given the GPU back
		dialed[name].says(fmt.Sprintf(`
import fcntl, time
library = "/cuda/libcuda.so.1"
exec(open("/cuda/memory.py").read())
def alone():
    """Uses the GPU, and fails if another pod does."""
    call("cuCtxSynchronize")
    with open("/gpu/turn", "a") as f:
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(0.5)
        return held()
begin(60 << 20, %q)
print(alone())`, name), name+"\n")
		k.gpuIs(kernels[name], "held", "")
	}
	k.gpuIs(kernels["ann"], "parked", "")
	a.says("print(alone())", "ann\n")

	// One computes, and two wait in the order in which they have asked. The gateway is killed.
	a.begin("print('computes', flush=True); time.sleep(3600)")
	a.until(20*time.Second, "it computes", func(m message) bool { return strings.Contains(m.field("text"), "computes") })
	b.begin("print(alone())")
	k.gpuIs(kernels["bob"], "waking", "another kernel has it")
	c.begin("print(alone())")
	k.gpuIs(kernels["cat"], "waking", "1 other kernels are before this one")
	k.lineIs(kernels["ann"], kernels["bob"], kernels["cat"])
	k.kill()
	k.start()
	k.state(kernels["ann"], "busy", 60*time.Second)
	k.gpuIs(kernels["cat"], "waking", "1 other kernels are before this one")
	k.lineIs(kernels["ann"], kernels["bob"], kernels["cat"])
	k.want(204, "POST", "/api/kernels/"+kernels["ann"]+"/interrupt", "", nil)
	k.gpuIs(kernels["cat"], "held", "")

	// The supervisor of a parked kernel is killed, and that of the one that has the GPU.
	k.gpuIs(kernels["ann"], "parked", "")
	for _, name := range []string{"ann", "cat"} {
		if err := syscall.Kill(k.mainProcess(t, k.namespace, kernels[name]+"-1", "supervisor"), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range specs {
		k.eventually(60*time.Second, "a supervisor answers", func() (err error) {
			dialed[name], err = k.tryDial(t, kernels[name], name+"2", true)
			return err
		})
	}
	dialed["ann"].says("print(alone())", "ann\n")
	dialed["cat"].says("print(alone())", "cat\n")

	// A pod ends that has the GPU.
	waits := dialed["bob"].begin("print(alone())")
	k.want(204, "DELETE", "/api/kernels/"+kernels["cat"], "", nil)
	if r := dialed["bob"].finish(waits, 40*time.Second); r.stdout != "bob\n" {
		t.Errorf("after the end of another pod: %q %s", r.stdout, r.reply.Content)
	}
	k.lineIs(kernels["bob"])
	k.deleteAll()
}

// gpuIs waits until the GPU of a kernel is in a state, with a reason that contains a text.
func (g *gateway) gpuIs(id, want, reason string) {
	g.t.Helper()
	g.eventually(60*time.Second, "the GPU is "+want, func() error {
		var m struct {
			Parked struct{ State, Since, Reason string }
		}
		g.want(200, "GET", "/api/kernels/"+id, "", &m)
		if m.Parked.State != want || m.Parked.Since == "" || !strings.Contains(m.Parked.Reason, reason) {
			return fmt.Errorf("%+v", m.Parked)
		}
		return nil
	})
}

// lineIs checks the Lease of the GPU: who has it, and who waits.
func (k *inCluster) lineIs(holder string, waiting ...string) {
	k.t.Helper()
	var lease struct {
		Metadata struct{ Annotations map[string]string }
		Spec     struct{ HolderIdentity string }
	}
	var line struct{ Waiting []struct{ Kernel string } }
	text := k.cluster.kubectl(k.t, "", "-n", k.namespace, "get", "lease", "ekg-gpu-of-tests", "-o", "json")
	if err := errors.Join(json.Unmarshal([]byte(text), &lease), json.Unmarshal(
		[]byte(lease.Metadata.Annotations["elastic-kernel-gateway.github.io/gpu-line"]), &line)); err != nil {
		k.t.Fatalf("%v: %s", err, text)
	}
	var got []string
	for _, w := range line.Waiting {
		got = append(got, w.Kernel)
	}
	if lease.Spec.HolderIdentity != holder || fmt.Sprint(got) != fmt.Sprint(waiting) {
		k.t.Errorf("%s has the GPU and %v wait, not %s and %v", lease.Spec.HolderIdentity, got, holder, waiting)
	}
}
