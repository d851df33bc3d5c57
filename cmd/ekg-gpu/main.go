//go:build linux && cgo

// Command ekg-gpu prints how busy NVIDIA's GPUs are, and saves and restores the GPU memory of processes. It is the only
// program of ekg that speaks to NVIDIA's libraries, which needs cgo. ekg-supervisor runs it for --cull-gpu, beside a
// local kernel or in a kernel's container. It needs no privileges.
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
//	ekg-gpu watch [--every 10s] [--devices UUID,...] [--session PID]
//
// stays resident until its standard input is closed, and prints samples of the GPUs, one JSON object per line:
//
//	{"seconds": 10, "devices": [{"uuid": "GPU-...", "model": "Tesla T4", "memory_total": 16106127360,
//	  "memory_used": 1073741824, "utilization": 0.83, "processes": [{"pid": 4711, "use": 0.8, "memory": 1048576}]}]}
//
// It asks the driver only while a process has a GPU open, or at least one of the session PID. Otherwise a line comes
// only every sixth time, with "closed": true for each GPU. utilization is null if it is unknown. It needs no
// privileges.
//
// A line on its standard input is a command: to save the GPU memory of a process of the same user, to restore it, or to
// look at its state. The answer is a line among the samples. It comes when the driver is ready:
//
//	{"id": "1", "do": "save", "pid": 4711}
//	{"answer": "1", "state": "saved", "seconds": 0.44}
//	{"id": "2", "do": "restore", "pid": 4711}
//	{"answer": "2", "state": "running", "seconds": 0.24}
//
// With "session" in place of "pid" it finds the process: the only one of that session that uses CUDA. The answer has
// its "pid", or the state "none".
//
// A command that fails has a failure, and the state says what became of the process: {"call":
// "cuCheckpointProcessLock", "code": 600, "text": "device not ready"}. Commands that have begun end, even when the
// standard input has been closed.
//
//	ekg-gpu list
//
// prints the GPUs of the machine, whether or not they are used:
//
//	{"devices": [{"uuid": "GPU-...", "index": 0, "model": "Tesla T4", "memory_total": 16106127360, "healthy": true},
//	  {"uuid": "GPU-...", "index": 1, "mig_mode": true, "mig": [{"uuid": "MIG-...", "profile": "1g.10gb",
//	  "memory_total": 10200547328}], "healthy": true}]}
//
// A GPU that is not healthy has an error. Without a driver or its library the list is empty and has a reason, and the
// exit code is 0.
//
//	ekg-gpu agent [FLAGS]
//
// runs the program ekg-gpu-agent with its flags.
//
//	ekg-gpu --version
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/elastic-kernel-gateway/ekg/cmd/buildinfo"
)

// version is set by the linker.
var version = "dev"

// maxLook is the longest time to measure.
const maxLook = 5 * time.Minute

// shortestEvery is the shortest interval of samples.
const shortestEvery = 100 * time.Millisecond

// lastCall is how long a call of the driver may last after the reader has gone.
const lastCall = 5 * time.Second

func main() { os.Exit(run()) }

func run() int {
	if len(os.Args) > 1 && os.Args[1] == "watch" {
		return watch(os.Args[2:])
	}
	if len(os.Args) > 1 && os.Args[1] == "agent" {
		return runAgent(os.Args[2:])
	}
	if len(os.Args) > 1 && os.Args[1] == "list" {
		return runList(os.Args[2:], nvml.New(), os.Stdout)
	}
	look := flag.Duration("for", 10*time.Second, "how long to measure")
	showVersion := flag.Bool("version", false, "print version and commit")
	flag.Parse()
	if *showVersion {
		fmt.Println(buildinfo.Line("ekg-gpu", version))
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

// runAgent replaces this program by ekg-gpu-agent, which lies beside it.
func runAgent(args []string) int {
	self, err := os.Executable()
	if err == nil {
		program := filepath.Join(filepath.Dir(self), "ekg-gpu-agent")
		err = syscall.Exec(program, append([]string{program}, args...), os.Environ())
	}
	fmt.Fprintln(os.Stderr, "ekg-gpu: the agent is a program of its own, ekg-gpu-agent, and cannot be started:", err)
	return 1
}

// watch runs ekg-gpu watch.
func watch(args []string) int {
	flags := flag.NewFlagSet("ekg-gpu watch", flag.ExitOnError)
	every := flags.Duration("every", 10*time.Second, "time between two samples")
	devices := flags.String("devices", "", "UUIDs or numbers of the GPUs to sample, separated by commas; all by default")
	session := flags.Int("session", 0, "process id of a session: only its processes count as users of GPUs")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 || *every < shortestEvery || *session < 0 {
		fmt.Fprintf(os.Stderr, "ekg-gpu: --every takes a time from %s, and there are no other arguments\n", shortestEvery)
		return 2
	}
	signal.Ignore(syscall.SIGPIPE) // an answer to a reader that is gone would end the program, amid another command
	out := &shared{to: os.Stdout}
	files := gpuFiles{proc: "/proc", devices: "/sys/bus/pci/drivers/nvidia", session: *session}
	asked := &commands{do: (&cuda{library: "libcuda.so.1", files: files}).do, out: out}
	defer asked.wait()
	w := &watcher{meter: meter{lib: nvml.New(), hostPIDs: inHostPIDs()}, every: *every, now: time.Now, out: out,
		parent: asked.follow(os.Stdin, lastCall, os.Exit)}
	w.inUse = files.inUse
	if *devices != "" {
		w.only = strings.Split(*devices, ",")
	}
	if err := w.run(); err != nil {
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
