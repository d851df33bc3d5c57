//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// jobStartsOnce: the gateway ends while a job's kernel is being started. The next one goes on with the same kernel.
func jobStartsOnce(t *testing.T, g *gateway) {
	for name, sig := range map[string]syscall.Signal{"in order": syscall.SIGTERM, "killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			spec := fmt.Sprintf("late-%d", sig)
			starts, up := filepath.Join(g.dir, spec+"-starts"), filepath.Join(g.dir, spec+"-up")
			g.spec(spec, "/bin/sh", "-c", `echo started >>"$1"; until [ -e "$2" ]; do sleep 0.1; done; exec "$3" -m `+
				`ipykernel_launcher -f "$4"`, "sh", starts, up, filepath.Join(g.in.dir, "lab/bin/python"), "{connection_file}")
			g.eventually(20*time.Second, "the kernelspec is found", func() error {
				if status, b, err := g.tryAsk("GET", "/api/kernelspecs/"+spec, ""); err != nil || status != 200 {
					return fmt.Errorf("%d %s %v", status, b, err)
				}
				return nil
			})
			id := g.submits(g.notebookFile("late.ipynb", "x = 1", "print('x is', x)"), "--kernel", spec)
			kernel := g.jobIs(id, "starts", 20*time.Second, func(j job) bool { return j.State == "starting" }).Kernel
			g.eventually(20*time.Second, "the kernel's program runs", func() error {
				_, err := os.Stat(starts)
				return err
			})
			if err := g.signal(sig); err != nil {
				t.Fatal(err)
			}
			g.start()
			if err := os.WriteFile(up, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			j := g.jobIs(id, "has ended", time.Minute, func(j job) bool { return j.State == "succeeded" || j.State == "failed" })
			if j.State != "succeeded" || j.Kernel != kernel || j.Attempt != 1 {
				t.Errorf("the job began in the kernel %s: %+v", kernel, j)
			}
			if b, err := os.ReadFile(starts); err != nil || string(b) != "started\n" {
				t.Errorf("starts of the kernel's program: %q, %v", b, err)
			}
			if _, logs, _ := g.prints("jobs", "logs", id); logs != "x is 1\n" {
				t.Errorf("the outputs are %q", logs)
			}
			g.eventually(10*time.Second, "no kernel is left", func() error {
				if code, list, _ := g.prints("ps"); code != 0 || strings.TrimSpace(list) != "No kernels." {
					return errors.New(list)
				}
				return nil
			})
		})
	}
}

// jobRestartsFrom: a job's kernel is killed twice, before and behind the cell with which the job begins again.
func jobRestartsFrom(t *testing.T, g *gateway) {
	ran := filepath.Join(g.dir, "ran")
	note := func(cell string) string {
		return "print('" + cell + "', x)\n_ = open(ran, 'a').write('" + cell + " ')\n"
	}
	const dies = "if open(ran).read().count('%s') == 1:\n    os.kill(os.getpid(), 9)"
	path := g.notebookFile("again.ipynb", "x, ran = 1, ''", "import os\n"+note("setup")+fmt.Sprintf(dies, "setup"),
		"import os\n"+note("load"), note("train")+fmt.Sprintf(dies, "train"))
	id := g.submits(path, "--retries", "2", "--restart-from", "3", "-p", "x", "7", "-r", "ran", ran)
	j := g.jobIs(id, "has ended", time.Minute, func(j job) bool { return j.State == "succeeded" || j.State == "failed" })
	if b, err := os.ReadFile(ran); err != nil || string(b) != "setup setup load train load train " ||
		j.State != "succeeded" || j.Attempt != 3 {
		t.Errorf("%+v ran %q, %v", j, b, err)
	}
	if _, logs, _ := g.prints("jobs", "logs", id); logs != "setup 7\nload 7\ntrain 7\n" {
		t.Errorf("the outputs are %q", logs)
	}
	if code, _, errs := g.prints("run", path, "--retries", "1", "--restart-from", "9"); code == 0 ||
		!strings.Contains(errs, "no cell") {
		t.Errorf("from a cell that does not exist: %d %s", code, errs)
	}
}
