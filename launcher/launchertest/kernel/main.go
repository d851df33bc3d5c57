// Kernel is the fake kernel of package launchertest as a program, for kernelspecs of tests:
//
//	{"argv": ["/path/to/kernel", "-f", "{connection_file}"], "display_name": "Fake", "language": "fake"}
//
// launchertest.FakeKernelMain lists its flags, the package comment of launchertest the language of its cells.
package main

import (
	"os"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
)

func main() { os.Exit(launchertest.FakeKernelMain(os.Args[1:])) }
