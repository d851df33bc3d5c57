package listener

import (
	"fmt"
	"net/http"
	"os"
	"runtime/debug"
)

// panicCode is the exit code of a Go program that panics.
const panicCode = 2

// EndOnPanic makes a panic in a handler end the program, as a panic in any other goroutine does. The server of net/http
// would log it and go on, although a lock may be held without end. Another supervisor adopts the kernel. The text and
// the stack go to standard error.
func EndOnPanic(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			v := recover()
			switch {
			case v == nil:
			case v == http.ErrAbortHandler: // the handler only ends its connection
				panic(v)
			default:
				_, _ = fmt.Fprintf(os.Stderr, "panic: %v\n\n%s", v, debug.Stack()) // nothing else can be done
				os.Exit(panicCode)
			}
		}()
		h.ServeHTTP(w, r)
	})
}
