package zeromq

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// zmqEndpoints are the endpoints of testdata/zmqpeer.py, by transport.
type zmqEndpoints struct {
	Router map[string]string `json:"router"`
	Rep    map[string]string `json:"rep"`
	XPub   map[string]string `json:"xpub"`
}

// startLibzmq starts testdata/zmqpeer.py with the interpreter that EKG_TEST_PYTHON names, which must have pyzmq.
func startLibzmq(tb testing.TB) zmqEndpoints {
	tb.Helper()
	python := os.Getenv("EKG_TEST_PYTHON")
	if python == "" {
		tb.Skip("EKG_TEST_PYTHON names no interpreter with pyzmq, so libzmq is not tested")
	}
	script, err := filepath.Abs("testdata/zmqpeer.py")
	if err != nil {
		tb.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "ekg-zmq") // shorter than TempDir: a socket path has at most 107 bytes
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(python, script, dir)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = in.Close() // which ends it
		if err := cmd.Wait(); err != nil {
			tb.Errorf("zmqpeer.py: %v", err)
		}
		_ = os.RemoveAll(dir)
	})
	var at zmqEndpoints
	if err := json.NewDecoder(out).Decode(&at); err != nil {
		tb.Fatalf("zmqpeer.py printed no endpoints: %v", err)
	}
	return at
}

func sendRecv(tb testing.TB, s Socket, m [][]byte) [][]byte {
	tb.Helper()
	if err := s.Send(m); err != nil {
		tb.Fatal(err)
	}
	got, err := s.Recv()
	if err != nil {
		tb.Fatal(err)
	}
	return got
}

func mustDialTB(tb testing.TB, endpoint string, kind Kind, identity string) Socket {
	tb.Helper()
	var id []byte
	if identity != "" {
		id = []byte(identity)
	}
	s, err := Dial(tb.Context(), endpoint, kind, id, Limits{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

// TestSocket_Libzmq tests our end against the implementation that real kernels use.
func TestSocket_Libzmq(t *testing.T) {
	at := startLibzmq(t)
	messages := map[string][][]byte{
		"one frame":    {[]byte("x")},
		"empty frames": {{}, []byte("a"), {}, {}},
		"lengths":      {make([]byte, 254), make([]byte, 255), make([]byte, 256), make([]byte, 65536)},
		"many frames":  bytes.Split(bytes.Repeat([]byte("frame,"), 3000), []byte(",")),
		"20 MB":        {[]byte("head"), bytes.Repeat([]byte("0123456789"), 2_000_000)},
	}
	for _, transport := range []string{"tcp", "ipc"} {
		for name, m := range messages {
			t.Run(transport+" echo of "+name, func(t *testing.T) {
				s := mustDialTB(t, at.Router[transport], Dealer, "")
				got := sendRecv(t, s, m)
				if len(got) != len(m) {
					t.Fatalf("got %d frames, want %d", len(got), len(m))
				}
				for i := range m {
					if !bytes.Equal(got[i], m[i]) {
						t.Errorf("frame %d differs", i)
					}
				}
			})
		}
		t.Run(transport+" heartbeat to a REP", func(t *testing.T) {
			s := mustDialTB(t, at.Rep[transport], Dealer, "")
			for range 3 {
				if got := sendRecv(t, s, [][]byte{{}, []byte("ping")}); len(got) != 2 || string(got[1]) != "ping" {
					t.Fatalf("got %q", got)
				}
			}
		})
		t.Run(transport+" iopub", func(t *testing.T) {
			const count = 20_000
			pub := mustDialTB(t, at.XPub[transport], Sub, "")
			if m, err := pub.Recv(); err != nil || string(m[0]) != "welcome" || string(m[1]) != "\x01" {
				t.Fatalf("got %q, %v, want the welcome of a subscription to everything", m, err)
			}
			ask := mustDialTB(t, at.Router[transport], Dealer, "")
			if err := ask.Send([][]byte{[]byte("publish"), fmt.Append(nil, count), []byte("700")}); err != nil {
				t.Fatal(err)
			}
			for i := range count {
				m, err := pub.Recv()
				if err != nil || len(m) != 3 || string(m[1]) != fmt.Sprint(i) || len(m[2]) != 700 {
					t.Fatalf("message %d: got %.100q, %v", i, m, err)
				}
			}
		})
	}
	t.Run("same identity again after closing", func(t *testing.T) {
		// A ROUTER ignores a connection for good if its identity was in use when it came. The ROUTER takes a moment to
		// see that the old connection has ended, so silence means to close and dial again.
		answers := func() bool {
			s := mustDialTB(t, at.Router["tcp"], Dealer, "me")
			defer s.Close() //nolint:errcheck // never fails
			silence := time.AfterFunc(100*time.Millisecond, func() { _ = s.Close() })
			defer silence.Stop()
			if err := s.Send([][]byte{[]byte("x")}); err != nil {
				return false
			}
			m, err := s.Recv()
			return err == nil && string(m[0]) == "x"
		}
		for range 5 {
			for end := time.Now().Add(testLimit); !answers(); {
				if time.Now().After(end) {
					t.Fatal("never answered again")
				}
			}
		}
	})
	t.Run("an idle socket answers heartbeats", func(t *testing.T) {
		s := mustDialTB(t, at.Router["tcp"], Dealer, "idle")
		got := make(chan error, 1)
		go func() {
			_, err := s.Recv()
			got <- err
		}()
		select {
		case err := <-got:
			t.Fatalf("the peer gave up or sent something: %v", err)
		case <-time.After(1700 * time.Millisecond): // three beats and more; the second goes unanswered after 1 s
		}
		if err := s.Send([][]byte{[]byte("still here")}); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != nil {
			t.Fatal(err)
		}
	})
}
