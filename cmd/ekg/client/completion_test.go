package client

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// The shell asks for words at each press of the key: that changes no kernel.
func TestComplete(t *testing.T) {
	clearEnvironment(t)
	const list = `[{"id": "` + kernelA + `"}, {"id": "` + kernelF + `"}, {"id": "$(reboot)"}]`
	var mu sync.Mutex
	var changes []string // guarded by mu
	g := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && r.URL.Path == "/api/kernels" {
			_, _ = w.Write([]byte(list))
			return
		}
		mu.Lock()
		defer mu.Unlock()
		changes = append(changes, r.Method+" "+r.URL.Path)
	}))
	t.Cleanup(g.Close)
	ids := []string{kernelA, kernelF}
	for _, tt := range []struct {
		typed string // GATEWAY is the flag with the gateway's URL
		want  []string
		not   bool // the gateway in JUPYTER_GATEWAY_URL does not answer
	}{
		{typed: "stop", want: ids},
		{typed: "stop f0 --", want: []string{"--config", "--gateway-url", "--output", "--state-dir", "--token",
			"--token-file"}},
		{typed: "stop -- f0", want: ids},
		{typed: "restart f0 -- x", want: ids},
		{typed: "start --", want: []string{"--config", "--env", "--flavor", "--gateway-url", "--output", "--state-dir",
			"--token", "--token-file", "--wait"}},
		{typed: "start -- python3"},
		{typed: "stop --out", want: []string{"--output"}},
		{typed: "stop f0 --token-", want: []string{"--token-file"}},
		{typed: "stop f0 --gateway-url"},
		{typed: "log -", want: []string{"--after", "--cell", "--config", "-f", "--follow", "--gateway-url", "--json",
			"--state-dir", "--token", "--token-file"}},
		{typed: "log --follow", want: ids},
		{typed: "stop f0 GATEWAY", want: ids, not: true},
		{typed: "stop GATEWAY f0 -o name", want: ids, not: true},
		{typed: "stop f0", not: true},
		{typed: "completion", want: []string{"bash", "zsh", "fish"}},
	} {
		t.Run(tt.typed, func(t *testing.T) {
			address := g.URL
			if tt.not {
				address = "http://127.0.0.1:1"
			}
			t.Setenv("JUPYTER_GATEWAY_URL", address)
			words := strings.Fields(strings.ReplaceAll(tt.typed, "GATEWAY", "--gateway-url="+g.URL))
			code, out, errs := ekg(t, append(words, completionFlag)...)
			if got := strings.Fields(out); code != 0 || errs != "" || !slices.Equal(sorted(got), sorted(tt.want)) {
				t.Errorf("%d %q %q; want %q", code, got, errs, tt.want)
			}
		})
	}
	mu.Lock()
	defer mu.Unlock()
	if len(changes) > 0 {
		t.Errorf("the gateway got %q", changes)
	}
}

func sorted(words []string) []string { return slices.Sorted(slices.Values(words)) }
