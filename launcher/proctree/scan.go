package proctree

import (
	"encoding/json"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/internal/flock"
)

// A scan of another program is used if it is younger than a share of the time since the caller's last measurement. So
// a machine's kernels need a few scans in each interval, however many they are.
const (
	scanShare  = 4
	maxScanAge = 10 * time.Second

	scanTries = 10                    // to use the scan that another program makes at this moment
	scanPause = 10 * time.Millisecond // between two tries
)

// Scan measures the processor time of sessions. It reads all of /proc, so the cost grows with the processes of the
// machine. Programs that name the same file share their scans. All methods may be called concurrently. A nil Scan
// shares nothing.
type Scan struct {
	// Fixed.
	path string
	view string                       // of process ids; see currentView
	now  func() time.Duration         // the machine's clock, the same for all programs
	scan func() map[int]time.Duration // see sessionTimes

	// Guarded by mu.
	mu    sync.Mutex
	asked time.Duration // when SessionTime was last called; 0: never
	used  time.Duration // when the scan was made that it then used
}

// scanned is the content of the file.
type scanned struct {
	View     string                `json:"view"`     // of the program that made it
	At       time.Duration         `json:"at"`       // nanoseconds of Scan.now
	Sessions map[int]time.Duration `json:"sessions"` // nanoseconds of processor time, by leader
}

// NewScan returns a Scan that shares scans through a file. The file's folder must exist and be private to this user.
// With "", the Scan shares nothing.
func NewScan(path string) *Scan {
	if path == "" {
		return nil
	}
	return &Scan{path: path, view: currentView(), now: SinceBoot, scan: sessionTimes}
}

// SessionTime sums the processor time of a session's living processes, and of their children that have ended. It waits
// for a scan that another program makes, for 100 ms at most.
func (s *Scan) SessionTime(leader int) ProcessorTime {
	if s == nil {
		return SessionTime(leader)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	oldest := now // at first
	if s.asked > 0 {
		// A scan is used once: two measurements are never of the same moment.
		oldest = max(s.used, now-min((now-s.asked)/scanShare, maxScanAge))
	}
	found := s.find(leader, oldest)
	s.asked, s.used = now, found.At
	return ProcessorTime{Used: found.Sessions[leader], At: time.Now().Add(found.At - s.now())}
}

// find returns a scan younger than oldest that has the session: another program's, or else one of its own.
func (s *Scan) find(leader int, oldest time.Duration) scanned {
	for range scanTries {
		if found, ok := s.read(leader, oldest); ok {
			return found
		}
		found, err := s.publish(leader, oldest)
		if err == nil {
			return found
		}
		if !errors.Is(err, flock.ErrBusy) {
			break
		}
		time.Sleep(scanPause)
	}
	return s.own()
}

// publish scans /proc and writes the scan to the file. If another program's scan is young enough, publish returns that.
// The error is flock.ErrBusy while another program scans.
func (s *Scan) publish(leader int, oldest time.Duration) (scanned, error) {
	lock, err := flock.Try(s.path + ".lock")
	if err != nil {
		return scanned{}, err
	}
	defer flock.Unlock(lock)
	if found, ok := s.read(leader, oldest); ok {
		return found, nil
	}
	own := s.own()
	_ = files.WriteJSON(s.path, own) // on a full disk the others scan by themselves
	return own, nil
}

// own scans /proc.
func (s *Scan) own() scanned {
	return scanned{View: s.view, At: s.now(), Sessions: s.scan()}
}

// read reads the last scan of any program. It reports false if that has not seen the same processes, is not younger
// than oldest, or lacks the session.
func (s *Scan) read(leader int, oldest time.Duration) (scanned, bool) {
	var last scanned
	b, err := files.Read(s.path, files.MaxState)
	if err != nil || json.Unmarshal(b, &last) != nil || last.View != s.view {
		return scanned{}, false
	}
	_, has := last.Sessions[leader]
	return last, has && last.At > oldest && last.At <= s.now()
}

// SinceBoot returns the time since the machine has booted. All programs of a machine share this clock, and no one sets
// it. It goes on while the machine is suspended.
func SinceBoot() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return 0 // it cannot fail on Linux
	}
	return time.Duration(t.Nano())
}

// currentView names what process ids mean to this program: those of a namespace, since a boot of the machine.
func currentView() string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // if it is unknown, the clock has to do
	namespace, _ := os.Readlink("/proc/self/ns/pid")          // always there
	return string(boot) + namespace
}
