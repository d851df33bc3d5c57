package proctree

import (
	"bytes"
	"os"
	"strconv"
	"time"
)

// userTick is the unit of processor time in /proc/PID/stat: USER_HZ, which is 100 on every machine that Go runs on.
const userTick = 10 * time.Millisecond

// ProcessorTime is how much processor time a session has used by a moment.
type ProcessorTime struct {
	Used time.Duration // of all processors together
	At   time.Time     // zero: not measured yet
}

// SessionTime sums the processor time of a session's living processes, and of their children that have ended.
func SessionTime(leader int) ProcessorTime {
	t := ProcessorTime{At: time.Now()}
	for _, p := range List() {
		if p.Session == leader {
			t.Used += readProcessorTime(p.PID)
		}
	}
	return t
}

// readProcessorTime reads the share of one process; see proc_pid_stat(5). It is 0 for a process that has ended.
func readProcessorTime(pid int) time.Duration {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]) // from the state on, which is the third field
	if len(f) < 15 {
		return 0
	}
	var ticks int64
	for _, field := range f[11:15] { // utime, stime, cutime, cstime
		n, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return 0
		}
		ticks += n
	}
	return time.Duration(ticks) * userTick
}
