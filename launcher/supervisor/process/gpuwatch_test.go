package process

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
)

// TestSamplerFailed checks that samples do not outlive ekg-gpu, also if it fails twice for the same reason.
func TestSamplerFailed(t *testing.T) {
	var log bytes.Buffer
	p := &Process{opts: Options{Logger: slog.New(slog.NewTextHandler(&log, nil)),
		GPUSampled: func(*Process, gpu.Samples) {}}}
	told := ""
	for range 2 {
		p.sampled(gpu.Samples{Devices: []gpu.Sample{{UUID: "GPU-1"}}})
		told = p.samplerFailed(errors.New("ekg-gpu has ended"), told)
		if s := p.Used().Samples; len(s.Devices) != 0 || s.Error != "ekg-gpu has ended" {
			t.Errorf("got %+v", s)
		}
	}
	if n := strings.Count(log.String(), "ekg-gpu has ended"); n != 1 {
		t.Errorf("logged %d times: %s", n, &log)
	}
}
