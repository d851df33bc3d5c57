package local

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

func TestOtherProtocol(t *testing.T) {
	p := newPlace(t)
	p.change = func(o *Options, _ *timing) { o.StopGrace = 100 * time.Millisecond }
	l := p.launcher()
	k := p.start(l, 1, "version")
	k = wait(t, l, 1, "left alone", func(k launcher.Kernel) bool { return strings.Contains(k.Reason, "99") })
	if !k.Stale || k.State != api.Unknown {
		t.Errorf("it is %+v", k)
	}
	if _, err := l.Dial(t.Context(), id(1)); !errors.Is(err, launcher.ErrUnavailable) ||
		!strings.Contains(err.Error(), "99") {
		t.Errorf("dial: %v", err)
	}
	if all, err := l.Kernels(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("list: %d, %v", len(all), err)
	}
	if len(carriers(1)) == 0 {
		t.Error("it was not left running")
	}
}

// TestRevive_OtherProtocol: a restart ends a supervisor that the gateway cannot speak to, with its kernel, and starts
// both again.
func TestRevive_OtherProtocol(t *testing.T) {
	p := newPlace(t)
	p.change = func(o *Options, _ *timing) { o.StopGrace = 100 * time.Millisecond }
	l := p.launcher()
	p.start(l, 1, "version")
	wait(t, l, 1, "left alone", func(k launcher.Kernel) bool { return k.State == api.Unknown })
	before := carriers(1)
	path := filepath.Join(p.state, "kernels", id(1), configFile)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// The next supervisor is one of this version.
	b = bytes.Replace(b, []byte(`"version"`), []byte(`"fine"`), 1)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Revive(t.Context(), id(1)); err != nil {
		t.Fatal(err)
	}
	if k := wait(t, l, 1, "idle", isIdle); k.Stale || k.Reason != "" {
		t.Errorf("after the restart it is %+v", k)
	}
	for _, pid := range carriers(1) {
		if slices.Contains(before, pid) {
			t.Errorf("process %d still runs", pid)
		}
	}
	if c, err := l.Dial(t.Context(), id(1)); err != nil {
		t.Error(err)
	} else {
		_ = c.Close()
	}
}
