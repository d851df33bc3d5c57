package client

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// specServer answers as a gateway with two kernelspecs and a token.
func specServer(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "token right-token-of-this-user":
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"message":"Forbidden: no valid token."}`))
		case r.URL.Path == "/api/kernelspecs":
			_, _ = w.Write([]byte(`{"kernelspecs":{"python3":{"spec":{"display_name":"Python 3","language":"python",` +
				`"metadata":{"debugger":true,"ekg":{"gpus":1}}}},"r":{"spec":{"display_name":"R","language":"R"}}}}`))
		default:
			_, _ = w.Write([]byte(`[]`))
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// command runs a command line with a home of its own.
func command(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	p := Program{Commands: nil}
	p.Commands = append(p.Commands, KernelspecCommand(FlagsOfSpecs()))
	code = p.Run(t.Context(), append([]string{"ekg"}, args...), &out, &errs)
	return code, out.String(), errs.String()
}

// TestKernelspecAdd: a kernelspec of a gateway is written, listed, replaced and removed. One that ekg has not written
// stays, wherever Jupyter looks. The token is in none, and a gateway serves none.
func TestKernelspecAdd(t *testing.T) {
	url := specServer(t)
	home := t.TempDir()
	for name, value := range map[string]string{"HOME": home, "XDG_CONFIG_HOME": "", "XDG_DATA_HOME": "",
		"XDG_STATE_HOME": "", "JUPYTER_DATA_DIR": "", "JUPYTER_PATH": filepath.Join(home, "other"), "PATH": "",
		"VIRTUAL_ENV": "", "CONDA_PREFIX": "", "EKG_TOKEN": "", "EKG_TOKEN_FILE": "",
		"JUPYTER_GATEWAY_AUTH_TOKEN": "another-gateway's", "EKG_GATEWAY_URL": url} {
		t.Setenv(name, value)
	}
	if code, _, errs := command(t, "kernelspec", "add", "r"); code != 1 || !strings.Contains(errs, "no valid token") {
		t.Errorf("without a token: %d %s", code, errs)
	}
	if code, _, errs := command(t, "login", url+"?token=wrong"); code != 1 || !strings.Contains(errs, "no valid token") {
		t.Errorf("a wrong token: %d %s", code, errs)
	}
	if code, _, errs := command(t, "login", url+"/?token=right-token-of-this-user"); code != 0 {
		t.Fatal(errs)
	}
	tokens := filepath.Join(home, ".config", "ekg", "tokens.json")
	if info, err := os.Stat(tokens); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	kernels := filepath.Join(home, ".local", "share", "jupyter", "kernels")
	added := func(want string) {
		t.Helper()
		if code, out, errs := command(t, "kernelspec", "list", "--added"); code != 0 ||
			strings.Join(strings.Fields(out), " ") != "NAME KERNELSPEC GATEWAY"+want {
			t.Errorf("%d %q %s", code, out, errs)
		}
	}
	for range 2 { // the second replaces the first
		code, out, errs := command(t, "kernelspec", "add", "python3", "--name", "GPU", "--env", "KERNEL_GPUS=1",
			"--on-exit", "keep")
		if code != 0 || out != filepath.Join(kernels, "gpu", "kernel.json")+"\n" || errs != "" {
			t.Fatalf("%d %q %s", code, out, errs)
		}
	}
	added(" gpu python3 " + url)
	text, err := os.ReadFile(filepath.Join(kernels, "gpu", "kernel.json"))
	if err != nil || strings.Contains(string(text), "right-token") {
		t.Fatalf("%v: %s", err, text)
	}
	var spec addedSpec
	if err := json.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}
	want := "relay -f {connection_file} --gateway-url " + url + " --kernel python3 --on-exit keep --env KERNEL_GPUS=1"
	if got := strings.Join(spec.Argv[1:], " "); got != want || spec.InterruptMode != "message" ||
		spec.Metadata["debugger"] != true || !filepath.IsAbs(spec.Argv[0]) {
		t.Errorf("got %+v", spec)
	}
	if problems := kernelspecs.Check(kernels, "", nil); len(problems) > 0 {
		t.Errorf("%v", problems)
	}
	if code, out, errs := command(t, "kernelspec", "list"); code != 0 || strings.Contains(out, "gpu") {
		t.Errorf("a gateway would serve it: %d %s %s", code, out, errs)
	}
	for _, dir := range []string{kernels, filepath.Join(home, "other", "kernels")} {
		path := filepath.Join(dir, "r", "kernel.json")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(`{"argv":["R"]}`), 0o644); err != nil {
			t.Fatal(err)
		}
		code, _, errs := command(t, "kernelspec", "add", "r")
		if code != 1 || !strings.Contains(errs, "was not written by ekg") {
			t.Errorf("%d %s", code, errs)
		}
		if code, _, _ := command(t, "kernelspec", "remove", "r"); code != 1 {
			t.Error("another's kernelspec was removed")
		}
		if err := os.RemoveAll(filepath.Join(dir, "r")); err != nil {
			t.Fatal(err)
		}
	}
	if code, _, errs := command(t, "kernelspec", "add", "--all"); code != 0 {
		t.Error(errs)
	}
	host := strings.ReplaceAll(strings.TrimPrefix(url, "http://"), ":", "-")
	added(" gpu python3 " + url + " python3-at-" + host + " python3 " + url + " r-at-" + host + " r " + url)
	if code, _, errs := command(t, "kernelspec", "remove", "gpu", "python3-at-"+host, "r-at-"+host); code != 0 {
		t.Error(errs)
	}
	added("")
	for _, args := range [][]string{{"add"}, {"add", "r", "--all"}, {"add", "r", "--name", "../r"}, {"remove", ".."},
		{"remove", ""}, {"add", "r", "--on-exit", "never"}} {
		if code, _, errs := command(t, append([]string{"kernelspec"}, args...)...); code != 2 {
			t.Errorf("%q: %d %s", args, code, errs)
		}
	}
	if err := os.Chmod(tokens, 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := command(t, "ps"); code != 1 || !strings.Contains(errs, "other users may read") {
		t.Errorf("%d %s", code, errs)
	}
}

// TestDataDir: the folder is that of jupyter_core on each system.
func TestDataDir(t *testing.T) {
	for _, tt := range []struct {
		system, want string
		env          map[string]string
	}{
		{"linux", "/h/.local/share/jupyter", map[string]string{"HOME": "/h"}},
		{"linux", "/x/jupyter", map[string]string{"HOME": "/h", "XDG_DATA_HOME": "/x"}},
		{"linux", "/d", map[string]string{"HOME": "/h", "JUPYTER_DATA_DIR": "/d"}},
		{"darwin", "/h/Library/Jupyter", map[string]string{"HOME": "/h", "XDG_DATA_HOME": "/x"}},
		{"windows", "/a/jupyter", map[string]string{"APPDATA": "/a"}},
		{"linux", "", nil},
	} {
		got, err := dataDir(tt.system, func(name string) string { return tt.env[name] })
		if filepath.ToSlash(got) != tt.want || (err != nil) != (tt.want == "") {
			t.Errorf("%s: %q, %v", tt.system, got, err)
		}
	}
}

// TestRelayVariables: a kernel gets what is meant for it, and not what its relay's own kernel is called.
func TestRelayVariables(t *testing.T) {
	t.Chdir(t.TempDir())
	env := relayVariables([]string{"KERNEL_GPUS=1", "KERNEL_USERNAME=me", "KERNEL_ID=x", "PATH=/bin",
		"JPY_SESSION_NAME=a b"}, map[string]string{"KERNEL_GPUS": "2"})
	if env["KERNEL_GPUS"] != "2" || env["KERNEL_USERNAME"] != "me" || env["JPY_SESSION_NAME"] != "a b" ||
		env["KERNEL_ID"] != "" || env["PATH"] != "" || (env["KERNEL_WORKING_DIR"] == "") != (folderID(".") == "") {
		t.Errorf("got %v", env)
	}
	if env = relayVariables([]string{"KERNEL_WORKING_DIR=/w"}, nil); env["KERNEL_WORKING_DIR"] != "/w" ||
		env["KERNEL_WORKING_DIR_ID"] != "" {
		t.Errorf("got %v", env)
	}
}
