package client

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/transcript"
)

func TestLogCommand(t *testing.T) {
	clearEnvironment(t)
	lines := []string{stdout(1, "a\n"), `{"number":4,"lost":3}`, "", stdout(5, "b\n")}
	g := newFakeGateway(t, "canary", kernelA, kernelA2, kernelF)
	base := []string{"--gateway-url", g.URL + "/base/", "--token", "canary"}
	run := func(t *testing.T, args ...string) (int, string, string) {
		t.Helper()
		g.mu.Lock()
		g.logQueries, g.answers = nil, []func(http.ResponseWriter, *http.Request){says("ends", lines...)}
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
			t.Errorf("sent the queries %q", got)
		}
	})
	t.Run("flags behind", func(t *testing.T) {
		if code, out, errs := run(t, "f0", "-f", "--after=2"); code != 0 || out != "a\nb\n" {
			t.Errorf("got %d %q %q", code, out, errs)
		}
		if got := g.queries(); !slices.Equal(got, []string{"after=2&follow=true"}) {
			t.Errorf("sent the queries %q", got)
		}
	})
	t.Run("errors", func(t *testing.T) {
		both := fmt.Sprintf("%s (python3, idle), %s (python3, idle)", kernelA, kernelA2)
		for _, tt := range []struct {
			args []string
			code int
			want string
		}{
			{[]string{"0a"}, 1, `the ids of several kernels begin with "0a": ` + both},
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
	t.Run("a broken answer is continued as long as each attempt prints something", func(t *testing.T) {
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
		ended <- Program{}.Run(ctx, []string{"ekg", "log", "-f", "f", "--gateway-url", g.URL + "/base"}, &out, &errs)
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
		t.Errorf("ended with %d after an interrupt", code)
	}
	broke := "ekg: the connection broke, connecting again: " + g.URL + "/base: unexpected EOF\nekg: connected again\n"
	if errs.String() != broke+broke {
		t.Errorf("said %q", &errs)
	}
	want := []string{"after=0&follow=true", "after=2&follow=true", "after=2&follow=true", "after=5&follow=true"}
	if got := g.queries(); !slices.Equal(got, want) {
		t.Errorf("sent the queries %q", got)
	}
	t.Run("starts from the beginning when the kernel has another log", func(t *testing.T) {
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
			t.Errorf("sent the queries %q", got)
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
