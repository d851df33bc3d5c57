package gateway

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

func TestKernelspecs_Models(t *testing.T) {
	g := startGateway(t, func(o *Options) { o.BaseURL = "/gw" })
	const r = `{"name":"r","spec":{"argv":[],"env":{},"display_name":"R","language":"R",` +
		`"interrupt_mode":"signal","metadata":{}},"resources":{}}`
	list := g.do("GET", "/gw/api/kernelspecs?user=ann", "").want(t, 200, `"default":"python3"`)
	for _, want := range []string{`"r":` + r, `"metadata":{"debugger":true}`} {
		if !strings.Contains(list.body, want) {
			t.Errorf("list has no %s: %s", want, list.body)
		}
	}
	for _, path := range []string{
		"/gw/api/kernelspecs/r", "/gw/api/kernelspecs?user=ann/r", "/gw/api/kernelspecs?user=a/b/r",
	} {
		if got := g.do("GET", path, "").want(t, 200, "").body; got != r+"\n" {
			t.Errorf("%s: got %s", path, got)
		}
	}
	g.do("GET", "/gw/api/kernelspecs/none", "").want(t, 404, "Kernel spec none not found")
	g.do("GET", "/gw/api/kernelspecs?user=ann/none", "").want(t, 404, "")
}

// A kernelspec that the operator's list leaves out is in no list, and cannot be started.
func TestKernelspecs_Allowed(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"Shown", "hidden"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "kernel.json"),
			[]byte(`{"argv": ["x"], "display_name": "X", "language": "x"}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	finder, err := kernelspecs.Open(kernelspecs.Options{Dirs: []string{dir}, Allowed: []string{"sHown", "absent"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = finder.Close() })
	g := startGateway(t, func(o *Options) { o.Specs = finder })
	list := g.do("GET", "/api/kernelspecs", "").want(t, 200, `"shown"`)
	if strings.Contains(list.body, "hidden") || !strings.Contains(list.body, `"default":"shown"`) {
		t.Errorf("the list is %s", list.body)
	}
	g.do("GET", "/api/kernelspecs/hidden", "").want(t, 404, "Kernel spec hidden not found")
	g.do("POST", "/api/kernels", `{"name":"hidden"}`).want(t, 404, "Kernel spec hidden not found")
	g.do("POST", "/api/kernels", `{"name":"shown"}`).want(t, 201, `"name":"shown"`)
}

// The real finder, because only it knows resources and keeps files inside the spec's directory.
func TestKernelspecs_Files(t *testing.T) {
	data := t.TempDir()
	dir := filepath.Join(data, "kernels", "my.spec")
	for name, text := range map[string]string{
		"kernel.json": `{"argv": ["x"], "display_name": "X", "language": "x"}`, "logo-64x64.png": "png", "kernel.js": "js",
		"sub/a.odd":        "a",
		"../../secret.txt": "outside",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../../secret.txt", filepath.Join(dir, "logo-link.txt")); err != nil {
		t.Fatal(err)
	}
	finder, err := kernelspecs.Open(kernelspecs.Options{Dirs: []string{filepath.Join(data, "kernels")},
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = finder.Close() })
	g := startGateway(t, func(o *Options) { o.Specs, o.BaseURL = finder, "/gw" })

	m := decode[specModel](t, g.do("GET", "/gw/api/kernelspecs/My.Spec", ""))
	if m.Resources["logo-64x64"] != "/gw/kernelspecs/my.spec/logo-64x64.png" || m.Resources["kernel.js"] == "" {
		t.Errorf("resources: %v", m.Resources)
	}
	for path, want := range map[string]string{"logo-64x64.png": "image/png", "sub/a.odd": "application/octet-stream"} {
		r := g.do("GET", "/gw/kernelspecs/my.spec/"+path, "").want(t, 200, "")
		if got := r.Header.Get("Content-Type"); got != want {
			t.Errorf("%s: Content-Type is %q, want %q", path, got, want)
		}
	}
	for _, path := range []string{
		"none.png", "../../secret.txt", "..%2f..%2fsecret.txt", "%2e%2e/%2e%2e/secret.txt", "logo-link.txt", "sub",
		"/etc/passwd",
		"%2fetc%2fpasswd", "sub/../kernel.json", "kernel.json%00.png", "./kernel.js", "",
	} {
		if r := g.do("GET", "/gw/kernelspecs/my.spec/"+path, "").want(t, 404, ""); strings.Contains(r.body, "outside") {
			t.Errorf("%s: %s", path, r.body)
		}
	}
}

func TestStatus(t *testing.T) {
	g := startGateway(t, nil)
	g.fake.add(idA, "python3", launcherIdle)
	g.do("GET", "/api", "").want(t, 200, `"version":"1.2.3"`)
	g.do("GET", "/api/status", "").want(t, 200, `"kernels":1`)
	g.do("GET", "/healthz", "").want(t, 200, "ok")
	g.do("GET", "/readyz", "").want(t, 503, "")
	g.SetReady(true)
	g.do("GET", "/readyz", "").want(t, 200, "ok")
	g.SetReady(false)
	g.do("GET", "/readyz", "").want(t, 503, "")
	g.do("GET", "/api/me", "").want(t, 200, `"username":"anonymous"`)
	g.do("GET", `/api/me?permissions={"kernels":["execute","fly"],"contents":["read"]}`, "").
		want(t, 200, `"permissions":{"contents":[],"kernels":["execute"]}`)
	g.do("GET", `/api/me?permissions=[]`, "").want(t, 400, "permissions should be a JSON dict of ")
}
