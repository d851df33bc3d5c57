package deploy_test

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	k8syaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube"
)

// kustomization is what our kustomization.yaml files use of kustomize; any other key is an error.
type kustomization struct {
	APIVersion string   `yaml:"apiVersion"`
	Kind       string   `yaml:"kind"`
	Resources  []string `yaml:"resources"`
	Components []string `yaml:"components"`
	Patches    []struct {
		Path string `yaml:"path"`
	} `yaml:"patches"`
	ConfigMaps []struct {
		Name      string   `yaml:"name"`
		Namespace string   `yaml:"namespace"`
		Files     []string `yaml:"files"` // KEY=FILE or FILE
		Options   struct {
			DisableNameSuffixHash bool `yaml:"disableNameSuffixHash"`
		} `yaml:"options"`
	} `yaml:"configMapGenerator"`
	Images []struct {
		Name    string `yaml:"name"`
		NewName string `yaml:"newName"`
		NewTag  string `yaml:"newTag"`
	} `yaml:"images"`
	Replacements []struct {
		Source struct {
			Kind      string `yaml:"kind"`
			Name      string `yaml:"name"`
			FieldPath string `yaml:"fieldPath"`
		} `yaml:"source"`
		Targets []struct {
			Select struct {
				Kind string `yaml:"kind"`
				Name string `yaml:"name"`
			} `yaml:"select"`
			FieldPaths []string `yaml:"fieldPaths"`
		} `yaml:"targets"`
	} `yaml:"replacements"`
}

// files are the files that a kustomization takes, relative to it.
func (k kustomization) files() []string {
	files := slices.Clone(k.Resources)
	for _, p := range k.Patches {
		files = append(files, p.Path)
	}
	for _, c := range k.ConfigMaps {
		for _, f := range c.Files {
			_, file, named := strings.Cut(f, "=")
			if !named {
				file = f
			}
			files = append(files, file)
		}
	}
	return files
}

func readKustomization(t *testing.T, dir string) (k kustomization) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(&k); err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	if want := map[bool]string{true: "Component", false: "Kustomization"}[strings.Contains(dir, "components")]; k.Kind != want {
		t.Errorf("%s: kind %q", dir, k.Kind)
	}
	return k
}

// objects decodes every document of a manifest into its type. A key that the type does not have is an error, as is a
// kind that Kubernetes does not have.
func objects(t *testing.T, file string) (all []runtime.Object) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{Yaml: true, Strict: true})
	for docs := k8syaml.NewDocumentDecoder(f); ; {
		doc := make([]byte, 64<<10)
		n, err := docs.Read(doc)
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		o, _, err := strict.Decode(doc[:n], nil, nil)
		if err != nil {
			t.Errorf("%s, document %d: %v", file, len(all)+1, err)
			continue
		}
		all = append(all, o)
	}
}

// find is the one object of a type and name among those of a manifest.
func find[T interface {
	runtime.Object
	GetName() string
}](t *testing.T, file, name string) T {
	t.Helper()
	for _, o := range objects(t, file) {
		if found, ok := o.(T); ok && found.GetName() == name {
			return found
		}
	}
	t.Fatalf("%s has no %T named %s", file, *new(T), name)
	panic("unreachable")
}

// TestManifests_Strict finds what kubectl would refuse or, worse, ignore: misspelt keys, a file that no kustomization takes.
func TestManifests_Strict(t *testing.T) {
	dirs := 0
	err := filepath.WalkDir("kubernetes", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "kustomization.yaml" {
			return err
		}
		dirs++
		dir := filepath.Dir(path)
		listed := readKustomization(t, dir).files()
		for _, name := range listed {
			file := filepath.Join(dir, name)
			info, err := os.Stat(file)
			if err != nil {
				t.Errorf("%s: %v", path, err)
			} else if !info.IsDir() && filepath.Ext(name) == ".yaml" && name != "policy.yaml" && !strings.Contains(dir, "prometheus-operator") && len(objects(t, file)) == 0 {
				t.Errorf("%s holds nothing", file)
			}
		}
		return filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
			name, _ := filepath.Rel(dir, file)
			if err == nil && !d.IsDir() && name != "kustomization.yaml" && !slices.Contains(listed, name) {
				t.Errorf("%s is not in %s", file, path)
			}
			return err
		})
	})
	if err != nil || dirs < 2 {
		t.Fatalf("%d kustomizations found: %v", dirs, err)
	}
}

// TestManifests_Mounts finds volumes that nothing mounts or makes, and kernelspecs that are not mounted as gateways look for them.
func TestManifests_Mounts(t *testing.T) {
	base := readKustomization(t, "kubernetes/base")
	made := map[string][]string{} // keys by config map
	for _, c := range base.ConfigMaps {
		for _, f := range c.Files {
			key, _, _ := strings.Cut(f, "=")
			made[c.Name] = append(made[c.Name], key)
		}
	}
	pod := find[*appsv1.Deployment](t, "kubernetes/base/gateway.yaml", "ekg").Spec.Template.Spec
	mounted := map[string]string{}
	for _, m := range pod.Containers[0].VolumeMounts {
		mounted[m.Name] = m.MountPath
	}
	for _, v := range pod.Volumes {
		if mounted[v.Name] == "" {
			t.Errorf("volume %s is not mounted", v.Name)
		}
		delete(mounted, v.Name)
		if v.ConfigMap == nil {
			continue
		}
		keys, items := made[v.ConfigMap.Name], v.ConfigMap.Items
		if keys == nil {
			t.Errorf("nobody makes the config map %s", v.ConfigMap.Name)
		}
		if v.Name != "kernelspecs" {
			continue
		}
		if len(items) != len(keys) {
			t.Errorf("%d of %d kernelspecs are mounted", len(items), len(keys))
		}
		for _, item := range items {
			if name := strings.TrimSuffix(item.Key, ".json"); !slices.Contains(keys, item.Key) || item.Path != name+"/kernel.json" {
				t.Errorf("kernelspec %s is mounted as %s", item.Key, item.Path)
			}
		}
	}
	if len(mounted) > 0 {
		t.Errorf("mounts without a volume: %v", mounted)
	}
}

// TestManifests_Code holds what manifests and code both say.
func TestManifests_Code(t *testing.T) {
	gateway := find[*appsv1.Deployment](t, "kubernetes/base/gateway.yaml", "ekg").Spec.Template
	policy := find[*networkingv1.NetworkPolicy](t, "kubernetes/base/network.yaml", "ekg-kernels").Spec
	if got := policy.PodSelector.MatchExpressions; len(got) != 1 || got[0].Key != kube.LabelKernel {
		t.Errorf("the network policy selects %v, kernels' pods have %s", got, kube.LabelKernel)
	}
	from := policy.Ingress[0].From[0].PodSelector.MatchLabels
	var peers string
	for _, e := range gateway.Spec.Containers[0].Env {
		if e.Name == "EKG_KUBE_PEERS" {
			peers = e.Value
		}
	}
	for key, value := range gateway.Labels {
		if from[key] != value || !slices.Contains(strings.Split(peers, ","), key+"="+value) {
			t.Errorf("gateways have %s=%s; the network policy admits %v, and peers are %s", key, value, from, peers)
		}
	}
	metrics := find[*appsv1.Deployment](t, "kubernetes/components/metrics/gateway.yaml", "ekg").Spec.Template
	port := metrics.Spec.Containers[0].Ports[0]
	if env := metrics.Spec.Containers[0].Env[0]; env.Name != "EKG_METRICS_LISTEN" || !strings.HasSuffix(env.Value, fmt.Sprint(":", port.ContainerPort)) ||
		metrics.Annotations["prometheus.io/port"] != fmt.Sprint(port.ContainerPort) {
		t.Errorf("metrics: listens by %v, scraped at %s, port %v", env, metrics.Annotations["prometheus.io/port"], port)
	}
	admits := find[*networkingv1.NetworkPolicy](t, "kubernetes/components/metrics/network.yaml", "ekg-metrics").Spec
	if !maps.Equal(admits.PodSelector.MatchLabels, gateway.Labels) || admits.Ingress[0].Ports[0].Port.StrVal != port.Name || len(admits.Ingress[0].From) == 0 {
		t.Errorf("the network policy admits to %v %v from %v", admits.PodSelector, admits.Ingress[0].Ports[0].Port, admits.Ingress[0].From)
	}
	ports := map[string]int32{}
	for _, p := range gateway.Spec.Containers[0].Ports {
		ports[p.Name] = p.ContainerPort
	}
	if ports["peers"] != kube.PeerPort {
		t.Errorf("the port for peers is %d, the code's is %d", ports["peers"], kube.PeerPort)
	}
}

// TestManifests_NoSecrets holds the promise that gateways cannot read secrets, nor run commands in pods.
func TestManifests_NoSecrets(t *testing.T) {
	rules := 0
	for _, o := range objects(t, "kubernetes/base/rbac.yaml") {
		role, ok := o.(*rbacv1.Role)
		if !ok {
			continue
		}
		for _, r := range role.Rules {
			rules++
			for _, what := range slices.Concat(r.Resources, r.Verbs, r.APIGroups) {
				if strings.Contains(what, "*") || what == "pods/exec" || what == "pods/attach" {
					t.Errorf("%s: %v may %v", role.Name, r.Resources, r.Verbs)
				}
			}
			if !slices.Contains(r.Resources, "secrets") {
				continue
			}
			for _, verb := range r.Verbs {
				if verb != "create" && verb != "delete" {
					t.Errorf("%s may %s secrets", role.Name, verb)
				}
			}
		}
	}
	if rules == 0 {
		t.Error("there are no rules: the test proves nothing")
	}
}

// TestManifests_Restricted holds that the gateway's pod is what the namespace's security standard admits.
func TestManifests_Restricted(t *testing.T) {
	namespace := find[*corev1.Namespace](t, "kubernetes/base/namespaces.yaml", "ekg")
	if got := namespace.Labels["pod-security.kubernetes.io/enforce"]; got != "restricted" {
		t.Errorf("security standard %q", got)
	}
	pod := find[*appsv1.Deployment](t, "kubernetes/base/gateway.yaml", "ekg").Spec.Template.Spec
	if s := pod.SecurityContext; s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.SeccompProfile == nil {
		t.Errorf("the pod's security context is %v", s)
	}
	for _, c := range pod.Containers {
		s := c.SecurityContext
		if s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem || s.AllowPrivilegeEscalation == nil ||
			*s.AllowPrivilegeEscalation || s.Capabilities == nil || !slices.Contains(s.Capabilities.Drop, "ALL") {
			t.Errorf("%s's security context is %v", c.Name, s)
		}
	}
}

// TestManifests_Kernelspecs reads the shipped kernelspecs as a gateway does, under the shipped policy.
func TestManifests_Kernelspecs(t *testing.T) {
	policy, err := kube.ReadPolicy("kubernetes/base/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	check := kube.PodOptions{Policy: policy}.Check()
	for _, name := range []string{"python3", "python3-gpu"} {
		for _, p := range kernelspecs.Check(filepath.Join("kubernetes/base/kernelspecs", name), "", check) {
			t.Errorf("%s: %v", name, p)
		}
	}
}

// TestDockerfile holds the lines that deploy/devcluster reads to make the same image without a container engine.
func TestDockerfile(t *testing.T) {
	data, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{`FROM scratch`, `USER (\d+):(\d+)`, `ENTRYPOINT \["/usr/bin/ekg"\]`,
		`COPY --from=build \S+/bin/ekg \S+/bin/ekg-supervisor \S+/bin/ekg-gpu /usr/bin/`, `COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/`} {
		if n := len(regexp.MustCompile(`(?m)^`+line+`$`).FindAll(data, -1)); n != 1 {
			t.Errorf("%d lines are %s", n, line)
		}
	}
	_, last, _ := strings.Cut(string(data), "\nFROM scratch\n")
	if n := len(regexp.MustCompile(`(?m)^[A-Z]+ `).FindAllString(last, -1)); n != 4 {
		t.Errorf("the last stage has %d instructions, and deploy/devcluster knows 4:\n%s", n, last)
	}
}
