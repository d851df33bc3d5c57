package main

import (
	"runtime"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

func TestLimitProcessors(t *testing.T) {
	before := runtime.GOMAXPROCS(3)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	t.Setenv("GOMAXPROCS", "3")
	if limitProcessors(); runtime.GOMAXPROCS(0) != 3 {
		t.Errorf("an operator's number is replaced by %d", runtime.GOMAXPROCS(0))
	}
	t.Setenv("GOMAXPROCS", "")
	if limitProcessors(); runtime.GOMAXPROCS(0) != api.DefaultProcessors {
		t.Errorf("it uses %d processors", runtime.GOMAXPROCS(0))
	}
}
