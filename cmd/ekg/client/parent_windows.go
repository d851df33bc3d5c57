package client

import (
	"os"
	"strconv"
	"syscall"
)

// parentGone returns a function that reports whether the program that has started this one has died. Programs of
// Jupyter give a handle of their process to the kernel.
func parentGone() func() bool {
	handle, err := strconv.ParseUint(os.Getenv("JPY_PARENT_PID"), 10, 64)
	if err != nil || handle == 0 {
		return func() bool { return false }
	}
	return func() bool {
		event, err := syscall.WaitForSingleObject(syscall.Handle(handle), 0)
		return err == nil && event == syscall.WAIT_OBJECT_0
	}
}
