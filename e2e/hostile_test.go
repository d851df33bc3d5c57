//go:build e2e

package e2e

import (
	"bufio"
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
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/gorilla/websocket"
)

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

// TestE2E_Hostile: each hostile request ends in a clear error, or in the end of its connection. A kernel in use is not
// disturbed. Afterwards the gateway has no more goroutines and files than before.
func TestE2E_Hostile(t *testing.T) {
	raiseFiles(t)
	metrics := freeAddress(t, "127.0.0.1")
	g := prepare(
		t,
		"",
		"--allow-origin",
		"https://good.com",
		"--metrics-listen",
		metrics,
		"--log-level",
		"debug",
		"--audit-log",
		"-",
	)
	outside := g.resources()
	g.start()
	id := g.kernel("python3")
	healthy := g.dial(t, id, "healthy", true)
	healthy.says("x = 41", "")
	before := g.held(metrics)
	beat := g.pulse(healthy)

	slow := g.slowClients(g.kernel("fake"))
	for name, attack := range map[string]func(*gateway){
		"sizes": (*gateway).sizes, "paths": (*gateway).paths, "framing": (*gateway).framing, "origins": (*gateway).origins,
		"variables": (*gateway).variables, "websockets": func(g *gateway) { g.badFrames(id) },
	} {
		t.Run(name, func(t *testing.T) {
			mine := *g
			mine.t = t
			attack(&mine)
		})
	}
	t.Run("names of others", rebinding)
	t.Run("idle connections", idle)
	slow()

	beat()
	healthy.t = t
	healthy.says("print(x + 1)", "42\n")
	var all []model
	g.want(200, "GET", "/api/kernels", "", &all)
	for _, m := range all {
		if m.ID != id {
			g.want(204, "DELETE", "/api/kernels/"+m.ID, "", nil)
		}
	}
	g.eventually(30*time.Second, "as many goroutines and open files as before", func() error {
		if now := g.held(metrics); now[0] > before[0]+8 || now[1] > before[1]+8 {
			return fmt.Errorf("%v, %v before", now, before)
		}
		return nil
	})
	if b, err := os.ReadFile(outside); err != nil || string(b) != outsideText {
		t.Errorf("%s holds %q: %v", outside, b, err)
	}
	if _, err := os.Stat("/tmp/hostile"); err == nil {
		t.Error("a shell has read a variable")
	}
	g.wholeLines()
}

// raiseFiles raises the limit of open files for this process and its children.
func raiseFiles(t *testing.T) {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	limit.Max = max(limit.Max, idleConnections+2000) // only root may exceed the hard limit
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatalf(
			"this machine does not allow the %d open files that %d connections take: %v",
			limit.Max,
			idleConnections,
			err,
		)
	}
}

// held returns the numbers of goroutines and of open files of the gateway.
func (g *gateway) held(metrics string) [2]int {
	g.t.Helper()
	resp, err := http.Get("http://" + metrics + "/metrics")
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	n := 0
	if _, err := fmt.Sscanf(string(regexp.MustCompile(`(?m)^go_goroutines (\d+)$`).Find(b)), "go_goroutines %d",
		&n); err != nil {
		g.t.Fatalf("no go_goroutines: %v", err)
	}
	return [2]int{n, g.descriptors()}
}

// pulse runs cells and lists kernels until the returned function is called. Each of them must succeed within a short
// time.
func (g *gateway) pulse(c *client) (stop func()) {
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ; n++ {
			select {
			case <-end:
				g.t.Logf("%d cells were run meanwhile", n)
				return
			default:
			}
			began := time.Now()
			cell := c.begin(fmt.Sprintf("print(%d + x)", n))
			text, idle := "", false
			for deadline := time.After(2 * promptly); !idle; {
				select {
				case m, ok := <-c.got:
					if !ok {
						g.t.Errorf("the healthy session has ended: %v", c.failed)
						return
					}
					if m.Parent.MsgID == cell && m.Header.MsgType == "stream" {
						text += m.field("text")
					}
					idle = m.Parent.MsgID == cell && m.field("execution_state") == "idle"
				case <-deadline:
					g.t.Errorf("a cell has not ended within %v", 2*promptly)
					return
				}
			}
			if want := fmt.Sprintf("%d\n", n+41); text != want {
				g.t.Errorf("a cell printed %q, not %q", text, want)
			}
			if took := time.Since(began); took > promptly {
				g.t.Errorf("a cell took %v", took)
			}
			began = time.Now()
			if status, b, err := g.tryAsk("GET", "/api/kernels", ""); err != nil || status != 200 ||
				time.Since(began) > promptly {
				g.t.Errorf("a list took %v: %d %s %v", time.Since(began), status, b, err)
			}
		}
	}()
	return func() { close(end); <-done }
}

// raw sends text on a new connection and returns all data until the gateway closes it. The text must make the gateway
// do so.
func (g *gateway) raw(text string) string {
	g.t.Helper()
	conn, err := net.Dial("tcp", g.addr)
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(slowHead + promptly)); err != nil {
		g.t.Fatal(err)
	}
	go io.WriteString(conn, text) //nolint:errcheck // the gateway may hang up before it has read everything
	b, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		g.t.Errorf("%.100q: the connection is not ended", text)
	}
	return string(b)
}

// refusedWith checks that the answer to a raw request has this status and a reason. Go's server rejects text that is
// not HTTP, in plain text.
func (g *gateway) refusedWith(status int, text string) {
	g.t.Helper()
	got := g.raw(text)
	resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(got)), nil)
	if err != nil {
		g.t.Errorf("%.100q: %v in %.200q", text, err, got)
		return
	}
	body, _ := io.ReadAll(resp.Body) // as much as the connection delivered
	var e struct{ Reason, Message string }
	plain := strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain") && resp.Header.Get("X-Request-Id") == ""
	if err := json.Unmarshal(body, &e); resp.StatusCode != status ||
		!plain && (err != nil || e.Reason == "" || e.Message == "") {
		g.t.Errorf("%.100q: got %d %.300s, want %d", text, resp.StatusCode, body, status)
	}
}

// head returns the beginning of a request with the token. The connection ends after the request.
func (g *gateway) head(method, target string) string {
	return method + " " + target + " HTTP/1.1\r\nHost: " + g.addr + "\r\nConnection: close\r\nAuthorization: token " +
		g.token + "\r\n"
}

// slowClients begins requests and never ends them. The returned function waits until the gateway has ended each of them
// in time.
func (g *gateway) slowClients(id string) (wait func()) {
	var all sync.WaitGroup
	post := "POST /api/kernels HTTP/1.1\r\nHost: " + g.addr + "\r\nContent-Length: 1000\r\n"
	auth := "Authorization: token " + g.token + "\r\n"
	ws := "GET /api/kernels/" + id + "/channels HTTP/1.1\r\nHost: " + g.addr +
		"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " +
		"dGhlIHNhbXBsZSBub25jZQ==\r\n"
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
		"chunked body": {100, strings.Replace(post, "Content-Length: 1000", "Transfer-Encoding: chunked", 1) + auth +
			"\r\n", "1\r\n \r\n", slowBody},
		"body nobody asked for": {100, strings.Replace(post, "POST /api/kernels ", "GET /healthz ", 1) + "\r\n", " ",
			slowBody},
		"frame": {20, ws + auth + "\r\n\x81\xfe\x10\x00abcd", "", slowSocket},
	} {
		for range slow.n {
			all.Go(func() {
				conn, err := net.Dial("tcp", g.addr)
				if err != nil {
					g.t.Errorf("%s: %v", what, err)
					return
				}
				defer func() { _ = conn.Close() }()
				began := time.Now()
				stop := time.AfterFunc(slow.limit, func() { _ = conn.Close() })
				defer stop.Stop()
				drip := time.NewTicker(time.Second)
				defer drip.Stop()
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					_, _ = io.Copy(io.Discard, conn) // until the gateway or stop closes the connection
				}()
				_, err = io.WriteString(conn, slow.text)
				for err == nil {
					select {
					case <-ended:
						err = io.EOF
					case <-drip.C:
						_, err = io.WriteString(conn, slow.drip)
					}
				}
				<-ended
				if time.Since(began) >= slow.limit {
					g.t.Errorf("a slow %s still holds its connection after %v", what, slow.limit)
				}
			})
		}
	}
	return all.Wait
}

// sizes sends requests that exceed each limit of size.
func (g *gateway) sizes() {
	x := strings.Repeat("x", 100<<10)
	post := func(path, body string) string {
		return g.head("POST", path) + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
	}
	var headers, env strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&headers, "X-%d: y\r\n", i)
	}
	for i := range 100000 {
		fmt.Fprintf(&env, `"KERNEL_%d":"",`, i)
	}
	for text, status := range map[string]int{
		g.head("GET", "/"+x) + "\r\n": 431, g.head("GET", "/api?token="+x) + "\r\n": 431, g.head("GET", "/api") + "X: " + x +
			"\r\n\r\n": 431, g.head("GET", "/api") + headers.String() + "\r\n": 431,
		post("/api/kernels", strings.Repeat(" ", 10<<20+
			1)): 413,
		post("/api/kernels", strings.Repeat(`{"env":`,
			200000)): 400,
		post("/api/kernels", strings.Repeat("[",
			5<<20)): 400,
		post("/api/kernels", `{"env":{"KERNEL_X":[`+strings.Repeat("0,", 4<<20)+
			`0]}}`): 400,
		post("/api/kernels", `{"env":{`+env.String()+
			`"KERNEL_X":"x"}}`): 400,
		post("/api/kernels", `{"env":{"KERNEL_X":"`+x+
			`"}}`): 400,
		post("/api/kernels", `{"name":"`+strings.Repeat("<", 5<<20)+
			`"}`): 404,
		post("/api/sessions", `{"type":"notebook","path":"`+x+
			`"}`): 400,
		strings.Replace(post("/api/kernels", "{}"), "Content-Length: 2", "Content-Length: 99999999999", 1) +
			strings.Repeat(" ", 11<<20): 413,
	} {
		g.refusedWith(status, text)
	}
}

const outsideText = "what lies outside"

// resources writes a kernelspec with links out of its folder. It returns the file that they lead to.
func (g *gateway) resources() (outside string) {
	g.t.Helper()
	g.spec("linked", "/bin/true", "{connection_file}")
	outside = filepath.Join(g.dir, "outside.txt")
	dir := filepath.Join(g.dir, "specs", "linked")
	err := errors.Join(
		os.WriteFile(outside, []byte(outsideText), 0o600),
		os.WriteFile(filepath.Join(dir, "logo-svg.svg"), []byte("<svg/>"), 0o600),
		os.Symlink(outside, filepath.Join(dir, "logo-out.svg")),
		os.Symlink("../..", filepath.Join(dir, "up")),
	)
	if err != nil {
		g.t.Fatal(err)
	}
	return outside
}

// paths requests files outside the kernelspec's folder, and kernels and sessions with invalid ids.
func (g *gateway) paths() {
	if got := g.raw(g.head("GET", "/kernelspecs/linked/logo-svg.svg") + "\r\n"); !strings.HasSuffix(got, "<svg/>") {
		g.t.Errorf("what may be had: got %q", got)
	}
	for _, file := range []string{"../../outside.txt", "%2e%2e/%2e%2e/outside.txt", "..%2f..%2foutside.txt",
		"..%2F..%2Foutside.txt", "%252e%252e/outside.txt", "..%5c..%5coutside.txt", "..\\..\\outside.txt", "up/outside.txt",
		"logo-out.svg", "up",
		"logo-svg.svg%00.png", "logo-svg.svg%00", "%00", "./logo-svg.svg", "logo-svg.svg/", "/" + g.dir + "/outside.txt",
		strings.ReplaceAll(g.dir, "/", "%2f") + "%2foutside.txt", "..;/..;/outside.txt", "%c0%ae%c0%ae/outside.txt", "\xff",
		"%0d%0aX:%20y", ""} {
		g.refusedWith(404, g.head("GET", "/kernelspecs/linked/"+file)+"\r\n")
	}
	for _, name := range []string{"..", "%2e%2e", "..%2fspecs%2flinked", "linked%00", "linked%2f..", "%0a", "LINKED%20"} {
		g.refusedWith(404, g.head("GET", "/kernelspecs/"+name+"/logo-svg.svg")+"\r\n")
		g.refusedWith(404, g.head("GET", "/api/kernelspecs/"+name)+"\r\n")
	}
	for _, id := range []string{"..", "%2e%2e", "..%2f..", "%00", "a%0d%0aX:%20y", "5EC2E700-0000-4000-8000-000000000001",
		"{5ec2e700-0000-4000-8000-000000000001}", "5ec2e700000040008000000000000001", "%1b[31m", strings.Repeat("a", 5000),
		"..%2foutside.txt"} {
		for _, method := range []string{"GET", "DELETE", "PATCH"} {
			g.refusedWith(404, g.head(method, "/api/sessions/"+id)+"Content-Length: 2\r\n\r\n{}")
			g.refusedWith(404, g.head(method, "/api/kernels/"+id)+"Content-Length: 2\r\n\r\n{}")
		}
		body := fmt.Sprintf(`{"name":"python3","kernel_id":%q}`, id)
		g.refusedWith(400, g.head("POST", "/api/kernels")+fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body))
	}
}

// framing sends requests whose end is ambiguous. Each is followed by text that would have a visible effect if it were
// taken for a request.
func (g *gateway) framing() {
	id := g.kernel("fake")
	post := "POST /api/kernels/" + id + "/interrupt HTTP/1.1\r\nHost: " + g.addr + "\r\nAuthorization: token " + g.token +
		"\r\n"
	evil := "DELETE /api/kernels/" + id + " HTTP/1.1\r\nHost: " + g.addr +
		"\r\nConnection: close\r\nAuthorization: token " + g.token + "\r\n\r\n"
	n := len(evil)
	for _, text := range []string{
		post + fmt.Sprintf("Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", n+5) + evil,
		post + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + evil,
		post + fmt.Sprintf("Content-Length: 0\r\nContent-Length: %d\r\n\r\n", n) + evil,
		post + "Transfer-Encoding: xchunked\r\n\r\n" + evil,
		post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n" + evil,
		post + fmt.Sprintf("Content-Length : %d\r\n\r\n", n) + evil,
		post + fmt.Sprintf("Connection: close\r\nContent-Length:\r\n %d\r\n\r\n", n) + evil,
		post + fmt.Sprintf("X: y\r\n Transfer-Encoding: chunked\r\nConnection: close\r\nContent-Length: %d\r\n\r\n", n) +
			evil,
		strings.ReplaceAll(post, "\r\n", "\n") + fmt.Sprintf("Connection: close\nContent-Length: %d\n\n", n) + evil,
		post + "X: y\x00z\r\n\r\n" + evil, post + "X: y\rz\r\n\r\n" + evil, post + "Host: evil.com\r\n\r\n" + evil,
	} {
		got := g.raw(text)
		if strings.Count(got, "HTTP/1.1 ") != 1 ||
			strings.Contains(got, "HTTP/1.1 5") && !strings.HasPrefix(got, "HTTP/1.1 501") {
			g.t.Errorf("%.300q: got %.500q", strings.TrimPrefix(text, post), got)
		}
		g.want(200, "GET", "/api/kernels/"+id, "", nil)
	}
	g.want(204, "DELETE", "/api/kernels/"+id, "", nil)
}

// origins sends requests of foreign web pages.
func (g *gateway) origins() {
	upgrade := "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " +
		"dGhlIHNhbXBsZSBub25jZQ==\r\n"
	var all []model
	g.want(200, "GET", "/api/kernels", "", &all)
	for _, origin := range []string{"https://good.com.evil.com", "https://good.com@evil.com", "https://evil.com", "null",
		"", "https://good.com:443", "https://good.com.", "http://good.com", "https://good.com/", "https://xgood.com",
		"https://g\xc3\xb3od.com",
		"https://xn--good-.com", "HTTPS://GOOD.COM.EVIL.COM", "https://good.com:8443", "//good.com", "http://" + g.addr +
			".evil.com", "http://x@" + g.addr, "https://evil.com#https://good.com"} {
		for _, path := range []string{"/api/kernels", "/api/kernels/" + all[0].ID + "/channels"} {
			text := g.head("GET", path) + "Origin: " + origin + "\r\n"
			if strings.HasSuffix(path, "/channels") {
				text = strings.Replace(text, "Connection: close\r\n", "", 1) + upgrade
			}
			got := g.raw(text + "\r\n" + g.head("GET", "/api") + "\r\n")
			if !strings.HasPrefix(got, "HTTP/1.1 403 ") || strings.Contains(got, "Access-Control-Allow-Origin") {
				g.t.Errorf("origin %q of %s: got %.300q", origin, path, got)
			}
		}
	}
	if got := g.raw(g.head("GET", "/api/kernels") + "Origin: https://GOOD.com\r\n\r\n"); !strings.HasPrefix(
		got,
		"HTTP/1.1 200 ",
	) ||
		!strings.Contains(got, "Access-Control-Allow-Origin: https://GOOD.com\r\n") {
		g.t.Errorf("the origin that is allowed: got %.300q", got)
	}
}

// rebinding sends requests with foreign host names to a gateway without a token. In DNS rebinding such names resolve to
// 127.0.0.1.
func rebinding(t *testing.T) {
	g := newGatewayWithout(t)
	for _, host := range []string{"evil.com", "evil.com:8888", "localhost.evil.com", "127.0.0.1.evil.com", "localhost.",
		"0.0.0.0", "[::]", "2130706433", "0x7f.1", "192.168.0.1", ""} {
		for _, path := range []string{"/api", "/api/kernels", "/healthz", "/nothing"} {
			g.refusedWith(403, "GET "+path+" HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n")
		}
		body := `{"name":"fake"}`
		g.refusedWith(
			403,
			fmt.Sprintf(
				"POST /api/kernels HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
				host,
				len(body),
				body,
			),
		)
		if host == "" {
			continue
		}
		g.refusedWith(403, "GET http://"+host+"/api/kernels HTTP/1.1\r\nHost: "+g.addr+"\r\nConnection: close\r\n\r\n")
	}
	for _, host := range []string{g.addr, "localhost:1", "[::1]"} {
		if got := g.raw("GET /api/kernels HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"); !strings.HasPrefix(
			got,
			"HTTP/1.1 200 ",
		) {
			t.Errorf("host %s: got %.300q", host, got)
		}
	}
	g.want(200, "GET", "/api/kernels", "", &[]model{})
}

// variables starts kernels with values that mean something to other programs, and with invalid names.
func (g *gateway) variables() {
	id := g.startWith("python3", "5ec2e700-0000-4000-8000-000000000002", hostileValues)
	c := g.dial(g.t, id, "s", true)
	c.finds(hostileValues)
	g.want(204, "DELETE", "/api/kernels/"+id, "", nil)
	for _, name := range []string{"KERNEL_A B", "KERNEL_A=B", "KERNEL_A\x00", "KERNEL_A\n", "KERNEL_\u00fc", "KERNEL_$(X)",
		"KERNEL_A-B", "KERNEL_A;B"} {
		body, err := json.Marshal(map[string]any{"name": "fake", "env": map[string]string{name: "x"}})
		if err != nil {
			g.t.Fatal(err)
		}
		g.refusedWith(400, g.head("POST", "/api/kernels")+fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body))
	}
	id = g.startWith(
		"python3",
		"5ec2e700-0000-4000-8000-000000000003",
		map[string]string{"LD_PRELOAD": "/x", "EKG_TOKEN": "x", "PATH": "/x", "JPY_PARENT_PID": "1", "": "x", "=": "x"},
	)
	c = g.dial(g.t, id, "s", true)
	c.says(
		"import os\nprint(os.environ.get('LD_PRELOAD'), os.environ.get('EKG_TOKEN'), os.environ['PATH'] == '/x', "+
			"os.environ.get('JPY_PARENT_PID'))",
		"None None False None\n",
	)
	g.want(204, "DELETE", "/api/kernels/"+id, "", nil)
}

// badFrames sends invalid frames to a kernel's websocket. Each ends its own connection only.
func (g *gateway) badFrames(id string) {
	mask := "\x00\x00\x00\x00"
	for what, bad := range map[string]struct {
		frame string
		codes []int
	}{
		"not masked":              {"\x81\x02{}", []int{1002}},
		"a reserved bit":          {"\xc1\x82" + mask + "{}", []int{1002}},
		"a reserved kind":         {"\x83\x80" + mask, []int{1002}},
		"a ping in pieces":        {"\x09\x80" + mask, []int{1002}},
		"a ping that is too long": {"\x89\xfe\x00\x80" + mask + strings.Repeat("x", 128), []int{1002}},
		"more than there can be":  {"\x81\xff\xff\xff\xff\xff\xff\xff\xff\xff" + mask, []int{1002, 1009}},
		"the rest of nothing":     {"\x80\x80" + mask, []int{1002}},
		"a close with no code":    {"\x88\x82" + mask + "\x00\x01", []int{1002}},
		"no JSON":                 {"\x81\x81" + mask + "{", []int{1007}},
		"no UTF-8":                {"\x81\x82" + mask + "\xff\xfe", []int{1002, 1007}},
		"no message":              {"\x81\x82" + mask + "{}", []int{1007, 0}},
		"no binary message":       {"\x82\x84" + mask + "\xff\xff\xff\xff", []int{1007}},
		"deep JSON":               {"\x81\xfe\xff\xff" + mask + strings.Repeat("[", 65535), []int{1007}},
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
				g.t.Errorf("%s: the websocket goes on", what)
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
		t.Errorf("a connection that says nothing takes %d bytes, want at most %d", each, idleMemory)
	}
	g.idleWebsockets()
	g.eventually(slowHead, "they are ended", func() error {
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
		ws, resp, err := websocket.DefaultDialer.Dial(
			strings.Replace(g.url, "http", "ws", 1)+"/api/kernels/"+ids[i%kernels]+fmt.Sprintf("/channels?session_id=%d", i),
			http.Header{"Authorization": {"token " + g.token}},
		)
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
	g.t.Logf(
		"%d websockets in %v, %d refused: %d bytes each",
		open,
		time.Since(began).Round(time.Millisecond),
		refused,
		each,
	)
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

// wholeLines checks that a log holds only complete lines of its own program.
func (g *gateway) wholeLines() {
	g.t.Helper()
	logs, err := filepath.Glob(filepath.Join(g.dir, "state/*/*/supervisor.log"))
	if err != nil {
		g.t.Fatal(err)
	}
	lines := 0
	for _, file := range append(logs, g.log) {
		b, err := os.ReadFile(file)
		if err != nil {
			g.t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			line, lines = strings.TrimSuffix(line, "\n"), lines+1
			whole := strings.HasPrefix(line, "time=") || strings.HasPrefix(line, "{") && json.Valid([]byte(line)) ||
				strings.HasPrefix(line, "ekg is ready at ")
			if !whole || strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) ||
				strings.Contains(line, g.token) {
				g.t.Errorf("%s has the line %q", file, line)
			}
		}
	}
	if lines < 1000 {
		g.t.Errorf("there are %d lines: the test proves nothing", lines)
	}
}
