// Package channels carries the websockets of kernels between clients and supervisors. It understands no message, and
// knows nothing of users, tokens and audit logs: package gateway decides who may connect, and calls it for each
// websocket.
//
// Dial makes the handshake with the supervisor, and Join the one with the client. Then a Handover gives the client's
// socket to a supervisor of this machine, or a Splice copies bytes between the two. While a kernel has no supervisor
// yet, the Lobby accepts the client's websocket itself: it keeps what the client sends, and shows why the kernel is not
// there. A Registry lists the open connections and can end each of them. Begin with Dial and Join, then splice.go.
//
// Goroutines: Splice.Run starts two, one for each direction. Waiting.Run starts one that reads. Handover.Run starts one
// at its end, which discards what the client still sends. Each function waits for its goroutines and closes the
// connections before it returns.
package channels

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// maxHandshake bounds the bytes of a supervisor's answer to a handshake, with its body.
const maxHandshake = 64 << 10

// past is a deadline that ends pending reads and writes.
var past = time.Unix(1, 0)

// ErrClientGone is the error of a handshake whose client cannot be answered any more.
var ErrClientGone = errors.New("the client is gone")

// Upstream is a connection to a kernel's supervisor after its handshake. It belongs to Join or to the lobby.
type Upstream struct {
	conn     net.Conn
	header   http.Header // of the 101
	early    []byte      // bytes that the supervisor has sent behind its 101
	takeOver bool        // the supervisor waits for the client's socket
}

// Close closes an Upstream that is not needed after all.
func (u *Upstream) Close() { _ = u.conn.Close() } // nothing was sent on it

// StatusError is an answer of a supervisor to a handshake that is not 101.
type StatusError struct {
	Status int
	Body   []byte
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("the handshake was answered with status %d", e.Status)
}

// Dial connects to a supervisor with dial and makes the handshake: request without the headers of an upgrade, which
// Dial adds. With handOver the supervisor may take over the client's socket, if it is on this machine: CanHandOver must
// be true for the client's request. A supervisor that answers anything but 101 is a *StatusError. When ctx ends before
// Dial returns, the connection is closed.
func Dial(
	ctx context.Context,
	dial func(context.Context) (net.Conn, error),
	request *http.Request,
	handOver bool,
) (*Upstream, error) {
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", "websocket")
	conn, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	_, local := conn.(*net.UnixConn)
	if handOver = handOver && local; handOver {
		request.Header.Set(api.HeaderHandOver, api.HandOverVersion)
	}
	abort := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(past) }) // fails only on a closed connection
	up, err := shakeHands(conn, request)
	if err == nil && handOver {
		up.takeOver = up.header.Get(api.HeaderHandOver) == api.HandOverVersion
	}
	if !abort() && err == nil {
		err = ctx.Err() // its deadline may lie in the past now, so it is useless
	}
	if err != nil {
		_ = conn.Close() // the error is reported
		return nil, err
	}
	return up, nil
}

// shakeHands sends the upgrade and reads the head of the answer. It keeps what its reader has read beyond that.
func shakeHands(conn net.Conn, request *http.Request) (*Upstream, error) {
	if err := request.Write(conn); err != nil {
		return nil, err
	}
	br := bufio.NewReader(&io.LimitedReader{R: conn, N: maxHandshake})
	resp, err := http.ReadResponse(br, request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // a 101 has none, and after any other answer the connection is closed
	if resp.StatusCode != http.StatusSwitchingProtocols {
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return nil, err
		}
		return nil, &StatusError{resp.StatusCode, body}
	}
	early, err := br.Peek(br.Buffered())
	if err != nil {
		return nil, err
	}
	return &Upstream{conn: conn, header: resp.Header, early: bytes.Clone(early)}, nil
}

// passedHeaders are the headers of a supervisor's 101 that its client gets.
var passedHeaders = []string{"Sec-Websocket-Accept", "Sec-Websocket-Protocol", "Sec-Websocket-Extensions"}

// Join hijacks the client's connection. Once the Carrier runs, it answers the client with the supervisor's 101 and the
// headers of extra. After an error the Upstream is closed; ErrClientGone means that the client's connection is closed,
// too.
func Join(w http.ResponseWriter, up *Upstream, extra http.Header) (Carrier, error) {
	c, err := join(w, up, extra)
	if err != nil {
		up.Close()
	}
	return c, err
}

func join(w http.ResponseWriter, up *Upstream, extra http.Header) (Carrier, error) {
	answer := extra.Clone()
	answer.Set("Connection", "Upgrade")
	answer.Set("Upgrade", "websocket")
	for _, name := range passedHeaders {
		if v := up.header[name]; len(v) > 0 {
			answer[name] = v
		}
	}
	var b bytes.Buffer
	b.WriteString("HTTP/1.1 101 Switching Protocols\r\n")
	if err := answer.Write(&b); err != nil {
		return nil, fmt.Errorf("write the answer: %w", err)
	}
	b.WriteString("\r\n")

	client, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, fmt.Errorf("take over the connection: %w", err)
	}
	// Peek of what is buffered cannot fail; the bytes are part of a reader that is given up here.
	early, _ := rw.Reader.Peek(rw.Reader.Buffered())
	// The server may have left deadlines behind; these end with the connection's first write.
	if err := client.SetDeadline(time.Time{}); err != nil {
		_ = client.Close() // it is broken
		return nil, fmt.Errorf("%w: %w", ErrClientGone, err)
	}
	c, err := carry(client, up, bytes.Clone(early), b.Bytes())
	if err != nil {
		_ = client.Close() // its request cannot be answered any more
	}
	return c, err
}

// carry makes the Carrier of a client's connection. The bytes of early came from the client already. Those of answer go
// to it before those of the supervisor.
func carry(client net.Conn, up *Upstream, early, answer []byte) (Carrier, error) {
	if !up.takeOver {
		return newSplice(client, up.conn, early, append(answer, up.early...)), nil
	}
	socket, isTCP := client.(*net.TCPConn)
	supervisor, isUnix := up.conn.(*net.UnixConn)
	if !isTCP || !isUnix || len(up.early) > 0 {
		return nil, fmt.Errorf("%w: a %T cannot be handed over on a %T, after %d bytes", ErrClientGone, client, up.conn,
			len(up.early))
	}
	return newHandover(socket, supervisor, early, answer), nil
}
