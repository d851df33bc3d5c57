package gpucalls

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// matched are the numbers of CUDA's own ioctls, of NVIDIA's nvidia-uvm. nvidia-smi makes none of them. The order in
// which libcuda makes them has not been measured, so the first of any of them waits. The filter sees no device: an
// ioctl of any other one with such a number waits too.
var matched = [...]uint32{
	0x30000001, // UVM_INITIALIZE: the first that a process makes on /dev/nvidia-uvm
	37,         // UVM_REGISTER_GPU
	25,         // UVM_REGISTER_GPU_VASPACE
}

// Offsets in struct seccomp_data. The lower half of an argument comes first on x86-64, and the system reads no more of
// the number of an ioctl.
const (
	offsetCall    = 0
	offsetABI     = 4
	offsetRequest = 24 // args[1]
)

// program returns the filter. Calls of other ABIs pass, x32 included: CUDA has none for them.
func program() []unix.SockFilter {
	n := uint8(len(matched))
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	equal := func(value uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: yes, Jf: no, K: value}
	}
	result := func(action uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
	}
	p := []unix.SockFilter{
		load(offsetABI), equal(unix.AUDIT_ARCH_X86_64, 0, n+3), // a jump counts from the next instruction
		load(offsetCall), equal(unix.SYS_IOCTL, 0, n+1),
		load(offsetRequest),
	}
	for i, request := range matched {
		p = append(p, equal(request, n-uint8(i), 0))
	}
	return append(p, result(unix.SECCOMP_RET_ALLOW), result(unix.SECCOMP_RET_USER_NOTIF))
}

// install sets the filter for the calling thread, and returns the descriptor of its listener.
func install() (int, error) {
	if runtime.GOARCH != "amd64" {
		return 0, errors.New("calls of CUDA can only be held on x86-64")
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("PR_SET_NO_NEW_PRIVS: %w", err)
	}
	p := program()
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER,
		uintptr(unsafe.Pointer(&unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]})))
	switch errno {
	case 0:
		return int(fd), nil
	case unix.EBUSY:
		return 0, errors.New("another program already holds calls of this one (seccomp)")
	}
	return 0, fmt.Errorf("this machine refuses to hold calls of CUDA (seccomp): %w", errno)
}
