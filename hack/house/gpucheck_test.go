package house

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestGPUCheck runs hack/gpucheck without a GPU, and with stand-ins for nvidia-smi and ekg-gpu but without a load.
func TestGPUCheck(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no Python")
	}
	out := filepath.Join(t.TempDir(), "measured.md")
	check := func(dir string, names ...string) (string, error) {
		t.Helper()
		cmd := exec.Command(python, append([]string{"../gpucheck"}, names...)...)
		cmd.Env = []string{"PATH=" + dir + ":/usr/bin:/bin", "EKG_BIN=" + dir, "EKG_GPUCHECK_OUT=" + out,
			"EKG_GPUCHECK_SECONDS=0.1"}
		b, err := cmd.CombinedOutput()
		return string(b), err
	}
	failing, working := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{
		failing + "/nvidia-smi": "exit 9",
		working + "/nvidia-smi": `case $1 in
*=uuid) echo GPU-1;;
*=uuid,*) echo 'GPU-1, Test GPU, 1.2, 14, Disabled, Enabled';;
*) echo 'P8, 300, 20.5, 0';;
esac`,
		working + "/ekg-gpu": `echo '{"seconds": 1, "devices": [{"uuid": "GPU-1", "use": 0, "processes": []}]}'`,
	} {
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := check(failing); err != nil || !strings.Contains(text, "nothing is checked") ||
		!strings.Contains(text, "full: ") {
		t.Errorf("without a GPU: %v, %s", err, text)
	}
	if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a page was written without a GPU: %v", err)
	}
	if text, err := check(working, "idle"); err != nil || strings.Contains(text, "listed") ||
		!strings.Contains(text, "idle: pass: ") {
		t.Errorf("a check by name: %v, %s", err, text)
	}
	if text, err := check(working, "idel"); err == nil || !strings.Contains(text, "there is no check idel") {
		t.Errorf("an unknown name: %v, %s", err, text)
	}
	if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a page was written for a check by name: %v", err)
	}
	text, err := check(working)
	if err == nil || !strings.Contains(text, "idle: pass: 0.000; nvidia-smi 0.000") ||
		!strings.Contains(text, "full: FAIL: RuntimeError: the load did not start") ||
		!strings.Contains(text, "unknown: FAIL: ") {
		t.Errorf("with a broken load: %v, %s", err, text)
	}
	page, err := os.ReadFile(out)
	if err != nil || !strings.Contains(string(page), "| GPU | Test GPU, 14 MiB, driver 1.2, ") ||
		!strings.Contains(string(page), "| **fail** |") {
		t.Errorf("the page is %v, %s", err, page)
	}
}
