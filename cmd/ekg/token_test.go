package main

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// Gateways that start together on a new state directory agree on one token.
func TestToken_Race(t *testing.T) {
	state := filepath.Join(t.TempDir(), "new", "state")
	s := &settings{stateDir: state}
	tokens := make(chan string, 20)
	var wg sync.WaitGroup
	for range cap(tokens) {
		wg.Go(func() {
			token, generated, err := s.readToken()
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
	info, err := os.Stat(tokenPath(state))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info, err)
	}
}
