package proctree

import (
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
	return ProcessorTime{At: time.Now(), Used: sessionTimes()[leader]}
}

// sessionTimes returns the processor time of all sessions, by leader.
func sessionTimes() map[int]time.Duration {
	sums := make(map[int]time.Duration)
	for _, p := range List() {
		sums[p.Session] += p.used
	}
	return sums
}

// parseProcessorTime returns utime, stime, cutime and cstime; see proc_pid_stat(5). fields begin with the third one.
func parseProcessorTime(fields [][]byte) time.Duration {
	if len(fields) < 15 {
		return 0
	}
	var ticks int64
	for _, f := range fields[11:15] {
		n, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			return 0
		}
		ticks += n
	}
	return time.Duration(ticks) * userTick
}
