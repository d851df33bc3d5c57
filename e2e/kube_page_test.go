//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// pageFlavors are two shares of a GPU of 14 GiB, and an instance that no node has.
const pageFlavors = `flavors:
- {name: gib4, gpuMem: {units: 4, perGPU: 14}}
- {name: slice, mig: {profile: 7g.80gb}}
`

// TestE2E_KubePage uses the operator's page and its actions with kernels in pods: one whose image is pulled, two that
// use and do not use their GPU, two that no node can take, one that is culled, and one that cannot be started. A second
// gateway is killed and comes back.
func TestE2E_KubePage(t *testing.T) {
	t.Parallel()
	nvml := newFakeNVML(t)
	flavors := filepath.Join(t.TempDir(), "flavors.yaml")
	if err := os.WriteFile(flavors, []byte(pageFlavors), 0o600); err != nil {
		t.Fatal(err)
	}
	g := newKubeGateway(t, "--start-wait", "1s", "--flavors", flavors, "--max-kernels-per-user", "7",
		"--cull-idle-timeout", "20s", "--cull-connected=false", "--cull-warning", "0", "--cull-interval", "2s")
	g.cluster.offer(t, map[string]string{"aliyun.com/gpu-mem": "28", "aliyun.com/gpu-count": "2"})
	g.podSpec("huge", map[string]any{"image": "localhost/kernel-py:dev",
		"resources": map[string]any{"requests": map[string]any{"cpu": "1000"}}})
	g.podSpec("exits", map[string]any{"image": "localhost/kernel-py:dev"}, "/bin/sh", "-c",
		"echo these are my last words >&2; exit 3")
	g.gpuSpec("computes", nvml, 60)
	g.gpuSpec("idles", nvml, 0)
	fresh := g.cluster.newRegistry(t, "kernel-py") // the image of the first kernel is pulled
	fresh.answer(http.StatusOK)
	g.podSpec("fresh", map[string]any{"image": fresh.image})
	g.users("{name: ann, groups: [vision], tokens: [%q]}", "token-ann", "{name: operator, admin: true, tokens: [%q]}",
		g.token)
	g.usersAlso("groups:\n- {name: vision, limits: {max-kernels: 5, max-gpus: 2}}\n")
	if err := g.tryStartWithUsers(); err != nil {
		t.Fatal(err)
	}
	other := *g.gateway // a second gateway for the same namespace
	other.addr = freeAddress(t, "127.0.0.1")
	other.url = "http://" + other.addr
	if err := other.tryStartWithUsers(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.signal(syscall.SIGKILL) }) // an error says that it has ended

	ann := *g
	ann.gateway = &gateway{}
	*ann.gateway = *g.gateway
	ann.token = "token-ann"
	computes := ann.onGPU("computes", 0)
	idles := g.onGPU("idles", 1)
	waits := g.startWith("huge", "5ec2e701-0000-4000-8000-000000000000", nil)
	var lacks, fails, culled model
	ann.want(201, "POST", "/api/kernels", `{"name": "pod", "flavor": "slice"}`, &lacks)
	fails.ID = "5ec2e702-0000-4000-8000-000000000000"
	if status, b := g.ask("POST", "/api/kernels", fmt.Sprintf(`{"name": "exits", "kernel_id": %q}`,
		fails.ID)); status < 400 && status != 201 {
		t.Fatalf("%d %s", status, b)
	}
	ann.want(201, "POST", "/api/kernels", `{"name": "pod"}`, &culled) // to which no page is connected
	runs := g.kernel("fresh")
	g.dial(t, runs, "page", true).says("print('from a pod')", "from a pod\n")
	g.script(6*time.Minute, []string{"EKG_FIRST=" + runs, "EKG_SECOND=" + waits, "EKG_COMPUTES=" + computes,
		"EKG_IDLES=" + idles, "EKG_LACKS=" + lacks.ID, "EKG_FAILS=" + fails.ID, "EKG_CULLED=" + culled.ID,
		"EKG_OTHER=" + other.url, "EKG_OTHER_CONTROL=" + other.controlWithUsers(),
		"EKG_ARTIFACTS=" + filepath.Join(g.gateway.in.artifacts, t.Name())},
		"node", filepath.Join(g.gateway.in.repository, "e2e/testdata/browser/page-cluster.mjs"))
	g.deleteAll()
}

// usersAlso adds a text to the gateway's file of users.
func (g *gateway) usersAlso(text string) {
	g.t.Helper()
	f, err := os.OpenFile(filepath.Join(g.dir, "users.yaml"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(text)
	}
	if err != nil {
		g.t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		g.t.Fatal(err)
	}
}

// gpuSpec writes a kernelspec whose pods find the stand-in for NVIDIA's library, with a GPU that computes for this
// percentage of the time.
func (k *inCluster) gpuSpec(name string, n *fakeNVML, percent int) {
	k.t.Helper()
	k.cluster.kubectl(k.t, "", "-n", k.namespace, "create", "configmap", name, "--from-file", n.library(),
		fmt.Sprintf("--from-literal=use=%d 0 0", percent))
	k.podSpec(name, map[string]any{
		"image":        "localhost/kernel-py:dev",
		"env":          []map[string]string{{"name": "LD_LIBRARY_PATH", "value": "/opt/nvml"}},
		"volumes":      []map[string]any{{"name": "nvml", "configMap": map[string]any{"name": name}}},
		"volumeMounts": []map[string]any{{"name": "nvml", "mountPath": "/opt/nvml"}},
	})
}

// opensGPU is a cell of a kernel that ekg-gpu takes for one with an open GPU: it has too many open files to tell.
const opensGPU = `
import resource
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
held = [open('/dev/null') for _ in range(4200)]
`

// onGPU starts a kernel with a share of a device. The test gives it the device, as gpushare's scheduler would.
func (k *inCluster) onGPU(spec string, device int) string {
	k.t.Helper()
	var m model
	k.want(201, "POST", "/api/kernels", fmt.Sprintf(`{"name": %q, "flavor": "gib4"}`, spec), &m)
	k.state(m.ID, "idle", 60*time.Second)
	k.cluster.kubectl(k.t, "", "annotate", "pod", "-n", k.namespace, m.ID+"-1",
		fmt.Sprintf("ALIYUN_COM_GPU_MEM_IDX=%d", device))
	k.dial(k.t, m.ID, "gpu", true).says(opensGPU, "") // while it is connected, it is not culled
	return m.ID
}
