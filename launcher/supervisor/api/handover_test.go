package api

import (
	"bytes"
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// unixPair returns the two ends of a unix connection.
func unixPair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	dir, err := os.MkdirTemp("", "ekg-ho") // t.TempDir is too long for unix sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	return connect(t, l).(*net.UnixConn), accept(t, l).(*net.UnixConn)
}

func connect(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	c, err := net.Dial(l.Addr().Network(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// accept accepts one connection and closes the listener.
func accept(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	defer func() { _ = l.Close() }()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// descriptor calls do with the descriptor of a connection or listener.
func descriptor(t *testing.T, of interface{ File() (*os.File, error) }, do func(fd int)) {
	t.Helper()
	f, err := of.File()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	do(int(f.Fd()))
}

// openFiles counts the descriptors of this program.
func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestSendSocket: the receiver has the same connection, and the early bytes, however many.
func TestSendSocket(t *testing.T) {
	for _, size := range []int{0, 5, 3 << 20} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		client, served := connect(t, l), accept(t, l).(*net.TCPConn)
		from, to := unixPair(t)
		early := bytes.Repeat([]byte("e"), size)
		sent := make(chan error, 1)
		descriptor(t, served, func(fd int) {
			go func() { sent <- SendSocket(from, fd, early) }()
			got, read, err := ReceiveSocket(to)
			if err != nil || <-sent != nil {
				t.Fatal(err)
			}
			defer func() { _ = got.Close() }()
			if !bytes.Equal(read, early) {
				t.Errorf("%d of %d early bytes", len(read), size)
			}
			if _, err := got.Write([]byte("x")); err != nil {
				t.Error(err)
			}
			if _, err := client.Read(make([]byte, 1)); err != nil {
				t.Error(err)
			}
			if err := got.SetReadDeadline(time.Now()); err != nil { // it is one that can be waited for
				t.Error(err)
			}
		})
	}
}

// TestReceiveSocket_Refused: anything but one TCP connection is refused, and no descriptor stays open.
func TestReceiveSocket_Refused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	tcp := connect(t, l).(*net.TCPConn)
	other, _ := unixPair(t)
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	head := func(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
	descriptor(t, tcp, func(connection int) {
		descriptor(t, other, func(local int) {
			for name, test := range map[string]struct {
				bytes   []byte
				sockets []int
				want    string
			}{
				"nothing":           {nil, nil, "EOF"},
				"no descriptor":     {head(0), nil, "0 descriptors were received"},
				"two descriptors":   {head(0), []int{connection, connection}, "2 descriptors were received"},
				"many descriptors":  {head(0), slices.Repeat([]int{local}, 10), "descriptors"},
				"a file":            {head(0), []int{int(file.Fd())}, "is not a socket"},
				"a unix connection": {head(0), []int{local}, "not a TCP connection"},
				"too many bytes":    {head(1 << 40), []int{connection}, "are more than"},
				"half a head":       {head(0)[:3], []int{connection}, "EOF"},
				"fewer bytes":       {append(head(9), "short"...), []int{connection}, "EOF"},
			} {
				from, to := unixPair(t)
				if len(test.bytes) > 0 {
					var rights []byte
					if len(test.sockets) > 0 {
						rights = unix.UnixRights(test.sockets...)
					}
					if _, _, err := from.WriteMsgUnix(test.bytes, rights, nil); err != nil {
						t.Fatal(err)
					}
				}
				if err := from.CloseWrite(); err != nil {
					t.Fatal(err)
				}
				before := openFiles(t)
				got, _, err := ReceiveSocket(to)
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%s: %v, %v", name, got, err)
				}
				if after := openFiles(t); after > before {
					t.Errorf("%s: %d descriptors stay open", name, after-before)
				}
			}
		})
	})
}
