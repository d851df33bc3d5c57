package kernelspecs

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
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

func TestProcessProxy_Config(t *testing.T) {
	const path = "metadata.process_proxy.config."
	tests := []struct {
		name, config, image string
		timeout             time.Duration
		warnings            []string // keys
		problem             string
	}{
		{"image", `{"image_name": "elyra/kernel-py:3.2.3"}`, "elyra/kernel-py:3.2.3", 0, nil, ""},
		{"an image that is no text", `{"image_name": 1}`, "", 0, nil, "is a number, not a string"},
		{"timeout", `{"launch_timeout": 90}`, "", 90 * time.Second, nil, ""},
		{"timeout as a text", `{"launch_timeout": "1.5"}`, "", 1500 * time.Millisecond, nil, ""},
		{"a timeout that is none", `{"launch_timeout": "soon"}`, "", 0, []string{path + "launch_timeout"}, ""},
		{"a negative timeout", `{"launch_timeout": -1}`, "", 0, []string{path + "launch_timeout"}, ""},
		{"what ekg has no use for", `{"executor_image_name": "x", "port_range": "0..0", "remote_hosts": "a"}`, "", 0,
			[]string{path + "executor_image_name", path + "port_range", path + "remote_hosts"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			spec, problems := readProxy(t, `{"config": `+tt.config+`}`)
			if tt.problem != "" {
				if len(problems) != 1 || problems[0].Message != tt.problem {
					t.Errorf("got %v", problems)
				}
				return
			}
			var keys []string
			for _, w := range spec.Warnings {
				keys = append(keys, w.Key)
				if w.Line != 3 || !strings.Contains(w.String(), "kernel.json:3: warning: "+w.Key+": is ignored: ") {
					t.Errorf("got %v", w)
				}
			}
			if len(problems) > 0 || spec.Image != tt.image || spec.LaunchTimeout != tt.timeout ||
				!slices.Equal(keys, tt.warnings) {
				t.Errorf("got %q, %v, %v, %v", spec.Image, spec.LaunchTimeout, keys, problems)
			}
		})
	}
}

// A kernelspec's own variable precedes, as with Enterprise Gateway. Its launchers cannot be run.
func TestProcessProxy_Environment(t *testing.T) {
	dir := t.TempDir()
	read := func(text string) (Spec, []Problem) {
		if err := os.WriteFile(filepath.Join(dir, "kernel.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		spec, _, problems := readSpec("s", dir, "")
		return spec, problems
	}
	spec, problems := read(`{"argv": ["k"], "env": {"KERNEL_LAUNCH_TIMEOUT": "40"},
		"metadata": {"process_proxy": {"config": {"launch_timeout": 90}}}}`)
	if len(problems) > 0 || spec.LaunchTimeout != 40*time.Second {
		t.Errorf("got %v, %v", spec.LaunchTimeout, problems)
	}
	_, problems = read(`{"argv": ["python", "launch_kubernetes.py", "--response-address={response_address}"]}`)
	if len(problems) != 1 || problems[0].Key != "argv[2]" ||
		!strings.Contains(problems[0].Message, "only with the class KubernetesProcessProxy or with metadata.ekg.launcher") {
		t.Errorf("got %v", problems)
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
		{"a list of nothing", `{"authorized_users": [" "]}`, "has no name", nil},
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

// The gateway's own lists: a kernelspec's authorized users replace them, and its unauthorized users add to them.
func TestUsers_Within(t *testing.T) {
	gateway := Users{Authorized: []string{"ann", "bob"}, Unauthorized: []string{"root", "bobby"}}
	for _, tt := range []struct {
		name          string
		spec, gateway Users
		may           []string // of ann, bob, bobby, carl and root
	}{
		{"no lists", Users{}, Users{}, []string{"ann", "bob", "bobby", "carl", "root"}},
		{"the gateway's", Users{}, gateway, []string{"ann", "bob"}},
		{"only unauthorized", Users{}, Users{Unauthorized: []string{"root"}}, []string{"ann", "bob", "bobby", "carl"}},
		{"replaced", Users{Authorized: []string{"root", "bob", "carl"}}, gateway, []string{"bob", "carl"}},
		{"added", Users{Unauthorized: []string{"bob"}}, gateway, []string{"ann"}},
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "s", "kernel.json"), `{"argv": ["x"], "display_name": "S", "language": "python"}`)
		f, err := Open(Options{Dirs: []string{dir}, Users: tt.gateway})
		if err != nil {
			t.Fatal(err)
		}
		s, ok := f.Get("s")
		if err := f.Close(); err != nil || !ok {
			t.Fatal(err, ok)
		}
		if !reflect.DeepEqual(s.Users, Users{}.Within(tt.gateway)) {
			t.Errorf("%s: a kernelspec without lists has %+v", tt.name, s.Users)
		}
		var may []string
		for _, name := range []string{"ann", "bob", "bobby", "carl", "root"} {
			if tt.spec.Within(tt.gateway).May(name) {
				may = append(may, name)
			}
		}
		if !slices.Equal(may, tt.may) {
			t.Errorf("%s: got %v, want %v", tt.name, may, tt.may)
		}
	}
}
