package poddial

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// portForwarder is an API server that forwards to a pod, over SPDY alone. The pod's port is closed for the first
// connection. As with containerd, that connection's data is not read. Its problem is reported once refuse is closed.
// The server echoes the data of further connections.
type portForwarder struct {
	refuse chan struct{}

	mu    sync.Mutex
	first bool                         // a connection was opened
	half  map[string]httpstream.Stream // by tunnel and connection: its first stream, for problems
	done  sync.WaitGroup               // tunnels and connections
}

// errTestOver is why the tests close their dialers.
var errTestOver = errors.New("the test is over")

// testPod is the pod.
var testPod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a-1", UID: "uid"}}

// newPortForwarder starts a portForwarder and returns a dialer for it.
func newPortForwarder(t *testing.T) (*portForwarder, Dialer) {
	t.Helper()
	p := &portForwarder{refuse: make(chan struct{}), half: map[string]httpstream.Stream{}}
	server := httptest.NewServer(p)
	config := &rest.Config{Host: server.URL}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	d := NewForwarder(config, client.CoreV1().RESTClient())
	t.Cleanup(func() {
		d.Close(errTestOver)
		server.Close()
		p.done.Wait()
	})
	return p, d
}

func (p *portForwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		http.Error(w, "no websockets here", http.StatusBadRequest)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{"portforward.k8s.io"}); err != nil {
		return // it is answered
	}
	tunnel := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		id := r.RemoteAddr + " " + s.Headers().Get(corev1.PortForwardRequestIDHeader)
		p.mu.Lock()
		defer p.mu.Unlock()
		problems := p.half[id]
		if problems == nil {
			p.half[id] = s
			return nil
		}
		refused := !p.first
		p.first = true
		p.done.Go(func() { p.serve(s, problems, refused) })
		return nil
	})
	if tunnel != nil {
		p.done.Go(func() { <-tunnel.CloseChan() })
	}
}

func (p *portForwarder) serve(data, problems httpstream.Stream, refused bool) {
	defer data.Reset()     //nolint:errcheck // the tunnel may be gone
	defer problems.Reset() //nolint:errcheck // it is closed already
	if refused {
		<-p.refuse
		_, _ = io.WriteString(problems, "connection refused")
	} else {
		_, _ = io.Copy(data, data)
	}
	_ = data.Close()
	_ = problems.Close()
}

// echoes reports whether the server echoes a connection's data.
func echoes(t *testing.T, c net.Conn) bool {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "hello"); err != nil {
		return false
	}
	_, err := io.ReadFull(c, make([]byte, 5))
	return err == nil
}

// Connections to one pod do not wait for each other, and do not end with each other. A supervisor that is being
// restarted refuses the first and accepts the next.
func TestForwarder_ConnectionsAreIndependent(t *testing.T) {
	p, d := newPortForwarder(t)
	refused, err := d.Dial(t.Context(), testPod)
	if err != nil {
		t.Fatal(err)
	}
	defer refused.Close() //nolint:errcheck // nothing depends on it
	if _, err := io.WriteString(refused, "hello"); err != nil {
		t.Fatal(err)
	}
	var others []net.Conn
	for i := range 6 {
		c, err := d.Dial(t.Context(), testPod)
		if err != nil {
			t.Errorf("connection %d behind the first: %v", i, err)
			continue
		}
		defer c.Close() //nolint:errcheck // nothing depends on it
		if others = append(others, c); !echoes(t, c) {
			t.Errorf("connection %d behind the first does not work", i)
		}
	}
	close(p.refuse)
	if err := refused.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if n, err := refused.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("of the refused one %d bytes were read, %v", n, err)
	}
	for i, c := range others {
		if !echoes(t, c) {
			t.Errorf("connection %d has ended with the first", i)
		}
	}
}

// A dial ends when its context ends or the dialer is closed.
func TestForwarder_Ends(t *testing.T) {
	p, d := newPortForwarder(t)
	p.first = true
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Dial(gone, testPod); err == nil {
		t.Error("a connection for a caller that has left")
	}
	c, err := d.Dial(t.Context(), testPod)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // nothing depends on it
	if !echoes(t, c) {
		t.Error("the connection does not work")
	}
	d.Close(errTestOver)
	if echoes(t, c) {
		t.Error("the connection works after Close")
	}
	if _, err := d.Dial(t.Context(), testPod); !errors.Is(err, errTestOver) {
		t.Errorf("a closed dialer: got %v", err)
	}
}
