package zeromq

import (
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"
)

// The peer of these tests writes every byte itself, so that it can break the protocol in any way.

// zmqPeer listens on loopback, as a kernel would, and calls play with the first connection. When the test ends, it
// closes the connection and waits for play.
func zmqPeer(t *testing.T, play func(net.Conn)) (endpoint string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var conn net.Conn
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		mu.Lock()
		conn = c
		mu.Unlock()
		play(c)
	}()
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		if conn != nil {
			_ = conn.Close()
		}
		mu.Unlock()
		<-done
	})
	return "tcp://" + l.Addr().String()
}

func zmqGreeting() []byte {
	g := make([]byte, greetingSize)
	g[0], g[9], g[10], g[11] = 0xff, 0x7f, 3, 1
	copy(g[12:], "NULL")
	return g
}

func zmqFrame(flags byte, body []byte) []byte {
	if len(body) > 255 {
		return append(binary.BigEndian.AppendUint64([]byte{flags | flagLong}, uint64(len(body))), body...)
	}
	return append([]byte{flags, byte(len(body))}, body...)
}

// zmqLong is the header of a frame that claims a length.
func zmqLong(flags byte, size uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{flags | flagLong}, size)
}

func zmqProperty(name, value string) []byte {
	p := append([]byte{byte(len(name))}, name...)
	return append(binary.BigEndian.AppendUint32(p, uint32(len(value))), value...)
}

func zmqCommand(name string, body []byte) []byte {
	return zmqFrame(flagCommand, append(append([]byte{byte(len(name))}, name...), body...))
}

func zmqReady(typ string) []byte {
	return zmqCommand("READY", append(zmqProperty("Socket-Type", typ), zmqProperty("Identity", "")...))
}

// zmqShake does the peer's part of the handshake and returns our READY.
func zmqShake(c net.Conn, typ string) []byte {
	if _, err := c.Write(append(zmqGreeting(), zmqReady(typ)...)); err != nil {
		return nil
	}
	head := make([]byte, greetingSize+2)
	if _, err := io.ReadFull(c, head); err != nil {
		return nil
	}
	body := make([]byte, head[greetingSize+1])
	if _, err := io.ReadFull(c, body); err != nil {
		return nil
	}
	return body
}

// zmqGoroutines fails the test if it ends with more goroutines than it began with.
func zmqGoroutines(t *testing.T) {
	t.Helper()
	before := runtime.NumGoroutine()
	t.Cleanup(func() { // registered first, so it runs after the peer is gone
		deadline := time.Now().Add(5 * time.Second)
		for runtime.NumGoroutine() > before {
			if time.Now().After(deadline) {
				buf := make([]byte, 1<<16)
				t.Errorf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
				return
			}
			runtime.Gosched()
		}
	})
}
