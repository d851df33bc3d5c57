package parent

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// LeaveCode is the exit code of a supervisor that leaves its kernel to the next one.
const LeaveCode = 75

// The signals that ask a supervisor to leave.
const (
	LeaveIfComplete = syscall.SIGUSR1 // if no client would miss output
	LeaveAnyway     = syscall.SIGUSR2
)

// Program is a program file that supervisors run. It is kept open, so that the same program is run again also after
// its file was replaced.
type Program struct {
	name string // its path, and the first argument of its processes
	file *os.File
}

// OpenProgram opens the program at path. Its processes show name. The caller need not close it.
func OpenProgram(path, name string) (*Program, error) {
	f, err := os.OpenFile(path, unix.O_PATH, 0) // it may be executable and not readable
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && (!st.Mode().IsRegular() || st.Mode()&0o111 == 0) {
		err = fmt.Errorf("%s is not a program", path)
	}
	if err != nil {
		_ = f.Close() // it was only read
		return nil, err
	}
	return &Program{name: name, file: f}, nil
}

// path returns a path of the program: its own, as long as that leads to the same file. Another process cannot use the
// number of a descriptor, so the other path names this process.
func (p *Program) path() string {
	if open, err := p.file.Stat(); err == nil {
		if named, err := os.Stat(p.name); err == nil && os.SameFile(open, named) {
			return p.name
		}
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), p.file.Fd())
}

// awaitRequests carries out requests to upgrade until over is closed.
func (p *parent) awaitRequests(over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		case <-p.opts.Upgrades:
			if err := p.takeRequest(); err != nil {
				p.log.Error("supervisor cannot be upgraded", logkey.Err, err)
			}
		}
	}
}

// takeRequest reads a request to upgrade, and asks the present supervisor to leave.
func (p *parent) takeRequest() error {
	b, err := os.ReadFile(filepath.Join(filepath.Dir(p.opts.ConfigFile), api.UpgradeFile))
	if err != nil {
		return err
	}
	var r api.Upgrade
	if err := json.Unmarshal(b, &r); err != nil {
		return err
	}
	if !filepath.IsAbs(r.Program) {
		return fmt.Errorf("program is %q, not an absolute path", r.Program)
	}
	next, err := OpenProgram(r.Program, r.Program)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil || p.stopping {
		_ = next.file.Close() // it was only read
		return errors.New("no supervisor runs")
	}
	if p.next != nil {
		_ = p.next.file.Close() // it was only read
	}
	p.next = next
	sig := LeaveIfComplete
	if r.Busy {
		sig = LeaveAnyway
	}
	return p.running.Signal(sig)
}

// upgrade makes the requested program the one of the next supervisor.
func (p *parent) upgrade() {
	p.mu.Lock()
	next := p.next
	p.next = nil
	p.mu.Unlock()
	if next == nil {
		return
	}
	p.log.Info("supervisor is upgraded", logkey.File, next.name)
	if p.previous != nil {
		_ = p.previous.file.Close() // it was only read
	}
	p.previous, p.program = p.program, next
}

// goBack replaces a new program by the previous one, if a supervisor that began then has failed in its first minute.
func (p *parent) goBack(began time.Time) {
	if p.previous == nil {
		return
	}
	bad := p.program
	if time.Since(began) < stableLife {
		p.log.Error("upgraded supervisor fails; the earlier program is used again", logkey.File, bad.name)
		p.program, bad = p.previous, p.program
	} else {
		bad = p.previous
	}
	p.previous = nil
	_ = bad.file.Close() // it was only read
}
