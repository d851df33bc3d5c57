package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/cluster"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/transcript"
	"github.com/elastic-kernel-gateway/ekg/launcher/parking"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestFindGPUProgram: the program is beside the supervisor, even if that was given as a link. If it is needed and
// missing, the start fails with a reason.
func TestFindGPUProgram(t *testing.T) {
	real, linked := t.TempDir(), t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(real, "ekg-supervisor"), nil, 0o755),
		os.Symlink(filepath.Join(real, "ekg-supervisor"), filepath.Join(linked, "ekg-supervisor"))); err != nil {
		t.Fatal(err)
	}
	find := func(s settings.Sources) (string, error) {
		loaded, err := settings.Load(s)
		if err != nil {
			t.Fatal(err)
		}
		return findGPUProgram(loaded, filepath.Join(linked, "ekg-supervisor"))
	}
	configured := sourcesOf(map[string][]string{"cull-gpu": {"0.1"}}, nil)
	if path, err := find(sourcesOf(nil, nil)); err != nil || path != "" {
		t.Errorf("without --cull-gpu: %q, %v", path, err)
	}
	if path, err := find(configured); err == nil ||
		!strings.HasPrefix(err.Error(), "--cull-gpu: requires the program ekg-gpu beside the supervisor: ") {
		t.Errorf("not there: %q, %v", path, err)
	}
	program := filepath.Join(real, "ekg-gpu")
	if err := os.WriteFile(program, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if path, err := find(configured); err != nil || path != program {
		t.Errorf("there: %q, %v", path, err)
	}
}

// TestPodOptions: the settings of kernels' pods reach them.
func TestPodOptions(t *testing.T) {
	options := func(flags map[string][]string) podbuild.Options {
		t.Helper()
		flags["supervisor-image"] = []string{"ekg:1"}
		s, err := settings.Load(sourcesOf(flags, nil))
		if err != nil {
			t.Fatal(err)
		}
		o, err := podOptions(s, "kernels")
		if err != nil {
			t.Fatal(err)
		}
		o.Cull, o.StopGrace = api.Cull{}, 0 // other tests have them
		return o
	}
	got, want := options(map[string][]string{}), podbuild.Options{Namespace: "kernels", SupervisorImage: "ekg:1",
		Park: api.Park{IdleMemory: parking.DefaultIdleMemory}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("without settings: got %+v, want %+v", got, want)
	}
	file := filepath.Join(t.TempDir(), "policy.yaml")
	policy := func(text string) map[string][]string {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return map[string][]string{"kube-policy": {file}, "supervisor-image": {"ekg:1"}}
	}
	o := options(policy("supervisor: {cpu: 200m, user: namespace, architectures: [arm64]}\n"))
	if o.Supervisor.CPU != "200m" || !o.ClusterChoosesUser || !slices.Equal(o.Architectures, []string{"arm64"}) {
		t.Errorf("got %+v", o)
	}
	if o := options(policy("supervisor: {architectures: [any]}\n")); o.Architectures != nil || o.ClusterChoosesUser {
		t.Errorf("any architecture: %+v", o)
	}
	s, err := settings.Load(sourcesOf(policy("supervisor:\n  memory: 1Gi\n  memoryLimit: 512Mi\n"), nil))
	if err != nil {
		t.Fatal(err)
	}
	refused := "--kube-policy: " + file + ":3: supervisor.memoryLimit: 512Mi is less than the request, 1Gi"
	if _, err := podOptions(s, "kernels"); err == nil || err.Error() != refused {
		t.Errorf("a limit below the request: %v", err)
	}
}

// TestCheckOwners: a gateway without users rejects a policy that needs owners. A gateway with users warns of what the
// policy lets all of them use.
func TestCheckOwners(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "policy.yaml")
	users := map[string][]string{"users-file": {filepath.Join(dir, "users.yaml")}}
	const allowed = "clients:\n  allow: [KERNEL_VOLUMES]\n  volumes: [persistentVolumeClaim]\n  persistentVolumeClaims: "
	for _, tt := range []struct {
		name, policy string
		flags        map[string][]string
		err, warning string
	}{
		{"no users", allowed + "[\"home-{owner}\"]", nil, "--kube-policy: " + file + ": clients.persistentVolumeClaims: " +
			"\"home-{owner}\": {owner} stands for the name of the kernel's owner, and the gateway has no users", ""},
		{"no users and a star", allowed + "[\"home-*\"]", nil, "", ""},
		{"users", allowed + "[\"home-{owner}\"]", users, "", ""},
		{"users and a star", allowed + "[\"home-*\"]", users, "", `rules="clients.persistentVolumeClaims: \"home-*\""`},
		{"no policy", "", users, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			flags := map[string][]string{"supervisor-image": {"ekg:1"}}
			maps.Copy(flags, tt.flags)
			if tt.policy != "" {
				flags["kube-policy"] = []string{file}
				if err := os.WriteFile(file, []byte(tt.policy), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s, err := settings.Load(sourcesOf(flags, nil))
			if err != nil {
				t.Fatal(err)
			}
			o, err := podOptions(s, "kernels")
			if err != nil {
				t.Fatal(err)
			}
			logged := &transcript.Buffer{}
			err = checkOwners(s, o.Policy, slog.New(slog.NewTextHandler(logged, nil)))
			if (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
				t.Errorf("got %v, want %s", err, tt.err)
			}
			// The text handler quotes the quotes of the rules once more.
			got := strings.ReplaceAll(logged.String(), `\"`, `"`)
			if want := strings.ReplaceAll(tt.warning, `\"`, `"`); !strings.Contains(got, want) || (got == "") != (want == "") {
				t.Errorf("logged %q, want %q", got, want)
			}
		})
	}
}

// TestCheckOfSpecs: a gateway without users reads no kernelspec that needs an owner's name, if its kernels are pods.
func TestCheckOfSpecs(t *testing.T) {
	dir := t.TempDir()
	text := `{"argv": ["prog", "{connection_file}"], "display_name": "x", "language": "x", "metadata": {"ekg": {"image": "x",
		"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "v-{owner}"}}]}}}`
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "own"), 0o755),
		os.WriteFile(filepath.Join(dir, "own", "kernel.json"), []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		flags  map[string][]string
		usable bool
	}{
		{map[string][]string{"launcher": {"kubernetes"}}, false},
		{map[string][]string{"launcher": {"kubernetes"}, "users-file": {"users.yaml"}}, true},
		{map[string][]string{}, true},
	} {
		tt.flags["kernelspec-dir"] = []string{dir}
		s, err := settings.Load(sourcesOf(tt.flags, nil))
		if err != nil {
			t.Fatal(err)
		}
		specs, err := openSpecs(t.Context(), s, checkOfSpecs(s), discard)
		if err != nil {
			t.Fatal(err)
		}
		if _, usable := specs.Get("own"); usable != tt.usable {
			t.Errorf("%v: usable %v: %v", tt.flags, usable, specs.Problems())
		}
		if err := specs.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestAdaptToCluster: a gateway waits for a cluster that does not answer yet. A user that is set needs no answer.
func TestAdaptToCluster(t *testing.T) {
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) == 1 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"contexts": [{"name": "c", "context": {"cluster": "c"}}],
		"clusters": [{"name": "c", "cluster": {"server": "` + server.URL + `"}}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cluster, err := cluster.Connect(file, "")
	if err != nil {
		t.Fatal(err)
	}
	for user, want := range map[string]int64{"": 2, wish.UserAuto: 2, wish.UserFixed: 0} {
		asked.Store(0)
		pods := podbuild.Options{Supervisor: wish.SupervisorRules{User: user}}
		o, err := adaptToCluster(t.Context(), cluster, pods, slog.New(slog.DiscardHandler))
		if err != nil || o.ClusterChoosesUser != (user != wish.UserFixed) || o.Architectures != nil {
			t.Errorf("%s: %+v, %v", user, o, err)
		}
		if n := asked.Load(); n != want {
			t.Errorf("%s: the cluster was asked %d times, want %d", user, n, want)
		}
	}
	server.Close()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := adaptToCluster(ended, cluster, podbuild.Options{}, slog.New(slog.DiscardHandler)); err == nil ||
		!strings.Contains(err.Error(), "OpenShift") {
		t.Errorf("a cluster that never answers: %v", err)
	}
}
