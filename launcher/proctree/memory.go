package proctree

import (
	"bytes"
	"os"
	"strconv"
)

// maxTree bounds the processes that TreeMemory reads.
const maxTree = 2000

// TreeMemory sums the resident memory of a process and its descendants, in bytes. It reads only these processes, not
// all of /proc. Memory that several of them share counts for each. It is 0 if the process has ended.
func TreeMemory(pid int) int64 {
	var sum int64
	todo := []int{pid}
	for i := 0; i < len(todo) && i < maxTree; i++ {
		sum += residentMemory(todo[i])
		todo = append(todo, childrenOf(todo[i])...)
	}
	return sum
}

// residentMemory reads the second number of /proc/PID/statm, which counts pages; see proc_pid_statm(5).
func residentMemory(pid int) int64 {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	if err != nil {
		return 0 // it has ended
	}
	fields := bytes.Fields(b)
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

// childrenOf returns the children of all threads of a process. Without CONFIG_PROC_CHILDREN, Linux names none.
func childrenOf(pid int) (all []int) {
	dir := "/proc/" + strconv.Itoa(pid) + "/task/"
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return nil // it has ended
	}
	for _, task := range tasks {
		b, err := os.ReadFile(dir + task.Name() + "/children")
		if err != nil {
			continue
		}
		for _, field := range bytes.Fields(b) {
			if child, err := strconv.Atoi(string(field)); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}
