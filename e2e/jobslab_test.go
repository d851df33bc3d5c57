//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestE2E_JobsLab uses jupyter-scheduler's dialog in JupyterLab with jupyter-ekg, a real gateway and real kernels. One
// kernel may live: the notebook's own keeps its first job waiting.
func TestE2E_JobsLab(t *testing.T) {
	newGateway(t, "--max-kernels=1").jobsScript("jobs.mjs")
}

// TestE2E_JobsLabErrors reads what the dialog and the list say when a job is refused, and when the gateway is away.
func TestE2E_JobsLabErrors(t *testing.T) {
	const maxBody = "65536"
	flavors := filepath.Join(t.TempDir(), "flavors.yaml")
	both := "flavors:\n- {name: fast, none: true}\n- {name: slow, none: true}\n"
	if err := os.WriteFile(flavors, []byte(both), 0o600); err != nil {
		t.Fatal(err)
	}
	g, env := killable(t, "--max-body="+maxBody, "--flavors="+flavors)
	g.jobsScript("joberrors.mjs", append(env, "EKG_FLAVORS="+flavors, "EKG_MAX_BODY="+maxBody)...)
}

// TestE2E_SchedulerTests: jupyter-scheduler's own tests of job definitions pass with EkgScheduler and a real gateway.
// The installed package has them. Its other tests are left out:
//
//   - tests with an input folder: ekg sends the notebook alone, and says so;
//   - test_handlers.py: each test replaces the scheduler by a mock, or uses none;
//   - test_job_files_manager.py, test_execution_manager.py and test_orm.py: they test parts that EkgScheduler does not
//     use, the staging folder, the processes and the database.
func TestE2E_SchedulerTests(t *testing.T) {
	g := prepare(t, "")
	python := filepath.Join(g.in.dir, "lab/bin/python")
	for _, name := range []string{"default", "environment-a"} {
		g.spec(name, python, "-m", "ipykernel_launcher", "-f", "{connection_file}")
	}
	g.start()
	path := strings.Join([]string{
		theExtension(t), filepath.Join(g.in.dir, "jobs"), filepath.Join(g.in.repository, "e2e/testdata/python"),
	}, ":")
	g.script(3*time.Minute, []string{"PYTHONPATH=" + path}, python, "-m", "pytest", "-q", "-s",
		"-p", "no:cacheprovider", "-p", "scheduler_tests", "--rootdir", g.dir, "-k", "not input_folder",
		"--pyargs", "jupyter_scheduler.tests.test_scheduler")
}

// jobsScript runs a browser script with jupyter-scheduler.
func (g *gateway) jobsScript(name string, env ...string) {
	g.t.Helper()
	g.script(6*time.Minute, append(env,
		"EKG_EXTENSION="+theExtension(g.t), "EKG_JOBS="+filepath.Join(g.in.dir, "jobs"),
		"EKG_ARTIFACTS="+strings.TrimSuffix(g.log, ".log"),
	), "node", filepath.Join(g.in.repository, "e2e/testdata/browser", name))
}
