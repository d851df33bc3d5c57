package client

import (
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// The header is the one that supervisors send.
func TestLogHeader(t *testing.T) {
	if logHeader != api.HeaderLog {
		t.Errorf("got %s, not %s", logHeader, api.HeaderLog)
	}
}
