// Command nothing does nothing. Called as "true" it succeeds at once: the tests' image without a kernel contains only
// this program. Under any other name it waits for SIGINT or SIGTERM: the pause container of a pod, which keeps the
// pod's namespaces open.
package main

import (
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	if filepath.Base(os.Args[0]) == "true" {
		return
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	<-signals
}
