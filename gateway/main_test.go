package gateway

import (
	"log/slog"
	"net/http"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const launcherIdle = api.Idle

var discard = slog.New(slog.DiscardHandler)

// asUpgrade makes a request a websocket handshake.
func asUpgrade(r *http.Request) {
	r.Header.Set("Connection", "keep-alive, Upgrade")
	r.Header.Set("Upgrade", "websocket")
	r.Header.Set("Sec-WebSocket-Version", "13")
	r.Header.Set("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
}

// fakeKernelVariable makes this test's program run as the fake kernel.
const fakeKernelVariable = "EKG_TEST_FAKE_KERNEL"

func TestMain(m *testing.M) {
	if os.Getenv(fakeKernelVariable) != "" {
		os.Exit(launchertest.FakeKernelMain(os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}
