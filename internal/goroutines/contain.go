package goroutines

import (
	"fmt"
	"runtime/debug"
)

// PanicError is a panic that Contain has caught.
type PanicError struct {
	value any
	stack []byte
}

// Error returns the panic's text with the stack, for a log.
func (p *PanicError) Error() string { return fmt.Sprintf("panic: %v\n%s", p.value, p.stack) }

// Contain runs f. If f panics, the error is a *PanicError. It is for a goroutine that works for one user: what that
// user has sent ends the user's own job, stream or view, and never the process. The caller logs the error.
func Contain(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{value: v, stack: debug.Stack()}
		}
	}()
	return f()
}
