package kernelspecs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// readProxy reads a kernelspec whose metadata.process_proxy is text.
func readProxy(t *testing.T, text string) (Spec, []Problem) {
	t.Helper()
	dir := t.TempDir()
	text = "{\"argv\": [\"k\"],\n\"metadata\": {\n\"process_proxy\": " + text + "}}"
	if err := os.WriteFile(filepath.Join(dir, "kernel.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	spec, _, problems := readSpec("s", dir, "")
	return spec, problems
}

func TestProcessProxy_Class(t *testing.T) {
	const module = "enterprise_gateway.services.processproxies."
	tests := []struct{ class, want string }{
		{"", ""},
		{module + "processproxy.LocalProcessProxy", ""},
		{module + "k8s.KubernetesProcessProxy", ""},
		{"ours.proxies.OurKubernetesProcessProxy", ""},
		{module + "yarn.YarnClusterProcessProxy", "runs kernels on YARN"},
		{module + "docker_swarm.DockerSwarmProcessProxy", "runs kernels on Docker Swarm"},
		{module + "docker_swarm.DockerProcessProxy", "runs kernels in Docker"},
		{module + "spark_operator.SparkOperatorProcessProxy", "runs kernels by the Spark operator"},
		{module + "crd.CustomResourceProcessProxy", "runs kernels by custom resources"},
		{module + "conductor.ConductorClusterProcessProxy", "runs kernels on Spectrum Conductor"},
		{module + "distributed.DistributedProcessProxy", "runs kernels on other hosts by SSH"},
		{"ours.Proxy", "is a class that ekg does not know"},
	}
	for _, tt := range tests {
		_, problems := readProxy(t, `{"class_name": "`+tt.class+`"}`)
		switch {
		case tt.want == "" && len(problems) == 0:
		case tt.want != "" && len(problems) == 1 && problems[0].Line == 3 && strings.Contains(problems[0].Message, tt.want):
		default:
			t.Errorf("%s: got %v", tt.class, problems)
		}
	}
}

func TestProcessProxy_Users(t *testing.T) {
	tests := []struct {
		name, config, want string
		may                []string // of ann, bob and bobby
	}{
		{"no list", `{}`, "", []string{"ann", "bob", "bobby"}},
		{"empty", `{"authorized_users": ""}`, "", []string{"ann", "bob", "bobby"}},
		{"authorized", `{"authorized_users": "ann, bob"}`, "", []string{"ann", "bob"}},
		{"unauthorized", `{"unauthorized_users": "bob"}`, "", []string{"ann", "bobby"}},
		{"both", `{"authorized_users": "ann,bob", "unauthorized_users": "ann"}`, "", []string{"bob"}},
		{"a list", `{"authorized_users": ["bobby"]}`, "", []string{"bobby"}},
		{"a number", `{"authorized_users": 1}`, "is a number, not names", nil},
		{"a list of numbers", `{"unauthorized_users": [1]}`, "is not a list of names", nil},
		{"only commas", `{"authorized_users": ","}`, "has no name", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			spec, problems := readProxy(t, `{"config": `+tt.config+`}`)
			if tt.want != "" {
				if len(problems) != 1 || !strings.Contains(problems[0].Message, tt.want) {
					t.Errorf("got %v, want %q", problems, tt.want)
				}
				return
			}
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			var may []string
			for _, name := range []string{"ann", "bob", "bobby"} {
				if spec.Users.May(name) {
					may = append(may, name)
				}
			}
			if !slices.Equal(may, tt.may) {
				t.Errorf("got %v, want %v", may, tt.may)
			}
		})
	}
}
