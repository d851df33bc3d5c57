package flow

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// takenOver returns a Conn that has taken over a client's socket, with the other ends.
func takenOver(t *testing.T, early string) (f *Conn, client *net.TCPConn, gateway *net.UnixConn) {
	t.Helper()
	dir, err := os.MkdirTemp("", "ekg-fl") // t.TempDir is too long for unix sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	pair := func(network, addr string) (a, b net.Conn) {
		l, err := net.Listen(network, addr)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		if a, err = net.Dial(network, l.Addr().String()); err != nil {
			t.Fatal(err)
		}
		if b, err = l.Accept(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = a.Close(), b.Close() })
		return a, b
	}
	c, accepted := pair("tcp", "127.0.0.1:0")
	g, control := pair("unix", filepath.Join(dir, "s"))
	socket, err := accepted.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	client, gateway = c.(*net.TCPConn), g.(*net.UnixConn)
	if err := api.SendSocket(gateway, int(socket.Fd()), []byte(early)); err != nil {
		t.Fatal(err)
	}
	f = NewConn(control, func() int64 { return 0 })
	if err := f.TakeOver(); err != nil {
		t.Fatal(err)
	}
	return f, client, gateway
}

// TestConn_TakeOver: what the gateway has read comes first, and then the client is the peer.
func TestConn_TakeOver(t *testing.T) {
	f, client, gateway := takenOver(t, "early ")
	defer func() { _ = f.Close() }()
	if _, err := client.Write([]byte("later")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len("early later"))
	if _, err := io.ReadFull(f, got); err != nil || string(got) != "early later" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := f.Write([]byte("answer")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(client, got[:6]); err != nil || string(got[:6]) != "answer" {
		t.Errorf("the client gets %q, %v", got, err)
	}
	if err := f.CloseWrite(); err != nil { // the gateway closes the client's half
		t.Fatal(err)
	}
	if _, err := gateway.Read(got); !errors.Is(err, io.EOF) {
		t.Errorf("the gateway gets %v", err)
	}
}

// TestConn_AwaitGateway: the end of a gateway ends a connection that waits in a write, or in a read.
func TestConn_AwaitGateway(t *testing.T) {
	for name, wait := range map[string]func(f *Conn) error{
		"in a write": func(f *Conn) error {
			for chunk := make([]byte, 1<<20); ; {
				if _, err := f.Write(chunk); err != nil {
					return err
				}
			}
		},
		"in a read": func(f *Conn) error { _, err := f.Read(make([]byte, 1)); return err },
	} {
		t.Run(name, func(t *testing.T) {
			f, _, gateway := takenOver(t, "")
			ended, awaited := make(chan error, 1), make(chan struct{})
			go func() { ended <- wait(f) }()
			go func() { f.AwaitGateway(); close(awaited) }()
			select {
			case <-awaited:
				t.Fatal("it does not wait for the gateway")
			default:
			}
			if err := gateway.Close(); err != nil {
				t.Fatal(err)
			}
			for _, done := range []func() bool{
				func() bool { err := <-ended; return err != nil },
				func() bool { <-awaited; return true },
			} {
				ok := make(chan bool, 1)
				go func() { ok <- done() }()
				select {
				case <-ok:
				case <-time.After(20 * time.Second):
					t.Fatal("it does not end")
				}
			}
		})
	}
}

// TestConn_NotTakenOver: only a unix connection carries sockets, and a gateway may go before it has sent one.
func TestConn_NotTakenOver(t *testing.T) {
	_, client, gateway := takenOver(t, "")
	if err := NewConn(client, nil).TakeOver(); err == nil {
		t.Error("a TCP connection carries no sockets")
	}
	f := NewConn(gateway, nil) // its other end is not read any more
	if err := gateway.CloseRead(); err != nil {
		t.Fatal(err)
	}
	if err := f.TakeOver(); !errors.Is(err, io.EOF) {
		t.Errorf("without a gateway: %v", err)
	}
}
