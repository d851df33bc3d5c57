//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestCosts_Displays measures a cell with 20,000 displays in JupyterLab in Chromium: with jupyter-ekg, without it, and
// with a kernel of the Jupyter server itself. `make costs` runs it. EKG_ROUNDS says how many turns, EKG_DISPLAYS how
// many displays, EKG_SHOWN how many of them the page renders, and EKG_ONLY which of the three ways are measured.
func TestCosts_Displays(t *testing.T) {
	extension := theExtension(t)
	bin, err := released()
	if err != nil {
		t.Fatal(err)
	}
	g := prepare(t, "")
	g.in.bin = bin
	g.start()
	g.script(15*time.Minute, []string{
		"EKG_EXTENSION=" + extension,
		fmt.Sprintf("EKG_GATEWAY=%d", g.cmd.Process.Pid),
		"EKG_ARTIFACTS=" + filepath.Join(g.in.artifacts, t.Name()),
		"EKG_ROUNDS=" + os.Getenv("EKG_ROUNDS"),
		"EKG_DISPLAYS=" + os.Getenv("EKG_DISPLAYS"),
		"EKG_SHOWN=" + os.Getenv("EKG_SHOWN"),
	}, "node", filepath.Join(g.in.repository, "e2e/testdata/browser/displays.mjs"))
}
