package channels

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// confirmation is the 101 of a supervisor that takes over the client's socket.
const confirmation = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
	api.HeaderHandOver + ": " + api.HandOverVersion + "\r\n\r\n"

// taken is a client's connection that a supervisor has taken over.
type taken struct {
	client  *net.TCPConn
	control *net.UnixConn // to the gateway
	early   []byte
}

// takeOver adds a kernel whose supervisor takes over the socket of each client.
func (s *testServer) takeOver(id string) <-chan *taken {
	s.t.Helper()
	all := make(chan *taken, 10)
	s.addStarting(id, "")
	s.give(id, func(w http.ResponseWriter, r *http.Request) {
		if !api.ConfirmsHandOver(r) {
			s.t.Errorf("the gateway asks with %v", r.Header)
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			s.t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, confirmation)
		got := &taken{control: conn.(*net.UnixConn)}
		if got.client, got.early, err = api.ReceiveSocket(got.control); err != nil {
			s.t.Error(err)
		}
		s.t.Cleanup(got.close)
		all <- got
	})
	return all
}

// close ends the connection as a supervisor does.
func (c *taken) close() { _, _ = c.client.Close(), c.control.Close() }

// wantText fails unless the next bytes are these.
func wantText(t *testing.T, from net.Conn, want string) {
	t.Helper()
	if err := from.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if n, err := io.ReadFull(from, got); err != nil || string(got) != want {
		t.Fatalf("got %q, %v, want %q", got[:n], err, want)
	}
}

// TestHandover_Bytes: the supervisor gets the client's socket, what came behind the request arrives first and once, and
// the bytes of both directions are counted.
func TestHandover_Bytes(t *testing.T) {
	s := startServer(t)
	all := s.takeOver(idA)
	conn, err := net.Dial("tcp", s.http.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	const head = "GET /" + idA + " HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
	if _, err := io.WriteString(conn, head+"early"); err != nil {
		t.Fatal(err)
	}
	c := <-all
	if string(c.early) != "early" {
		t.Errorf("early bytes: %q", c.early)
	}
	if c.client.RemoteAddr().String() != conn.LocalAddr().String() {
		t.Errorf("the socket of %v, not of %v", c.client.RemoteAddr(), conn.LocalAddr())
	}
	if _, err := io.WriteString(conn, "later"); err != nil {
		t.Fatal(err)
	}
	wantText(t, c.client, "later")
	answer := bytes.Repeat([]byte("0123456789"), 1000)
	if _, err := c.client.Write(answer); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4096)
	for all := []byte{}; !bytes.HasSuffix(all, answer); {
		n, err := conn.Read(b)
		if err != nil {
			t.Fatalf("%v after %d bytes", err, len(all))
		}
		all = append(all, b[:n]...)
	}
	if open, in, out := s.registry.Traffic(); open != 1 || in != int64(len("earlylater")) || out != int64(len(answer)) {
		t.Errorf("%d connections, %d bytes in, %d out", open, in, out)
	}
	if _, err := io.WriteString(conn, "end"); err != nil {
		t.Fatal(err)
	}
	wantText(t, c.client, "end")
	c.close()
	s.registry.wg.Wait()
	if open, in, out := s.registry.Traffic(); open != 0 || in != int64(len("earlylaterend")) || out != int64(len(answer)) {
		t.Errorf("after the end: %d connections, %d bytes in, %d out", open, in, out)
	}
}

// TestHandover_Ends: whichever side ends, the others notice, the reason is right, and nothing is left open.
func TestHandover_Ends(t *testing.T) {
	revoked := errors.New("revoked")
	for name, test := range map[string]struct {
		end   func(s *testServer, conn *net.TCPConn, c *taken)
		cause error
		text  string // that the client gets
	}{
		"the supervisor": {cause: errEOF, text: "bye", end: func(_ *testServer, _ *net.TCPConn, c *taken) {
			_, _ = c.client.Write([]byte("bye"))
			c.close()
		}},
		"the supervisor's writing half": {cause: errEOF, text: "bye", end: func(_ *testServer, _ *net.TCPConn, c *taken) {
			_, _ = c.client.Write([]byte("bye"))
			_ = c.control.CloseWrite()
		}},
		"the client": {cause: errEOF, end: func(_ *testServer, conn *net.TCPConn, c *taken) {
			_ = conn.CloseWrite()
			_ = c.client.SetReadDeadline(time.Now().Add(20 * time.Second))
			if n, err := c.client.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
				c.client.Close() //nolint:errcheck // the test fails anyway
				panic(fmt.Sprint("the supervisor reads ", n, err))
			}
			c.close()
		}},
		"a revocation, which the supervisor obeys": {cause: revoked, text: "last", end: func(s *testServer, _ *net.TCPConn,
			c *taken) {
			s.registry.Revoke(idA, revoked)
			if _, err := c.control.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				s.t.Errorf("the supervisor is not notified: %v", err)
			}
			_, _ = c.client.Write([]byte("last"))
			c.close()
		}},
		"a revocation, after the supervisor has made reads block": {cause: revoked, end: func(s *testServer, _ *net.TCPConn,
			c *taken) {
			raw, err := c.client.SyscallConn()
			if err == nil {
				err = raw.Control(func(fd uintptr) { _ = unix.SetNonblock(int(fd), false) })
			}
			if err != nil {
				s.t.Error(err)
			}
			s.registry.Revoke(idA, revoked)
			s.registry.wg.Wait()
		}},
		"a revocation, which the supervisor ignores": {cause: revoked, end: func(s *testServer, _ *net.TCPConn, c *taken) {
			s.registry.Revoke(idA, revoked)
			s.registry.wg.Wait()
			_ = c.client.SetDeadline(time.Now().Add(20 * time.Second))
			if n, err := c.client.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				s.t.Errorf("it still reads: %d, %v", n, err)
			}
			if _, err := c.client.Write([]byte("more")); err == nil {
				s.t.Error("it still writes")
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := startServer(t)
			all := s.takeOver(idA)
			fds, goroutines := resources(t)
			conn, br := s.dial(idA)
			c := <-all
			test.end(s, conn, c)
			if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(br); err != nil || string(got) != test.text {
				t.Errorf("the client gets %q, %v; want %q", got, err, test.text)
			}
			s.wantNothingHeld()
			s.mu.Lock()
			failed := s.failed
			s.mu.Unlock()
			if !errors.Is(failed, test.cause) {
				t.Errorf("it ended because %v", failed)
			}
			c.close()
			_ = conn.Close()
			poll.Until(t, "descriptors and goroutines", func() bool {
				f, g := resources(t)
				return f <= fds && g <= goroutines
			})
		})
	}
}

// TestHandover_ClientThatSends: a client that goes on sending gets all that the supervisor wrote before its end: the
// connection is not reset.
func TestHandover_ClientThatSends(t *testing.T) {
	s := startServer(t)
	all := s.takeOver(idA)
	conn, br := s.dial(idA)
	c := <-all
	var sending sync.WaitGroup
	sending.Go(func() {
		for chunk := make([]byte, 32<<10); ; {
			if _, err := conn.Write(chunk); err != nil {
				return
			}
		}
	})
	text := bytes.Repeat([]byte("x"), 100<<10)
	if _, err := c.client.Write(text); err != nil {
		t.Fatal(err)
	}
	c.close()
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(io.LimitReader(br, int64(len(text)))); err != nil || len(got) != len(text) {
		t.Errorf("%d of %d bytes, %v", len(got), len(text), err)
	}
	s.wantNothingHeld()
	_ = conn.Close()
	sending.Wait()
}

// TestHandover_ClientThatNeverReads: a revocation ends a connection whose supervisor waits in a write, and one whose
// supervisor was stopped by a signal.
func TestHandover_ClientThatNeverReads(t *testing.T) {
	s := startServer(t)
	all := s.takeOver(idA)
	_, _ = s.dial(idA)
	c := <-all
	wrote := make(chan struct{})
	go func() {
		for chunk := make([]byte, 64<<10); ; {
			if _, err := c.client.Write(chunk); err != nil {
				close(wrote)
				return
			}
		}
	}()
	s.waitStalled(1)
	began := time.Now()
	s.registry.Revoke(idA, errors.New("revoked"))
	s.registry.wg.Wait()
	if took := time.Since(began); took > FlushTime+10*time.Second {
		t.Errorf("it took %v", took)
	}
	select {
	case <-wrote:
	case <-time.After(20 * time.Second):
		t.Error("the supervisor still waits in its write")
	}
}

// TestHandover_NotConfirmed: a supervisor that does not know the hand-over gets the bytes from the gateway.
func TestHandover_NotConfirmed(t *testing.T) {
	s := startServer(t)
	s.supervise(idA, func(conn net.Conn, _ io.Reader) { _, _ = io.Copy(conn, conn) })
	conn, _ := s.dial(idA)
	if _, err := conn.Write([]byte("echo")); err != nil {
		t.Fatal(err)
	}
	wantText(t, conn, "echo")
}

// TestHandover_Refused: a supervisor that confirms and then goes ends the client's connection.
func TestHandover_Refused(t *testing.T) {
	s := startServer(t)
	s.addStarting(idA, "")
	s.give(idA, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, confirmation)
		_ = conn.Close()
	})
	_, br := s.dial(idA)
	if got, err := io.ReadAll(br); len(got) > 0 || err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%q, %v", got, err)
	}
	s.wantNothingHeld()
}

// TestCanHandOver: the socket below TLS is of no use to a supervisor.
func TestCanHandOver(t *testing.T) {
	withTLS := func(on bool, addr net.Addr) bool {
		r, err := http.NewRequestWithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, addr), "GET", "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if on {
			r.TLS = &tls.ConnectionState{}
		}
		return CanHandOver(r)
	}
	if tcp := (&net.TCPAddr{}); !withTLS(false, tcp) || withTLS(true, tcp) || withTLS(false, &net.UnixAddr{}) {
		t.Error("only TCP without TLS can be handed over")
	}
}
