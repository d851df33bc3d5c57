package gateway

import (
	"log/slog"
	"net/http"
	"testing"

	"go.uber.org/goleak"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

const launcherIdle = launcher.Idle

var discard = slog.New(slog.DiscardHandler)

// asUpgrade makes a request a websocket handshake.
func asUpgrade(r *http.Request) {
	r.Header.Set("Connection", "keep-alive, Upgrade")
	r.Header.Set("Upgrade", "websocket")
	r.Header.Set("Sec-WebSocket-Version", "13")
	r.Header.Set("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
