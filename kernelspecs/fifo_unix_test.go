//go:build unix

package kernelspecs

import (
	"syscall"
	"testing"
)

// makeFIFO makes a named pipe.
func makeFIFO(t testing.TB, path string) {
	t.Helper()
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
}
