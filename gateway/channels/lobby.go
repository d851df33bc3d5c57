package channels

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Bounds of the lobby. It holds bytes in this program's memory, and a rejected client connects again.
const (
	lobbyBytes    = 10 << 20  // of one client
	lobbyMessages = 10_000    // of one client
	lobbyTotal    = 256 << 20 // bytes of all clients together

	lobbyPatience = time.Second            // a shorter wait is not shown
	lobbyLook     = 500 * time.Millisecond // between two attempts to connect, unless the kernel changes
	lobbyDial     = 5 * time.Second        // for one handshake with a supervisor that may not be there yet
	lobbyPing     = 15 * time.Second       // between pings, which keep proxies from closing the connection
	lobbyWrite    = 20 * time.Second       // for a client to take a message
)

// ErrHandshake says that a request is not a valid websocket handshake. Its client can still be answered.
var ErrHandshake = errors.New("the request is not a websocket upgrade as RFC 6455 defines it")

// Lobby accepts websockets whose kernel has no supervisor yet. It may be used concurrently. The zero value is not
// usable; see NewLobby.
type Lobby struct {
	ping time.Duration // lobbyPing, but in tests
	held atomic.Int64  // bytes of all clients

	mu      sync.Mutex
	holders map[*recorder]struct{} // the clients whose bytes count
}

// NewLobby makes an empty lobby.
func NewLobby() *Lobby { return &Lobby{ping: lobbyPing, holders: map[*recorder]struct{}{}} }

// Held returns how many bytes of clients' messages the lobby holds.
func (l *Lobby) Held() int64 { return l.held.Load() }

// Kernel is what the lobby needs to know about the kernel that a client waits for. Its functions may be called from any
// goroutine.
type Kernel struct {
	// Wait waits until cond holds for the kernel, like launcher.Launcher's Wait.
	Wait func(ctx context.Context, cond func(launcher.Kernel) bool) (launcher.Kernel, error)

	// Reason returns what the client reads about a kernel that is not there yet, or is dead. It returns at once.
	Reason func(launcher.Kernel) string

	// Connect makes the handshake with the kernel's supervisor. It asks for the subprotocol ("" for no subprotocol) and
	// for no extension. After a *RejectedError the client is sent away; after any other error the lobby tries again.
	Connect func(ctx context.Context, subprotocol string) (*Upstream, error)
}

// RejectedError says that a supervisor has rejected a client's connection.
type RejectedError struct{ Text string } // for the client

func (e *RejectedError) Error() string { return "the supervisor rejected the connection: " + e.Text }

// Waiting is a websocket in the lobby. Its reader parses messages only to answer pings and to know which cells wait.
// The lobby holds the client's messages as raw bytes. So the supervisor later reads what it would have read without a
// lobby, even if the last frame is incomplete.
type Waiting struct {
	// Fixed after Enter.
	lobby   *Lobby
	kernel  Kernel
	ws      *websocket.Conn
	client  *recorder // below ws
	framing framing.Framing
	cursor  []byte // stands before each message to a relay; nil for other clients
	session string // of the lobby's own messages
	began   time.Time

	carrier atomic.Pointer[Carrier] // nil before the supervisor has taken over

	// Owned by the reader until it has ended.
	messages int
	relayed  int // end in client.held of a relay's newest ping, whose length is relayLen; 0 before the first ping
	relayLen int

	// Guarded by mu, as is writing messages.
	mu       sync.Mutex
	reason   string          // why the kernel is not there; the launcher's last word
	display  *notice.Display // shows the reason under the first execute_request; nil before that
	requests []request       // answered with an error if the kernel dies
}

// request is a message whose sender expects an answer.
type request struct {
	channel jupyter.Channel
	msgType string
	header  []byte
}

// deathError ends a connection because its kernel is dead.
type deathError struct{ reason string }

func (e *deathError) Error() string { return "the kernel is dead: " + e.reason }

// errHandover ends the reader when the supervisor takes over.
var errHandover = errors.New("handed over")

// errTooMuch ends the connection of a client that reaches a bound of the lobby.
var errTooMuch = &framing.CloseError{Code: websocket.CloseTryAgainLater,
	Reason: "more is waiting for the kernel than is kept"}

// upgrader chooses subprotocols as supervisors do. Package gateway checks origin and host of every request.
var upgrader = websocket.Upgrader{
	Subprotocols:    framing.Subprotocols(),
	CheckOrigin:     func(*http.Request) bool { return true },
	Error:           func(http.ResponseWriter, *http.Request, int, error) {}, // the error of Enter is the answer
	WriteBufferSize: 1 << 10,
	WriteBufferPool: &sync.Pool{},
}

// Enter makes the handshake with the client of a user, and tells it that its kernel is starting. The 101 has the
// headers of extra. The caller must Run what Enter returns. The error is ErrHandshake or ErrClientGone.
func (l *Lobby) Enter(
	w http.ResponseWriter,
	r *http.Request,
	user string,
	k Kernel,
	extra http.Header,
) (*Waiting, error) {
	h := &hijacker{ResponseWriter: w, lobby: l, user: user}
	ws, err := upgrader.Upgrade(h, r, extra)
	var bad websocket.HandshakeError
	switch {
	case errors.As(err, &bad):
		return nil, ErrHandshake
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrClientGone, err)
	}
	c := &Waiting{lobby: l, kernel: k, ws: ws, client: h.conn, session: jupyter.NewID(), began: time.Now()}
	if ws.Subprotocol() != "" {
		c.framing = framing.V1
	}
	if ws.Subprotocol() == jupyter.SubprotocolRelay {
		// The supervisor will know where the relay's cursor points, so the relay gets the same cursor back.
		c.cursor = make([]byte, jupyter.RelayCursor)
		if at, err := hex.DecodeString(r.URL.Query().Get("cursor")); err == nil && len(at) == jupyter.RelayCursor {
			c.cursor = at
		}
	}
	tune(h.conn.Conn)
	ws.SetPingHandler(c.answerPing)
	ws.SetPongHandler(func(data string) error { c.client.cut(len(data)); return nil })
	if err := c.sendLocked(notice.State(c.session, nil, "starting")); err != nil { // no other goroutine has c yet
		_ = ws.Close() // it is broken
		return nil, fmt.Errorf("%w: %w", ErrClientGone, err)
	}
	return c, nil
}

// Bytes returns how many bytes came from the client and went to it since the supervisor has taken over. Held bytes
// count as soon as the supervisor gets them.
func (c *Waiting) Bytes() (in, out int64) {
	if carrier := c.carrier.Load(); carrier != nil {
		return (*carrier).Bytes()
	}
	return 0, 0
}

// Run waits for the supervisor and then copies bytes, until the connection or ctx ends. It returns why.
func (c *Waiting) Run(ctx context.Context) error {
	read, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var reader sync.WaitGroup
	reader.Go(func() { stop(goroutines.Contain(c.read)) })

	up, err := c.await(read)
	_ = c.client.SetReadDeadline(past) // fails only on a closed connection
	reader.Wait()
	held := c.client.take()
	c.lobby.release(c.client)
	cause := context.Cause(read)
	if c.client.evicted.Load() { // perhaps after the reader has ended
		cause = errTooMuch
	}
	if err == nil {
		var carrier Carrier
		if err = c.handOver(cause, up); err == nil {
			carrier, err = carry(c.client.Conn, up, held, nil)
		}
		if err == nil {
			c.carrier.Store(&carrier)
			return carrier.Run(ctx)
		}
		up.Close()
	}
	c.end(err)
	return err
}

// await returns the connection to the supervisor once there is one. Its error says why there will be no supervisor.
func (c *Waiting) await(ctx context.Context) (*Upstream, error) {
	k, err := c.next(ctx, launcher.Kernel{})
	if err != nil {
		return nil, err
	}
	pinged, w := c.began, newWatch(c.client.Conn)
	for {
		up, err := c.connect(ctx)
		var rejected *RejectedError
		switch {
		case err == nil:
			return up, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.As(err, &rejected):
			return nil, &framing.CloseError{Code: websocket.CloseTryAgainLater, Reason: rejected.Text}
		}
		if err := c.setReason(c.kernel.Reason(k)); err != nil {
			return nil, err
		}
		if k, err = c.next(ctx, k); err != nil {
			return nil, err
		}
		if time.Since(pinged) >= c.lobby.ping {
			pinged = time.Now()
			if w.gone(pinged) {
				return nil, errSilent
			}
			if err := c.ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(lobbyWrite)); err != nil {
				return nil, err
			}
		}
	}
}

func (c *Waiting) connect(ctx context.Context) (*Upstream, error) {
	ctx, cancel := context.WithTimeout(ctx, lobbyDial)
	defer cancel()
	return c.kernel.Connect(ctx, c.ws.Subprotocol())
}

// next waits until the kernel differs from last, at most for lobbyLook. The first sign of a supervisor is a difference.
// The error says why waiting is pointless.
func (c *Waiting) next(ctx context.Context, last launcher.Kernel) (launcher.Kernel, error) {
	look, cancel := context.WithTimeout(ctx, lobbyLook)
	defer cancel()
	k, err := c.kernel.Wait(look, func(k launcher.Kernel) bool {
		return k.State != last.State || k.Reason != last.Reason || k.Stale != last.Stale ||
			!k.LastActivity.Equal(last.LastActivity)
	})
	var gone *launcher.GoneError
	switch {
	case ctx.Err() != nil:
		return k, context.Cause(ctx)
	case errors.As(err, &gone):
		return k, &deathError{gone.Reason}
	case errors.Is(err, launcher.ErrNotFound):
		return k, &deathError{"it was removed"}
	case err == nil, errors.Is(err, context.DeadlineExceeded) && k.ID != "":
		if k.State == api.Dead {
			return k, &deathError{c.kernel.Reason(k)}
		}
		return k, nil
	}
	<-look.Done() // the launcher cannot see the kernel at this moment: nothing has changed as far as clients know
	return last, nil
}

// handOver ends the lobby's part in a connection. cause says why the reader has ended: handOver fails unless that was
// to hand over. From now on the supervisor reads what the client sends, and the lobby sends nothing more.
func (c *Waiting) handOver(cause error, up *Upstream) error {
	switch {
	case !errors.Is(cause, errHandover):
		return cause
	case up.header.Get("Sec-Websocket-Protocol") != c.ws.Subprotocol(), up.header.Get("Sec-Websocket-Extensions") != "":
		return &framing.CloseError{Code: websocket.CloseServiceRestart,
			Reason: "the kernel's supervisor speaks another protocol: connect again"}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.showLocked(""); err != nil {
		return err
	}
	return c.client.SetDeadline(time.Time{})
}

// end closes the connection. A client that is still there is sent the reason.
func (c *Waiting) end(cause error) {
	if errors.Is(cause, ErrKernelStopped) {
		cause = &deathError{"it was shut down on request"}
	}
	var dead *deathError
	if errors.As(cause, &dead) {
		cause = &framing.CloseError{Code: websocket.CloseNormalClosure, Reason: "the kernel is gone: " + dead.reason}
		if err := c.reportDeath(dead.reason); err != nil {
			cause = err
		}
	}
	var closing *framing.CloseError
	if errors.As(cause, &closing) {
		frame := websocket.FormatCloseMessage(closing.Code, framing.ShortReason(closing.Reason))
		_ = c.ws.WriteControl(websocket.CloseMessage, frame, time.Now().Add(FlushTime)) // the connection ends anyway
	}
	closeWrite(c.client.Conn)
	linger(c.client.Conn, time.Now().Add(FlushTime))
	_ = c.ws.Close() // see linger
}
