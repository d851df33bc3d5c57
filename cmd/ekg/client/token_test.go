package client

import (
	"bytes"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
)

func TestHashToken(t *testing.T) {
	var out bytes.Buffer
	if err := hashToken(strings.NewReader("a-token-of-another-user\n"), &out); err != nil ||
		out.String() != "hash: "+identity.Hash("a-token-of-another-user")+"\n" {
		t.Errorf("got %q, %v", &out, err)
	}
	for text, want := range map[string]string{
		"": "fewer than 20", "short": "fewer than 20", "two words of a long token": "one word",
	} {
		if err := hashToken(strings.NewReader(text), &out); err == nil || !strings.Contains(err.Error(), want) ||
			text != "" && strings.Contains(err.Error(), text) {
			t.Errorf("%q: got %v", text, err)
		}
	}
}
