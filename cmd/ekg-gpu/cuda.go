//go:build linux && cgo

package main

// The signatures are those of cuda.h of CUDA 13. The structures of the arguments have 64 bytes, and zero is the default
// of each member. The library is opened when a command comes: most kernels never use CUDA, and it takes memory.

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

static int ekg_init(void *f) { return ((int (*)(unsigned))f)(0); }
static int ekg_get(void *f, int pid, int *value) { return ((int (*)(int, int *))f)(pid, value); }
static int ekg_text(void *f, int code, const char **text) { return ((int (*)(int, const char **))f)(code, text); }
static int ekg_lock(void *f, int pid, unsigned milliseconds)
{
	struct { unsigned timeout, reserved; uint64_t more[7]; } args = { .timeout = milliseconds };
	return ((int (*)(int, void *))f)(pid, &args);
}
static int ekg_step(void *f, int pid)
{
	uint64_t args[8] = { 0 };
	return ((int (*)(int, void *))f)(pid, args);
}
*/
import "C"

import (
	"fmt"
	"sync"
	"time"
	"unsafe"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
)

// The driver's functions.
const (
	cuInit           = "cuInit"
	cuGetErrorString = "cuGetErrorString"
	cuGetState       = "cuCheckpointProcessGetState"
	cuLock           = "cuCheckpointProcessLock"
	cuCheckpoint     = "cuCheckpointProcessCheckpoint"
	cuRestore        = "cuCheckpointProcessRestore"
	cuUnlock         = "cuCheckpointProcessUnlock"
	cuRestoreThread  = "cuCheckpointProcessGetRestoreThreadId"
)

// lockTime is how long a process may go on to compute before it counts as busy. Nothing else has a limit: a save or a
// restore that is given up in the middle would lose the memory.
const lockTime = 2 * time.Second

// cudaStates are CUprocessState.
var cudaStates = []gpu.CUDAState{gpu.CUDARunning, gpu.CUDALocked, gpu.CUDASaved, gpu.CUDAFailed}

// cuda is NVIDIA's library of CUDA. The driver admits calls from several threads.
type cuda struct {
	library string // for dlopen
	files   gpuFiles

	opening   sync.Mutex
	functions map[string]unsafe.Pointer // nil: it is not open
}

// open loads the library at the first call, and again after a failure.
func (c *cuda) open() *gpu.CUDAError {
	c.opening.Lock()
	defer c.opening.Unlock()
	if c.functions != nil {
		return nil
	}
	name := C.CString(c.library)
	defer C.free(unsafe.Pointer(name))
	handle := C.dlopen(name, C.RTLD_NOW|C.RTLD_LOCAL) // never closed: the library starts threads
	if handle == nil {
		return &gpu.CUDAError{Text: "NVIDIA's library cannot be loaded: " + C.GoString(C.dlerror())}
	}
	functions := map[string]unsafe.Pointer{}
	for _, name := range []string{cuInit, cuGetErrorString, cuGetState, cuLock, cuCheckpoint, cuRestore, cuUnlock,
		cuRestoreThread} {
		symbol := C.CString(name)
		functions[name] = C.dlsym(handle, symbol)
		C.free(unsafe.Pointer(symbol))
		if functions[name] == nil {
			return &gpu.CUDAError{Text: fmt.Sprintf(
				"NVIDIA's driver cannot save GPU memory: it has no %s, and driver 580 or newer has it", name)}
		}
	}
	if code := C.ekg_init(functions[cuInit]); code != 0 {
		return failure(functions, cuInit, code)
	}
	c.functions = functions
	return nil
}

// failure returns the error of a call.
func failure(functions map[string]unsafe.Pointer, call string, code C.int) *gpu.CUDAError {
	e := &gpu.CUDAError{Call: call, Code: int(code), Text: "unknown error"}
	var text *C.char
	if C.ekg_text(functions[cuGetErrorString], code, &text) == 0 && text != nil {
		e.Text = C.GoString(text)
	}
	return e
}

// state returns the state of a process.
func (c *cuda) state(pid int) (gpu.CUDAState, *gpu.CUDAError) {
	var value C.int
	if code := C.ekg_get(c.functions[cuGetState], C.int(pid), &value); code != 0 {
		return gpu.CUDAUnknown, failure(c.functions, cuGetState, code)
	}
	if value < 0 || int(value) >= len(cudaStates) {
		return gpu.CUDAUnknown, &gpu.CUDAError{Call: cuGetState, Text: fmt.Sprintf("state %d, which is not known", value)}
	}
	return cudaStates[value], nil
}

// call does one step with a process.
func (c *cuda) call(name string, pid int) *gpu.CUDAError {
	var code C.int
	if name == cuLock {
		code = C.ekg_lock(c.functions[name], C.int(pid), C.uint(lockTime.Milliseconds()))
	} else {
		code = C.ekg_step(c.functions[name], C.int(pid))
	}
	if code != 0 {
		return failure(c.functions, name, code)
	}
	return nil
}

// uses reports whether a process uses CUDA. GetState has an answer also for others.
func (c *cuda) uses(pid int) bool {
	var thread C.int
	return C.ekg_get(c.functions[cuRestoreThread], C.int(pid), &thread) == 0
}

// user returns the only process of a session that uses CUDA; 0 if none does. What was saved comes back whatever other
// processes do.
func (c *cuda) user(session int, do gpu.Action) (pid int, failure *gpu.CUDAError) {
	mapping, open, unknown := c.files.users(session)
	if len(mapping) > 0 {
		if failure := c.open(); failure != nil {
			return 0, failure
		}
	}
	var users []int
	for _, pid := range mapping {
		if c.uses(pid) {
			users = append(users, pid)
			delete(open, pid)
			if state, _ := c.state(pid); do != gpu.Save && (state == gpu.CUDASaved || state == gpu.CUDALocked) {
				return pid, nil
			}
		}
	}
	switch {
	case len(users) > 1:
		return 0, &gpu.CUDAError{Text: fmt.Sprintf("%d processes of the kernel use CUDA", len(users)), Processes: len(users)}
	case len(open) > 0:
		return 0, &gpu.CUDAError{Text: fmt.Sprintf("the GPU is open in %d processes of the kernel that cannot be saved",
			len(open)), Processes: len(open)}
	case unknown > 0:
		return 0, &gpu.CUDAError{Text: fmt.Sprintf("%d processes of the kernel cannot be looked at", unknown),
			Processes: unknown}
	case len(users) == 0:
		return 0, nil
	}
	return users[0], nil
}

// do carries out a command. It takes as long as the driver does.
func (c *cuda) do(command gpu.Command) (a gpu.Answer) {
	began := time.Now()
	a.ID = command.ID
	defer func() { a.Seconds = time.Since(began).Seconds() }()
	a.State = gpu.CUDAUnknown
	if command.Session != 0 {
		command.PID, a.Failure = c.user(command.Session, command.Do)
		if a.Failure == nil && command.PID == 0 {
			a.State = gpu.CUDANone
		}
		if a.PID = command.PID; a.PID == 0 {
			return a
		}
	}
	if a.Failure = c.open(); a.Failure != nil {
		return a
	}
	if a.State, a.Failure = c.state(command.PID); a.Failure != nil {
		return a
	}
	var wrong *gpu.CUDAError
	for _, step := range steps(command.Do, a.State) {
		if wrong = c.call(step, command.PID); wrong != nil {
			break
		}
	}
	if a.State, a.Failure = c.state(command.PID); wrong != nil {
		if command.Do == gpu.Save && a.State == gpu.CUDALocked {
			// It could not be saved, and computes on.
			if err := c.call(cuUnlock, command.PID); err == nil {
				a.State, _ = c.state(command.PID) // the failure of the save is what matters
			}
		}
		a.Failure = wrong
	}
	return a
}

// steps returns the calls that bring a process from a state to where the action wants it. A process whose memory is
// lost stays as it is.
func steps(do gpu.Action, from gpu.CUDAState) []string {
	switch {
	case do == gpu.Save && from == gpu.CUDARunning:
		return []string{cuLock, cuCheckpoint}
	case do == gpu.Save && from == gpu.CUDALocked:
		return []string{cuCheckpoint}
	case do == gpu.Restore && from == gpu.CUDASaved:
		return []string{cuRestore, cuUnlock}
	case do == gpu.Restore && from == gpu.CUDALocked:
		return []string{cuUnlock}
	}
	return nil
}
