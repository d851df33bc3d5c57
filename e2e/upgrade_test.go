//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// previousRelease is the commit of the release before the next one. Each release sets it to the commit of the one
// before. Until the first release it is a commit of main.
const previousRelease = "a745131446b1"

// previousChart is the commit of the release that upgrades of the chart start from. previousRelease has no chart. A
// release that sets previousRelease to a commit with a chart sets this to the same commit.
const previousChart = "7d07404f168d"

// previous builds the programs of the release with this commit, once for each user, and returns their folder. It skips
// the test in a clone that lacks the commit.
func previous(t *testing.T, in installed, release string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(cache, "ekg", "release-"+release)
	if _, err := os.Stat(bin); err == nil {
		return bin
	}
	source := sourceOf(t, in, release)
	if err := os.MkdirAll(filepath.Dir(bin), 0o755); err != nil {
		t.Fatal(err)
	}
	built, err := os.MkdirTemp(filepath.Dir(bin), ".release-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(built) //nolint:errcheck // it has its final name by then
	if err := buildIn(source, built); err != nil {
		t.Fatal(err)
	}
	// Another run may have been faster. Its folder is as good.
	if err := os.Rename(built, bin); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	return bin
}

// sourceOf returns a folder with the files of the release with this commit. It skips the test in a clone that lacks the
// commit.
func sourceOf(t *testing.T, in installed, release string) string {
	t.Helper()
	commit, err := exec.Command("git", "-C", in.repository, "rev-parse", "--verify", release+"^{commit}").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = errors.New(strings.TrimSpace(string(exit.Stderr)))
		}
		t.Skipf("the commit of the previous release is missing, as in a shallow clone (git fetch --unshallow): %v", err)
	}
	source, tar := t.TempDir(), filepath.Join(t.TempDir(), "source.tar")
	for _, command := range [][]string{
		{"git", "-C", in.repository, "archive", "--output", tar, strings.TrimSpace(string(commit))},
		{"tar", "-x", "-f", tar, "-C", source},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", command, err, out)
		}
	}
	return source
}

// withProtocol builds the present programs with another protocol version, and returns their folder.
func withProtocol(t *testing.T, in installed, version int) string {
	t.Helper()
	source := filepath.Join(in.repository, "launcher/supervisor/api/version.go")
	text, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	const line = "ProtocolVersion       = %d\n"
	changed := bytes.Replace(text, fmt.Appendf(nil, line, api.ProtocolVersion), fmt.Appendf(nil, line, version), 1)
	if bytes.Equal(changed, text) {
		t.Fatalf("%s lacks the line of the protocol version", source)
	}
	dir := t.TempDir()
	overlay, replacement := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "version.go")
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{source: replacement}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(overlay, list, 0o600), os.WriteFile(replacement, changed, 0o600)); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-race", "-overlay", overlay, "-ldflags",
		fmt.Sprintf("-X main.version=protocol-%d -extldflags=-Wl,-z,lazy", version), "-o", dir+"/", "./cmd/ekg",
		"./cmd/ekg-supervisor")
	build.Dir = in.repository
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build with protocol version %d: %v\n%s", version, err, out)
	}
	return dir
}

// TestE2E_Skew: gateways and supervisors whose protocol versions differ by one are fully usable with each other,
// whichever of them is the newer one. So are those of two releases.
func TestE2E_Skew(t *testing.T) {
	t.Parallel()
	in := theInstallation(t)
	old, next := previous(t, in, previousRelease), withProtocol(t, in, api.ProtocolVersion+1)
	for _, tt := range []struct {
		name, gateway, supervisor string
		v1                        bool
	}{
		{"gateway, earlier supervisor", in.bin, old, true},
		{"earlier gateway, supervisor", old, in.bin, false},
		{"gateway, supervisor of the next version", in.bin, next, false},
		{"gateway of the next version, supervisor", next, in.bin, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g := prepare(t, "", "--supervisor", filepath.Join(tt.supervisor, "ekg-supervisor"))
			g.in.bin = tt.gateway
			g.start()
			id := g.kernel("python3")
			c := g.dial(t, id, "s", tt.v1)
			c.says("kept = 'a variable'", "")
			supervisor := g.supervisorOf(id)
			if program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", supervisor)); err != nil ||
				filepath.Dir(program) != tt.supervisor {
				t.Errorf("the supervisor's program is %s, %v", program, err)
			}

			g.kill()
			g.start()
			if m := g.state(id, "idle", 20*time.Second); m.Reason != "" {
				t.Errorf("the kernel is %+v", m)
			}
			back := g.dial(t, id, "s", tt.v1)
			back.says("print(kept)", "a variable\n")
			interrupt(t, g, id, back)
			restart(t, g, id, back)
			// A restart after the supervisor's end writes the configuration again.
			if err := syscall.Kill(g.parentOf(id), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			g.state(id, "dead", 20*time.Second)
			g.want(200, "POST", "/api/kernels/"+id+"/restart", "{}", nil)
			g.state(id, "idle", 20*time.Second)
			g.dial(t, id, "s", tt.v1).says("print('again')", "again\n")
			g.want(204, "DELETE", "/api/kernels/"+id, "", nil)
			g.noProcesses(id)
		})
	}
}

// TestE2E_SkewTooFar: a kernel whose supervisor is two protocol versions ahead is shown as such. It stays, and a
// restart gives it a supervisor that the gateway can speak to.
func TestE2E_SkewTooFar(t *testing.T) {
	t.Parallel()
	in := theInstallation(t)
	g := prepare(t, "")
	g.in.bin = withProtocol(t, in, api.ProtocolVersion+2)
	g.start()
	id, stopped := g.kernel("python3"), g.kernel("python3")
	g.dial(t, id, "s", true).says("kept = 'a variable'", "")
	kernel := g.kernelProcesses(id)[0].pid
	if err := g.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ahead := g.in.bin
	g.in.bin = in.bin
	g.start()

	want := fmt.Sprintf("its supervisor (protocol-%d) speaks protocol version %d, and this gateway %d to %d; "+
		"an upgrade of the gateway or a restart of the kernel helps", api.ProtocolVersion+2, api.ProtocolVersion+2,
		api.OldestProtocolVersion, api.NewestProtocolVersion)
	if m := g.state(id, "unknown", 20*time.Second); m.Reason != want {
		t.Errorf("the reason is  %q\nwant           %q", m.Reason, want)
	}
	var all []model
	if g.want(200, "GET", "/api/kernels", "", &all); len(all) != 2 {
		t.Errorf("the list has %+v", all)
	}
	if status, b := g.ask("POST", "/api/kernels/"+id+"/interrupt", "{}"); status != 503 ||
		!strings.Contains(string(b), "its supervisor (protocol-") {
		t.Errorf("an interrupt: %d %s", status, b)
	}
	if _, err := g.tryDial(t, id, "s", true); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("a websocket: %v", err)
	}
	g.want(204, "DELETE", "/api/kernels/"+stopped, "", nil)
	g.noProcesses(stopped)

	// The gateway of that version still serves the kernel.
	if err := g.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	g.in.bin = ahead
	g.start()
	g.dial(t, id, "s", true).says("print(kept)", "a variable\n")
	if err := g.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	g.in.bin = in.bin
	g.start()

	g.state(id, "unknown", 20*time.Second)
	g.want(200, "POST", "/api/kernels/"+id+"/restart", "{}", nil)
	g.state(id, "idle", 20*time.Second)
	g.dial(t, id, "s", true).says("print('kept' in dir())", "False\n")
	for _, p := range g.kernelProcesses(id) {
		if p.pid == kernel {
			t.Errorf("process %d of the earlier kernel runs", kernel)
		}
	}
	g.want(204, "DELETE", "/api/kernels/"+id, "", nil)
	g.noProcesses(id)
}

// TestE2E_Upgrade: kernels of one version are fully usable through a gateway of the next version. They are also usable
// through one of the previous version, since an upgrade may be undone.
func TestE2E_Upgrade(t *testing.T) {
	t.Parallel()
	in := theInstallation(t)
	old := previous(t, in, previousRelease)
	for _, tt := range []struct {
		name, from, to string
		v1             bool
	}{{"up", old, in.bin, true}, {"down", in.bin, old, false}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g := prepare(t, "")
			g.in.bin = tt.from
			g.start()
			id, file := g.kernel("python3"), filepath.Join(g.dir, "go")
			c := g.dial(t, id, "s", tt.v1)
			c.says("kept = 'a variable'", "")
			cell := c.begin(waiting(file) + "print('went on')")
			c.begun(cell)
			supervisor := g.supervisorOf(id)

			if err := g.signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			g.in.bin = tt.to
			g.start()
			g.state(id, "busy", 20*time.Second)
			back := g.dial(t, id, "s", tt.v1)
			touch(t, file)
			if r := back.finish(cell, 20*time.Second); !strings.HasSuffix(r.stdout, "went on\n") ||
				r.reply.field("status") != "ok" {
				t.Errorf("the cell that ran meanwhile printed %q and ended with %s", r.stdout, r.reply.Content)
			}
			back.says("print(kept)", "a variable\n")
			interrupt(t, g, id, back)
			restart(t, g, id, back)
			if now := g.supervisorOf(id); now != supervisor {
				t.Errorf("the kernel's supervisor was process %d and is %d", supervisor, now)
			}
			if program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", supervisor)); err != nil ||
				filepath.Dir(program) != tt.from {
				t.Errorf("the supervisor's program is %s, %v, want one in the first gateway's folder", program, err)
			}
			g.want(204, "DELETE", "/api/kernels/"+id, "", nil)
			g.noProcesses(id)
			g.dial(t, g.kernel("python3"), "s", tt.v1).says("print('a new one')", "a new one\n")
		})
	}
}
