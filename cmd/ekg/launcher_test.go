package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
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
	options := func(flags map[string][]string) podspec.Options {
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
	got, want := options(map[string][]string{}), podspec.Options{Namespace: "kernels", SupervisorImage: "ekg:1",
		SupervisorCPU: podspec.DefaultSupervisorCPU, SupervisorMemory: podspec.DefaultSupervisorMemory,
		HomeLimit: 10 << 30}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("without settings: got %+v, want %+v", got, want)
	}
	got, want = options(map[string][]string{
		"supervisor-pull-policy": {"Always"}, "supervisor-pull-secret": {"a", "b"}, "supervisor-cpu": {"200m"},
		"supervisor-memory": {"1Gi"}, "supervisor-memory-limit": {"2Gi"}, "supervisor-user": {"namespace"},
		"supervisor-arch": {"arm64"}, "home-limit": {"1GiB"},
	}), podspec.Options{Namespace: "kernels", SupervisorImage: "ekg:1", SupervisorPullPolicy: "Always",
		SupervisorPullSecrets: []string{"a", "b"}, SupervisorCPU: "200m", SupervisorMemory: "1Gi",
		SupervisorMemoryLimit: "2Gi", ClusterChoosesUser: true, Architectures: []string{"arm64"}, HomeLimit: 1 << 30}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if o := options(map[string][]string{"supervisor-arch": {"any"}, "home-limit": {"0"}}); o.Architectures != nil ||
		o.HomeLimit >= 0 {
		t.Errorf("any architecture and no limit: %+v", o)
	}
	s, err := settings.Load(sourcesOf(map[string][]string{"supervisor-image": {"ekg:1"}, "supervisor-memory": {"1Gi"},
		"supervisor-memory-limit": {"512Mi"}}, nil))
	if err != nil {
		t.Fatal(err)
	}
	const refused = "settings of kernels' pods: SupervisorMemoryLimit: 512Mi is less than the request, 1Gi"
	if _, err := podOptions(s, "kernels"); err == nil || err.Error() != refused {
		t.Errorf("a limit below the request: %v", err)
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
	cluster, err := kube.Connect(file, "", kube.Rate{})
	if err != nil {
		t.Fatal(err)
	}
	for user, want := range map[string]int64{settings.UserAuto: 2, settings.UserFixed: 0} {
		asked.Store(0)
		s := new(settings.Settings)
		s.SupervisorUser = user
		o, err := adaptToCluster(t.Context(), s, cluster, podspec.Options{}, slog.New(slog.DiscardHandler))
		if err != nil || o.ClusterChoosesUser != (user == settings.UserAuto) || o.Architectures != nil {
			t.Errorf("%s: %+v, %v", user, o, err)
		}
		if n := asked.Load(); n != want {
			t.Errorf("%s: the cluster was asked %d times, want %d", user, n, want)
		}
	}
	server.Close()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	s := &settings.Settings{SupervisorPodSettings: settings.SupervisorPodSettings{SupervisorUser: settings.UserAuto}}
	if _, err := adaptToCluster(ended, s, cluster, podspec.Options{}, slog.New(slog.DiscardHandler)); err == nil ||
		!strings.Contains(err.Error(), "OpenShift") {
		t.Errorf("a cluster that never answers: %v", err)
	}
}
