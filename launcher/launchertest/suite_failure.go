package launchertest

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

func (s suite) failure(t *testing.T) {
	l := s.launcher(t)
	req := s.request()
	req.Spec.Argv = []string{"/no/such/program", "-f", "{connection_file}"}
	k, created, err := l.Start(limited(t), req)
	var failed *launcher.FailedError
	switch {
	case err == nil && created: // this launcher learns of the kernel later
		dead := until(t, l, req.ID, api.Dead)
		if !strings.Contains(dead.Reason, "/no/such/program") {
			t.Errorf("reason: %s", dead.Reason)
		}
		if err := l.Stop(limited(t), req.ID, "seen"); err != nil {
			t.Fatal(err)
		}
	case created || k.ID != "" || !errors.As(err, &failed) || !strings.Contains(failed.Reason, "/no/such/program"):
		t.Fatalf("start: %+v, created %v, %v", k, created, err)
	}
	isGone(t, l, req.ID, "")
	// The id can be used again.
	req.Spec = s.spec
	s.start(t, l, req)
	until(t, l, req.ID, api.Idle)
}

func (s suite) endsAtOnce(t *testing.T) {
	l := s.launcher(t)
	req := s.request()
	req.Spec.Argv = []string{"sh", "-c", "echo the moon is not full >&2; exit 3"}
	// Start may or may not notice the end. In both cases the owner reads the reason.
	_, _, err := l.Start(limited(t), req)
	var failed *launcher.FailedError
	if errors.As(err, &failed) {
		if !strings.Contains(failed.Reason, "the moon is not full") {
			t.Errorf("start: %v", err)
		}
		isGone(t, l, req.ID, "")
		return
	}
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	k := until(t, l, req.ID, api.Dead)
	if !strings.Contains(k.Reason, "the moon is not full") || !strings.Contains(k.Reason, "3") {
		t.Errorf("reason: %s", k.Reason)
	}
	if e := listed(t, l, req.ID); e == nil || e.State != api.Dead || e.Reason != k.Reason {
		t.Errorf("listed: %+v", e)
	}
	isEnded(t, l, req, k.Reason)
	if err := l.Stop(limited(t), req.ID, "seen"); err != nil {
		t.Errorf("stop: %v", err)
	}
	isGone(t, l, req.ID, k.Reason)
	isEnded(t, l, req, k.Reason)
}

// isEnded checks that a kernel which died is on record with its reason.
func isEnded(t *testing.T, l launcher.Launcher, req launcher.Request, reason string) {
	t.Helper()
	k := awaitEnded(t, l, req.ID)
	if k.Culled || k.Reason != reason || k.Owner != req.Owner || k.SpecName != req.Spec.Name || k.At.IsZero() {
		t.Errorf("on record is %+v", k)
	}
}

// awaitEnded returns what is on record of a kernel that has ended. A cluster shows a kernel as dead before its pod has
// ended, and its end is on record.
func awaitEnded(t *testing.T, l launcher.Launcher, id string) launcher.EndedKernel {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for over := time.After(patience); ; {
		if k, there := endedKernel(t, l, id); there {
			return k
		}
		select {
		case <-tick.C:
		case <-over:
			t.Fatal("its end is not on record")
		}
	}
}

// endedKernel returns what is on record of a kernel, if it is there.
func endedKernel(t *testing.T, l launcher.Launcher, id string) (k launcher.EndedKernel, there bool) {
	t.Helper()
	all, err := l.Ended(limited(t), "")
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(all, func(k launcher.EndedKernel) bool { return k.ID == id })
	if at < 0 {
		return k, false
	}
	return all[at], true
}
