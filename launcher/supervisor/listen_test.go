package supervisor

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/listener"
)

// TestServe_TLS runs a supervisor as it runs in a pod: TLS with the kernel's own key, and a token for every request.
func TestServe_TLS(t *testing.T) {
	seed := bytes.Repeat([]byte{7}, 32)
	dir := t.TempDir()
	cfg := api.Config{
		KernelID:       testKernelID,
		Argv:           []string{"/nonexistent"},
		WorkingDir:     dir,
		Transport:      "tcp",
		InterruptMode:  "signal",
		Listen:         "tcp:127.0.0.1:0",
		TLSSeed:        seed,
		Token:          "secret",
		ConnectionFile: filepath.Join(dir, "c"),
		EndFile:        filepath.Join(dir, "e"),
		LogLimit:       1 << 20,
		DeadLinger:     testLimit,
		RunDir:         dir,
	}
	l, err := listener.Open(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, New(cfg, "test", slog.New(slog.DiscardHandler)), l) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	get := func(seed []byte, token string) (int, error) {
		conf, err := api.PinnedTLS(seed, testKernelID)
		if err != nil {
			t.Fatal(err)
		}
		tr := &http.Transport{
			DisableKeepAlives: true,
			DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&tls.Dialer{Config: conf}).DialContext(ctx, "tcp", l.Addr().String())
			},
		}
		req, err := http.NewRequest("GET", "https://"+testKernelID+"/api/kernels/"+testKernelID, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := tr.RoundTrip(req)
		if err != nil {
			return 0, err
		}
		_ = resp.Body.Close()
		return resp.StatusCode, nil
	}
	for _, tc := range []struct {
		name, token string
		want        int
	}{{"right token", "secret", 200}, {"wrong token", "Secret", 401}, {"no token", "", 401}} {
		if got, err := get(seed, tc.token); got != tc.want || err != nil {
			t.Errorf("%s: %d, %v", tc.name, got, err)
		}
	}
	if _, err := get(bytes.Repeat([]byte{8}, 32), "secret"); err == nil {
		t.Error("another kernel's key was accepted")
	}
}

func TestListen_Refuses(t *testing.T) {
	for name, cfg := range map[string]api.Config{
		"tcp without a token":   {Listen: "tcp:127.0.0.1:0", TLSSeed: make([]byte, 32)},
		"tcp without a seed":    {Listen: "tcp:127.0.0.1:0", Token: "x"},
		"neither":               {Listen: "127.0.0.1:80"},
		"socket path too long":  {Listen: "unix:/tmp/" + string(bytes.Repeat([]byte("x"), 120))},
		"folder does not exist": {Listen: "unix:/nonexistent/s"},
	} {
		if l, err := listener.Open(&cfg); err == nil {
			_ = l.Close()
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestListen_SocketIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for range 2 { // the second replaces the socket of the first
		l, err := listener.Open(&api.Config{Listen: "unix:" + path})
		if err != nil {
			t.Fatal(err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		defer func() { _ = l.Close() }()
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if st.Mode().Perm() != 0o600 {
			t.Errorf("mode is %v", st.Mode().Perm())
		}
	}
}

func TestReadConfig(t *testing.T) {
	for name, tc := range map[string]string{
		"unknown key":    `{"protocol":1,"gpu":1}`,
		"other protocol": `{"protocol":99,"kernel_id":"x","argv":["x"],"transport":"tcp","interrupt_mode":"signal","log_limit":1}`,
		"no argv":        `{"protocol":1,"kernel_id":"x","transport":"tcp","interrupt_mode":"signal","log_limit":1}`,
		"bad transport":  `{"protocol":1,"kernel_id":"x","argv":["x"],"transport":"udp","interrupt_mode":"signal","log_limit":1}`,
		"not JSON":       `{`,
	} {
		path := filepath.Join(t.TempDir(), "c.json")
		if err := os.WriteFile(path, []byte(tc), 0o600); err != nil {
			t.Fatal(err)
		}
		if c, err := api.ReadConfig(path); err == nil {
			t.Errorf("%s: accepted as %+v", name, c)
		}
	}
}
