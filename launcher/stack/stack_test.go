package stack

import (
	"runtime"
	"testing"
	"unsafe"
)

// deep needs 8 KiB of the stack.
//
//go:noinline
func deep() {
	var frame [8 << 10]byte
	runtime.KeepAlive(&frame)
}

// moves reports whether the calling goroutine's stack is copied to another place when deep is called.
//
//go:noinline
func moves() bool {
	var here byte
	before := uintptr(unsafe.Pointer(&here))
	deep()
	return uintptr(unsafe.Pointer(&here)) != before
}

// TestGrow: the stack of a new goroutine is too small for deep, unless Grow was called.
func TestGrow(t *testing.T) {
	in := func(f func() bool) bool {
		moved := make(chan bool)
		go func() { moved <- f() }()
		return <-moved
	}
	if !in(moves) {
		t.Error("the stack of a new goroutine is large enough: Grow is useless")
	}
	if in(func() bool { Grow(); return moves() }) {
		t.Error("the stack is copied after Grow")
	}
}
