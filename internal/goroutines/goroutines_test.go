package goroutines_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
)

func TestGroup_WaitsForWhatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g goroutines.Group
		if !g.Go(func() { time.Sleep(time.Minute) }) {
			t.Fatal("an open group runs nothing")
		}
		leave, ok := g.Join()
		if !ok {
			t.Fatal("an open group cannot be joined")
		}
		time.AfterFunc(time.Hour, leave)
		if g.Closed() || !g.Close() || !g.Closed() {
			t.Error("it is not closed by the first Close, and by that alone")
		}
		began := time.Now()
		g.Wait()
		if took := time.Since(began); took != time.Hour {
			t.Errorf("it has waited for %s", took)
		}
	})
}

func TestGroup_TakesNothingAfterClose(t *testing.T) {
	var g goroutines.Group
	g.Close()
	if g.Close() {
		t.Error("it can be closed twice")
	}
	if g.Go(func() { t.Error("it runs something") }) {
		t.Error("it says that it runs something")
	}
	if leave, ok := g.Join(); ok || leave != nil {
		t.Error("it can be joined")
	}
	g.Wait()
}
