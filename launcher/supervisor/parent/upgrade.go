package parent

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
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
		return nil, cmp.Or(api.CheckProgram(path), err) // the first is in plain words
	}
	st, err := f.Stat()
	if err == nil {
		err = api.CheckProgramFile(path, st)
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

// Refuse notes for the program that requested an upgrade why the supervisor is not replaced. config is the path of the
// kernel's configuration, and id that of the request.
func Refuse(config, id string, why error) error {
	refused := api.Refused{ID: id, Reason: why.Error()}
	return files.WriteJSON(filepath.Join(filepath.Dir(config), api.RefusedFile), refused)
}

// RequestID returns the id of the request to upgrade that the parent has read last; "" if it is not known, as with
// parents of earlier versions. config is the path of the kernel's configuration.
func RequestID(config string) string {
	var r api.Upgrade
	if files.ReadJSON(filepath.Join(filepath.Dir(config), api.UpgradingFile), &r) != nil {
		return ""
	}
	return r.ID
}

// awaitRequests carries out requests to upgrade until over is closed.
func (p *parent) awaitRequests(over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		case <-p.opts.Upgrades:
			id, err := p.takeRequest()
			if errors.Is(err, errNoRequest) {
				p.log.Info("signal to upgrade is ignored: there is no request")
				continue
			}
			if err != nil {
				p.log.Error("supervisor cannot be upgraded", logkey.Err, err)
				if err := Refuse(p.opts.ConfigFile, id, err); err != nil {
					p.log.Error("the reason of a refused upgrade cannot be noted", logkey.Err, err)
				}
			}
		}
	}
}

// errNoRequest says that no program has requested an upgrade: SIGHUP came from elsewhere, such as a closed terminal.
var errNoRequest = errors.New("there is no request to upgrade")

// readRequest reads a request to upgrade, and moves it away.
func (p *parent) readRequest() (r api.Upgrade, err error) {
	path := p.beside(api.UpgradeFile)
	b, err := files.Read(path, files.MaxState)
	if errors.Is(err, fs.ErrNotExist) {
		return r, errNoRequest
	}
	if err == nil {
		err = os.Rename(path, p.beside(api.UpgradingFile)) // a later SIGHUP must not repeat it
	}
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		return r, fmt.Errorf("the request cannot be read: %w", err)
	}
	if !filepath.IsAbs(r.Program) {
		return r, fmt.Errorf("the program is %q, not an absolute path", r.Program)
	}
	return r, nil
}

// takeRequest reads a request to upgrade, and asks the present supervisor to leave. It returns the request's id.
func (p *parent) takeRequest() (id string, err error) {
	r, err := p.readRequest()
	if err != nil {
		return r.ID, err
	}
	next, err := OpenProgram(r.Program, r.Program)
	if err != nil {
		return r.ID, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil || p.stopping {
		_ = next.file.Close() // it was only read
		return r.ID, errors.New("no supervisor runs at present; its parent starts one")
	}
	if p.next != nil {
		_ = p.next.file.Close() // it was only read
	}
	p.next = next
	sig := LeaveIfComplete
	if r.Busy {
		sig = LeaveAnyway
	}
	return r.ID, p.running.Signal(sig)
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
