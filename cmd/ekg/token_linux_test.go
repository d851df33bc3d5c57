package main

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
)

// TestToken_Race: gateways that start together on a new state directory agree on one token.
func TestToken_Race(t *testing.T) {
	state := filepath.Join(t.TempDir(), "new", "state")
	s := &settings.Settings{}
	s.Local.StateDir = state
	tokens := make(chan string, 20)
	var wg sync.WaitGroup
	for range cap(tokens) {
		wg.Go(func() {
			token, generated, err := readToken(s)
			if err != nil || !generated {
				t.Errorf("got %t, %v", generated, err)
			}
			tokens <- token
		})
	}
	wg.Wait()
	close(tokens)
	first := <-tokens
	for other := range tokens {
		if other != first || other == "" {
			t.Errorf("tokens %q and %q", first, other)
		}
	}
	entries, err := os.ReadDir(state)
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	info, err := os.Stat(settings.TokenPath(state))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info, err)
	}
}
