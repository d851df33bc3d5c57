//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// This file has the hostile connections of TestE2E_Hostile: slow ones, idle ones, and websockets with invalid frames.

// Bounds of the gateway's memory for each idle connection, in bytes, and of the time that a slow client may hold one.
const (
	idleConnections = 10000
	idleMemory      = 32 << 10
	idleWebsockets  = 2000
	socketMemory    = 192 << 10

	slowHead   = 10*time.Second + slack // gateway.ReadHeaderTimeout
	slowBody   = 30*time.Second + slack // the gateway's limit for a body
	slowSocket = 45*time.Second + slack // the supervisor's limit for a silent peer
	slack      = 10 * time.Second       // for a busy machine
	promptly   = 5 * time.Second        // limit for all other clients
)

// slowClients begins requests and never ends them. The returned function waits until the gateway has ended each of them
// in time.
func (g *gateway) slowClients(id string) (wait func()) {
	var all sync.WaitGroup
	post := "POST /api/kernels HTTP/1.1\r\nHost: " + g.addr + "\r\nContent-Length: 1000\r\n"
	auth := "Authorization: token " + g.token + "\r\n"
	ws := "GET /api/kernels/" + id + "/channels HTTP/1.1\r\nHost: " + g.addr +
		"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " +
		"dGhlIHNhbXBsZSBub25jZQ==\r\n"
	chunked := strings.Replace(post, "Content-Length: 1000", "Transfer-Encoding: chunked", 1)
	healthz := strings.Replace(post, "POST /api/kernels ", "GET /healthz ", 1)
	for what, slow := range map[string]struct {
		n     int
		text  string
		drip  string // sent once a second
		limit time.Duration
	}{
		"head":                {300, "GET /api HTTP/1.1\r\nX-Slow: ", "x", slowHead},
		"head of a websocket": {100, ws, "X: y\r\n", slowHead},
		"body":                {100, post + auth + "\r\n{", " ", slowBody},
		"body without token":  {100, post + "\r\n{", " ", slowBody},
		"chunked body":        {100, chunked + auth + "\r\n", "1\r\n \r\n", slowBody},
		"body of a GET":       {100, healthz + "\r\n", " ", slowBody},
		"frame":               {20, ws + auth + "\r\n\x81\xfe\x10\x00abcd", "", slowSocket},
	} {
		for range slow.n {
			all.Go(func() { g.slowClient(what, slow.text, slow.drip, slow.limit) })
		}
	}
	return all.Wait
}

// slowClient sends the beginning of a request, and then drip once a second, until the gateway ends the connection.
func (g *gateway) slowClient(what, text, drip string, limit time.Duration) {
	conn, err := net.Dial("tcp", g.addr)
	if err != nil {
		g.t.Errorf("%s: %v", what, err)
		return
	}
	defer func() { _ = conn.Close() }()
	began := time.Now()
	stop := time.AfterFunc(limit, func() { _ = conn.Close() })
	defer stop.Stop()
	second := time.NewTicker(time.Second)
	defer second.Stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, conn) // until the gateway or stop closes the connection
	}()
	_, err = io.WriteString(conn, text)
	for err == nil {
		select {
		case <-ended:
			err = io.EOF
		case <-second.C:
			_, err = io.WriteString(conn, drip)
		}
	}
	<-ended
	if time.Since(began) >= limit {
		g.t.Errorf("a slow %s still holds its connection after %v", what, limit)
	}
}

// badFrames sends invalid frames to a kernel's websocket. Each ends its own connection only.
func (g *gateway) badFrames(id string) {
	mask := "\x00\x00\x00\x00"
	for what, bad := range map[string]struct {
		frame string
		codes []int
	}{
		"an unmasked frame":            {"\x81\x02{}", []int{1002}},
		"a reserved bit":               {"\xc1\x82" + mask + "{}", []int{1002}},
		"a reserved opcode":            {"\x83\x80" + mask, []int{1002}},
		"a fragmented ping":            {"\x09\x80" + mask, []int{1002}},
		"a ping that is too long":      {"\x89\xfe\x00\x80" + mask + strings.Repeat("x", 128), []int{1002}},
		"an impossible length":         {"\x81\xff\xff\xff\xff\xff\xff\xff\xff\xff" + mask, []int{1002, 1009}},
		"a continuation of no message": {"\x80\x80" + mask, []int{1002}},
		"a close with an invalid code": {"\x88\x82" + mask + "\x00\x01", []int{1002}},
		"invalid JSON":                 {"\x81\x81" + mask + "{", []int{1007}},
		"invalid UTF-8":                {"\x81\x82" + mask + "\xff\xfe", []int{1002, 1007}},
		"JSON that is not a message":   {"\x81\x82" + mask + "{}", []int{1007, 0}},
		"an invalid binary message":    {"\x82\x84" + mask + "\xff\xff\xff\xff", []int{1007}},
		"deep JSON":                    {"\x81\xfe\xff\xff" + mask + strings.Repeat("[", 65535), []int{1007}},
	} {
		ws, err := g.connectWith(g.t.Context(), id, url.Values{"session_id": {"bad"}}, "", 20*time.Second)
		if err != nil {
			g.t.Fatal(err)
		}
		_ = ws.SetReadDeadline(time.Now().Add(promptly)) // a connection that has already ended is found below
		if _, err := io.WriteString(ws.NetConn(), bad.frame); err != nil {
			g.t.Errorf("%s: %v", what, err)
		}
		for err == nil {
			_, _, err = ws.ReadMessage()
		}
		var end *websocket.CloseError
		var late net.Error
		switch {
		case errors.As(err, &late) && late.Timeout():
			if bad.codes[len(bad.codes)-1] != 0 {
				g.t.Errorf("%s: the websocket is still open", what)
			}
		case !errors.As(err, &end):
			g.t.Errorf("%s: ended with %v", what, err)
		case !bytes.Contains(fmt.Append(nil, bad.codes), fmt.Append(nil, end.Code)) || end.Text == "":
			g.t.Errorf("%s: ended with %d %q, want %v and a reason", what, end.Code, end.Text, bad.codes)
		}
		_ = ws.Close() // it may already be closed
	}
}

// idle holds thousands of idle connections to a released gateway. Each takes little memory, and other clients can still
// connect.
func idle(t *testing.T) {
	bin, err := released()
	if err != nil {
		t.Fatal(err)
	}
	g := prepare(t, "idle")
	g.in.bin = bin
	g.start()
	g.spec("fake", filepath.Join(theInstallation(t).bin, "kernel"), "-f", "{connection_file}")
	before := memory(t, g.cmd.Process.Pid)
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close() // the gateway has closed it
		}
	}()
	began := time.Now()
	for range idleConnections {
		c, err := net.Dial("tcp", g.addr)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	g.want(200, "GET", "/api/kernels", "", &[]model{})
	each := (memory(t, g.cmd.Process.Pid) - before) / idleConnections
	t.Logf("%d connections in %v: %d bytes each", idleConnections, time.Since(began).Round(time.Millisecond), each)
	if each > idleMemory {
		t.Errorf("an idle connection takes %d bytes, want at most %d", each, idleMemory)
	}
	g.idleWebsockets()
	g.eventually(slowHead, "most connections are closed", func() error {
		if n := g.descriptors(); n > idleConnections/2 {
			return fmt.Errorf("%d files are open", n)
		}
		return nil
	})
}

// idleWebsockets opens more websockets than a kernel accepts. The ones above the bound are rejected with a reason.
func (g *gateway) idleWebsockets() {
	const kernels = 8
	var ids []string
	for range kernels {
		ids = append(ids, g.kernel("fake"))
	}
	before := memory(g.t, g.cmd.Process.Pid)
	began, open, refused := time.Now(), 0, 0
	for i := range idleWebsockets {
		address := fmt.Sprintf("ws://%s/api/kernels/%s/channels?session_id=%d", g.addr, ids[i%kernels], i)
		header := http.Header{"Authorization": {"token " + g.token}}
		ws, resp, err := websocket.DefaultDialer.Dial(address, header)
		if err == nil {
			defer func() { _ = ws.Close() }()
			open++
			continue
		}
		var e struct{ Reason, Message string }
		if resp == nil || resp.StatusCode != 503 || json.NewDecoder(resp.Body).Decode(&e) != nil || e.Message == "" {
			g.t.Fatalf("websocket %d: %v %v", i, err, resp)
		}
		refused++
	}
	each := (memory(g.t, g.cmd.Process.Pid) - before) / int64(open)
	g.t.Logf("%d websockets in %v, %d rejected: %d bytes each",
		open, time.Since(began).Round(time.Millisecond), refused, each)
	if open != kernels*64 || each > socketMemory {
		g.t.Errorf("%d websockets are open, and take %d bytes each, want at most %d", open, each, socketMemory)
	}
	g.want(200, "GET", "/api/kernels/"+ids[0], "", nil)
}

// memory returns the resident memory of a process, in bytes.
func memory(t *testing.T, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		t.Fatal(err)
	}
	return resident * int64(os.Getpagesize())
}
