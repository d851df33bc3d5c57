package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// rawConn is a client's connection on which a test writes whatever it likes.
type rawConn struct {
	net.Conn
	t testing.TB
	r *bufio.Reader
}

// dialRaw connects to the gateway. All that the test does on the connection has to be done within 20 s.
func (g *testGateway) dialRaw() *rawConn {
	g.t.Helper()
	conn, err := net.Dial("tcp", g.http.Listener.Addr().String())
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = conn.Close() }) // it may be closed already
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		g.t.Fatal(err)
	}
	return &rawConn{conn, g.t, bufio.NewReader(conn)}
}

func (c *rawConn) send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.t.Fatal(err)
	}
}

// answers reads answers until the connection ends, and returns their statuses.
func (c *rawConn) answers() (statuses []int) {
	c.t.Helper()
	for {
		resp, err := http.ReadResponse(c.r, nil)
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				c.t.Errorf("the connection is still open after %d answers", len(statuses))
			}
			return statuses
		}
		statuses = append(statuses, resp.StatusCode)
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			c.t.Errorf("answer %d: %v", len(statuses), err)
		}
	}
}

// Without a deadline net/http would wait endlessly for the body of a request that was refused, or that no handler
// reads.
func TestRequest_BodyThatNeverComes(t *testing.T) {
	g := startGateway(t, nil)
	g.Gateway.bodies.time = 300 * time.Millisecond
	g.fake.add(idA, "python3", launcherIdle)
	for _, rt := range append(g.routes(), route{method: "POST", pattern: "/nothing"},
		route{method: "PUT", pattern: "/api/kernels"}) {
		for name, head := range map[string]string{
			"length":  "Content-Length: 10\r\n\r\n{",
			"chunked": "Transfer-Encoding: chunked\r\n\r\n5\r\n{",
		} {
			for _, token := range []string{"", "Authorization: token " + testToken + "\r\n"} {
				if token != "" && rt.method == http.MethodDelete {
					continue // it would be served
				}
				t.Run(fmt.Sprint(rt.method, rt.path(), " ", name, token != ""), func(t *testing.T) {
					t.Parallel()
					c := g.dialRaw()
					c.t = t
					c.send(rt.method + " " + rt.path() + " HTTP/1.1\r\nHost: x\r\n" + token + head)
					if got := c.answers(); len(got) > 1 {
						t.Errorf("one request has the answers %v", got)
					}
				})
			}
		}
	}
}

// A body that is long in coming must not look like a client that went away, nor cost a slow start its time.
func TestRequest_BodyThatComesLate(t *testing.T) {
	g := startGateway(t, nil)
	g.Gateway.bodies.time = 300 * time.Millisecond
	g.Gateway.answerTime = 300 * time.Millisecond
	g.fake.newState = api.Starting
	const id = idUnknown
	slow := time.AfterFunc(900*time.Millisecond, func() { g.fake.set(id, api.Idle, "") }) // longer than both
	defer slow.Stop()
	body := `{"kernel_id":"` + id + `"}`
	c := g.dialRaw()
	c.send(fmt.Sprintf("POST /api/kernels HTTP/1.1\r\nHost: x\r\nAuthorization: token %s\r\nExpect: "+
		"100-continue\r\nContent-Length: %d\r\n\r\n", testToken, len(body)))
	if resp, err := http.ReadResponse(c.r, nil); err != nil || resp.StatusCode != http.StatusContinue {
		t.Fatalf("%v, %v", resp, err)
	}
	c.send(body)
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil || resp.StatusCode != http.StatusCreated {
		t.Fatalf("%v, %v", resp, err)
	}
	if b, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(b), `"idle"`) {
		t.Errorf("%s, %v", b, err)
	}
	c.send("GET /api/kernels HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: token " + testToken + "\r\n\r\n")
	if got := c.answers(); len(got) != 1 || got[0] != http.StatusOK {
		t.Errorf("the next request on the connection: %v", got)
	}
}

// The gateway stops writing to a client that sends requests and never reads.
func TestRequest_UnreadAnswers(t *testing.T) {
	g := startGateway(t, nil)
	g.Gateway.answerTime = 300 * time.Millisecond
	c := g.dialRaw()
	many := strings.Repeat("GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n", 1000)
	for {
		_, err := io.WriteString(c, many)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			t.Fatal("the gateway still waits for a client that does not read")
		case err != nil:
			return
		}
	}
}

// Bytes after a request with both framings, or with an ambiguous framing, are not a request: not of the gateway,
// and not of a supervisor.
func TestRequest_Smuggling(t *testing.T) {
	g := startGateway(t, nil)
	super := g.fake.add(idA, "python3", launcherIdle)
	evil := "DELETE /api/kernels/" + idA + " HTTP/1.1\r\nHost: x\r\nAuthorization: token " + testToken + "\r\n\r\n"
	head := "POST /api/kernels/" + idA + "/interrupt HTTP/1.1\r\nHost: x\r\nAuthorization: token " + testToken + "\r\n"
	chunk := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(evil), evil)
	for name, text := range map[string]string{
		"length and chunked": head +
			fmt.Sprintf("Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n", 5+len(evil)) + "0\r\n\r\n" + evil,
		"chunked and length": head + fmt.Sprintf("Transfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n", 5) +
			"0\r\n\r\n" + evil,
		"body in a chunk":   head + "Transfer-Encoding: chunked\r\n\r\n" + chunk,
		"two lengths":       head + fmt.Sprintf("Content-Length: 0\r\nContent-Length: %d\r\n\r\n", len(evil)) + evil,
		"a list of lengths": head + fmt.Sprintf("Content-Length: 0, %d\r\n\r\n", len(evil)) + evil,
		"a sign":            head + "Content-Length: +0\r\n\r\n" + evil,
		"chunked twice": head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" +
			evil,
		"identity":                 head + "Transfer-Encoding: identity\r\n\r\n" + evil,
		"xchunked":                 head + "Transfer-Encoding: xchunked\r\nContent-Length: 0\r\n\r\n" + evil,
		"a space before the colon": head + fmt.Sprintf("Content-Length : %d\r\n\r\n", len(evil)) + evil,
		"folded": head +
			"X: y\r\n Transfer-Encoding: chunked\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" + evil,
		"folded length": head + fmt.Sprintf("Content-Length:\r\n %d\r\n\r\n", len(evil)) + evil,
		"bare line feeds": strings.ReplaceAll(head, "\r\n", "\n") +
			fmt.Sprintf("Content-Length: %d\nConnection: close\n\n", len(evil)) + evil,
		"a bare carriage return":   head + "X: y\rContent-Length: 0\r\n\r\n" + evil,
		"a NUL":                    head + "X: y\x00\r\n\r\n" + evil,
		"a chunk's size too large": head + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n" + evil,
		"a chunk without end":      head + "Transfer-Encoding: chunked\r\n\r\n2\r\nabX\r\n" + evil,
		"an upgrade with a body": strings.Replace(head, "/interrupt", "/channels", 1) +
			"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " +
			"dGhlIHNhbXBsZSBub25jZQ==\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + evil,
		"h2c": strings.Replace(head, "POST", "GET", 1) +
			"Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\nPRI * " +
			"HTTP/2.0\r\n\r\nSM\r\n\r\n" + evil,
		"another version": strings.Replace(head, "HTTP/1.1", "HTTP/1.0", 1) +
			fmt.Sprintf("Transfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n", len(evil)) + evil,
		"a request in the path": "POST /api/kernels/" + idA +
			"/interrupt%20HTTP/1.1%0d%0aX:%20y HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: token " + testToken +
			"\r\n\r\n",
		"a request in a header": strings.Replace(head, "\r\n",
			"\r\nAccept: x\\r\\n\\r\\nDELETE / HTTP/1.1\r\nConnection: close\r\n", 1) + "\r\n",
		"a request in the query": strings.Replace(head, "/interrupt",
			"/log?log=x%20HTTP/1.1%0d%0a%0d%0aDELETE%20/%20HTTP/1.1", 1) + "Connection: close\r\n\r\n",
		"an absolute target":       strings.Replace(head, "POST /", "POST http://y/", 1) + "Connection: close\r\n\r\n",
		"two hosts":                head + "Host: y\r\n\r\n" + evil,
		"a header that is no name": head + "X Y: z\r\n\r\n" + evil,
		"a trailer with a length": head +
			"Transfer-Encoding: chunked\r\nTrailer: Content-Length\r\n\r\n0\r\nContent-Length: 0\r\n\r\n" + evil,
		"a space before the method": " " + head + "\r\n" + evil,
	} {
		t.Run(name, func(t *testing.T) {
			before := len(super.requests())
			c := g.dialRaw()
			c.t = t
			c.send(text)
			if half, ok := c.Conn.(*net.TCPConn); ok {
				_ = half.CloseWrite() // the gateway may have hung up
			}
			if got := c.answers(); len(got) > 1 || len(got) == 1 && got[0] >= http.StatusInternalServerError &&
				got[0] != http.StatusNotImplemented && got[0] != http.StatusHTTPVersionNotSupported {
				t.Errorf("got the answers %v", got)
			}
			if len(g.fake.stopped()) > 0 {
				t.Fatal("the kernel was stopped")
			}
			for _, sent := range super.requests()[before:] {
				if !strings.HasPrefix(sent, "POST /api/kernels/"+idA+"/interrupt host=") || strings.Contains(sent, "DELETE /api") {
					t.Errorf("the supervisor was sent %s", sent)
				}
			}
		})
	}
}
