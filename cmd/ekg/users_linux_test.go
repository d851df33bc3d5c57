package main

import (
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

func TestLoad_Users(t *testing.T) {
	file := map[string][]string{"users-file": {"/users.yaml"}}
	oidc := map[string][]string{"oidc-issuer": {"https://issuer.example"}, "oidc-audience": {"ekg"}}
	hub := map[string][]string{"hub-api-url": {"http://hub:8081/hub/api"}, "hub-service": {"ekg"}}
	with := func(base map[string][]string, name string, texts ...string) map[string][]string {
		all := map[string][]string{name: texts}
		for k, v := range base {
			if k != name {
				all[k] = v
			}
		}
		return all
	}
	for _, good := range []map[string][]string{
		file, oidc, hub, with(file, "auth-token-review", "true"), with(file, "admin-user", "ann"),
		with(with(file, "auth-token-review", "true"), "auth-token-audience", "ekg"),
	} {
		if s, err := settings.Load(sourcesOf(good, nil)); err != nil || len(s.UserSources()) == 0 {
			t.Errorf("%v: %v", good, err)
		}
	}
	if s, err := settings.Load(sourcesOf(nil, map[string]string{"JUPYTERHUB_SERVICE_NAME": "x"})); err != nil ||
		len(s.UserSources()) > 0 {
		t.Errorf("in a server of a hub: %v", err)
	}
	for _, tt := range []struct {
		flags map[string][]string
		env   map[string]string
		want  string
	}{
		{with(file, "token", "x"), nil, "--token: there are users (--users-file)"},
		{file, map[string]string{"EKG_TOKEN": "x"}, "EKG_TOKEN: there are users (--users-file)"},
		{with(hub, "token-file", "/t"), nil, "--token-file: there are users (--hub-api-url)"},
		{with(oidc, "no-auth", "true"), nil, "--no-auth: contradicts --oidc-issuer"},
		{with(nil, "admin-user", "ann"), nil, "--admin-user: has no effect"},
		{nil, map[string]string{"EG_AUTHORIZED_USERS": "ann"}, "EG_AUTHORIZED_USERS: has no effect without --users-file"},
		{nil, map[string]string{"EG_UNAUTHORIZED_USERS": "root,bob"}, "EG_UNAUTHORIZED_USERS: has no effect without"},
		{with(file, "admin-group", " a"), nil, "--admin-group: \" a\": the name begins"},
		{with(file, "oidc-audience", "x"), nil, "--oidc-audience: has no effect without --oidc-issuer"},
		{with(file, "auth-token-audience", "x"), nil, "--auth-token-audience: has no effect without --auth-token-review"},
		{with(nil, "oidc-issuer", "https://issuer.example"), nil, "--oidc-issuer: --oidc-audience is missing"},
		{with(oidc, "oidc-issuer", "issuer.example"), nil, "--oidc-issuer: the issuer is not a URL"},
		{with(nil, "hub-api-url", "http://hub"), nil, "--hub-api-url: --hub-service is missing"},
		{with(hub, "hub-api-url", "hub"), nil, "--hub-api-url: it is not a URL"},
		{with(file, "max-starts-per-minute", "-1"), nil, "--max-starts-per-minute: \"-1\" is not a number"},
	} {
		if _, err := settings.Load(sourcesOf(tt.flags, tt.env)); err == nil || !strings.Contains(err.Error(), tt.want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%v %v: got %v, want %s", tt.flags, tt.env, err, tt.want)
		}
	}
}

// TestSettings_SpecUsers: the lists of users for all kernelspecs have Enterprise Gateway's variables and default.
// Without users its default has no effect.
func TestSettings_SpecUsers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ekg.yaml")
	text := "users-file: /u\nauthorized-user: [ann, bob]\nunauthorized-user: []\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	users := map[string][]string{"users-file": {"/users.yaml"}}
	root := []string{"root"}
	for _, tt := range []struct {
		flags map[string][]string
		env   map[string]string
		want  kernelspecs.Users
	}{
		{nil, nil, kernelspecs.Users{}},
		{nil, map[string]string{"EG_UNAUTHORIZED_USERS": "root"}, kernelspecs.Users{}},
		{users, nil, kernelspecs.Users{Unauthorized: root}},
		{users, map[string]string{"EG_AUTHORIZED_USERS": "ann, bob", "EG_UNAUTHORIZED_USERS": "eve"},
			kernelspecs.Users{Authorized: []string{"ann", "bob"}, Unauthorized: []string{"eve"}}},
		{users, map[string]string{"EG_AUTHORIZED_USERS": "ann", "EKG_AUTHORIZED_USER": "bob"},
			kernelspecs.Users{Authorized: []string{"bob"}, Unauthorized: root}},
		{map[string][]string{"config": {file}}, nil, kernelspecs.Users{Authorized: []string{"ann", "bob"}}},
	} {
		s, err := settings.Load(sourcesOf(tt.flags, tt.env))
		if err != nil {
			t.Fatal(err)
		}
		if got := s.SpecUsers(); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%v %v: got %+v, want %+v", tt.flags, tt.env, got, tt.want)
		}
	}
}

func TestToken_Command(t *testing.T) {
	seen := map[string]bool{}
	for range 2 {
		code, stdout, stderr := ekg(t, "token")
		m := regexp.MustCompile(`^token: (ekg_[A-Za-z0-9_-]{43})\nhash: (sha256:[0-9a-f]{64})\n$`).FindStringSubmatch(stdout)
		if code != 0 || stderr != "" || m == nil || identity.Hash(m[1]) != m[2] || seen[m[1]] {
			t.Fatalf("got %d %q %q", code, stdout, stderr)
		}
		seen[m[1]] = true
	}
}

// TestServer_Users: users of a file get access with their tokens. A running gateway uses a new version of the file.
func TestServer_Users(t *testing.T) {
	file := filepath.Join(t.TempDir(), "users.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("users:\n- name: ann\n  tokens: ['" + identity.Hash("canary-ann") + "']\n")
	fake := &fakeLauncher{kernels: []launcher.Kernel{{ID: "0a1b2c3d-0000-4000-8000-00000000000a", Owner: "bob"}}}
	r := start(t, fake, map[string][]string{"users-file": {file}})
	plain := &http.Transport{}
	defer plain.CloseIdleConnections()
	for token, want := range map[string]int{"": 403, "wrong": 403, "canary-ann": 200, "canary-bob": 403} {
		if code, body := r.get("/api/kernels", token, plain); code != want || want == 200 && body != "[]\n" {
			t.Errorf("%q: got %d %s", token, code, body)
		}
	}
	write("users:\n- name: bob\n  tokens: ['" + identity.Hash("canary-bob") + "']\n")
	limit := time.Now().Add(20 * time.Second)
	for {
		if code, body := r.get("/api/kernels", "canary-bob", plain); code == 200 && strings.Contains(body, `"owner":"bob"`) {
			break
		} else if time.Now().After(limit) {
			t.Fatalf("the new version does not count: %d %s", code, body)
		}
	}
	if code, _ := r.get("/api/kernels", "canary-ann", plain); code != 403 {
		t.Errorf("the old version still counts: %d", code)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if all := r.stdout.String() + r.log.String(); strings.Contains(all, "canary") || strings.Contains(all, "token=") {
		t.Errorf("a token was printed: %s", all)
	}
}
