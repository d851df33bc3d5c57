//go:build e2e

package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestE2E_JobsLive submits the rest of a notebook from JupyterLab. Browser and Jupyter server are closed while the job
// runs. A new JupyterLab shows the outputs of all cells, and uses the kernel that was kept.
func TestE2E_JobsLive(t *testing.T) {
	g := newGateway(t)
	g.script(5*time.Minute, []string{"EKG_EXTENSION=" + theExtension(t), "EKG_GO=" + filepath.Join(g.dir, "go"),
		"EKG_ARTIFACTS=" + strings.TrimSuffix(g.log, ".log"),
	}, "node", filepath.Join(g.in.repository, "e2e/testdata/browser/jobslive.mjs"))
}
