package channels

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// fakeCarrier runs until its context ends.
type fakeCarrier struct{ in, out int64 }

func (c fakeCarrier) Run(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func (c fakeCarrier) Bytes() (in, out int64) { return c.in, c.out }

func TestRegistry_Limits(t *testing.T) {
	r := NewRegistry[int](2, NewPlaces(1))
	add := func(kernel, user string, want error) *Conn[int] {
		t.Helper()
		c, err := r.Add(t.Context(), kernel, user, 7)
		if !errors.Is(err, want) {
			t.Fatalf("%s of %s: got %v, want %v", kernel, user, err, want)
		}
		return c
	}
	first := add("k1", "ann", nil)
	add("k2", "ann", ErrUserFull)
	second := add("k1", "bob", nil)
	add("k1", "eve", ErrKernelFull)
	if first.Opener != 7 || first.Kernel != "k1" || first.User != "ann" {
		t.Errorf("got %+v", first)
	}
	r.Remove(first)
	third := add("k1", "ann", nil)
	if n := len(r.All()); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
	r.Remove(second)
	r.Remove(third)
	if open, _, _ := r.Traffic(); open != 0 || len(r.byKernel) != 0 || len(r.places.byUser) != 0 {
		t.Errorf("%d connections are left: %v, %v", open, r.byKernel, r.places.byUser)
	}
}

func TestRegistry_Traffic(t *testing.T) {
	r := NewRegistry[int](0, NewPlaces(0))
	closed, err := r.Add(t.Context(), "k1", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	closed.Close(errEOF)
	if err := closed.Carry(fakeCarrier{1, 10}); !errors.Is(err, errEOF) {
		t.Errorf("ended with %v", err)
	}
	r.Remove(closed)
	open, err := r.Add(t.Context(), "k1", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Remove(open)
	if n, in, out := r.Traffic(); n != 1 || in != 1 || out != 10 {
		t.Errorf("before the handshake: %d connections, %d and %d bytes", n, in, out)
	}
	open.Close(ErrKernelStopped)
	_ = open.Carry(fakeCarrier{2, 20}) // returns at once
	if n, in, out := r.Traffic(); n != 1 || in != 3 || out != 30 {
		t.Errorf("%d connections, %d and %d bytes; want 1, 3 and 30", n, in, out)
	}
}

func TestRegistry_Drain(t *testing.T) {
	for name, at := range map[string]struct {
		cancelled bool
		most      time.Duration
	}{
		"one by one":   {false, 20 * drainStep},
		"all together": {true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := NewRegistry[int](0, NewPlaces(0))
				for range 20 {
					c, err := r.Add(t.Context(), "k1", "ann", 0)
					if err != nil {
						t.Fatal(err)
					}
					go func() {
						defer r.Remove(c)
						if err := c.Carry(fakeCarrier{}); !errors.Is(err, ErrDraining) {
							t.Errorf("ended with %v", err)
						}
					}()
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if at.cancelled {
					cancel()
				}
				began := time.Now()
				r.Drain(ctx)
				if took := time.Since(began); took > at.most || !at.cancelled && took == 0 {
					t.Errorf("it took %v, want at most %v", took, at.most)
				}
				if _, err := r.Add(t.Context(), "k1", "ann", 0); !errors.Is(err, ErrDraining) {
					t.Errorf("after it: got %v", err)
				}
			})
		})
	}
}
