package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// openLog opens a file as launchers open a supervisor's log.
func openLog(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestLogOutput(t *testing.T) {
	dir := t.TempDir()
	config, path, older := filepath.Join(dir, "supervisor.json"), filepath.Join(dir, logFile),
		filepath.Join(dir, olderLogFile)
	f := openLog(t, path)
	out := logOutput(f, config)
	if b, ok := out.(*boundedLog); ok {
		b.max = 1000
	}
	write := func(w io.Writer, text string) {
		t.Helper()
		if n, err := fmt.Fprint(w, text); n != len(text) || err != nil {
			t.Fatalf("wrote %d bytes, %v", n, err)
		}
	}
	t.Run("the files are bounded and keep the newest lines", func(t *testing.T) {
		for n := range 200 {
			write(out, fmt.Sprintf("line %3d\n", n)) // 9 bytes
			if got := len(readFile(t, path)); got > 1000 {
				t.Fatalf("the file has %d bytes", got)
			}
		}
		lines := strings.Split(strings.TrimSpace(readFile(t, older)+readFile(t, path)), "\n")
		if len(lines) < 100 {
			t.Errorf("%d lines are left", len(lines))
		}
		for i, line := range lines {
			if want := fmt.Sprintf("line %3d", 200-len(lines)+i); line != want {
				t.Fatalf("line %d of %d is %q, want %q", i, len(lines), line, want)
			}
		}
	})
	t.Run("others append to the same file", func(t *testing.T) {
		write(out, strings.Repeat("x", 999)+"\n")
		write(openLog(t, path), "goroutine 1 [running]\n")
		if got := readFile(t, path); got != "goroutine 1 [running]\n" {
			t.Errorf("the file has %q", got)
		}
	})
	t.Run("a large file is bounded at the start", func(t *testing.T) {
		write(f, strings.Repeat("x", 3*maxLogFile)+"end")
		logOutput(f, config)
		if got := len(readFile(t, path)); got != 0 {
			t.Errorf("the file has %d bytes", got)
		}
		if got := readFile(t, older); len(got) != 2*maxLogFile || !strings.HasSuffix(got, "xend") {
			t.Errorf("the older file has %d bytes", len(got))
		}
	})
	t.Run("any other file is left alone", func(t *testing.T) {
		of := filepath.Join(t.TempDir(), logFile)
		other := openLog(t, of)
		out := logOutput(other, config)
		write(out, strings.Repeat("x", 2*maxLogFile))
		write(out, "end")
		if got := readFile(t, of); !strings.HasSuffix(got, "xend") || len(got) != 2*maxLogFile+3 {
			t.Errorf("it has %d bytes", len(got))
		}
	})
}
