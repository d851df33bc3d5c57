package goroutines_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
)

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := goroutines.Sleep(t.Context(), time.Minute); err != nil || time.Since(began) != time.Minute {
			t.Errorf("it waited for %s: %v", time.Since(began), err)
		}
		if err := goroutines.Sleep(t.Context(), -1); err != nil {
			t.Errorf("with no time to wait: %v", err)
		}
	})
}

func TestSleep_EndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("the gateway ends")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(why) })
		began := time.Now()
		if err := goroutines.Sleep(ctx, time.Minute); err != why || time.Since(began) != time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		if err := goroutines.Sleep(ctx, 0); err != why {
			t.Errorf("with an ended context: %v", err)
		}
	})
}

func TestWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		time.AfterFunc(time.Minute, func() { close(done) })
		began := time.Now()
		if goroutines.Within(done, time.Second) || time.Since(began) != time.Second {
			t.Errorf("it waited for %s, not for its limit", time.Since(began))
		}
		if !goroutines.Within(done, time.Hour) || time.Since(began) != time.Minute {
			t.Errorf("it waited for %s, not until it is done", time.Since(began))
		}
	})
}
