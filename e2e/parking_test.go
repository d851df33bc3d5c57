//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// usesCUDA is what a kernel's code has of CUDA: 60 MiB of the GPU's memory with a text in it.
const usesCUDA = `
import ctypes, time
cuda = ctypes.CDLL(%q)
def call(name, *args):
    code = getattr(cuda, name)(*args)
    assert code == 0, f"{name} returned {code}"
at = ctypes.c_uint64()
def begin(text):
    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(60 << 20))
    call("cuMemcpyHtoD_v2", at, text.encode(), ctypes.c_size_t(len(text)))
def held(n):
    text = ctypes.create_string_buffer(n)
    call("cuMemcpyDtoH_v2", text, at, ctypes.c_size_t(n))
    return text.raw.decode()
`

// TestE2E_Parking: two kernels use one GPU by turns, each with more than half of its memory. The second starts when the
// first has been idle, and each cell gets the GPU back with the variables in it. An interrupt ends a wait, and killed
// supervisors and gateways change nothing.
func TestE2E_Parking(t *testing.T) {
	t.Parallel() // it mostly waits
	const oneGPU = `{"name": "python3", "env": {"KERNEL_GPUS": "1"}}`
	nvml := newFakeNVML(t)
	library := filepath.Join(nvml.dir, "libcuda.so.1")
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-pthread", "-o", library,
		filepath.Join(theInstallation(t).repository, "testdata/cuda/cuda.c")).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	for file, text := range map[string]string{"total": fmt.Sprint(100 << 20), "use": "0 0 0 60"} {
		if err := os.WriteFile(filepath.Join(nvml.dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g := prepare(t, "", "--start-wait", "1s", "--park-idle", "1s")
	g.vars = []string{"LD_LIBRARY_PATH=" + nvml.dir}
	g.start()
	parked := func(id, want string) {
		t.Helper()
		g.eventually(40*time.Second, "the GPU is "+want, func() error {
			var m struct {
				Parked struct{ State, Since, Reason string }
			}
			g.want(200, "GET", "/api/kernels/"+id, "", &m)
			if m.Parked.State != want || m.Parked.Since == "" {
				return fmt.Errorf("%+v", m.Parked)
			}
			return nil
		})
	}
	var first, second model
	g.want(201, "POST", "/api/kernels", oneGPU, &first)
	g.state(first.ID, "idle", 20*time.Second)
	a := g.dial(t, first.ID, "ann", true)
	a.says(fmt.Sprintf(usesCUDA, library)+"begin('hers'); print(held(4))", "hers\n")
	parked(first.ID, "held")

	g.want(201, "POST", "/api/kernels", oneGPU, &second)
	g.state(second.ID, "idle", 40*time.Second)
	parked(first.ID, "parked")
	b := g.dial(t, second.ID, "bob", true)
	b.says(fmt.Sprintf(usesCUDA, library)+"begin('his'); print(held(3))", "his\n")

	// What needs no GPU is answered while the kernel is parked.
	a.finish(a.send("shell", "kernel_info_request", "{}"), 20*time.Second)
	parked(first.ID, "parked")

	a.says("print(held(4))", "hers\n")
	parked(second.ID, "parked")
	parked(first.ID, "held")

	// A cell waits while another one computes. An interrupt ends the wait, and the kernel goes on.
	computes := b.begin("print('computes', flush=True); call('ekgCompute', 4000); time.sleep(3600)")
	b.until(40*time.Second, "the second kernel has the GPU", func(m message) bool {
		return strings.Contains(m.field("text"), "computes")
	})
	parked(first.ID, "parked")
	waits := a.begin("print('never')")
	a.until(20*time.Second, "the reason of the wait", func(m message) bool {
		return strings.Contains(string(m.Content), "This cell waits for its GPU: another kernel has it")
	})
	parked(first.ID, "waking")
	g.want(204, "POST", "/api/kernels/"+first.ID+"/interrupt", "", nil)
	if r := a.finish(waits, 20*time.Second); !strings.Contains(string(r.reply.Content), `"aborted"`) || r.stdout != "" {
		t.Errorf("an interrupted wait is answered with %s, %q", r.reply.Content, r.stdout)
	}
	parked(first.ID, "parked")
	g.want(204, "POST", "/api/kernels/"+second.ID+"/interrupt", "", nil)
	b.finish(computes, 30*time.Second)

	// The supervisor of the parked kernel and the gateway are killed.
	if err := syscall.Kill(g.supervisorOf(first.ID), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	g.kill()
	g.start()
	g.state(first.ID, "idle", 30*time.Second)
	parked(first.ID, "parked")
	a = g.dial(t, first.ID, "ann", true)
	a.says("print(held(4))", "hers\n")
	parked(second.ID, "parked")

	// A kernel ends while it is parked.
	g.want(204, "DELETE", "/api/kernels/"+second.ID, "", nil)
	g.want(204, "DELETE", "/api/kernels/"+first.ID, "", nil)
}
