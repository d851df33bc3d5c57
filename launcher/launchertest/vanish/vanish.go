// Package vanish takes the host of a TCP connection away in tests.
package vanish

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// Host drops all packets that arrive at a connection, as if its host had lost power or its network: nothing is
// acknowledged any more, and nothing is answered. The function that it returns brings the host back.
func Host(t testing.TB, conn *net.TCPConn) (back func()) {
	t.Helper()
	set := func(do func(fd int) error) {
		raw, err := conn.SyscallConn()
		if err == nil {
			if cerr := raw.Control(func(fd uintptr) { err = do(int(fd)) }); cerr != nil {
				err = cerr
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	none := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K} // so many bytes of a packet are passed on: none
	set(func(fd int) error {
		return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: 1, Filter: &none})
	})
	return func() {
		set(func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0) })
	}
}
