//go:build !windows

package client

import "os"

// parentGone returns a function that reports whether the program that has started this one has died, if that is a
// program of Jupyter. Then another process is the parent. PR_SET_PDEATHSIG would follow a thread of the program.
func parentGone() func() bool {
	if os.Getenv("JPY_PARENT_PID") == "" { // a person has started it
		return func() bool { return false }
	}
	parent := os.Getppid()
	return func() bool { return os.Getppid() != parent }
}
