package local

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/internal/flock"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// A kernel runs as this user, so it can remove or damage its own folder. Its processes show that it runs: the arguments
// of its supervisor and of the parent name the folder. Such a kernel is ended, and its owner learns why.

// strayPace is the time between two passes of /proc that look for kernels without a folder.
const strayPace = time.Minute

// strays ends kernels that have lost their files.
type strays struct {
	l    *Launcher
	lock func(dir string) (*os.File, error) // flock.Folder, but in tests
	last time.Time                          // of the last pass; owned by maintain
}

// readEntry reads a kernel's record. A warm kernel does not exist for callers. An entry that cannot be a kernel is set
// aside, and what runs of it is ended; the error is fs.ErrNotExist then.
func (s *strays) readEntry(id string) (record, error) {
	l := s.l
	read := func() (record, error) {
		rec, err := l.layout.readRecord(id)
		if err == nil && rec.Warm != "" {
			err = fs.ErrNotExist
		}
		return rec, err
	}
	rec, err := read()
	var bad *badRecordError
	if !errors.As(err, &bad) {
		return rec, err
	}
	// The entry may have been created during the read. The gateway that creates it holds the folder's lock until its
	// supervisor listens.
	folder, err := s.lock(l.layout.kernel(id))
	switch {
	case errors.Is(err, flock.ErrBusy), errors.Is(err, fs.ErrNotExist):
		return read()
	case err == nil:
		defer flock.Unlock(folder)
		if rec, err = read(); !errors.As(err, &bad) {
			return rec, err
		}
	case !errors.Is(err, syscall.ENOTDIR) && !errors.Is(err, syscall.ELOOP) && !errors.Is(err, fs.ErrPermission):
		return rec, err
	} // else it is no folder, or a folder without rights
	s.endDamaged(id, bad)
	return rec, fs.ErrNotExist
}

// endDamaged ends what runs of a kernel whose record cannot be used, and sets its entry aside.
func (s *strays) endDamaged(id string, why error) {
	l := s.l
	var cfg struct {
		KernelID string `json:"kernel_id"`
		SpecName string `json:"spec_name"`
		Owner    string `json:"owner"`
		RunDir   string `json:"run_dir"`
	}
	err := files.ReadJSON(l.layout.file(id, configFile), &cfg)
	known := err == nil && cfg.KernelID == id
	if killed := l.processes.killStray(id); known || killed > 0 {
		s.store(record{ID: id, SpecName: cfg.SpecName, Owner: cfg.Owner}, killed, fmt.Sprintf(
			"it was ended: its %s in the gateway's state folder was removed or damaged; its variables are lost", recordFile))
	}
	if err := l.layout.removeRunDir(record{RunDir: cfg.RunDir}); err != nil {
		l.log.Warn("folder of a kernel's sockets cannot be removed", logkey.Kernel, id, logkey.Err, err)
	}
	l.layout.setAside(l.layout.kernel(id), why)
}

// endRemoved ends what runs of a kernel whose folder has gone without its end.
func (s *strays) endRemoved(rec record) {
	l := s.l
	running := false
	for _, p := range proctree.List() {
		running = running || p.Alive() && (l.layout.supervisorOf(p.PID) == rec.ID || proctree.Carries(p.PID, rec.ID))
	}
	// A later kernel with the id has processes only after it has a folder.
	if _, err := os.Lstat(l.layout.kernel(rec.ID)); !running || !errors.Is(err, fs.ErrNotExist) {
		return
	}
	killed := l.processes.killStray(rec.ID)
	var end *launcher.GoneError
	if errors.As(l.layout.goneError(rec.ID), &end) && !end.At.Before(rec.Created) { // another gateway has ended it
		l.log.Warn("processes of an ended kernel remained", logkey.Kernel, rec.ID, logkey.Killed, killed)
	} else {
		s.store(rec, killed,
			"it was ended: its folder in the gateway's state folder was removed while it ran; its variables are lost")
	}
	if err := l.layout.removeRunDir(rec); err != nil {
		l.log.Warn("folder of a kernel's sockets cannot be removed", logkey.Kernel, rec.ID, logkey.Err, err)
	}
}

// store stores why a kernel was ended whose files have gone.
func (s *strays) store(rec record, killed int, reason string) {
	l := s.l
	l.log.Error("kernel without its files was ended", logkey.Kernel, rec.ID, logkey.Killed, killed, logkey.Reason, reason)
	end := api.Ending{KernelID: rec.ID, Reason: reason, At: l.timing.now().UTC()}
	err := files.WriteJSON(l.layout.endingFile(rec.ID), storedEnding{end, rec.SpecName, rec.Owner, rec.Flavor, rec.GPUs})
	if err != nil {
		l.log.Error("kernel's end cannot be recorded", logkey.Kernel, rec.ID, logkey.Err, err)
	}
}

// look ends what runs of kernels whose folders have gone, or were replaced by something else. Most of them memory
// does not have: no gateway ran when the folder was removed.
func (s *strays) look() {
	l := s.l
	now := l.timing.now()
	if now.Sub(s.last) < strayPace {
		return
	}
	s.last = now
	for _, k := range l.snapshot() {
		if at, err := os.Lstat(k.dir); err == nil && !at.IsDir() {
			l.reconcile(k)
		}
	}
	for _, p := range proctree.List() {
		id := l.layout.supervisorOf(p.PID)
		if id == "" {
			continue
		}
		if _, err := os.Lstat(l.layout.kernel(id)); errors.Is(err, fs.ErrNotExist) && l.layout.seenBy(p.PID) {
			s.endRemoved(record{ID: id, Owner: proctree.Variable(p.PID, ownerVariable)})
		}
	}
}

// killStray kills the supervisor of a kernel and its parent, found by their arguments, and all processes of the kernel.
// It returns how many there were.
func (ps *processes) killStray(id string) int {
	n := ps.killSupervisors(id)
	more, err := ps.kill(id, 0, false)
	if err != nil {
		ps.log.Error("processes of a dead kernel remain", logkey.Kernel, id, logkey.Err, err)
	}
	return n + more
}

// killSupervisors kills each supervisor of a kernel and its parent, whatever the kernel's files say.
func (ps *processes) killSupervisors(id string) (n int) {
	for _, p := range proctree.List() {
		if p.Alive() && ps.layout.signal(id, p.PID, os.Kill) == nil {
			n++
		}
	}
	return n
}

// supervisorOf returns the kernel of which a process is a supervisor, or the parent of one; "" if it is neither.
func (l layout) supervisorOf(pid int) string {
	args, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return "" // it has ended
	}
	_, after, _ := bytes.Cut(args, []byte("\x00--config\x00"+l.kernels()+"/"))
	path, _, _ := bytes.Cut(after, []byte{0})
	id, name := filepath.Split(string(path))
	if id = filepath.Clean(id); name != configFile || !launcher.ValidID(id) {
		return ""
	}
	return id
}

// ownerVariable has the kernel's owner in the environment of its supervisor and of the parent; "" if it was warm.
const ownerVariable = "EKG_KERNEL_OWNER"

// seenBy reports whether a process has the same folder of kernels at the same path. A gateway in a container may have
// another one there, and this gateway can see the processes of containers.
func (l layout) seenBy(pid int) bool {
	path, err := filepath.EvalSymlinks(l.kernels())
	if err != nil {
		return false
	}
	root, err := os.OpenRoot("/proc/" + strconv.Itoa(pid) + "/root")
	if err != nil {
		return false // it has ended, or belongs to another user
	}
	defer root.Close() //nolint:errcheck // it was only read
	theirs, err1 := root.Stat(path[1:])
	ours, err2 := os.Stat(path)
	return err1 == nil && err2 == nil && os.SameFile(ours, theirs)
}
