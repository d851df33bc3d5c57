//go:build e2e

package e2e

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestPictures takes the pictures in docs/pictures from JupyterLab and the operator's page with real kernels, into the
// folder EKG_PICTURES. It runs only for `make screenshots`.
func TestPictures(t *testing.T) {
	if os.Getenv("EKG_PICTURES") == "" {
		t.Skip("EKG_PICTURES names no folder")
	}
	t.Run("gateway killed", func(t *testing.T) {
		t.Parallel()
		g := prepare(t, "")
		g.moveTo("127.0.0.2") // while the gateway is down, no other program takes its port
		g.start()
		// A cell kills the gateway; the script asks only for its start.
		start := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			var err error
			select {
			case <-g.done: //nolint:errcheck // only the end matters here
				err = g.tryStart()
			case <-time.After(30 * time.Second):
				err = errors.New("the gateway has not ended")
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		}))
		t.Cleanup(start.Close)
		g.takePictures("EKG_CONTROL="+start.URL, "EKG_EXTENSION="+theExtension(t),
			"EKG_GATEWAY_PID="+strconv.Itoa(g.cmd.Process.Pid))
	})
	t.Run("operator's page", func(t *testing.T) {
		t.Parallel()
		g := newPageGateway(t)
		first := g.kernel("python3")
		for range 3 {
			g.kernel("ipykernel6")
		}
		c := g.dial(t, first, "page", true)
		c.says("import time; time.sleep(8)", "")
		g.want(200, "POST", "/api/kernels/"+first+"/restart", "", nil)
		c = g.dial(t, first, "again", true)
		c.says("import time; time.sleep(4)", "")
		c.begin("for epoch in range(1, 9):\n    print(f'epoch {epoch}: loss {1 / (1 + epoch):.3f}', flush=True)\n" +
			"    time.sleep(2)\ntime.sleep(60)")
		g.script(2*time.Minute, []string{"EKG_FIRST=" + first, "EKG_PICTURES=" + os.Getenv("EKG_PICTURES")},
			"node", filepath.Join(g.in.repository, "e2e/testdata/browser/page.mjs"))
	})
	t.Run("panel of kernels", func(t *testing.T) {
		t.Parallel()
		g := newPanelGateway(t)
		g.script(10*time.Minute, []string{"EKG_EXTENSION=" + theExtension(t), "EKG_PICTURES=" + os.Getenv("EKG_PICTURES"),
			"EKG_ARTIFACTS=" + strings.TrimSuffix(g.log, ".log")},
			"node", filepath.Join(g.in.repository, "e2e/testdata/browser/panel.mjs"))
	})
	t.Run("jobs", func(t *testing.T) {
		t.Parallel()
		newGateway(t, "--max-kernels=1").jobsScript("jobs.mjs", "EKG_PICTURES="+os.Getenv("EKG_PICTURES"))
	})
	t.Run("idle kernel ended", func(t *testing.T) {
		t.Parallel()
		newGateway(t, "--cull-idle-timeout", "60").takePictures("EKG_IDLE=60")
	})
}

func (g *gateway) takePictures(env ...string) {
	g.t.Helper()
	g.script(10*time.Minute, append(env, "EKG_PICTURES="+os.Getenv("EKG_PICTURES"),
		"EKG_ARTIFACTS="+filepath.Join(g.in.artifacts, filepath.Base(g.t.Name()))),
		"node", filepath.Join(g.in.repository, "e2e/testdata/browser/pictures.mjs"))
}
