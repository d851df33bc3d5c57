package supervisor

import (
	"bytes"
	"os"
	"strconv"
	"time"
)

// userTick is the unit of processor time in /proc/PID/stat: USER_HZ, which is 100 on every machine that Go runs on.
const userTick = 10 * time.Millisecond

// processorTime is how much of the processors' time a process has used by a moment.
type processorTime struct {
	used time.Duration
	at   time.Time // zero: it is not known
}

// sessionTime sums up what the living processes of a session have used, and their children that have ended.
func sessionTime(leader int) processorTime {
	t := processorTime{at: time.Now()}
	for _, e := range processes() {
		if e.session == leader {
			t.used += readProcessorTime(e.pid)
		}
	}
	return t
}

// readProcessorTime reads one process's share; see proc_pid_stat(5). It is 0 for one that has gone.
func readProcessorTime(pid int) time.Duration {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]) // from state on, which is the third field
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
