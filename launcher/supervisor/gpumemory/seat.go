package gpumemory

import (
	"context"
	"time"
)

// Seat is a kernel's place at the one GPU that it is pinned to. It may be used concurrently.
type Seat interface {
	// Owns reports whether the GPU is the kernel's. A GPU that is free becomes its own.
	Owns() (bool, error)
	// Return gives the GPU back.
	Return() error
	// Wanted reports whether another kernel waits for the GPU.
	Wanted() bool
	// Wait puts the kernel in the line for its GPU.
	Wait(since time.Time) (Turn, error)
	// Exclusive waits until no other kernel of the machine gives its GPU back.
	Exclusive(ctx context.Context) (end func(), err error)
}

// Turn is the wait of a kernel for its GPU. One goroutine uses it.
type Turn interface {
	// Take takes the GPU if it is free and the kernel is first in line. before is how many kernels are before it.
	Take() (taken bool, before int, err error)
	// Leave ends the wait.
	Leave()
}
