// Command nothing does nothing. As "true" it does so at once and succeeds: all there is in the image of a kernel that has no
// kernel. Under any other name it does so until it is told to end: what keeps a pod's namespaces open.
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
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGINT, syscall.SIGTERM)
	<-told
}
