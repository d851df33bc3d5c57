package client

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

const (
	kernelA  = "0a1b2c3d-0000-4000-8000-00000000000a"
	kernelA2 = "0a1b2c3d-0000-4000-8000-00000000000b"
	kernelF  = "f0000000-0000-4000-8000-000000000000"
)

// fakeGateway serves the two routes that `ekg log` uses. Its log is a script: each step is one answer.
type fakeGateway struct {
	*httptest.Server
	kernels    []string
	mu         sync.Mutex
	logQueries []string // queries for the log, in order
	answers    []func(w http.ResponseWriter, r *http.Request)
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
		g.logQueries = append(g.logQueries, r.URL.RawQuery)
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
	return slices.Clone(g.logQueries)
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
	b, err := json.Marshal(object{
		"number": number, "channel": "iopub", "header": object{"msg_type": msgType}, "content": content,
	})
	if err != nil {
		panic(err)
	}
	return string(b)
}

type object = map[string]any

func stdout(number int, text string) string {
	return logLine(number, "stream", object{"name": "stdout", "text": text})
}
