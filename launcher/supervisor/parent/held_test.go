package parent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
)

// TestRun_Held: each supervisor inherits the locks of the kernel's GPUs, also the one that follows a killed one.
func TestRun_Held(t *testing.T) {
	lock, err := os.Create(filepath.Join(t.TempDir(), "GPU-1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	p := startWith(t, func(o *Options) { o.Held = []*os.File{lock} },
		`echo "$@" $(readlink /proc/$$/fd/4) >>args; echo ok >&3; exec 3>&-; [ $(wc -l <runs) = 2 ] && exit 0; kill -9 $$`)
	if code := p.wait(); code != 0 {
		t.Errorf("it exits with %d", code)
	}
	var args []byte
	poll.Until(t, "both supervisors have run", func() bool {
		args, err = os.ReadFile(filepath.Join(p.dir, "args"))
		return err == nil && strings.Count(string(args), "\n") == 2
	})
	if n := strings.Count(string(args), "--held-fds 4+1 "+lock.Name()); n != 2 {
		t.Errorf("%d of 2 supervisors have the lock: %s", n, args)
	}
	_ = lock.Close() // nothing was written
}
