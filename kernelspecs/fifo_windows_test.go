package kernelspecs

import "testing"

// makeFIFO skips a test: folders of Windows have no named pipes.
func makeFIFO(t testing.TB, _ string) {
	t.Helper()
	t.Skip("no named pipes")
}
