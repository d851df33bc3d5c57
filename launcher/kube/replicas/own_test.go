package replicas

import (
	"log/slog"
	"testing"
)

// TestAddressTowards: an address of the machine itself is none that other machines reach.
func TestAddressTowards(t *testing.T) {
	if at := addressTowards(t.Context(), "https://127.0.0.1:6443", slog.New(slog.DiscardHandler)); at != "" {
		t.Errorf("other machines reach this one at %s", at)
	}
}
