package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/local/devices"
)

// A kernel that cannot enter the line for its GPU has no turn. A typed nil would look like one.
func TestSeat_NoFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gpus")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "GPU-1"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // nothing was written
	at := devices.NewSeat("kernel", []*os.File{f})
	if at == nil {
		t.Fatal("no seat")
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if turn, err := (seat{at}).Wait(time.Now()); err == nil || turn != nil {
		t.Errorf("got %v, %v", turn, err)
	}
}
