package devices

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
)

// What counts of the machine's memory belongs to living processes of other kernels, whatever was killed.
func TestSeat_Saved(t *testing.T) {
	p := newPool(t)
	one := seat(t, p, "one")
	must(t, one.Return())
	two := seat(t, p, "two")
	process := exec.CommandContext(t.Context(), "cat")
	if _, err := process.StdinPipe(); err != nil { // it reads until its end
		t.Fatal(err)
	}
	must(t, process.Start())
	pid := process.Process.Pid
	saved := func(s *Seat, want int64) {
		t.Helper()
		if got, err := s.Saved(); got != want || err != nil {
			t.Errorf("%s sees %d bytes of others, %v; want %d", s.kernel, got, err, want)
		}
	}
	saved(two, 0)
	must(t, one.NoteSaved(pid, 100))
	must(t, two.NoteSaved(os.Getpid(), 30))
	saved(two, 100)
	saved(one, 30)
	must(t, two.ForgetSaved())
	must(t, two.ForgetSaved())
	saved(one, 0)

	must(t, process.Process.Kill())
	must(t, unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)) // it stays as a zombie
	saved(two, 0)
	_ = process.Wait() // it was killed
	saved(two, 0)
	if left, err := filepath.Glob(filepath.Join(p.dir, savedMark+"*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}

	self, _ := proctree.Find(os.Getpid())
	for name, text := range map[string]savedText{
		"a process that got the number later": {PID: self.PID, Began: self.Began - 1, Bytes: 100},
		"no process":                          {Bytes: 100},
	} {
		b, err := json.Marshal(text)
		must(t, err)
		must(t, os.WriteFile(one.savedFile(), b, 0o600))
		if got, err := two.Saved(); got != 0 || err != nil {
			t.Errorf("%s: %d, %v", name, got, err)
		}
	}
	must(t, os.WriteFile(one.savedFile(), []byte(`{"pid":`), 0o600)) // its writer was killed
	saved(two, 0)
	must(t, one.NoteSaved(self.PID, 100))
	saved(two, 100)
}
