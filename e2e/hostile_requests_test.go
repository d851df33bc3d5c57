//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// This file has the hostile requests of TestE2E_Hostile: their sizes, paths, framing, origins, hosts and variables.

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
	endless := strings.Replace(post("/api/kernels", "{}"), "Content-Length: 2", "Content-Length: 99999999999", 1)
	for text, status := range map[string]int{
		g.head("GET", "/"+x) + "\r\n":                     431,
		g.head("GET", "/api?token="+x) + "\r\n":           431,
		g.head("GET", "/api") + "X: " + x + "\r\n\r\n":    431,
		g.head("GET", "/api") + headers.String() + "\r\n": 431,

		post("/api/kernels", strings.Repeat(" ", 10<<20+1)):                             413,
		post("/api/kernels", strings.Repeat(`{"env":`, 200000)):                         400,
		post("/api/kernels", strings.Repeat("[", 5<<20)):                                400,
		post("/api/kernels", `{"env":{"KERNEL_X":[`+strings.Repeat("0,", 4<<20)+`0]}}`): 400,
		post("/api/kernels", `{"env":{`+env.String()+`"KERNEL_X":"x"}}`):                400,
		post("/api/kernels", `{"env":{"KERNEL_X":"`+x+`"}}`):                            400,
		post("/api/kernels", `{"name":"`+strings.Repeat("<", 5<<20)+`"}`):               404,
		post("/api/sessions", `{"type":"notebook","path":"`+x+`"}`):                     400,

		endless + strings.Repeat(" ", 11<<20): 413,
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
	err := errors.Join(os.WriteFile(outside, []byte(outsideText), 0o600),
		os.WriteFile(filepath.Join(dir, "logo-svg.svg"), []byte("<svg/>"), 0o600),
		os.Symlink(outside, filepath.Join(dir, "logo-out.svg")), os.Symlink("../..", filepath.Join(dir, "up")))
	if err != nil {
		g.t.Fatal(err)
	}
	return outside
}

// paths requests files outside the kernelspec's folder, and kernels and sessions with invalid ids.
func (g *gateway) paths() {
	if got := g.raw(g.head("GET", "/kernelspecs/linked/logo-svg.svg") + "\r\n"); !strings.HasSuffix(got, "<svg/>") {
		g.t.Errorf("a file of the kernelspec: got %q", got)
	}
	for _, file := range []string{
		"../../outside.txt", "%2e%2e/%2e%2e/outside.txt", "..%2f..%2foutside.txt", "..%2F..%2Foutside.txt",
		"%252e%252e/outside.txt", "..%5c..%5coutside.txt", "..\\..\\outside.txt", "..;/..;/outside.txt",
		"%c0%ae%c0%ae/outside.txt", "up/outside.txt", "up", "logo-out.svg",
		"/" + g.dir + "/outside.txt", strings.ReplaceAll(g.dir, "/", "%2f") + "%2foutside.txt",
		"logo-svg.svg%00.png", "logo-svg.svg%00", "./logo-svg.svg", "logo-svg.svg/",
		"%00", "\xff", "%0d%0aX:%20y", "",
	} {
		g.refusedWith(404, g.head("GET", "/kernelspecs/linked/"+file)+"\r\n")
	}
	for _, name := range []string{"..", "%2e%2e", "..%2fspecs%2flinked", "linked%00", "linked%2f..", "%0a", "LINKED%20"} {
		g.refusedWith(404, g.head("GET", "/kernelspecs/"+name+"/logo-svg.svg")+"\r\n")
		g.refusedWith(404, g.head("GET", "/api/kernelspecs/"+name)+"\r\n")
	}
	for _, id := range []string{
		"..", "%2e%2e", "..%2f..", "..%2foutside.txt", "%00", "a%0d%0aX:%20y", "%1b[31m", strings.Repeat("a", 5000),
		"5EC2E700-0000-4000-8000-000000000001", "{5ec2e700-0000-4000-8000-000000000001}",
		"5ec2e700000040008000000000000001",
	} {
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
	for _, origin := range []string{
		"https://evil.com", "https://good.com.evil.com", "HTTPS://GOOD.COM.EVIL.COM", "https://good.com@evil.com",
		"https://evil.com#https://good.com", "https://xgood.com", "https://g\xc3\xb3od.com", "https://xn--good-.com",
		"https://good.com:443", "https://good.com:8443", "https://good.com.", "https://good.com/",
		"http://good.com", "//good.com", "http://" + g.addr + ".evil.com", "http://x@" + g.addr, "null", "",
	} {
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
	got := g.raw(g.head("GET", "/api/kernels") + "Origin: https://GOOD.com\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 200 ") ||
		!strings.Contains(got, "Access-Control-Allow-Origin: https://GOOD.com\r\n") {
		g.t.Errorf("the allowed origin: got %.300q", got)
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
		g.refusedWith(403, fmt.Sprintf("POST /api/kernels HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n"+
			"Content-Length: %d\r\n\r\n%s", host, len(body), body))
		if host == "" {
			continue
		}
		g.refusedWith(403, "GET http://"+host+"/api/kernels HTTP/1.1\r\nHost: "+g.addr+"\r\nConnection: close\r\n\r\n")
	}
	for _, host := range []string{g.addr, "localhost:1", "[::1]"} {
		got := g.raw("GET /api/kernels HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n")
		if !strings.HasPrefix(got, "HTTP/1.1 200 ") {
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
	id = g.startWith("python3", "5ec2e700-0000-4000-8000-000000000003",
		map[string]string{"LD_PRELOAD": "/x", "EKG_TOKEN": "x", "PATH": "/x", "JPY_PARENT_PID": "1", "": "x", "=": "x"})
	c = g.dial(g.t, id, "s", true)
	c.says(`import os
print(os.environ.get('LD_PRELOAD'), os.environ.get('EKG_TOKEN'))
print(os.environ['PATH'] == '/x', os.environ.get('JPY_PARENT_PID'))`, "None None\nFalse None\n")
	g.want(204, "DELETE", "/api/kernels/"+id, "", nil)
}
