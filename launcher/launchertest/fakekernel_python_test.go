package launchertest

import (
	"os"
	"os/exec"
	"testing"
)

// TestFakeKernel_JupyterClient tests the fake kernel with the client that real front ends use, and libzmq below it.
func TestFakeKernel_JupyterClient(t *testing.T) {
	python := os.Getenv("EKG_TEST_PYTHON")
	if python == "" {
		t.Skip("EKG_TEST_PYTHON names no interpreter with jupyter_client")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for transport, option := range map[string]string{"tcp": "--no-handover", "ipc": "--welcome"} {
		t.Run(transport+" "+option, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			cmd := exec.CommandContext(t.Context(), python, "testdata/client.py", exe, option)
			cmd.Env = append(os.Environ(), "EKG_TEST_TRANSPORT="+transport)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
