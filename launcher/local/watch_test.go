package local

import (
	"errors"
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
	if !k.Stale || k.State != api.Busy {
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
