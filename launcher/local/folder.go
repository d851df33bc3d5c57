package local

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// Names in a kernel's folder.
const (
	recordFile     = "kernel.json"
	configFile     = "supervisor.json"
	connectionFile = "connection.json"
	processFile    = "process.json"
	notesFile      = "notes.json"
	notesLock      = "notes.lock"
	lockFile       = "lock"
	logFile        = "supervisor.log"
	endFile        = "ended.json"
)

// Prefixes of folders that are not kernels yet, or no more.
const (
	newPrefix = ".new-"
	oldPrefix = ".old-"
)

// removeAttempts bounds how often a folder is emptied of what comes into it meanwhile.
const removeAttempts = 10

// maxSocketPath is what sockaddr_un holds, less the closing zero byte.
const maxSocketPath = 107

// record is kernel.json. Every version of the program can read these fields.
type record struct {
	Protocol int       `json:"protocol"` // supervisor.ProtocolVersion of the launcher that made it
	ID       string    `json:"id"`
	Owner    string    `json:"owner"`
	Groups   []string  `json:"groups,omitempty"` // launcher.Request.Groups
	SpecName string    `json:"spec_name"`
	Created  time.Time `json:"created"` // UTC
	Socket   string    `json:"socket"`  // where the supervisor listens
	RunDir   string    `json:"run_dir"` // folder of this kernel's sockets, removed with it
}

// processes is process.json.
type processes struct {
	Supervisor int `json:"supervisor"`
	Kernel     int `json:"kernel"` // 0 while there is none
}

// tombstone is what is left of a kernel whose folder has gone. Those that earlier versions have left tell less.
type tombstone struct {
	supervisor.Ending
	SpecName string `json:"spec_name,omitempty"`
	Owner    string `json:"owner,omitempty"`
}

// badRecordError says that a folder of the state directory is not one of a kernel.
type badRecordError struct{ why string }

func (e *badRecordError) Error() string { return e.why }

// layout knows the paths.
type layout struct {
	state   string
	runtime string
	mark    string // begins the names of this state directory's folders in runtime, which others use too
}

// newLayout makes the directories, private to this user.
func newLayout(state, runtime string) (layout, error) {
	l := layout{state: filepath.Clean(state), runtime: filepath.Clean(runtime)}
	for _, d := range []string{l.state, l.kernels(), l.ended(), l.aside()} {
		if err := makePrivate(d); err != nil {
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
			err = makePrivate(d)
		}
		if err == nil {
			return l, nil
		}
		errs = append(errs, err)
	}
	return l, fmt.Errorf("RuntimeDir: %w", errors.Join(errs...))
}

func checkLength(runDir string) error {
	// The longest name in it: the kernel's ipc endpoints are shorter than 12 bytes.
	if n := len(filepath.Join(runDir, "supervisor-")); n > maxSocketPath {
		return fmt.Errorf("%s is %d bytes too long for the path of a socket", filepath.Dir(runDir), n-maxSocketPath)
	}
	return nil
}

// makePrivate makes a folder, or sees that the one that exists is this user's own: in a temp folder another user may
// have made it first.
func makePrivate(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		if st, err = os.Stat(dir); err != nil || !st.IsDir() {
			return fmt.Errorf("%s is not a folder", dir)
		}
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) != os.Getuid() {
		return fmt.Errorf("%s belongs to another user", dir)
	}
	if st.Mode().Perm()&0o077 != 0 {
		if err := os.Chmod(dir, 0o700); err != nil {
			return err
		}
	}
	return nil
}

func (l layout) kernels() string             { return filepath.Join(l.state, "kernels") }
func (l layout) ended() string               { return filepath.Join(l.state, "ended") }
func (l layout) aside() string               { return filepath.Join(l.state, "aside") }
func (l layout) kernel(id string) string     { return filepath.Join(l.kernels(), id) }
func (l layout) tombstone(id string) string  { return filepath.Join(l.ended(), id+".json") }
func (l layout) file(id, name string) string { return filepath.Join(l.kernels(), id, name) }
func (l layout) temporary(prefix string) string {
	return filepath.Join(l.kernels(), prefix+randomName())
}

// runDir returns a new name for a kernel's sockets.
func (l layout) runDir() string { return filepath.Join(l.runtime, l.mark+randomName()[:8]) }

func randomName() string {
	var b [8]byte
	rand.Read(b[:]) //nolint:errcheck // crypto/rand.Read never fails
	return hex.EncodeToString(b[:])
}

// readRecord reads a kernel's record. The error is fs.ErrNotExist if there is no such kernel, a *badRecordError if what
// is there cannot be one.
func (l layout) readRecord(id string) (record, error) {
	var rec record
	b, err := os.ReadFile(l.file(id, recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		if _, statErr := os.Lstat(l.kernel(id)); statErr == nil {
			return rec, &badRecordError{"it has no " + recordFile}
		}
		return rec, err
	}
	if errors.Is(err, syscall.ENOTDIR) {
		return rec, &badRecordError{"it is not a folder"}
	}
	if err != nil {
		return rec, err
	}
	if err := json.Unmarshal(b, &rec); err != nil {
		return rec, &badRecordError{fmt.Sprintf("%s: %v", recordFile, err)}
	}
	switch {
	case rec.ID != id:
		return rec, &badRecordError{fmt.Sprintf("%s is that of kernel %q", recordFile, rec.ID)}
	case rec.Socket == "" || rec.Created.IsZero():
		return rec, &badRecordError{recordFile + " is incomplete"}
	}
	return rec, nil
}

// goneError tells what is known of a kernel that has no folder.
func (l layout) goneError(id string) error {
	var e tombstone
	err := readJSON(l.tombstone(id), &e)
	if err == nil && e.KernelID == id {
		return &launcher.GoneError{ID: id, Owner: e.Owner, Reason: e.Reason, At: e.At}
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.As(err, new(*json.SyntaxError)) {
		return launcher.ErrNotFound
	}
	return fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
}

// readEnding reads a kernel's ended.json; nil if there is none.
func (l layout) readEnding(id string) (*supervisor.Ending, error) {
	e := new(supervisor.Ending)
	err := readJSON(l.file(id, endFile), e)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return e, nil
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// writeJSON replaces a file at once, readable by nobody else.
func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	temporary := path + "." + randomName()[:6]
	if err := os.WriteFile(temporary, append(b, '\n'), 0o600); err != nil {
		os.Remove(temporary) //nolint:errcheck // it may not even exist
		return err
	}
	if err := os.Rename(temporary, path); err != nil {
		os.Remove(temporary) //nolint:errcheck // the error of Rename is the one that matters
		return err
	}
	return nil
}

// errBusy says that another launcher holds a folder.
var errBusy = errors.New("another gateway is working on the kernel")

// lockFolder takes the flock on a kernel's folder. The error is errBusy, or fs.ErrNotExist if it has been removed.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close() //nolint:errcheck // nothing was written
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errBusy
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	// Between open and flock it may have been removed, and another made in its place.
	ours, err := f.Stat()
	if err == nil {
		var present os.FileInfo
		if present, err = os.Stat(dir); err == nil && !os.SameFile(ours, present) {
			err = fs.ErrNotExist
		}
	}
	if err != nil {
		unlock(f)
		return nil, err
	}
	return f, nil
}

// waitFolder takes the flock on a kernel's folder when it is free. There is no way to be told: it looks again, ever
// more rarely. Only another gateway can be in the way, and only for moments.
func waitFolder(ctx context.Context, dir string) (*os.File, error) {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		f, err := lockFolder(dir)
		if !errors.Is(err, errBusy) {
			return f, err
		}
		if err := sleep(ctx, pause); err != nil {
			return nil, fmt.Errorf("%w: %v", launcher.ErrUnavailable, errBusy)
		}
	}
}

// unlock gives a flock back. Closing alone would not do while a process that is just being started still has a copy.
func unlock(f *os.File) {
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
	f.Close() //nolint:errcheck // nothing was written
}

// supervised reports whether a supervisor holds the kernel's lock. The folder's lock is held, so no supervisor is being
// started at this moment, which could fail because of this look.
func (l layout) supervised(id string) (bool, error) {
	f, err := os.Open(l.file(id, lockFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	unlock(f)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// removeFolder removes a kernel's folder: from the others' view at once, from the disk after that.
func (l layout) removeFolder(id string) error {
	old := l.temporary(oldPrefix)
	err := os.Rename(l.kernel(id), old)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// Another gateway may have been about to note something in it when it was renamed, and be done only now.
	for range removeAttempts {
		if err = os.RemoveAll(old); !errors.Is(err, syscall.ENOTEMPTY) {
			break
		}
	}
	return err
}

// removeRunDir removes the folder of a kernel's sockets, if the record names one of this state directory.
func (l layout) removeRunDir(rec record) error {
	if !filepath.IsAbs(rec.RunDir) || !strings.HasPrefix(filepath.Base(rec.RunDir), l.mark) {
		return nil
	}
	return os.RemoveAll(rec.RunDir)
}

// setAside moves what cannot be a kernel out of the way, for a person to look at.
func (l *Launcher) setAside(name string, why error) {
	to := filepath.Join(l.layout.aside(), name+"."+randomName()[:6])
	if err := os.Rename(filepath.Join(l.layout.kernels(), name), to); err != nil {
		l.log.Error("bad entry of the state directory cannot be set aside", "entry", name, "err", errors.Join(why, err))
		return
	}
	l.log.Error("bad entry of the state directory set aside", "entry", name, "to", to, "err", why)
}

// sleep waits, or returns why it did not.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
