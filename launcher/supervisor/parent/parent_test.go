package parent

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

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
}

// start starts a parent whose supervisors run the script.
func start(t *testing.T, script string) *scripted {
	t.Helper()
	before := goleak.IgnoreCurrent()
	dir, err := os.MkdirTemp("", "ekg-parent")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "supervisor")
	script = "#!/bin/sh\ncd " + dir + "\necho run >>runs\n" + script
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	p := &scripted{t: t, dir: dir, answer: &answer{closed: make(chan struct{})}, code: make(chan int, 1)}
	p.opts = Options{Program: program, Name: program, ConfigFile: filepath.Join(dir, "config"), Ready: p.answer,
		Config: api.Config{KernelID: uuid.NewString(), SameMachine: true, SpillDir: dir,
			ChildSocket: filepath.Join(dir, "c"), EndFile: filepath.Join(dir, "ended.json")}}
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
				t.Errorf("the child is not told: %v", err)
			}
		})
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
	code := run(t.Context(), Options{Program: program, Name: program, Ready: a, Config: api.Config{
		KernelID: uuid.NewString(), SpillDir: dir, ChildSocket: socket, EndFile: filepath.Join(dir, "ended.json")}}, 0)
	if _, err := os.Stat(filepath.Join(dir, "again")); err != nil || code != 0 {
		t.Errorf("it exits with %d, %v", code, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "requests.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the state of the earlier supervisor: %v", err)
	}
}
