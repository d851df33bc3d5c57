//go:build linux && cgo

package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
)

// mostFiles is how many open files of a process are looked at. A process with more counts as one that uses a GPU.
const mostFiles = 4096

// gpuFiles looks for processes that have a GPU open. It reads only /proc and /sys, which wakes no GPU.
type gpuFiles struct {
	proc    string // "/proc"
	devices string // NVIDIA's driver in sysfs
	session int    // only processes of this session count; 0: all
}

// inUse reports whether a process may have a GPU open. A process that cannot be looked at may have one.
func (g gpuFiles) inUse() bool {
	if g.allSuspended() {
		return false
	}
	dir, err := os.Open(g.proc)
	if err != nil {
		return true
	}
	defer dir.Close() //nolint:errcheck // it was only read
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return true
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == os.Getpid() {
			continue
		}
		if g.session != 0 {
			if session, err := unix.Getsid(pid); err != nil || session != g.session {
				continue
			}
		}
		if g.opens(filepath.Join(g.proc, name, "fd")) {
			return true
		}
	}
	return false
}

// opens reports whether a process may have a GPU open. dir is its folder of open files.
func (g gpuFiles) opens(dir string) bool {
	d, err := os.Open(dir)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	defer d.Close() //nolint:errcheck // it was only read
	files, err := d.Readdirnames(mostFiles)
	if len(files) >= mostFiles || errors.Is(err, fs.ErrPermission) {
		return true
	}
	for _, f := range files {
		to, err := os.Readlink(filepath.Join(dir, f))
		if err == nil && (strings.HasPrefix(to, "/dev/nvidia") || to == "/dev/dxg") { // dxg is the GPU of WSL
			return true
		}
	}
	return false
}

// allSuspended reports whether the driver has put every GPU to sleep. Without that information it returns false.
func (g gpuFiles) allSuspended() bool {
	states, _ := filepath.Glob(filepath.Join(g.devices, "*:*", "power", "runtime_status")) // the pattern is correct
	for _, path := range states {
		if b, err := os.ReadFile(path); err != nil || strings.TrimSpace(string(b)) != "suspended" {
			return false
		}
	}
	return len(states) > 0
}

// cudaLibrary is in the path of NVIDIA's library, which a process that uses CUDA has mapped.
const cudaLibrary = "/libcuda.so"

// users looks for processes of a kernel that may use a GPU: those that have mapped NVIDIA's library, and those that
// have a GPU open. It counts those that cannot be looked at. The kernel's processes are those of its session, and those
// that have inherited its id: its code may start others in sessions of their own.
func (g gpuFiles) users(session int) (mapping []int, open map[int]bool, unknown int) {
	open = map[int]bool{}
	id := g.kernelID(strconv.Itoa(session))
	entries, err := os.ReadDir(g.proc)
	if err != nil {
		return nil, open, 1
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if of, err := unix.Getsid(pid); err != nil || of != session && (id == "" || g.kernelID(e.Name()) != id) {
			continue
		}
		maps, err := os.ReadFile(filepath.Join(g.proc, e.Name(), "maps"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			unknown++
			continue
		}
		if bytes.Contains(maps, []byte(cudaLibrary)) {
			mapping = append(mapping, pid)
		}
		if bytes.Contains(maps, []byte(" /dev/nvidia")) || g.opens(filepath.Join(g.proc, e.Name(), "fd")) {
			open[pid] = true
		}
	}
	return mapping, open, unknown
}

// kernelID returns the entry of a process's environment with the kernel's id; "" if it has none, or it cannot be read.
func (g gpuFiles) kernelID(pid string) string {
	b, err := os.ReadFile(filepath.Join(g.proc, pid, "environ"))
	if err != nil {
		return ""
	}
	for entry := range bytes.SplitSeq(b, []byte{0}) {
		if bytes.HasPrefix(entry, []byte(proctree.KernelIDVariable+"=")) {
			return string(entry)
		}
	}
	return ""
}
