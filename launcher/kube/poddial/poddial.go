// Package poddial connects a gateway to the supervisors in pods. Package kube chooses a Dialer: Direct dials within the
// cluster, and a forwarder tunnels through the API server (port-forward) from outside it. Begin with Dialer.
//
// Every connection belongs to the caller, who closes it. A forwarder has two goroutines for each dial, and three for
// each open connection. Its Close ends them.
package poddial

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/transport/websocket"
	"k8s.io/streaming/pkg/httpstream"
	apispdy "k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const (
	dialTime   = 10 * time.Second // for a connection and its TLS handshake
	streamTime = 3 * time.Second  // for a tunnel to accept one more connection
	closeTime  = 2 * time.Second  // for data in tunnels, when the gateway ends
)

// Dialer connects to the supervisor's port of pods. It may be used concurrently.
type Dialer interface {
	// Dial connects to the pod, without encryption.
	Dial(ctx context.Context, pod *corev1.Pod) (net.Conn, error)
	// Close ends the dialer's own goroutines and the connections that need them. It waits two seconds at most. Later
	// dials that need a goroutine return the cause.
	Close(cause error)
}

// Supervisors connects to the supervisors in pods, with the keys that the pods' records name.
type Supervisors struct {
	Dialer
	Keys podspec.MasterKeys
}

// Connect connects to a pod's supervisor with TLS, whatever the kernel's state.
func (s Supervisors) Connect(ctx context.Context, pod *corev1.Pod) (net.Conn, error) {
	k, err := s.Keys.Of(pod)
	if err != nil {
		return nil, err
	}
	return dialTLS(ctx, s.Dialer, pod, k)
}

// Client returns a client of a pod's supervisor.
func (s Supervisors) Client(pod *corev1.Pod) (*api.Client, error) {
	k, err := s.Keys.Of(pod)
	if err != nil {
		return nil, err
	}
	return &api.Client{
		KernelID: pod.Labels[podspec.LabelKernel],
		Token:    k.Token,
		Dial:     func(ctx context.Context) (net.Conn, error) { return dialTLS(ctx, s.Dialer, pod, k) },
	}, nil
}

// dialTLS connects to a pod's supervisor with TLS, and verifies the pod's key.
func dialTLS(ctx context.Context, d Dialer, pod *corev1.Pod, k podspec.Keys) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	raw, err := d.Dial(ctx, pod)
	if err != nil {
		return nil, err
	}
	config, err := api.PinnedTLS(k.TLSSeed, pod.Labels[podspec.LabelKernel])
	if err != nil {
		_ = raw.Close() // it was not used
		return nil, err
	}
	c := tls.Client(raw, config)
	if err := c.HandshakeContext(ctx); err != nil {
		_ = raw.Close() // the handshake's error is the one that matters
		return nil, err
	}
	return c, nil
}

// Direct is the Dialer for a gateway in the cluster. It connects to the pods' addresses. It has no goroutines, so
// Close has no effect.
type Direct struct{}

// Dial implements Dialer.
func (Direct) Dial(ctx context.Context, pod *corev1.Pod) (net.Conn, error) {
	if pod.Status.PodIP == "" {
		return nil, errors.New("the pod has no address yet")
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(podspec.SupervisorPort)))
}

// Close implements Dialer.
func (Direct) Close(error) {}

// NewForwarder returns the Dialer for a gateway outside the cluster. It reaches pods through the API server, as kubectl
// port-forward does. config connects to the API server, and core makes the URLs of its core API.
func NewForwarder(config *rest.Config, core rest.Interface) Dialer {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &forwarder{config: config, core: core, ctx: ctx, cancel: cancel}
}

// forwarder is the Dialer that NewForwarder returns. Every connection has a tunnel of its own. Connections in one
// tunnel would not be independent. Unread data of one connection, with a closed port or a slow reader, delays every
// fifth stream beside it (spdystream's workers). A connection could not be given up without the others.
type forwarder struct {
	config *rest.Config
	core   rest.Interface
	ctx    context.Context // ended by Close
	cancel context.CancelCauseFunc

	goroutines goroutines.Group
}

// Dial implements Dialer.
func (f *forwarder) Dial(ctx context.Context, pod *corev1.Pod) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	got := make(chan result)
	if !f.goroutines.Go(func() { // some of its steps ignore ctx
		conn, err := f.connect(ctx, pod)
		select {
		case got <- result{conn, err}:
		case <-ctx.Done():
			if conn != nil {
				_ = conn.Close() // the caller has left
			}
		}
	}) {
		return nil, context.Cause(f.ctx)
	}
	select {
	case r := <-got:
		return r.conn, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// connect opens a tunnel and the one connection in it.
func (f *forwarder) connect(ctx context.Context, pod *corev1.Pod) (net.Conn, error) {
	tunnel, err := f.open(ctx, pod)
	if err != nil {
		return nil, fmt.Errorf("port-forward: %w", err)
	}
	data, problems, err := f.streams(ctx, tunnel)
	if err != nil {
		_ = tunnel.Close() // it was not used
		return nil, fmt.Errorf("port-forward: %w", err)
	}
	ours, theirs, err := socketPair()
	if err != nil {
		_ = tunnel.Close() // it was not used
		return nil, err
	}
	if !f.goroutines.Go(func() {
		defer tunnel.Close()                                        //nolint:errcheck // both ends know
		defer context.AfterFunc(f.ctx, func() { tunnel.Close() })() //nolint:errcheck // this ends the copies
		carry(theirs, data, problems)
	}) {
		_ = ours.Close() // it was not used
		_ = theirs.Close()
		_ = tunnel.Close()
		return nil, context.Cause(f.ctx)
	}
	return ours, nil
}

// streams opens the two streams of a connection, as the port-forward protocol (portforward.k8s.io) defines them. A dead
// tunnel gives no answer for half a minute; callers do not wait so long.
func (f *forwarder) streams(ctx context.Context,
	tunnel httpstream.Connection) (data, problems httpstream.Stream, err error) {
	type opened struct {
		data, problems httpstream.Stream
		err            error
	}
	got := make(chan opened, 1)
	if !f.goroutines.Go(func() {
		var o opened
		h := http.Header{}
		h.Set(corev1.StreamType, corev1.StreamTypeError)
		h.Set(corev1.PortHeader, strconv.Itoa(podspec.SupervisorPort))
		h.Set(corev1.PortForwardRequestIDHeader, "1")
		if o.problems, o.err = tunnel.CreateStream(h); o.err == nil {
			o.err = o.problems.Close() // nothing is written there
		}
		if o.err == nil {
			h.Set(corev1.StreamType, corev1.StreamTypeData)
			o.data, o.err = tunnel.CreateStream(h)
		}
		got <- o
	}) {
		return nil, nil, context.Cause(f.ctx)
	}
	limit := time.NewTimer(streamTime)
	defer limit.Stop()
	select {
	case o := <-got:
		return o.data, o.problems, o.err
	case <-limit.C:
		return nil, nil, errors.New("the tunnel does not answer")
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	case <-f.ctx.Done():
		return nil, nil, context.Cause(f.ctx)
	}
}

// carry copies between a connection and its stream until both directions have ended, or the far side reports a problem.
// Streams have no deadlines; conn has, because it is a socket.
func carry(conn net.Conn, data, problems httpstream.Stream) {
	var wg sync.WaitGroup
	wg.Go(func() {
		defer conn.Close()         //nolint:errcheck // its other end sees the end
		_, _ = io.Copy(conn, data) // either side's end
		_ = data.Reset()
		_ = problems.Reset()
	})
	wg.Go(func() {
		_, _ = io.Copy(data, conn) // either side's end
		_ = data.Close()           // tells the far side
	})
	wg.Go(func() {
		message, err := io.ReadAll(io.LimitReader(problems, 1<<10))
		if err == nil && len(message) > 0 { // the port is closed, or the pod is gone
			_ = data.Reset() // this ends the copies
			_ = conn.Close() // its other end sees the end
		}
	})
	wg.Wait()
}

// open opens a tunnel to a pod: over a websocket if the API server can, else over SPDY.
func (f *forwarder) open(ctx context.Context, pod *corev1.Pod) (httpstream.Connection, error) {
	target := f.core.Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("portforward").URL()
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	defer context.AfterFunc(f.ctx, cancel)()
	tunnel, err := f.openWebsocket(ctx, target)
	if err == nil || !httpstream.IsUpgradeFailure(err) && !httpstream.IsHTTPSProxyError(err) {
		return tunnel, err
	}
	transport, upgrader, err := spdy.RoundTripperFor(f.config)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), nil)
	if err != nil {
		return nil, err
	}
	tunnel, _, err = spdy.NegotiateStreaming(upgrader, &http.Client{Transport: transport}, req,
		portforward.PortForwardProtocolV1Name)
	return tunnel, err
}

// openWebsocket does the same as portforward.NewSPDYOverWebsocketDialer, but can be cancelled by a context.
func (f *forwarder) openWebsocket(ctx context.Context, target *url.URL) (httpstream.Connection, error) {
	transport, holder, err := websocket.RoundTripperFor(f.config)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, err
	}
	conn, err := websocket.Negotiate(transport, holder, req, tunnelled+portforward.PortForwardProtocolV1Name)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(conn.Subprotocol(), tunnelled) {
		return nil, errors.Join(fmt.Errorf("the API server speaks %q", conn.Subprotocol()), conn.Close())
	}
	return apispdy.NewClientConnection(portforward.NewTunnelingConnection("client", conn))
}

// tunnelled precedes the name of a protocol that is carried over a websocket (KEP-4006).
const tunnelled = "SPDY/3.1+"

// Close implements Dialer.
func (f *forwarder) Close(cause error) {
	f.cancel(cause)
	f.goroutines.Close()
	// Goroutines that wait for a dead tunnel end by themselves after half a minute, which is not waited for.
	ended := make(chan struct{})
	go func() { f.goroutines.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(closeTime):
	}
}

// socketPair returns both ends of a connection within this process. It has buffers and deadlines.
func socketPair() (net.Conn, net.Conn, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "tunnel")
		c, err := net.FileConn(file)
		_ = file.Close() // FileConn has a copy
		if err != nil {
			if i == 0 {
				_ = syscall.Close(fds[1]) // the first error is the one that matters
			} else {
				_ = conns[0].Close()
			}
			return nil, nil, err
		}
		conns[i] = c
	}
	return conns[0], conns[1], nil
}
