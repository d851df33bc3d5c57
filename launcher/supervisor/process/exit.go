package process

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// lastLineLimit bounds the part of a kernel's output that a sentence quotes, in bytes.
const lastLineLimit = 300

// Exit says how a process ended. Its JSON is part of the child protocol.
type Exit struct {
	Code   int            `json:"code"`   // exit code; -1 if a signal ended it
	Signal syscall.Signal `json:"signal"` // 0 if it exited by itself
	At     time.Time      `json:"at"`     // UTC
	OOM    bool           `json:"oom"`    // SIGKILL ended it, and its control group counts one more OOM kill than at its start
	// With OOM: the control group's limit in bytes; 0 if there is no limit or it is unknown.
	MemoryLimit int64  `json:"limit,omitempty"`
	Lost        bool   `json:"-"` // what ran it is gone, and with it all of the above but At
	LostReason  string `json:"-"` // with Lost: the cluster's reason; "" if the cluster gave none
}

// lastWordsLimit is how long before the end of a process its last words may have been written.
const lastWordsLimit = 10 * time.Second

// LastWordsSince returns the time from which on output counts as last words. began is when the last cell began; zero:
// the kernel was not up, and all output may explain its end.
func (e Exit) LastWordsSince(began time.Time) time.Time {
	limit := e.At.Add(-lastWordsLimit)
	if began.IsZero() || began.After(limit) {
		return began
	}
	return limit
}

// Describe says in one sentence why a process in that place ended. lastOutput is its output since LastWordsSince.
func (e Exit) Describe(lastOutput string, where Place) string {
	var s string
	quote := "; the last line it wrote was: "
	switch {
	case e.Lost && e.LostReason != "":
		return e.LostReason
	case e.Lost:
		return where.lost()
	case e.OOM && e.MemoryLimit > 0:
		s = fmt.Sprintf("the kernel's process was killed because it ran out of memory (limit %s)", binarySize(e.MemoryLimit))
	case e.OOM:
		s = "the kernel's process was killed because " + where.outOfMemory()
	case e.Signal == syscall.SIGKILL:
		s = "the kernel's process was killed (SIGKILL), which also happens when memory runs out"
	case e.Signal != 0:
		s = fmt.Sprintf("the kernel's process was ended by signal %d (%s)", int(e.Signal), e.Signal)
	case e.Code < 0:
		s = "the kernel's process ended in an unknown way"
	default:
		s = fmt.Sprintf("the kernel's process ended with exit code %d", e.Code)
		if e.Code > 0 {
			quote = ": "
		}
	}
	if line := lastLine(api.WithoutNoise(lastOutput)); line != "" {
		s += quote + line
	}
	return s
}

// lastLine returns the last line of s with visible text, as plain text of at most lastLineLimit bytes.
func lastLine(s string) string {
	for s != "" {
		i := strings.LastIndexAny(strings.TrimRight(s, "\r\n"), "\r\n")
		if line := api.PlainText(s[i+1:], lastLineLimit); line != "" {
			return line
		}
		s = s[:max(i, 0)]
	}
	return ""
}

// hasText reports whether s has any visible text that may explain an end.
func hasText(s string) bool { return lastLine(api.WithoutNoise(s)) != "" }

// binarySize formats a number of bytes like a memory limit.
func binarySize(n int64) string {
	for i, unit := range []string{"GiB", "MiB", "KiB"} {
		if size := int64(1) << (30 - 10*i); n >= size {
			return strings.TrimSuffix(strconv.FormatFloat(float64(n)/float64(size), 'f', 1, 64), ".0") + " " + unit
		}
	}
	return strconv.FormatInt(n, 10) + " bytes"
}
