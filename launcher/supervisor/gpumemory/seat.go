package gpumemory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Seat is a kernel's place at the one GPU that it is pinned to. It may be used concurrently.
type Seat interface {
	// Owns reports whether the GPU is the kernel's. A kernel that is not pinned gets a GPU that is free.
	Owns() (bool, error)
	// TakeFree takes the GPU if it is free, whether others wait or not. It reports whether the GPU is the kernel's.
	TakeFree() (bool, error)
	// Return gives the GPU back.
	Return() error
	// Keep says to those who wait until when the kernel keeps its GPU; zero: it does not. The GPU must be its own.
	Keep(until time.Time) error
	// Kept returns until when another kernel keeps the GPU, as it has said; zero: none has. An Unknown says why nothing is
	// known of other kernels.
	Kept() (time.Time, error)
	// Wanted reports whether another kernel waits for the GPU.
	Wanted() bool
	// Wait puts the kernel in the line for its GPU.
	Wait(since time.Time) (Turn, error)
	// Exclusive waits until no other kernel of the machine gives its GPU back.
	Exclusive(ctx context.Context) (end func(), err error)
	// Saved returns what other parked kernels of the machine take of its memory, in bytes. The caller has Exclusive.
	Saved() (int64, error)
	// NoteSaved notes what the kernel takes of that memory, in bytes, until ForgetSaved or the end of the process that
	// has it. The caller has Exclusive.
	NoteSaved(pid int, bytes int64) error
	// ForgetSaved notes that the kernel takes none of it.
	ForgetSaved() error
}

// Turn is the wait of a kernel for its GPU. One goroutine uses it.
type Turn interface {
	// Take takes the GPU if it is free and the kernel is first in line. before is how many kernels are before it.
	Take() (taken bool, before int, err error)
	// Leave ends the wait.
	Leave()
}

// Kept is what kernels that wait know of how long a kernel keeps its GPU. The zero value: nothing was said.
type Kept struct{ until time.Time }

// Say says a time with Seat.Keep if they do not know it. A kernel that does not own its GPU says nothing.
func (k *Kept) Say(seat Seat, owns bool, until time.Time) error {
	if !owns {
		*k = Kept{} // the next holder of the GPU says its own
		return nil
	}
	if until.Equal(k.until) {
		return nil
	}
	k.until = until
	return seat.Keep(until)
}

// Unknown is an error of Seat.Kept: why it is not known who has the GPU and who waits for it.
type Unknown string

// Error returns the reason.
func (u Unknown) Error() string { return string(u) }

// Waits returns why a kernel waits for its GPU with so many kernels before it.
func Waits(seat Seat, before int) string {
	text := "another kernel has it"
	if before > 0 {
		text = fmt.Sprintf("%d other kernels are before this one", before)
	}
	until, err := seat.Kept()
	var unknown Unknown
	if errors.As(err, &unknown) {
		return unknown.Error()
	}
	if err == nil && !until.IsZero() {
		text += ", and it is kept until " + api.ShownTime(until)
	}
	return text
}
