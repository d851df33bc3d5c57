package local

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/internal/flock"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/devices"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Names in a kernel's folder.
const (
	recordFile     = "kernel.json"
	configFile     = "supervisor.json"
	connectionFile = "connection.json"
	processFile    = "process.json"
	notesFile      = "notes.json"
	notesLock      = "notes.lock"
	upgradeLock    = "upgrade.lock"
	lockFile       = "lock"
	logFile        = "supervisor.log"
	endFile        = "ended.json"
)

// Names in the state directory. A launcher holds reaperLock while it is the one that cleans up.
const (
	recordsDir = "records"
	reaperLock = "reaper.lock"
)

// Prefixes of folders that are not kernels yet, and of those that are no longer kernels.
const (
	newPrefix = ".new-"
	oldPrefix = ".old-"
)

// removeAttempts bounds how often a folder is emptied while others write into it.
const removeAttempts = 10

// maxSocketPath is what sockaddr_un holds, less the closing zero byte.
const maxSocketPath = 107

// record is kernel.json. Every version of the program can read these fields.
type record struct {
	Protocol int       `json:"protocol"` // api.ProtocolVersion of the launcher that wrote it
	ID       string    `json:"id"`
	Owner    string    `json:"owner"`
	Groups   []string  `json:"groups,omitempty"` // launcher.Request.Groups
	SpecName string    `json:"spec_name"`
	Created  time.Time `json:"created"` // UTC
	Socket   string    `json:"socket"`  // where the supervisor listens
	RunDir   string    `json:"run_dir"` // folder of this kernel's sockets, removed with it

	Profile string `json:"profile,omitempty"` // of the kernelspec

	// Warm is not "" while the kernel has no owner. It names what the kernel was started from, or is warmEnding.
	Warm string `json:"warm,omitempty"`

	Flavor string        `json:"flavor,omitempty"` // name of launcher.Request.Flavor
	GPUs   gpu.Amount    `json:"gpus,omitempty"`   // that it asks for
	Want   *devices.Want `json:"want,omitempty"`   // what is assigned to it; nil: nothing

	Job   bool `json:"job,omitempty"`   // launcher.Request.Job
	Parks bool `json:"parks,omitempty"` // its GPU may be given back before its end
}

// processIDs is process.json. It is written when the kernel's process is known. Until then, the kernel's lock says
// which process holds it.
type processIDs struct {
	Parent     int `json:"parent,omitempty"` // 0: an earlier version has started the kernel, without a parent
	Supervisor int `json:"supervisor"`       // 0: not known
	Kernel     int `json:"kernel"`           // 0: no kernel runs
}

// holder returns the process whose end is the end of supervisor and kernel; 0: not known.
func (p processIDs) holder() int {
	if p.Parent != 0 {
		return p.Parent
	}
	return p.Supervisor
}

// storedEnding is the record of a kernel whose folder was removed. Earlier versions of the program stored fewer fields.
type storedEnding struct {
	api.Ending
	SpecName string `json:"spec_name,omitempty"`
	Owner    string `json:"owner,omitempty"`

	Flavor string     `json:"flavor,omitempty"`
	Held   gpu.Amount `json:"held,omitempty"` // GPUs that were assigned to it
}

// badRecordError says that an entry of the state directory is not a kernel.
type badRecordError struct{ why string }

func (e *badRecordError) Error() string { return e.why }

// layout knows the paths.
type layout struct {
	state   string
	runtime string
	mark    string // prefix of this state directory's folders in runtime, which other state directories share
	log     *slog.Logger
}

// newLayout creates the directories, private to this user. What has the name of one of them, and is something else,
// gets another name. Package flock does the same for the locks.
func newLayout(state, runtime string, log *slog.Logger) (layout, error) {
	l := layout{state: filepath.Clean(state), runtime: filepath.Clean(runtime), log: log}
	dirs := []string{l.state, l.kernels(), l.ended(), l.aside(), l.warm(), filepath.Join(l.state, gpusDir),
		filepath.Join(l.state, recordsDir)}
	for i, d := range dirs {
		if i > 0 {
			l.clearName(d)
		}
		if err := files.MakePrivate(d); err != nil {
			return l, fmt.Errorf("StateDir: %w", err)
		}
	}
	sum := sha256.Sum256([]byte(l.state))
	l.mark = hex.EncodeToString(sum[:3])
	candidates := []string{l.runtime}
	if runtime == "" {
		candidates = []string{filepath.Join(os.TempDir(), "ekg-"+strconv.Itoa(os.Getuid()))}
		if x := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(x) {
			candidates = []string{filepath.Join(x, "ekg"), candidates[0]}
		}
	}
	var errs []error
	for _, d := range candidates {
		l.runtime = d
		err := checkLength(l.runDir())
		if err == nil {
			err = files.MakePrivate(d)
		}
		if err == nil {
			return l, nil
		}
		errs = append(errs, err)
	}
	return l, fmt.Errorf("RuntimeDir: %w", errors.Join(errs...))
}

// clearName renames what is at a path if it is not a folder. What cannot be seen stays: a link of an operator may lead
// to a disk that is away, and without its folders kernels that run would count as removed.
func (l layout) clearName(path string) {
	at, err := os.Stat(path) // an operator's link is followed
	if err == nil && at.IsDir() || err != nil && !errors.Is(err, syscall.ELOOP) && !errors.Is(err, syscall.ENOTDIR) {
		return
	}
	to := path + ".aside." + randomName()[:6]
	if err := os.Rename(path, to); err == nil {
		l.log.Error("bad entry of the state directory set aside", logkey.Entry, path, logkey.To, to)
	} // else what needs it says why it fails
}

func checkLength(runDir string) error {
	// "supervisor-" is as long as the longest name in the folder: the names of the kernel's ipc endpoints have less
	// than 12 bytes.
	if n := len(filepath.Join(runDir, "supervisor-")); n > maxSocketPath {
		return fmt.Errorf("%s is %d bytes too long for the path of a socket", filepath.Dir(runDir), n-maxSocketPath)
	}
	return nil
}

func (l layout) kernels() string             { return filepath.Join(l.state, "kernels") }
func (l layout) ended() string               { return filepath.Join(l.state, "ended") }
func (l layout) aside() string               { return filepath.Join(l.state, "aside") }
func (l layout) warm() string                { return filepath.Join(l.state, "warm") }
func (l layout) warmFile(id string) string   { return filepath.Join(l.warm(), id+".json") }
func (l layout) kernel(id string) string     { return filepath.Join(l.kernels(), id) }
func (l layout) endingFile(id string) string { return filepath.Join(l.ended(), id+".json") }
func (l layout) file(id, name string) string { return filepath.Join(l.kernels(), id, name) }
func (l layout) temporary(prefix string) string {
	return filepath.Join(l.kernels(), prefix+randomName())
}

// scanFile returns the file in which supervisors share scans of /proc. No kernel's folder has its name.
func (l layout) scanFile() string { return filepath.Join(l.runtime, "processors.json") }

// runDir returns a new name for the folder of a kernel's sockets.
func (l layout) runDir() string { return filepath.Join(l.runtime, l.mark+randomName()[:8]) }

func randomName() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// readRecord reads a kernel's record. The error is fs.ErrNotExist if the kernel does not exist, a *badRecordError if
// the entry cannot be a kernel.
func (l layout) readRecord(id string) (record, error) {
	var rec record
	err := files.ReadJSON(l.file(id, recordFile), &rec)
	entry, lerr := os.Lstat(l.kernel(id))
	switch {
	case lerr != nil:
		return rec, lerr
	case !entry.IsDir():
		return rec, &badRecordError{"it is not a folder"}
	case errors.Is(err, fs.ErrNotExist):
		return rec, &badRecordError{"it has no " + recordFile}
	case errors.Is(err, files.ErrUnusable):
		return rec, &badRecordError{err.Error()}
	case err != nil:
		return rec, err
	case rec.ID != id:
		return rec, &badRecordError{fmt.Sprintf("%s belongs to kernel %q", recordFile, rec.ID)}
	case rec.Socket == "" || rec.Created.IsZero():
		return rec, &badRecordError{recordFile + " is incomplete"}
	}
	return rec, nil
}

// readState reads another file of a kernel. One that cannot be used is set aside; the error is fs.ErrNotExist then.
func (l layout) readState(id, name string, v any) error {
	err := files.ReadJSON(l.file(id, name), v)
	if errors.Is(err, files.ErrUnusable) {
		l.setAside(l.file(id, name), err)
		return fs.ErrNotExist
	}
	return err
}

// goneError returns the error for a kernel without a folder, with its stored ending if there is one.
func (l layout) goneError(id string) error {
	var e storedEnding
	err := files.ReadJSON(l.endingFile(id), &e)
	if err == nil && e.KernelID == id {
		return &launcher.GoneError{ID: id, Owner: e.Owner, Reason: e.Reason, At: e.At}
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, files.ErrUnusable) {
		return launcher.ErrNotFound
	}
	return fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
}

// readEnding reads a kernel's ended.json; nil if the file does not exist, or cannot be used.
func (l layout) readEnding(id string) (*api.Ending, error) {
	e := new(api.Ending)
	err := l.readState(id, endFile, e)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return e, nil
}

// createJSON makes a file that no other program looks for yet. Only this user can read it.
func createJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o600)
}

// keepState writes a file of a kernel, but leaves one alone that has the content. A look costs little; a new file took
// up to 1 ms.
func (l layout) keepState(id, name string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	b = append(b, '\n')
	present, err := files.Read(l.file(id, name), files.MaxState)
	switch {
	case err == nil && bytes.Equal(present, b):
		return nil
	case errors.Is(err, files.ErrUnusable): // a folder cannot be replaced
		l.setAside(l.file(id, name), err)
	}
	return files.Write(l.file(id, name), b)
}

// waitFolder waits for the flock on a kernel's folder. Only another gateway can hold it, and only briefly.
func waitFolder(ctx context.Context, dir string) (*os.File, error) {
	f, err := flock.WaitFolder(ctx, dir)
	if errors.Is(err, flock.ErrBusy) {
		err = fmt.Errorf("%w: another gateway is working on the kernel", launcher.ErrUnavailable)
	}
	return f, err
}

// supervised reports whether a supervisor holds the kernel's lock. The caller holds the folder's lock, so no supervisor
// is being started that could fail because of this attempt.
func (l layout) supervised(id string) (bool, error) { return flock.Held(l.file(id, lockFile), true) }

// removeFolder removes a kernel's folder. It renames the folder first, so that others no longer see it.
func (l layout) removeFolder(id string) error {
	old := l.temporary(oldPrefix)
	err := os.Rename(l.kernel(id), old)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// Another gateway may still be writing a file into it.
	for range removeAttempts {
		if err = os.RemoveAll(old); !errors.Is(err, syscall.ENOTEMPTY) {
			break
		}
	}
	return err
}

// removeRunDir removes the folder of a kernel's sockets, if the record names a folder of this state directory.
func (l layout) removeRunDir(rec record) error {
	if !filepath.IsAbs(rec.RunDir) || !strings.HasPrefix(filepath.Base(rec.RunDir), l.mark) {
		return nil
	}
	return os.RemoveAll(rec.RunDir)
}

// setAside moves what cannot be used into the folder aside, where the operator can look at it. from is in the state
// directory.
func (l layout) setAside(from string, why error) {
	name := strings.TrimPrefix(strings.TrimPrefix(from, l.state+"/"), "kernels/")
	to := filepath.Join(l.aside(), strings.ReplaceAll(name, "/", ".")+"."+randomName()[:6])
	err := os.Rename(from, to)
	if errors.Is(err, fs.ErrPermission) { // a folder without rights cannot be moved
		err = errors.Join(os.Chmod(from, 0o700), os.Rename(from, to))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return // it has just been replaced or removed
	}
	if err != nil {
		l.log.Error("bad entry of the state directory cannot be set aside", logkey.Entry, name, logkey.Err,
			errors.Join(why, err))
		return
	}
	l.log.Error("bad entry of the state directory set aside", logkey.Entry, name, logkey.To, to, logkey.Err, why)
}
