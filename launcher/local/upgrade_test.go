package local

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestUpgradeIdle: a gateway with another program replaces the supervisors of idle kernels, if its options ask for it.
func TestUpgradeIdle(t *testing.T) {
	p := newPlace(t)
	l := p.launcher()
	if _, _, err := l.Start(t.Context(), launcher.Request{ID: id(1), Owner: "ann", Spec: realSpec()}); err != nil {
		t.Fatal(err)
	}
	p.start(l, 2, "fine") // it has no parent
	wait(t, l, 1, "idle", isIdle)
	before := processesOf(t, p, 1)
	_ = l.Close()

	other := filepath.Join(t.TempDir(), "ekg-supervisor")
	b, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = os.WriteFile(other, b, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	rounds := make(chan time.Time)
	p.change = func(o *Options, tm *timing) {
		o.Supervisor, o.UpgradeIdle, tm.upgradeIdle, tm.rounds = other, true, 0, rounds
	}
	l = p.launcher()
	wait(t, l, 1, "idle", isIdle)
	u := Upgrades{StateDir: p.state, Program: other}
	eventually(t, "the supervisor is replaced", func() bool {
		select {
		case rounds <- time.Now():
		default:
		}
		return u.runs(processesOf(t, p, 1).Supervisor)
	})
	if now := processesOf(t, p, 1); now.Kernel != before.Kernel || now.Parent != before.Parent {
		t.Errorf("the processes were %+v and are %+v", before, now)
	}
	if k := wait(t, l, 1, "idle", isIdle); k.Reason != "" {
		t.Errorf("the kernel is %+v", k)
	}
	if done, err := u.Kernel(t.Context(), id(1)); err != nil || !done.Already {
		t.Errorf("again: %+v, %v", done, err)
	}
	for n, want := range map[int]string{2: "an earlier version has started it, whose supervisors cannot be replaced",
		3: "no kernel has this id"} {
		if _, err := u.Kernel(t.Context(), id(n)); err == nil || err.Error() != want {
			t.Errorf("kernel %d: %v", n, err)
		}
	}
}

// TestUpgrades_Refused: a request is refused with its reason, and changes nothing.
func TestUpgrades_Refused(t *testing.T) {
	p := newPlace(t)
	l := p.launcher()
	before := p.startReal(l, 1)
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for program, want := range map[string]string{
		filepath.Join(dir, "missing"): "the program " + dir + "/missing does not exist",
		dir:                           "the program " + dir + " is not a regular file",
		text:                          "the program " + text + " is not executable",
	} {
		if _, err := (Upgrades{StateDir: p.state, Program: program}).Kernel(t.Context(), id(1)); err == nil ||
			err.Error() != want {
			t.Errorf("%s: %v", program, err)
		}
	}
	for _, name := range []string{api.UpgradeFile, api.RefusedFile} {
		if exists(l.layout.file(id(1), name)) {
			t.Errorf("%s is left", name)
		}
	}
	if now := processesOf(t, p, 1); now != before {
		t.Errorf("the processes were %+v and are %+v", before, now)
	}
}

// TestUpgrades_AtOnce: of programs that upgrade one supervisor at once, each has its own answer.
func TestUpgrades_AtOnce(t *testing.T) {
	p := newPlace(t)
	l := p.launcher()
	before := p.startReal(l, 1)
	other := filepath.Join(t.TempDir(), "ekg-supervisor")
	b, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = os.WriteFile(other, b, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	const programs = 3
	type answer struct {
		done Upgraded
		err  error
	}
	answers := make(chan answer, programs)
	for range programs {
		go func() {
			done, err := (Upgrades{StateDir: p.state, Program: other}).Kernel(t.Context(), id(1))
			answers <- answer{done, err}
		}()
	}
	already := 0
	for range programs {
		a := <-answers
		if a.err != nil {
			t.Error(a.err)
		}
		if a.done.Already {
			already++
		}
	}
	if now := processesOf(t, p, 1); already != programs-1 || now.Kernel != before.Kernel || now.Parent != before.Parent {
		t.Errorf("%d had nothing to do; the processes were %+v and are %+v", already, before, now)
	}
}

// TestUpgrades_RefusedOther: a refusal of another request is not read as that of the present one.
func TestUpgrades_RefusedOther(t *testing.T) {
	u := Upgrades{StateDir: t.TempDir()}
	file := layout{state: u.StateDir}.file(id(1), api.RefusedFile)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	for of, want := range map[string]bool{"mine": true, "another": false, "": true} { // "": of an earlier version
		if err := files.WriteJSON(file, api.Refused{ID: of, Reason: "it is busy"}); err != nil {
			t.Fatal(err)
		}
		if err := u.refused(id(1), "mine"); (err != nil) != want {
			t.Errorf("a refusal of %q: %v", of, err)
		}
	}
}
