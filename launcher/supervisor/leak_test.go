package supervisor

import (
	"net/http"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestSupervisor_Leaks: fifty kernels, each with a client that connects, runs cells and stays to the end, leave no
// goroutine and no descriptor behind.
func TestSupervisor_Leaks(t *testing.T) {
	before := goleak.IgnoreCurrent()
	life := func(t *testing.T) {
		r := startSupervisor(t, nil)
		c := r.dial(dialOption{session: "ann", v1: true})
		c.result(c.execute("print 3"))
		if status, body := r.request("DELETE", "", ""); status != http.StatusNoContent {
			t.Fatalf("delete: %d %s", status, body)
		}
		for _, err := c.recv(); err == nil; {
			_, err = c.recv()
		}
		_ = c.ws.Close()
		select {
		case <-r.done:
		case <-time.After(testLimit):
			t.Fatal("the supervisor does not end")
		}
	}
	t.Run("first", life) // opens what stays open, such as the poller
	descriptors := openDescriptors(t)
	for range 50 {
		t.Run("life", life)
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
	if now := openDescriptors(t); now > descriptors {
		t.Errorf("%d descriptors are open, before it were %d", now, descriptors)
	}
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(dir)
}
