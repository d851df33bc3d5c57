package supervisor

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// startSharing starts a kernel that has a GPU which it shares, as an earlier supervisor has left it. Watch stands for
// ekg-gpu.
func startSharing(t *testing.T, watch string) *parkable {
	t.Helper()
	dir, skip := t.TempDir(), new(atomic.Int64)
	for file, text := range map[string]string{"ekg-gpu": watch, "state": "running",
		"seat.json": `{"gpu": "GPU-1", "holds": 7}`} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	r := startSupervisorTuned(t, func(c *api.Config) {
		c.GPUProgram, c.GPUSamples = filepath.Join(dir, "ekg-gpu"), api.GPUSamples{Every: time.Second}
		c.GPUSamples.Park, c.SpillDir = api.Park{Idle: time.Second}, dir
	}, func(s *Supervisor) {
		s.now = func() time.Time { return time.Now().Add(time.Duration(skip.Load())) }
		s.cfg.GPUSamples.Park.Shared = true // else it is refused outside of a pod
		if err := s.ShareGPU(); err != nil {
			t.Fatal(err)
		}
	}).ready()
	p := &parkable{running: r, dir: dir, skip: skip}
	p.is(api.GPUHeld, "")
	r.until("sampled", func(s api.Status) bool { return len(s.GPU) == 1 })
	p.client = r.dial(dialOption{session: "one"})
	p.says("print 1")
	return p
}

// A kernel that could not be saved for lack of memory keeps its GPU, and says why.
func TestTurns_NoRoom(t *testing.T) {
	p := startSharing(t, strings.Replace(standInWatch, "1 << 20", "1 << 45", 1))
	if status, body := p.request("PUT", "/seat", `{"grant": 7, "wanted": true}`); status != http.StatusNoContent {
		t.Fatalf("%d %s", status, body)
	}
	p.skip.Add(int64(30 * 24 * time.Hour)) // the more memory, the longer
	p.s.parker.Changed()
	p.is(api.GPUFailed, "of the machine's memory")
	p.until("it has the GPU", func(s api.Status) bool { return s.Seat.Holds == 7 && s.Parked.Cause == api.CauseMemory })
	p.says("print 2")
}

// A kernel in a pod that shares its GPU gives it back for another one, and waits until a gateway grants it again. An
// earlier supervisor has left a grant.
func TestTurns(t *testing.T) {
	p := startSharing(t, standInWatch)
	r := p.running

	tell := func(n string) {
		t.Helper()
		if status, body := r.request("PUT", "/seat", n); status != http.StatusNoContent {
			t.Fatalf("%d %s", status, body)
		}
	}
	says := func(what string, is func(s *api.Seat) bool) {
		t.Helper()
		r.until(what, func(s api.Status) bool { return s.Seat != nil && s.Seat.GPU == "GPU-1" && is(s.Seat) })
	}
	tell(`{"grant": 7, "wanted": true}`)
	says("it knows that another one waits", func(s *api.Seat) bool { return s.News.Wanted && s.Holds == 7 })
	p.skip.Add(int64(2 * time.Minute))
	p.s.parker.Changed()
	p.is(api.GPUParked, "")
	says("it gives the GPU back", func(s *api.Seat) bool { return s.Holds == 0 && s.Returned == 7 && s.Since.IsZero() })

	id := p.execute("print 2")
	says("it waits", func(s *api.Seat) bool { return !s.Since.IsZero() })
	p.is(api.GPUWaking, "a gateway is asked for it")
	tell(`{"before": 2}`)
	p.is(api.GPUWaking, "2 other kernels are before this one")
	tell(`{"grant": 7}`) // late
	p.is(api.GPUWaking, "another kernel has it")
	tell(`{"grant": 8}`)
	p.result(id)
	p.is(api.GPUHeld, "")
	says("it has the GPU", func(s *api.Seat) bool { return s.Holds == 8 && s.Returned == 7 && s.Since.IsZero() })
	for _, body := range []string{"{", `{"grant": -1}`, `{"before": "x"}`} {
		if status, _ := r.request("PUT", "/seat", body); status != http.StatusBadRequest {
			t.Errorf("%s is answered with %d", body, status)
		}
	}
	if status, body := r.request("DELETE", "", ""); status != http.StatusNoContent {
		t.Fatal(fmt.Sprint(status), body)
	}
	eventually(t, "the GPU is given back with the kernel's end", func() bool {
		return p.s.shared.Say(nil).Returned == 8
	})
}
