package main

import (
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/client"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// TestLocalGateways_SameProcessID: gateways in two containers may have the same process id, and each marks only itself.
func TestLocalGateways_SameProcessID(t *testing.T) {
	dir := t.TempDir()
	here := client.GatewayFile{URL: "http://127.0.0.1:1/", PID: os.Getpid(), Started: time.Now().UTC()}
	there := here
	there.URL, there.Started = "http://127.0.0.1:2/", here.Started.Add(time.Second)
	var self atomic.Pointer[client.GatewayFile]
	view := func() map[string]bool {
		t.Helper()
		all, err := localGateways{dir, &self}.ViewGateways(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		marked := map[string]bool{}
		for _, g := range all {
			marked[g.Name] = g.Self
		}
		return marked
	}
	write := func(f client.GatewayFile) {
		t.Helper()
		remove, err := client.WriteGatewayFile(dir, f, func(err error) { t.Error(err) })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = remove() })
	}
	if got := view(); len(got) != 0 {
		t.Errorf("before a gateway has a file: got %v", got)
	}
	write(here)
	self.Store(&here)
	name, other := here.Shown(), there.Shown()
	if got := view(); len(got) != 1 || !got[name] {
		t.Errorf("one gateway: got %v", got)
	}
	write(there) // it replaces the file of this gateway
	if got := view(); len(got) != 2 || !got[name] || got[other] {
		t.Errorf("two gateways with one process id: got %v", got)
	}
}

var _ launcher.GatewayViewer = localGateways{}
