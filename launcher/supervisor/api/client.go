package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"time"
)

// Bounds for a supervisor's answers. Untrusted code runs beside it.
const (
	maxResponseHeader = 16 << 10
	maxErrorBody      = 4 << 10
	maxStatusLine     = 64 << 10
	maxPlain          = 300
)

// Client sends requests to one supervisor. Each call dials a connection and closes it. The client starts no goroutine,
// and its methods may be called concurrently.
type Client struct {
	Dial     func(context.Context) (net.Conn, error) // connects, up to and including TLS
	KernelID string
	Token    string // bearer token; "": none is sent
	Request  string // value of HeaderRequestID; "": none is sent
}

// statusSeed is for hashes of status lines, which never leave the process.
var statusSeed = maphash.MakeSeed()

// Watch calls on with each line of the supervisor's status stream that differs from the one before, in order. It
// returns when the stream ends, when three StatusIntervals pass in silence, or when ctx ends. The error is never nil
// and says which. If this program does not work together with the supervisor, the error is a *VersionError, and on is
// not called.
func (c *Client) Watch(ctx context.Context, on func(Status)) error {
	r, err := c.do(ctx, http.MethodGet, "/status", nil, 3*StatusInterval)
	if err != nil {
		return err
	}
	defer r.close()
	lines := bufio.NewReaderSize(r.body, 1<<10) // a line has some 400 bytes
	// An idle supervisor repeats its line. To decode it would be a third of the gateway's work with idle kernels.
	var last uint64 // a hash, which needs less memory than the line; 0: there was no line
	for {
		_ = r.conn.SetReadDeadline(time.Now().Add(3 * StatusInterval)) // do has set it without an error
		line, err := ReadLine(lines, maxStatusLine)
		if err != nil {
			return r.explain(err, "the status stream ended")
		}
		sum := maphash.Bytes(statusSeed, line)
		if sum == last {
			continue
		}
		last = sum
		var st Status
		if err := json.Unmarshal(line, &st); err != nil {
			return fmt.Errorf("the status stream has a line that is not a status: %w", err)
		}
		if !Speaks(st.Protocol) {
			return &VersionError{Version: st.Protocol, Build: st.Build}
		}
		if st.KernelID != c.KernelID {
			return fmt.Errorf("the supervisor runs kernel %q", st.KernelID)
		}
		on(st)
	}
}

// Stop ends the kernel and returns when it is gone. The reason is one sentence for the kernel's owner.
func (c *Client) Stop(ctx context.Context, reason string) error {
	return c.tell(ctx, http.MethodDelete, "", map[string]string{"reason": reason})
}

// Assign gives a warm kernel to its owner. It returns when the kernel has its variables. A repeated call with the same
// Assignment does nothing; one with another ID fails.
func (c *Client) Assign(ctx context.Context, a Assignment) error {
	return c.tell(ctx, http.MethodPut, "/assignment", a)
}

// SetLimits changes the bound of the kernel's message log, in bytes.
func (c *Client) SetLimits(ctx context.Context, logLimit int64) error {
	return c.tell(ctx, http.MethodPut, "/limits", map[string]int64{"log_limit": logLimit})
}

// SetWaiting tells the supervisor why the kernel's container is missing or has ended. The supervisor ignores an older
// version without an error.
func (c *Client) SetWaiting(ctx context.Context, w Waiting) error {
	return c.tell(ctx, http.MethodPut, "/waiting", w)
}

// SetNodeNotice tells the supervisor why its kernel's node will go away soon; "" clears that. The same text is shown
// once, however often it is sent.
func (c *Client) SetNodeNotice(ctx context.Context, text string) error {
	return c.tell(ctx, http.MethodPut, "/node-notice", map[string]string{"text": text})
}

// SetSeat tells the supervisor of its kernel's turn at a GPU that pods share. An error means that it may have heard it.
func (c *Client) SetSeat(ctx context.Context, n SeatNews) error {
	return c.tell(ctx, http.MethodPut, "/seat", n)
}

// tell sends a request whose answer has no body.
func (c *Client) tell(ctx context.Context, method, route string, body any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	r, err := c.do(ctx, method, route, b, 0)
	if err != nil {
		return err
	}
	r.close()
	return nil
}

// response is an answered request and the connection that it came on.
type response struct {
	ctx       context.Context // the request's; its cause says why conn was closed
	conn      net.Conn
	body      io.ReadCloser
	unwatch   func() bool // stops ctx from closing conn
	silentFor time.Duration
}

func (r *response) close() {
	r.unwatch()
	_ = r.conn.Close()
}

// explain returns the cause of a read or write error.
func (r *response) explain(err error, what string) error {
	var timeout net.Error
	switch {
	case r.ctx.Err() != nil:
		return context.Cause(r.ctx)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("the supervisor was silent for %s: %w", r.silentFor, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// do sends one request and reads the answer's header. A status other than 2xx is an error. Silence, if not 0, is the
// deadline of the first read from the answer's body.
func (c *Client) do(ctx context.Context, method, route string, body []byte, silence time.Duration) (*response, error) {
	// The host is the kernel's id, as in the gateway's proxy. Dial knows the address.
	u := url.URL{Scheme: "http", Host: c.KernelID, Path: "/api/kernels/" + c.KernelID + route}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Close = true
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	if c.Request != "" {
		req.Header.Set(HeaderRequestID, c.Request)
	}
	conn, err := c.Dial(ctx)
	if err != nil {
		return nil, err
	}
	r := &response{ctx: ctx, conn: conn, silentFor: silence}
	r.unwatch = context.AfterFunc(ctx, func() { _ = conn.Close() })
	if silence > 0 {
		_ = conn.SetDeadline(time.Now().Add(silence))
	}
	if err := req.Write(conn); err != nil {
		r.close()
		return nil, r.explain(err, "request not sent")
	}
	limited := &io.LimitedReader{R: conn, N: maxResponseHeader}
	resp, err := http.ReadResponse(bufio.NewReaderSize(limited, 1<<10), req)
	if err != nil {
		r.close()
		return nil, r.explain(err, "no answer")
	}
	limited.N = math.MaxInt64
	if resp.StatusCode/100 != 2 {
		err := refusal(resp)
		r.close()
		return nil, err
	}
	r.body = resp.Body
	return r, nil
}

// refusal returns the error that an answer carries.
func refusal(resp *http.Response) error {
	var body struct{ Message string }
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err == nil {
		err = json.Unmarshal(b, &body)
	}
	if err != nil || body.Message == "" {
		return fmt.Errorf("the supervisor answered %d", resp.StatusCode)
	}
	return fmt.Errorf("the supervisor answered %d: %s", resp.StatusCode, PlainText(body.Message, maxPlain))
}

// ReadLine reads up to the next newline. A line longer than limit is an error. The slice is valid until the next call.
func ReadLine(r *bufio.Reader, limit int) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if err != bufio.ErrBufferFull {
		return line, endOf(line, err)
	}
	long := bytes.Clone(line)
	for err == bufio.ErrBufferFull {
		if len(long) > limit {
			return nil, fmt.Errorf("a line of more than %d bytes", limit)
		}
		line, err = r.ReadSlice('\n')
		long = append(long, line...)
	}
	return long, endOf(long, err)
}

// endOf reports an end of input within a line as io.ErrUnexpectedEOF.
func endOf(line []byte, err error) error {
	if err == io.EOF && len(line) > 0 {
		return io.ErrUnexpectedEOF
	}
	return err
}
