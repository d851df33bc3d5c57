package supervisor

import (
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// A kernel may reply to the first kernel_info_request before its iopub knows the subscription. The status that proves
// the subscription is lost then, and the kernel is asked again long before nudgeInterval.
func TestNudge_SubscriptionIsLate(t *testing.T) {
	r := startSupervisor(t, func(c *api.Config) { c.Argv = fakeKernelArgv("--subscribe-delay", "30ms") })
	var running time.Time
	r.until("running", func(st api.Status) bool {
		running = time.Now()
		return st.KernelPID != 0
	})
	r.until("idle", func(st api.Status) bool { return st.State == api.Idle })
	if took := time.Since(running); took >= nudgeInterval {
		t.Errorf("the kernel was ready after %s", took)
	}
}
