package starter

import (
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/child"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
)

// Process is one life of a kernel's process: a process.Process, which is this program's child, or a
// child.Process, which outlives this program. All methods may be called at any time and concurrently.
type Process interface {
	// PID returns the process id, which is also the number of the process group and of the session. In another
	// container it means something only there.
	PID() int
	// Done is closed when the process has ended, what it left running is killed, and Exit and the last output are known.
	Done() <-chan struct{}
	// Exit waits for the end of the process and returns how it ended.
	Exit() process.Exit
	// LastOutput returns the newest output as valid UTF-8, at most limit bytes. It is the output on stderr, or on stdout
	// if stderr is blank. It begins at the beginning of a line if a line fits. Another container's output is known once
	// Done is closed.
	// Output that has no text since the given time is "".
	LastOutput(limit int, since time.Time) string
	// Signal sends sig to the process group. The error is os.ErrProcessDone if the group has ended, and
	// child.ErrNoContainer if its container is not there.
	Signal(sig syscall.Signal) error
	// Kill kills the process and all others of its session, also those in other process groups. It does not wait for
	// Done, which is closed soon in any case.
	Kill()
	// Unreachable reports whether the process may have ended unnoticed. If it has, Done is closed soon.
	Unreachable() bool
	// InterruptMode returns how the process is interrupted, "signal" or "message", or "" if Config decides.
	InterruptMode() string
	// Measure makes Used return newer values. The processors' time is measured at once or soon if processors is set; GPUs
	// when the look has ended. If another look is in progress, look is ignored.
	Measure(processors bool, look process.GPULook)
	// WatchGPUs makes Used return samples of GPUs until the process ends.
	WatchGPUs(watch process.GPUWatch)
	// AskGPU moves the GPU memory of the kernel's process. Starter.Answered gets the answer, if there is one.
	AskGPU(command process.GPUCommand)
	// HoldsGPUCalls reports whether the first calls of CUDA wait for PassGPUCalls. Otherwise why says why they do not, if
	// Starter.Called was set.
	HoldsGPUCalls() (holds bool, why string)
	// PassGPUCalls lets the calls of CUDA go on that wait now. Starter.Called is called again for those that wait longer.
	PassGPUCalls()
	// MeasureMemory makes Used return a newer Memory at once or soon.
	MeasureMemory()
	// Used returns the last measurement of what the processes of the session use.
	Used() process.Use
}

var (
	_ Process = (*process.Process)(nil)
	_ Process = (*child.Process)(nil)
)
