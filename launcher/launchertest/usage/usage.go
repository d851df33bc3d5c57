// Package usage reads from /proc what processes use, for benchmarks. A process that has ended counts nothing.
package usage

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Process is an entry of the process table.
type Process struct {
	PID     int
	Command string // its command line, with spaces between the arguments
}

// WithText returns the processes with this text on their command line, except this program.
func WithText(text string) []Process {
	var all []Process
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is good
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(line, []byte(text)) {
			continue // it has ended
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil && pid != os.Getpid() {
			all = append(all, Process{pid, string(bytes.ReplaceAll(line, []byte{0}, []byte(" ")))})
		}
	}
	return all
}

// ProcessorTime returns the time of processors that processes have used since their start.
func ProcessorTime(pids []int) time.Duration {
	const tick = 10 * time.Millisecond // USER_HZ is 100 on Linux
	var sum time.Duration
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		for _, i := range []int{11, 12} { // utime and stime; the field behind the name is 0
			n, _ := strconv.Atoi(fields[i]) // the kernel writes numbers
			sum += time.Duration(n) * tick
		}
	}
	return sum
}

// kibibytes returns a line of a file in /proc/PID, summed over processes, in bytes.
func kibibytes(pids []int, file, name string) int64 {
	var sum int64
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
		if err != nil {
			continue // it has ended
		}
		if _, rest, ok := strings.Cut("\n"+string(b), "\n"+name+":"); ok {
			var kib int64
			if _, err := fmt.Sscan(rest, &kib); err == nil {
				sum += kib << 10
			}
		}
	}
	return sum
}

// Memory returns the memory of processes in bytes (PSS). Memory that several processes share is divided among them.
func Memory(pids []int) int64 { return kibibytes(pids, "smaps_rollup", "Pss") }

// Peak returns the sum of the highest resident sizes since ResetPeak, in bytes.
func Peak(pids []int) int64 { return kibibytes(pids, "status", "VmHWM") }

// PeakOwn is Peak without the pages of files, such as the program's, which processes share. Their number is the present
// one.
func PeakOwn(pids []int) int64 {
	return Peak(pids) - kibibytes(pids, "status", "RssFile") - kibibytes(pids, "status", "RssShmem")
}

// ResetPeak begins another measurement of Peak.
func ResetPeak(pids []int) {
	for _, pid := range pids {
		// A process that cannot be reset shows too high a peak, not too low.
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
	}
}

// Descriptors returns the number of open files of processes.
func Descriptors(pids []int) int {
	n := 0
	for _, pid := range pids {
		entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)) // it may have ended
		n += len(entries)
	}
	return n
}
