package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
)

// orphansOf returns the processes whose command line contains text and whose parent's command line contains parent.
func orphansOf(parent, text string) (found []proctree.Process) {
	said := func(pid int, text string) bool {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		return err == nil && bytes.Contains(b, []byte(text))
	}
	for _, p := range proctree.List() {
		if said(p.PID, text) && said(p.Parent, parent) {
			found = append(found, p)
		}
	}
	return found
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !cond(); <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// TestServe_ReapsOrphans runs the gateway as the first process of a container. What a kernel leaves running becomes a
// child of its supervisor, and of the gateway when the supervisor has ended. None of it stays a zombie.
func TestServe_ReapsOrphans(t *testing.T) {
	clearEnvironment(t)
	// Control groups are hidden: with one, no process of a kernel outlives it.
	first := []string{"unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c",
		`if [ -d /sys/fs/cgroup ]; then mount -t tmpfs none /sys/fs/cgroup; fi && exec "$@"`, "sh"}
	if err := exec.Command(first[0], append(first[1:], "true")...).Run(); err != nil {
		t.Skipf("unshare must be allowed to make a namespace of processes and to mount /proc, which root may: %v", err)
	}
	dir, err := os.MkdirTemp("", "ekg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	supervisor := filepath.Join(dir, "ekg-supervisor")
	if out, err := exec.Command("go", "build", "-o", supervisor, "../ekg-supervisor").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	early, late := filepath.Join(dir, "early"), filepath.Join(dir, "late")
	// The orphans cannot be found by their environment, and end when their file exists.
	script := fmt.Sprintf(`for f in %[1]s %[1]s %[1]s %[2]s %[2]s; do
	(env -i PATH="$PATH" setsid sh -c 'until [ -e "$0" ]; do sleep 0.1; done' $f &)
done; exec sleep 1000`, early, late)
	spec, err := json.Marshal(map[string]any{"argv": []string{"sh", "-c", script, "{connection_file}"},
		"display_name": "leaves", "language": "sh"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "specs", "leaves"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "specs", "leaves", "kernel.json"), spec, 0o600); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(dir, "state")
	_, at := startProcess(t, append(first, os.Args[0]), "serve", "--listen", "127.0.0.1:0", "--no-auth",
		"--state-dir", state,
		"--runtime-dir", filepath.Join(dir, "run"), "--supervisor", supervisor, "--kernelspec-dir",
		filepath.Join(dir, "specs"), "--start-wait", "100ms", "--stop-grace", "100ms")
	resp, err := http.Post(at+"api/kernels", "application/json", strings.NewReader(`{"name": "leaves"}`))
	if err != nil {
		t.Fatal(err)
	}
	var made struct{ ID string }
	err = json.NewDecoder(resp.Body).Decode(&made)
	_ = resp.Body.Close()
	if err != nil || made.ID == "" {
		t.Fatalf("%d, %v", resp.StatusCode, err)
	}
	// reaped lets orphans end, and waits until none of them is left.
	reaped := func(what, parent, file string, n int) {
		t.Helper()
		var orphans []proctree.Process
		eventually(t, what+" are children of "+parent, func() bool {
			orphans = orphansOf(parent, file)
			return len(orphans) == n
		})
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		eventually(t, what+" are reaped", func() bool {
			for _, p := range orphans {
				if now, found := proctree.Find(p.PID); found && now.Parent == p.Parent {
					return false
				}
			}
			return true
		})
	}
	reaped("orphans of a kernel", supervisor+"\x00parent\x00--config\x00", early, 3)
	req, err := http.NewRequest("DELETE", at+"api/kernels/"+made.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp, err = http.DefaultClient.Do(req); err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		t.Fatalf("DELETE: %d", resp.StatusCode)
	}
	reaped("orphans of a dead kernel", "\x00"+state+"\x00", late, 2)
}
