package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/transcript"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const (
	kernelA  = "0a1b2c3d-0000-4000-8000-00000000000a"
	kernelA2 = "0a1b2c3d-0000-4000-8000-00000000000b"
	kernelF  = "f0000000-0000-4000-8000-000000000000"
)

// fakeGateway serves the two routes that `ekg log` uses. Its log is a script: each step is one answer.
type fakeGateway struct {
	*httptest.Server
	kernels []string
	mu      sync.Mutex
	asked   []string // queries for the log, in order
	answers []func(w http.ResponseWriter, r *http.Request)
}

func newFakeGateway(t *testing.T, token string, kernels ...string) *fakeGateway {
	t.Helper()
	g := &fakeGateway{kernels: kernels}
	g.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refuse := func(status int, message string) {
			w.WriteHeader(status)
			_ = json.NewEncoder(w).Encode(map[string]string{"reason": "x", "message": message})
		}
		if token != "" && r.Header.Get("Authorization") != "token "+token {
			refuse(403, "Forbidden: the request has no valid token.")
			return
		}
		if r.URL.Path == "/base/api/kernels" {
			var all []listedKernel
			for _, id := range g.kernels {
				all = append(all, listedKernel{ID: id, Name: "python3", State: "idle"})
			}
			_ = json.NewEncoder(w).Encode(all)
			return
		}
		id, ok := strings.CutPrefix(r.URL.Path, "/base/api/kernels/")
		id, isLog := strings.CutSuffix(id, "/log")
		if !ok || !isLog || !slices.Contains(g.kernels, id) {
			refuse(404, "Kernel does not exist: it was shut down on request")
			return
		}
		g.mu.Lock()
		g.asked = append(g.asked, r.URL.RawQuery)
		if len(g.answers) == 0 {
			g.mu.Unlock()
			refuse(503, "Try again.")
			return
		}
		answer := g.answers[0]
		g.answers = g.answers[1:]
		g.mu.Unlock()
		answer(w, r)
	}))
	g.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	g.Start()
	t.Cleanup(g.Close)
	return g
}

func (g *fakeGateway) queries() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.asked)
}

// says returns an answer with these lines. It then ends, breaks off or stays open.
func says(how string, lines ...string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		for _, l := range lines {
			_, _ = io.WriteString(w, l+"\n")
		}
		_ = http.NewResponseController(w).Flush()
		switch how {
		case "breaks":
			panic(http.ErrAbortHandler)
		case "lasts":
			<-r.Context().Done()
		}
	}
}

// logLine makes a line of a kernel's log.
func logLine(number int, msgType string, content any) string {
	b, err := json.Marshal(
		map[string]any{
			"number":  number,
			"channel": "iopub",
			"header":  map[string]string{"msg_type": msgType},
			"content": content,
		},
	)
	if err != nil {
		panic(err)
	}
	return string(b)
}

type object = map[string]any

func stdout(number int, text string) string {
	return logLine(number, "stream", object{"name": "stdout", "text": text})
}

func TestLogCommand(t *testing.T) {
	clearEnvironment(t)
	lines := []string{stdout(1, "a\n"), `{"number":4,"lost":3}`, "", stdout(5, "b\n")}
	g := newFakeGateway(t, "canary", kernelA, kernelA2, kernelF)
	base := []string{"--gateway-url", g.URL + "/base/", "--token", "canary"}
	run := func(t *testing.T, args ...string) (int, string, string) {
		t.Helper()
		g.mu.Lock()
		g.asked, g.answers = nil, []func(http.ResponseWriter, *http.Request){says("ends", lines...)}
		g.mu.Unlock()
		return ekg(t, append(append([]string{"log"}, args...), base...)...)
	}
	t.Run("by the beginning of its id", func(t *testing.T) {
		code, out, errs := run(t, "f0")
		if code != 0 || out != "a\nb\n" || errs != "ekg: 3 messages up to number 4 are no longer kept\n" {
			t.Errorf("got %d %q %q", code, out, errs)
		}
	})
	t.Run("as JSON, flags in front", func(t *testing.T) {
		code, out, errs := run(t, "--json", "--after", "7", "--cell", "m 1", kernelA)
		if want := strings.Join([]string{lines[0], lines[1], lines[3], ""}, "\n"); code != 0 || out != want || errs != "" {
			t.Errorf("got %d %q %q", code, out, errs)
		}
		if got := g.queries(); !slices.Equal(got, []string{"after=7&parent=m+1"}) {
			t.Errorf("asked %q", got)
		}
	})
	t.Run("flags behind", func(t *testing.T) {
		if code, out, errs := run(t, "f0", "-f", "--after=2"); code != 0 || out != "a\nb\n" {
			t.Errorf("got %d %q %q", code, out, errs)
		}
		if got := g.queries(); !slices.Equal(got, []string{"after=2&follow=true"}) {
			t.Errorf("asked %q", got)
		}
	})
	t.Run("errors", func(t *testing.T) {
		both := fmt.Sprintf("%s (python3, idle), %s (python3, idle)", kernelA, kernelA2)
		for _, tt := range []struct {
			args []string
			code int
			want string
		}{
			{[]string{"0a"}, 1, `"0a" is the beginning of several kernels: ` + both},
			{[]string{"1"}, 1, `no kernel "1"; the kernels are: ` + both + ", " + kernelF + " (python3, idle)"},
			{[]string{"11111111-0000-4000-8000-000000000000"}, 1, g.URL +
				"/base/: Kernel does not exist: it was shut down on request"},
			{[]string{"f0", "--token", "wrong"}, 1, g.URL + "/base/: Forbidden: the request has no valid token."},
			{[]string{"f0", "--gateway-url", "localhost:8888"}, 1,
				`--gateway-url: "localhost:8888" is not a URL like http://host:port/`},
			{[]string{"f0", "--token-file", "/nope"}, 2, "--token: there is also --token-file: give one of them"},
			{[]string{}, 2, "ekg log: an argument is missing; see ekg log --help"},
			{[]string{""}, 2, "KERNEL is empty"},
			{[]string{"f0", "x"}, 2, `ekg log: unexpected argument "x"`},
			{[]string{"f0", "--after", "x"}, 2, `invalid value "x" for flag -after: parse error`},
		} {
			// The last of two equal flags wins.
			code, out, errs := ekg(t, append(append([]string{"log"}, base...), tt.args...)...)
			if code != tt.code || errs != "ekg: "+tt.want+"\n" || out != "" {
				t.Errorf("%v: got %d %q\nwant %q", tt.args, code, errs, tt.want)
			}
		}
		g.Config.SetKeepAlivesEnabled(false)
		code, _, errs := ekg(t, "log", "f0", "--gateway-url", "http://127.0.0.1:1/")
		if want := "ekg: http://127.0.0.1:1/: dial tcp 127.0.0.1:1: connect: connection refused\n"; code != 1 ||
			errs != want {
			t.Errorf("got %d %q", code, errs)
		}
	})
	t.Run("an answer that breaks off is gone on with as long as that brings something", func(t *testing.T) {
		again := "ekg: the connection broke, connecting again: " + g.URL + "/base/: unexpected EOF\n"
		for _, tt := range []struct {
			last      string
			code      int
			out, errs string
		}{
			{"ends", 0, "a\nb\n", again + "ekg: connected again\nekg: 3 messages up to number 4 are no longer kept\n"},
			{"breaks", 1, "a\n", again + "ekg: connected again\nekg: " + g.URL + "/base/: unexpected EOF\n"},
		} {
			behind := lines[1:]
			if tt.code != 0 {
				behind = nil
			}
			g.mu.Lock()
			g.answers = []func(http.ResponseWriter, *http.Request){says("breaks", lines[0]), says(tt.last, behind...)}
			g.mu.Unlock()
			code, out, errs := ekg(t, append([]string{"log", "f0"}, base...)...)
			if code != tt.code || out != tt.out || errs != tt.errs {
				t.Errorf("got %d %q %q", code, out, errs)
			}
		}
	})
	t.Run("by the environment", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, []byte("canary\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, env := range []map[string]string{
			{"EKG_GATEWAY_URL": g.URL + "/base", "EKG_TOKEN": "canary"},
			{"JUPYTER_GATEWAY_URL": g.URL + "/base/", "JUPYTER_GATEWAY_AUTH_TOKEN": "canary"},
			{"EKG_GATEWAY_URL": g.URL + "/base/?token=canary", "EKG_TOKEN": "of another"},
			{"EKG_GATEWAY_URL": g.URL + "/base/", "EKG_TOKEN_FILE": file},
		} {
			t.Run("", func(t *testing.T) {
				for name, value := range env {
					t.Setenv(name, value)
				}
				g.mu.Lock()
				g.answers = []func(http.ResponseWriter, *http.Request){says("ends", lines...)}
				g.mu.Unlock()
				if code, out, errs := ekg(t, "log", "f0"); code != 0 || out != "a\nb\n" {
					t.Errorf("%v: got %d %q %q", env, code, out, errs)
				}
			})
		}
	})
}

// TestLogCommand_Follow: a followed log continues after its gateway's death. No line is repeated or missing, and the
// command reports each event.
func TestLogCommand_Follow(t *testing.T) {
	clearEnvironment(t)
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	g := newFakeGateway(t, "", kernelF)
	defer g.Close()
	g.answers = []func(http.ResponseWriter, *http.Request){
		says("breaks", stdout(1, "a\n"), stdout(2, "b\n")),
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) },
		says("breaks", stdout(5, "c\n")),
		says("lasts", "", stdout(6, "d\n")),
	}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var out, errs transcript.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"ekg", "log", "-f", "f", "--gateway-url", g.URL + "/base"}, &out, &errs)
	}()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for out.String() != "a\nb\nc\nd\n" {
		select {
		case <-tick.C:
		case code := <-ended:
			t.Fatalf("ended with %d: %q, %q", code, &out, &errs)
		case <-deadline:
			t.Fatalf("printed %q, %q", &out, &errs)
		}
	}
	interrupt()
	if code := <-ended; code != 0 {
		t.Errorf("interrupted, it ended with %d", code)
	}
	broke := "ekg: the connection broke, connecting again: " + g.URL + "/base: unexpected EOF\nekg: connected again\n"
	if errs.String() != broke+broke {
		t.Errorf("said %q", &errs)
	}
	want := []string{"after=0&follow=true", "after=2&follow=true", "after=2&follow=true", "after=5&follow=true"}
	if got := g.queries(); !slices.Equal(got, want) {
		t.Errorf("asked %q", got)
	}
	t.Run("begins anew when the kernel has another log", func(t *testing.T) {
		named := func(name string, answer http.HandlerFunc) func(http.ResponseWriter, *http.Request) {
			return func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Ekg-Log", name)
				answer(w, r)
			}
		}
		before := len(g.queries())
		g.answers = []func(http.ResponseWriter, *http.Request){
			named("aaaa", says("breaks", stdout(1, "a\n"), stdout(2, "b\n"))),
			func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusConflict) },
			named("bbbb", says("breaks", stdout(1, "c\n"))),
			named("bbbb", says("", stdout(2, "d\n"))),
		}
		code, out, errs := ekg(t, "log", "-f", kernelF, "--gateway-url", g.URL+"/base")
		if code != 0 || out != "a\nb\nc\nd\n" || strings.Count(errs, "this is its new log\n") != 1 {
			t.Errorf("got %d %q %q", code, out, errs)
		}
		want := []string{
			"after=0&follow=true",
			"after=2&follow=true&log=aaaa",
			"after=0&follow=true",
			"after=1&follow=true&log=bbbb",
		}
		if got := g.queries()[before:]; !slices.Equal(got, want) {
			t.Errorf("asked %q", got)
		}
	})
	t.Run("until the kernel is gone", func(t *testing.T) {
		g.answers = []func(http.ResponseWriter, *http.Request){
			func(w http.ResponseWriter, r *http.Request) {
				g.mu.Lock()
				g.kernels = nil
				g.mu.Unlock()
				says("breaks", stdout(1, "a"))(w, r)
			},
		}
		code, out, errs := ekg(t, "log", kernelF, "-f", "--gateway-url", g.URL+"/base")
		if code != 1 || out != "a" || !strings.HasSuffix(errs, "Kernel does not exist: it was shut down on request\n") {
			t.Errorf("got %d %q %q", code, out, errs)
		}
	})
}

// TestLogReader_Quiet: the reader notices a frozen gateway or a connection that has vanished.
func TestLogReader_Quiet(t *testing.T) {
	g := newFakeGateway(t, "", kernelF)
	g.answers = []func(http.ResponseWriter, *http.Request){says("lasts", stdout(1, "a\n")), says("lasts")}
	var out, errs bytes.Buffer
	w := bufio.NewWriter(&out)
	l := &logReader{
		kernel:  kernelF,
		query:   map[string][]string{},
		out:     w,
		printer: &logPrinter{out: w},
		stderr:  &errs,
		quiet:   50 * time.Millisecond,
		find: func() ([]*gatewayClient, error) {
			c, err := newGatewayClient(g.URL+"/base", "", "")
			return []*gatewayClient{c}, err
		},
	}
	err := l.run(t.Context())
	if err == nil || !strings.HasSuffix(err.Error(), "no data arrived for 50ms") || out.String() != "a\n" {
		t.Errorf("got %v, printed %q", err, &out)
	}
}

func TestLogPrinter(t *testing.T) {
	plain := func(text string) object { return object{"data": object{"text/plain": text}} }
	long := strings.Repeat("x", 150)
	for _, tt := range []struct {
		name  string
		lines []string
		want  string
	}{
		{"streams as they are",
			[]string{stdout(1, "a\r"), stdout(2, "b"), logLine(3, "stream", object{"name": "stderr", "text": "c\n"})},
			"a\rbc\n"},
		{"a line that is not ended", []string{stdout(1, "50%"), logLine(2, "execute_result", plain("42")), stdout(3, "x")},
			"50%\n42\nx"},
		{"error", []string{logLine(1, "error",
			object{"ename": "E", "evalue": "v", "traceback": []string{"\x1b[31mTraceback\x1b[0m", "E: v"}})},
			"\x1b[31mTraceback\x1b[0m\nE: v\n"},
		{"error without traceback",
			[]string{logLine(1, "error", object{"ename": "E", "evalue": "v", "traceback": []string{}})}, "E: v\n"},
		{"a figure", []string{logLine(1, "display_data",
			object{"data": object{"text/plain": "<Figure>", "image/png": strings.Repeat("AAAA", 1024) + "\nAA==\n"}})},
			"<Figure> [image/png 3.0 KiB]\n"},
		{"a table", []string{logLine(1, "execute_result",
			object{"data": object{"text/plain": "a b\n1 2", "text/html": "<b>", "application/json": object{"a": 1}}})},
			"a b... [application/json 7 B, text/html 3 B, text/plain 7 B]\n"},
		{"a long line", []string{logLine(1, "execute_result", plain(long))}, long[:100] + "... [text/plain 150 B]\n"},
		{"no text", []string{logLine(1, "display_data", object{"data": object{"image/svg+xml": "<svg/>"}})},
			"[image/svg+xml 6 B]\n"},
		{"nothing", []string{logLine(1, "display_data", object{"data": object{}})}, "[empty]\n"},
		{"input", []string{logLine(1, "input_request", object{"prompt": "Name? ", "password": false})},
			"[waits for input: \"Name? \"]\n"},
		{"not for people", []string{logLine(1, "status", object{"execution_state": "idle"}), logLine(2, "comm_msg", object{}),
			logLine(3, "execute_reply", object{}),
			logLine(4, "execute_input", object{"code": "1"})}, ""},
		{"not what it says", []string{logLine(1, "stream", "x"), logLine(2, "error", 3), logLine(3, "display_data", nil),
			`{"number":4,"header":null}`}, "[empty]\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			w := bufio.NewWriter(&out)
			l := &logReader{out: w, printer: &logPrinter{out: w}}
			for _, line := range tt.lines {
				if err := l.print([]byte(line + "\n")); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Flush(); err != nil || out.String() != tt.want {
				t.Errorf("got %q, %v, want %q", out.String(), err, tt.want)
			}
		})
	}
}

func TestFlagsFirst(t *testing.T) {
	p := program(io.Discard, io.Discard)
	for _, tt := range [][2]string{
		{"ekg log K -f --cell M", "ekg log -f --cell M K"},
		{"ekg log --cell=M K --json x", "ekg log --cell=M --json K x"},
		{"ekg log K --cell", "ekg log --cell K"},
		{"ekg log K -- -f", "ekg log K -- -f"},
		{"ekg log - -f", "ekg log -f -"},
		{"ekg serve x --listen y", "ekg serve x --listen y"},
		{"ekg", "ekg"},
	} {
		if got := flagsFirst(p, strings.Fields(tt[0])); strings.Join(got, " ") != tt[1] {
			t.Errorf("%s: got %v", tt[0], got)
		}
	}
}

// TestServer_IsFound: commands with access to the state directory find a gateway as long as it runs.
func TestServer_IsFound(t *testing.T) {
	clearEnvironment(t)
	state, err := os.MkdirTemp("", "ekg") // t.TempDir's paths are too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(state) }()
	t.Setenv("EKG_STATE_DIR", state)
	// The file of a killed gateway is ignored.
	stale := filepath.Join(state, "gateway-1.json")
	if err := os.WriteFile(stale, []byte(`{"url":"http://127.0.0.1:1/","pid":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := ekg(t, "log", "x"); code != 1 ||
		!strings.HasPrefix(errs, "ekg: no gateway of this user runs here with the state directory "+state) {
		t.Errorf("got %d %q", code, errs)
	}
	for _, flags := range []map[string][]string{
		{},
		{"token": {"canary"}, "base-url": {"/base"}},
		{"no-auth": {"true"}},
		{"listen": {"unix:" + filepath.Join(state, "gw.sock")}},
	} {
		flags["state-dir"] = []string{state}
		r := start(t, &fakeLauncher{kernels: []launcher.Kernel{{ID: kernelF, SpecName: "r", State: api.Idle}}}, flags)
		own := filepath.Join(state, fmt.Sprintf("gateway-%d.json", os.Getpid()))
		info, err := os.Stat(own)
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%v: the file is %v, %v", flags, info, err)
		}
		if _, err := os.Stat(stale); err == nil {
			t.Error("the file of one that was killed is still there")
		}
		code, _, errs := ekg(t, "log", "nope")
		if want := "ekg: no kernel \"nope\"; the kernels are: " + kernelF + " (r, idle)\n"; code != 1 || errs != want {
			t.Errorf("%v: got %d %q", flags, code, errs)
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(own); err == nil {
			t.Error("the file is still there")
		}
	}
	if err := os.WriteFile(stale, []byte(`{}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := ekg(t, "log", "x"); code != 1 || !strings.Contains(errs, "not this user's alone") {
		t.Errorf("of a file that others can read: got %d %q", code, errs)
	}
	// A bad file does not prevent another gateway from running, nor from being found.
	r := start(t, &fakeLauncher{kernels: []launcher.Kernel{{ID: kernelF, SpecName: "r", State: api.Idle}}},
		map[string][]string{"state-dir": {state}})
	if code, _, errs := ekg(t, "log", "nope"); code != 1 || !strings.Contains(errs, kernelF) {
		t.Errorf("beside a file that others can read: got %d %q", code, errs)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

// TestServer_EndsLogs: a gateway that ends does not wait for clients that follow a log.
func TestServer_EndsLogs(t *testing.T) {
	dir, err := os.MkdirTemp("", "ekg") // t.TempDir's paths are too long
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	supervisor := &http.Server{Handler: http.HandlerFunc(says("lasts", stdout(1, "a")))}
	done := make(chan error, 1)
	go func() { done <- supervisor.Serve(l) }()
	defer func() {
		_ = supervisor.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	fake := &fakeLauncher{
		kernels: []launcher.Kernel{{ID: kernelF, State: api.Idle}},
		dial: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", l.Addr().String())
		},
	}
	r := start(t, fake, map[string][]string{"no-auth": {"true"}})
	c, err := newGatewayClient(r.url.String(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	resp, err := c.get(t.Context(), "api/kernels/"+kernelF+"/log", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	began := time.Now()
	if err := r.stop(); err != nil || time.Since(began) > finishRequests/2 {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	if _, err := io.ReadAll(resp.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the log ended with %v", err)
	}
}
