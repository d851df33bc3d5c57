//go:build e2e

package e2e

import (
	"errors"
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
			starts, up := filepath.Join(g.dir, "starts"+sig.String()), filepath.Join(g.dir, "up"+sig.String())
			g.spec("late", "/bin/sh", "-c", `echo started >>"$1"; until [ -e "$2" ]; do sleep 0.1; done; exec "$3" -m `+
				`ipykernel_launcher -f "$4"`, "sh", starts, up, filepath.Join(g.in.dir, "lab/bin/python"), "{connection_file}")
			id := g.submits(g.notebookFile("late.ipynb", "x = 1", "print('x is', x)"), "--kernel", "late")
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
