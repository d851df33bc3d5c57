package proctree

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
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
	var buffer [procBuffer]byte
	b, err := readProc("/proc/"+strconv.Itoa(pid)+"/statm", buffer[:])
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
	var buffer [procBuffer]byte
	for _, task := range tasks {
		b, err := readProc(dir+task.Name()+"/children", buffer[:])
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

const (
	procBuffer = 1 << 10 // bytes
	procRecord = 64      // bytes of a number and more; Linux reads whole ones, so a read may end that early
)

// readProc reads a file of /proc, most often into buffer. It takes half as many system calls as os.ReadFile. A program
// with many threads has many such files.
func readProc(path string, buffer []byte) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	n, err := unix.Read(fd, buffer)
	_ = unix.Close(fd) // it was only read
	if err != nil || n > len(buffer)-procRecord {
		return os.ReadFile(path) // it was interrupted, or the file is longer
	}
	return buffer[:n], nil
}
