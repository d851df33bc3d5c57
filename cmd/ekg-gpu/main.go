//go:build linux && cgo

// Command ekg-gpu prints how busy NVIDIA's GPUs are. It is the only program of ekg that speaks to NVIDIA's library
// (NVML), which needs cgo. ekg-supervisor runs it for --cull-gpu, beside a local kernel or in a kernel's container. It
// needs no privileges.
//
//	ekg-gpu [--for 10s]
//
// measures the GPUs for a time, at most 5 minutes, and prints the result on stdout as one JSON object:
//
//	{"seconds": 10, "devices": [{"uuid": "GPU-...", "use": 0.83, "processes": [{"pid": 4711, "use": 0.8}]}]}
//
// use is the part of the time in which the device computed, in all or for one process. Instances of a partitioned GPU
// (MIG) are listed instead of the GPU. processes is null if they are unknown, as in a container: the driver knows them
// by their numbers on the machine. A device has an error if its use is unknown. Without a driver or its library the
// list of devices is empty. The exit code is 1 if the library fails, with the reason on stderr, and 2 for wrong
// arguments.
//
//	ekg-gpu --version
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// version is set by the linker.
var version = "dev"

// maxLook is the longest time to measure.
const maxLook = 5 * time.Minute

func main() { os.Exit(run()) }

func run() int {
	look := flag.Duration("for", 10*time.Second, "how long to measure")
	showVersion := flag.Bool("version", false, "print the version")
	flag.Parse()
	if *showVersion {
		fmt.Println("ekg-gpu", version)
		return 0
	}
	if flag.NArg() > 0 || *look <= 0 || *look > maxLook {
		fmt.Fprintf(os.Stderr, "ekg-gpu: --for takes a time up to %s, and there are no other arguments\n", maxLook)
		return 2
	}
	report, err := meter{lib: nvml.New(), hostPIDs: inHostPIDs(), pause: time.Sleep}.look(*look)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(report)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "ekg-gpu:", err)
		return 1
	}
	return 0
}

// hostPIDNamespace is the target of /proc/self/ns/pid in the machine's own PID namespace: PROC_PID_INIT_INO of Linux'
// proc_ns.h.
const hostPIDNamespace = "pid:[4026531836]"

// inHostPIDs reports whether process ids have the same meaning here as on the machine, and so to the driver.
func inHostPIDs() bool {
	ns, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && ns == hostPIDNamespace
}
