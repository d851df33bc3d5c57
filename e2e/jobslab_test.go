//go:build e2e

package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestE2E_JobsLab uses jupyter-scheduler's dialog in JupyterLab with jupyter-ekg, a real gateway and real kernels. One
// kernel may live: the notebook's own keeps its first job waiting.
func TestE2E_JobsLab(t *testing.T) {
	g := newGateway(t, "--max-kernels=1")
	g.script(6*time.Minute, []string{
		"EKG_EXTENSION=" + theExtension(t), "EKG_JOBS=" + filepath.Join(g.in.dir, "jobs"),
		"EKG_ARTIFACTS=" + strings.TrimSuffix(g.log, ".log"),
	}, "node", filepath.Join(g.in.repository, "e2e/testdata/browser/jobs.mjs"))
}
