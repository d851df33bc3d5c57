package launchertest

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const (
	cullAfter  = "1s" // of idleness
	cullReason = "it was idle for " + cullAfter
)

// culled starts a kernel whose kernelspec allows one second of idleness. The kernel must become dead with the reason.
// It must stay on record after its removal, also in a launcher that is opened later.
func (s suite) culled(t *testing.T) {
	l := s.open(t)
	t.Cleanup(func() { _ = l.Close() }) // the test closes it, too, unless it fails
	c := culling{begun: time.Now(), req: s.request()}
	c.req.Spec.Metadata = withIdleTimeout(t, c.req.Spec.Metadata)
	id := c.req.ID
	if _, _, err := l.Start(limited(t), c.req); err != nil {
		t.Fatal(err)
	}
	stopped := false
	t.Cleanup(func() {
		if !stopped {
			_ = l.Stop(limited(t), id, "the test is over") // the test has failed already
		}
	})
	if dead := until(t, l, id, api.Dead); dead.Reason != cullReason {
		t.Errorf("it is dead: %q", dead.Reason)
	}
	c.awaitRecord(t, l)
	c.isCounted(t, l)
	if err := l.Stop(limited(t), id, "it was shut down on request"); err != nil {
		t.Fatal(err)
	}
	stopped = true
	isGone(t, l, id, cullReason)
	c.isCounted(t, l)
	if !c.isRecorded(t, l) {
		t.Error("it is not on record any more")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	later := s.launcher(t)
	isGone(t, later, id, cullReason)
	if !c.isRecorded(t, later) {
		t.Error("a launcher that comes later has no record of it")
	}
	if got := later.Measure().Culls; len(got) > 0 {
		t.Errorf("a launcher that comes later has counted %v", got)
	}
}

// withIdleTimeout returns a kernelspec's metadata with an idle timeout of cullAfter.
func withIdleTimeout(t *testing.T, before json.RawMessage) json.RawMessage {
	t.Helper()
	metadata := map[string]map[string]any{}
	if len(before) > 0 {
		if err := json.Unmarshal(before, &metadata); err != nil {
			t.Fatal(err)
		}
	}
	if metadata["ekg"] == nil {
		metadata["ekg"] = map[string]any{}
	}
	metadata["ekg"]["cull"] = map[string]string{"idleTimeout": cullAfter}
	after, err := json.Marshal(metadata)
	if err != nil {
		t.Fatal(err)
	}
	return after
}

// culling is one kernel that is culled.
type culling struct {
	req   launcher.Request
	begun time.Time // before the start
}

// awaitRecord waits until the launcher has the kernel on record. The kernel's supervisor may be about to end.
func (c culling) awaitRecord(t *testing.T, l launcher.Launcher) {
	t.Helper()
	awaitEnded(t, l, c.req.ID)
	if !c.isRecorded(t, l) {
		t.Fatal("it is not on record while it is dead")
	}
}

// isRecorded reports whether the launcher has the kernel on record, and checks the record.
func (c culling) isRecorded(t *testing.T, l launcher.Launcher) bool {
	t.Helper()
	k, there := endedKernel(t, l, c.req.ID)
	if !there {
		return false
	}
	earliest := c.begun.Add(-time.Second) // a cluster stores times in whole seconds
	used, err := l.Usage(limited(t), "")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(used, func(u launcher.KernelUsage) bool {
		return u.ID == c.req.ID && u.Owner == c.req.Owner && u.SpecName == c.req.Spec.Name && !u.End.IsZero()
	}) {
		t.Errorf("its usage is not on record: %+v", used)
	}
	for owner, want := range map[string]bool{c.req.Owner: true, "nobody": false} {
		used, usedErr := l.Usage(limited(t), owner)
		ended, endedErr := l.Ended(limited(t), owner)
		if err := errors.Join(usedErr, endedErr); err != nil || len(used) > 0 != want || len(ended) > 0 != want {
			t.Errorf("on record for %s are %+v and %+v, %v", owner, used, ended, err)
		}
	}
	if k.Owner != c.req.Owner || k.SpecName != c.req.Spec.Name || k.Reason != cullReason || !k.Culled ||
		k.At.Before(earliest) {
		t.Errorf("it is on record as %+v", k)
	}
	if k.Started.Before(earliest) || k.Started.After(k.At) || k.Seconds < 1 ||
		k.Seconds > 2+int64(k.At.Sub(c.begun).Seconds()) {
		t.Errorf("its usage is on record as %+v", k.Usage)
	}
	return true
}

// isCounted checks that the launcher has counted one culled kernel.
func (c culling) isCounted(t *testing.T, l launcher.Launcher) {
	t.Helper()
	want := map[launcher.CullLabels]int64{{SpecName: c.req.Spec.Name, Limit: "idle"}: 1}
	if got := l.Measure().Culls; !maps.Equal(got, want) {
		t.Errorf("counted is %v, want %v", got, want)
	}
}
