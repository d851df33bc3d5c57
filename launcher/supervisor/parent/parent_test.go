package parent

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/child"
)

// answer collects what a parent tells the program that started it.
type answer struct {
	strings.Builder
	closed chan struct{}
}

func (a *answer) Close() error { close(a.closed); return nil }

// scripted is a parent whose supervisors are a shell script. The script writes its answer to descriptor 3. Each of them
// adds a line to the file runs in the test's folder.
type scripted struct {
	t      *testing.T
	dir    string
	opts   Options
	answer *answer
	cancel context.CancelFunc
	code   chan int
	hup    chan os.Signal
}

func open(t *testing.T, path string) *Program {
	t.Helper()
	p, err := OpenProgram(path, path)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// start starts a parent whose supervisors run the script.
func start(t *testing.T, script string) *scripted {
	t.Helper()
	return startWith(t, func(*Options) {}, script)
}

// startWith is start with other options.
func startWith(t *testing.T, change func(*Options), script string) *scripted {
	t.Helper()
	before := goleak.IgnoreCurrent()
	dir, err := os.MkdirTemp("", "ekg-parent")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "run"), 0o700); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "supervisor")
	script = "#!/bin/sh\ncd " + dir + "\necho run >>runs\n" + script
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	p := &scripted{t: t, dir: dir, answer: &answer{closed: make(chan struct{})}, code: make(chan int, 1),
		hup: make(chan os.Signal, 1)}
	p.opts = Options{Program: open(t, program), Upgrades: p.hup, ConfigFile: filepath.Join(dir, "config"), Ready: p.answer,
		Config: api.Config{KernelID: uuid.NewString(), SameMachine: true, SpillDir: dir,
			ChildSocket: filepath.Join(dir, "run", "c"), EndFile: filepath.Join(dir, "ended.json")}}
	change(&p.opts)
	ctx, cancel := context.WithCancel(t.Context())
	p.cancel = cancel
	go func() { p.code <- run(ctx, p.opts, time.Millisecond) }()
	t.Cleanup(func() {
		cancel()
		goleak.VerifyNone(t, before)
		_ = os.RemoveAll(dir)
	})
	return p
}

// wait returns the parent's exit code.
func (p *scripted) wait() int {
	p.t.Helper()
	select {
	case code := <-p.code:
		return code
	case <-time.After(30 * time.Second):
		p.t.Fatal("the parent does not end")
	}
	return 0
}

// runs returns how many supervisors were started.
func (p *scripted) runs() int {
	p.t.Helper()
	b, err := os.ReadFile(filepath.Join(p.dir, "runs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.t.Fatal(err)
	}
	return strings.Count(string(b), "run\n")
}

// ending returns the record of the kernel's end; the zero value if there is no record.
func (p *scripted) ending() (e api.Ending) {
	p.t.Helper()
	b, err := os.ReadFile(p.opts.Config.EndFile)
	if errors.Is(err, fs.ErrNotExist) {
		return e
	}
	if err == nil {
		err = json.Unmarshal(b, &e)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return e
}

func TestRun(t *testing.T) {
	const up = "echo ok >&3; exec 3>&-\n"
	for name, tc := range map[string]struct {
		script, answer, reason string
		code, runs             int
	}{
		"the kernel ends for good": {script: up, answer: "ok\n", runs: 1},
		"the first supervisor refuses": {script: "echo the moon is not full >&3; exit 1", answer: "the moon is not full\n",
			code: 1, runs: 1},
		"the first supervisor says nothing": {script: "exit 3", code: 1, runs: 1},
		"a supervisor is killed and started again": {
			script: up + "[ $(wc -l <runs) = 3 ] && exit 0; kill -9 $$", answer: "ok\n", runs: 3},
		"supervisors fail again and again": {script: up + "exit 2", answer: "ok\n", code: 1, runs: maxFailures,
			reason: "its supervisor ended unexpectedly 8 times in a row, the last time with exit code 2, as after a fault " +
				"in the program; its log shows where; its variables are lost"},
		"supervisors are killed again and again": {script: up + "kill -9 $$", answer: "ok\n", code: 1, runs: maxFailures,
			reason: "its supervisor ended unexpectedly 8 times in a row, the last time by signal 9 (killed); " +
				"its variables are lost"},
		"no further supervisor can start": {
			script: "[ $(wc -l <runs) = 1 ] && { echo ok >&3; exit 1; }; echo the disk is full >&3; exit 1",
			answer: "ok\n", code: 1, runs: maxFailures,
			reason: "its supervisor ended unexpectedly 8 times in a row, the last time because it could not start: " +
				"the disk is full; its variables are lost"},
		"a program that is no supervisor exits with 0": {
			script: "case $(wc -l <runs) in 1) echo ok >&3; exec 3>&-; kill -9 $$;; 3) echo ok >&3;; esac; exit 0",
			answer: "ok\n", runs: 3},
		"a program that is no supervisor exits as for an upgrade": {
			script: "case $(wc -l <runs) in 1) echo ok >&3; exec 3>&-; kill -9 $$;; esac; exit 75",
			answer: "ok\n", code: 1, runs: maxFailures, reason: "its supervisor ended unexpectedly 8 times in a row, " +
				"the last time with exit code 75; its variables are lost"},
		"a supervisor is killed after its kernel has ended": {
			script: up + `echo '{"reason": "it was idle"}' >ended.json; kill -9 $$`, answer: "ok\n", runs: 1,
			reason: "it was idle"},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, tc.script)
			if code := p.wait(); code != tc.code {
				t.Errorf("it exits with %d, not %d", code, tc.code)
			}
			<-p.answer.closed
			if got := p.answer.String(); got != tc.answer {
				t.Errorf("it answers %q, not %q", got, tc.answer)
			}
			if n := p.runs(); n != tc.runs {
				t.Errorf("%d supervisors were started, not %d", n, tc.runs)
			}
			if e := p.ending(); e.Reason != tc.reason || e.Stopped {
				t.Errorf("the kernel's end is %+v, not %q", e, tc.reason)
			}
			if _, err := os.Stat(child.EndedFile(p.opts.Config.ChildSocket)); err != nil {
				t.Errorf("the child has no sign to end: %v", err)
			}
		})
	}
}

// withKernel starts a parent whose supervisors run the script, and a kernel below it. The supervisors begin when the
// file go exists.
func withKernel(t *testing.T, script string) (*scripted, *child.Process) {
	t.Helper()
	p := start(t, "echo ok >&3; exec 3>&-; while [ ! -e go ]; do sleep 0.01; done\n"+script)
	c := child.NewContainer(child.ContainerOptions{Socket: p.opts.Config.ChildSocket, Grace: time.Minute,
		Measured: func() {}, Log: slog.New(slog.DiscardHandler)})
	if err := c.Listen(); err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(c.Serve)
	t.Cleanup(func() { c.Close(nil); serving.Wait() })
	for limit := time.After(30 * time.Second); !c.Connected(); {
		select {
		case <-c.Changed():
		case <-limit:
			t.Fatal("the child does not connect")
		}
	}
	kernel, err := c.Start(t.Context(), child.StartOptions{KernelID: p.opts.Config.KernelID,
		Argv: []string{"sleep", "1000"}, Env: map[string]string{"PATH": os.Getenv("PATH")},
		ConnectionPath: filepath.Join(p.dir, "connection.json")})
	if err != nil {
		t.Fatal(err)
	}
	return p, kernel
}

// create makes an empty file in the test's folder.
func (p *scripted) create(name string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), nil, 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// TestRun_KernelLives: supervisors that fail again and again do not end a kernel that lives. Without one, they end the
// parent.
func TestRun_KernelLives(t *testing.T) {
	p, kernel := withKernel(t, "[ -e end ] && exit 0; exit 2")
	p.create("go")
	poll.Until(t, "more supervisors fail than a dead kernel may have", func() bool { return p.runs() > maxFailures+1 })
	var failing api.Failing
	poll.Until(t, "a reason is noted", func() bool {
		b, err := os.ReadFile(filepath.Join(p.dir, api.FailingFile)) // there is none while a supervisor listens
		return err == nil && json.Unmarshal(b, &failing) == nil
	})
	if !strings.Contains(failing.Reason, "times in a row, the last time with exit code 2") || failing.At.IsZero() {
		t.Errorf("the reason is %+v", failing)
	}
	if p, ok := proctree.Find(kernel.PID()); !ok || !p.Alive() {
		t.Error("the kernel has ended")
	}
	if err := syscall.Kill(kernel.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(); code != 1 || !strings.Contains(p.ending().Reason, "times in a row") {
		t.Errorf("it exits with %d, and the kernel's end is %+v", code, p.ending())
	}
}

// TestRun_FolderRemoved: a kernel ends with its parent also if the folder of the sockets has been removed.
func TestRun_FolderRemoved(t *testing.T) {
	p, kernel := withKernel(t, "exit 0")
	if err := os.RemoveAll(filepath.Dir(p.opts.Config.ChildSocket)); err != nil {
		t.Fatal(err)
	}
	p.create("go")
	if code := p.wait(); code != 0 {
		t.Errorf("it exits with %d", code)
	}
	if p, ok := proctree.Find(kernel.PID()); ok && p.Alive() {
		t.Error("the kernel still runs")
	}
}

// TestRun_Signal: a signal to the parent goes to its supervisor. The parent starts no other.
func TestRun_Signal(t *testing.T) {
	const up = "trap 'touch stopped; exit 0' TERM\necho ok >&3; exec 3>&-\n"
	t.Run("while a supervisor runs", func(t *testing.T) {
		p := start(t, up+"while :; do sleep 0.01; done")
		<-p.answer.closed
		p.cancel()
		if code := p.wait(); code != 0 || p.runs() != 1 {
			t.Errorf("it exits with %d after %d supervisors", code, p.runs())
		}
		if _, err := os.Stat(filepath.Join(p.dir, "stopped")); err != nil {
			t.Error(err)
		}
	})
	t.Run("and the supervisor fails then", func(t *testing.T) {
		p := start(t, strings.Replace(up, "exit 0", "exit 1", 1)+"while :; do sleep 0.01; done")
		<-p.answer.closed
		p.cancel()
		if code := p.wait(); code != 1 || p.runs() != 1 {
			t.Errorf("it exits with %d after %d supervisors", code, p.runs())
		}
		if e := p.ending(); e.Reason != api.SignalReason || !e.Stopped || e.KernelID != p.opts.Config.KernelID {
			t.Errorf("the kernel's end is %+v", e)
		}
	})
}

// TestRun_Earlier: the files of an earlier parent do not end this one.
func TestRun_Earlier(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "c")
	for _, f := range []string{socket + ".ended", filepath.Join(dir, "ended.json"), filepath.Join(dir, "requests.json")} {
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(dir, "supervisor")
	script := "#!/bin/sh\ncd " + dir + "\necho ok >&3; exec 3>&-\n[ -e again ] && exit 0; touch again; exit 1"
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	a := &answer{closed: make(chan struct{})}
	code := run(t.Context(), Options{Program: open(t, program), Ready: a, Config: api.Config{
		KernelID: uuid.NewString(), SpillDir: dir, ChildSocket: socket, EndFile: filepath.Join(dir, "ended.json")}}, 0)
	if _, err := os.Stat(filepath.Join(dir, "again")); err != nil || code != 0 {
		t.Errorf("it exits with %d, %v", code, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "requests.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the state of the earlier supervisor: %v", err)
	}
}

// leaves is the script of a supervisor that leaves when it is asked.
const leaves = `trap 'exit 75' USR1; trap 'exit 75' USR2
echo ok >&3; exec 3>&-; touch up$(wc -l <runs)
while :; do [ -e end ] && exit 0; sleep 0.01; done`

// request requests an upgrade to a program with the script.
func (p *scripted) request(script string, busy bool) {
	p.t.Helper()
	program := filepath.Join(p.dir, "new")
	if err := os.WriteFile(program, []byte("#!/bin/sh\ncd "+p.dir+"\necho run >>runs\n"+script), 0o700); err != nil {
		p.t.Fatal(err)
	}
	b, err := json.Marshal(api.Upgrade{Program: program, Busy: busy})
	if err == nil {
		err = os.WriteFile(filepath.Join(p.dir, api.UpgradeFile), b, 0o600)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	p.hup <- syscall.SIGHUP
}

// await waits until there is a file in the test's folder.
func (p *scripted) await(file string) {
	p.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; <-time.After(5 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(p.dir, file)); err == nil {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("there is no %s", file)
		}
	}
}

// TestRun_Upgrade: a supervisor leaves, and one of the requested program follows. A new program that fails gives way to
// the earlier one.
func TestRun_Upgrade(t *testing.T) {
	for name, tc := range map[string]struct {
		script string
		busy   bool
		runs   int
	}{
		"the new program runs":        {"touch new$(wc -l <runs)\necho ok >&3; exec 3>&-; exit 0", false, 2},
		"a busy one leaves too":       {"touch new$(wc -l <runs)\necho ok >&3; exec 3>&-; exit 0", true, 2},
		"the new program cannot run":  {"touch new$(wc -l <runs) end; echo too old >&3; exit 1", false, 3},
		"the new program fails later": {"touch new$(wc -l <runs) end; echo ok >&3; exec 3>&-; exit 2", false, 3},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, leaves)
			p.await("up1")
			if err := os.Rename(p.opts.Program.name, p.opts.Program.name+".old"); err != nil {
				t.Fatal(err)
			}
			p.request(tc.script, tc.busy)
			p.await("new2")
			if _, err := os.Stat(filepath.Join(p.dir, api.UpgradeFile)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the request is left: %v", err)
			}
			if code := p.wait(); code != 0 || p.runs() != tc.runs {
				t.Errorf("it exits with %d after %d supervisors, not %d", code, p.runs(), tc.runs)
			}
		})
	}
}

// TestRun_UpgradeFails: if a new program fails, the next supervisor has a loss to announce.
func TestRun_UpgradeFails(t *testing.T) {
	p := start(t, `trap 'echo "{\"epoch\":1,\"left\":true,\"complete\":true}" >requests.json; exit 75' USR1
echo ok >&3; exec 3>&-; cp requests.json found$(wc -l <runs) 2>/dev/null; touch up$(wc -l <runs)
while :; do [ -e end ] && exit 0; sleep 0.01; done`)
	p.await("up1")
	p.request("exit 1", false)
	p.await("up3")
	p.create("end")
	if code := p.wait(); code != 0 {
		t.Errorf("it exits with %d", code)
	}
	if b, err := os.ReadFile(filepath.Join(p.dir, "found3")); err != nil || string(b) != `{"epoch":1}` {
		t.Errorf("the third supervisor finds the state %s, %v", b, err)
	}
}

// TestRun_UpgradeRefused: a bad request changes nothing, and the reason is noted.
func TestRun_UpgradeRefused(t *testing.T) {
	p := start(t, leaves)
	p.await("up1")
	folder := filepath.Join(p.dir, "run")
	for text, reason := range map[string]string{
		"":                              "the request cannot be read: unexpected end of JSON input",
		"{}":                            `the program is "", not an absolute path`,
		`{"id": "7", "program": "/x"}`:  "the program /x does not exist",
		`{"program": "/nonexistent"}`:   "the program /nonexistent does not exist",
		`{"program": "/etc/passwd"}`:    "the program /etc/passwd is not executable",
		`{"program": "` + folder + `"}`: "the program " + folder + " is not a regular file",
	} {
		if err := os.WriteFile(filepath.Join(p.dir, api.UpgradeFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p.hup <- syscall.SIGHUP
		p.await(api.RefusedFile)
		var got api.Refused
		b, err := os.ReadFile(filepath.Join(p.dir, api.RefusedFile))
		if err == nil {
			err = json.Unmarshal(b, &got)
		}
		id := ""
		if strings.Contains(text, `"id"`) {
			id = "7"
		}
		if err != nil || got.Reason != reason || got.ID != id || RequestID(p.opts.ConfigFile) != id {
			t.Errorf("%q is refused with %+v, %v", text, got, err)
		}
		if _, err := os.Stat(filepath.Join(p.dir, api.UpgradeFile)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the request is left: %v", err)
		}
		if err := os.Remove(filepath.Join(p.dir, api.RefusedFile)); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 { // without a request; the second has been read when the third is taken
		p.hup <- syscall.SIGHUP
	}
	if _, err := os.Stat(filepath.Join(p.dir, api.RefusedFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a signal without a request is refused: %v", err)
	}
	if err := os.WriteFile(filepath.Join(p.dir, "end"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(); code != 0 || p.runs() != 1 {
		t.Errorf("it exits with %d after %d supervisors", code, p.runs())
	}
}
