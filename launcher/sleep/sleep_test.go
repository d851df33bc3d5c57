package sleep_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/sleep"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := sleep.For(t.Context(), time.Minute); err != nil || time.Since(began) != time.Minute {
			t.Errorf("it waited for %s: %v", time.Since(began), err)
		}
		if err := sleep.For(t.Context(), -1); err != nil {
			t.Errorf("with no time to wait: %v", err)
		}
	})
}

func TestFor_EndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("the gateway ends")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(why) })
		began := time.Now()
		if err := sleep.For(ctx, time.Minute); err != why || time.Since(began) != time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		if err := sleep.For(ctx, 0); err != why {
			t.Errorf("with an ended context: %v", err)
		}
	})
}
