package zeromq

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"runtime"
	"testing"
)

// jupyterFrames is a message as kernels send it: a topic, the delimiter, a signature, four JSON parts of usual length.
func jupyterFrames(content int) [][]byte {
	part := func(n int) []byte { return bytes.Repeat([]byte("j"), n) }
	return [][]byte{part(20), []byte("<IDS|MSG>"), part(64), part(230), part(230), part(2), part(content)}
}

// BenchmarkSocket_RoundTrip asks a libzmq ROUTER that echoes; the time includes the peer's work.
func BenchmarkSocket_RoundTrip(b *testing.B) {
	at := startLibzmq(b)
	for _, transport := range []string{"tcp", "ipc"} {
		for _, content := range []int{200, 10_000, 1_000_000} {
			b.Run(fmt.Sprintf("%s/%d", transport, content), func(b *testing.B) {
				s := mustDialTB(b, at.Router[transport], Dealer, "")
				m := jupyterFrames(content)
				b.ReportAllocs()
				for b.Loop() {
					sendRecv(b, s, m)
				}
			})
		}
	}
}

// BenchmarkSocket_Receive reads messages that have arrived already. So its time has only our side's work.
func BenchmarkSocket_Receive(b *testing.B) {
	for _, content := range []int{200, 10_000, 1_000_000} {
		b.Run(fmt.Sprint(content), func(b *testing.B) {
			var one []byte
			m := jupyterFrames(content)
			for i, f := range m {
				flags := byte(flagMore)
				if i == len(m)-1 {
					flags = 0
				}
				one = append(one, zmqFrame(flags, f)...)
			}
			many := bytes.Repeat(one, max(1, 256<<10/len(one)))
			ours, theirs := net.Pipe() // without system calls
			go func() {
				defer theirs.Close() //nolint:errcheck // a pipe
				shaken := make(chan struct{})
				go func() {
					defer close(shaken)
					io.ReadFull(theirs, make([]byte, greetingSize)) //nolint:errcheck // the other end fails too
				}()
				theirs.Write(zmqGreeting()) //nolint:errcheck // the other end fails too
				<-shaken
				go io.Copy(io.Discard, theirs) //nolint:errcheck // ends with the pipe
				theirs.Write(zmqReady("XPUB")) //nolint:errcheck // the other end fails too
				for {
					if _, err := theirs.Write(many); err != nil {
						return
					}
				}
			}()
			typ, _ := Sub.zmtp()
			s, err := open(newZMTPConn(ours, Sub, Limits{}.withDefaults()), typ, nil, "pipe")
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close() //nolint:errcheck // never fails
			b.SetBytes(int64(len(one)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Recv(); err != nil {
					b.Fatal(err)
				}
			}
			runtime.KeepAlive(s)
		})
	}
}
