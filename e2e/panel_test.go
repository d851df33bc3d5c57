//go:build e2e

package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestE2E_Panel uses jupyter-ekg's panel of kernels in JupyterLab with real kernels and a user's token: the list, what
// a kernel waits for, its GPU, keeping both, sharing, restoring, ending, a gateway that is killed and comes back, texts
// that look like HTML, and accessibility.
func TestE2E_Panel(t *testing.T) {
	g := newPanelGateway(t)
	g.script(5*time.Minute, []string{"EKG_CONTROL=" + g.controlWithUsers(), "EKG_HOSTILE=" + hostileText,
		"EKG_EXTENSION=" + theExtension(t), "EKG_FLAG=" + g.flag(),
		"EKG_ARTIFACTS=" + strings.TrimSuffix(g.log, ".log"),
	}, "node", filepath.Join(g.in.repository, "e2e/testdata/browser/panel.mjs"))
}

// TestE2E_PanelNotebook uses the panel in Notebook 7: in the pages of a notebook and of the files, and after a reload.
func TestE2E_PanelNotebook(t *testing.T) {
	in := theInstallation(t)
	out, err := exec.CommandContext(t.Context(), filepath.Join(in.repository, "hack/env/notebook")).Output()
	if err != nil {
		t.Fatalf("hack/env/notebook: %v", err)
	}
	g := newGateway(t, "--cull-idle-timeout", "1h")
	g.script(4*time.Minute, []string{"EKG_EXTENSION=" + theExtension(t),
		"EKG_NOTEBOOK7=" + strings.TrimSpace(string(out)), "EKG_ARTIFACTS=" + strings.TrimSuffix(g.log, ".log"),
	}, "node", filepath.Join(in.repository, "e2e/testdata/browser/panel7.mjs"))
}

// newPanelGateway starts a gateway with one GPU, which does what a file says, and the users ann, whose token is the
// gateway's, and bob. The kernelspec "gpu" asks for the GPU and keeps it, and kernels of "parked" may be parked. The
// kernel of "hostile" fails when there is the file flag.
func newPanelGateway(t *testing.T) *gateway {
	t.Helper()
	nvml := newFakeNVML(t)
	g := prepare(t, "", "--cull-idle-timeout", "1h", "--cull-keep-limit", "12h", "--start-wait", "1s",
		"--park-idle", "1h")
	g.moveTo("127.0.0.2") // while the gateway is down, no other program takes its port
	g.users("{name: ann, tokens: [%q]}", g.token, "{name: bob, tokens: [%q]}", "token-bob")
	g.vars = []string{"LD_LIBRARY_PATH=" + nvml.dir}
	python := filepath.Join(g.in.dir, "lab/bin/python")
	g.specWith("gpu", map[string]any{
		"display_name": "Python 3 (GPU)", "env": map[string]string{"KERNEL_GPUS": "1", "GPU_USE": nvml.dir + "/use"},
		"metadata": map[string]any{"ekg": map[string]any{"park": false}},
	}, python, "-m", "ipykernel_launcher", "-f", "{connection_file}")
	g.specWith("parked", map[string]any{"display_name": "Parked", "env": map[string]string{"KERNEL_GPUS": "1"}},
		python, "-m", "ipykernel_launcher", "-f", "{connection_file}")
	g.specWith("hostile", map[string]any{"display_name": hostileText}, "/bin/sh", "-c",
		"if [ -e '"+g.flag()+"' ]; then echo '"+hostileText+"' >&2; exit 3; fi; exec \"$@\"",
		"sh", python, "-m", "ipykernel_launcher", "-f", "{connection_file}")
	if err := g.tryStartWithUsers(); err != nil {
		t.Fatal(err)
	}
	return g
}

// flag is the file with which the kernel of the kernelspec "hostile" fails.
func (g *gateway) flag() string { return filepath.Join(g.dir, "flag") }
