package deploy_test

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/provider"
	"sigs.k8s.io/kustomize/api/resource"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/replicas"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

// Builds of deploy/kubernetes, as an operator makes them. The components are used as their kustomization files say.
var (
	base          = build{"base", nil}
	token         = build{"overlays/token", nil}
	metrics       = build{"overlays/token", []string{"metrics"}}
	prometheus    = build{"overlays/token", []string{"metrics", "prometheus-operator"}}
	openshift     = build{"overlays/token", []string{"openshift"}}
	flavors       = build{"overlays/token", []string{"flavors"}}
	watchNodes    = build{"overlays/token", []string{"watch-nodes"}}
	watchGPUs     = build{"overlays/token", []string{"watch-gpus"}}
	homes         = build{"overlays/token", []string{"homes"}}
	deleteHomes   = build{"overlays/token", []string{"homes", "delete-homes"}}
	ownerSpaces   = build{"overlays/token", []string{"owner-namespaces"}}
	ports         = build{"overlays/token", []string{"driver-ports"}}
	kernelObjects = build{"overlays/token", []string{"objects"}}
	prePull       = build{"overlays/token", []string{"pre-pull"}}
	places        = build{"overlays/token", []string{"placeholders"}}
	gpuAgent      = build{"overlays/token", []string{"gpu-agent"}}
	keep          = build{"overlays/token", []string{"keep-kernels"}}
)

// build is a kustomization, and the components that are added to it.
type build struct {
	dir        string
	components []string
}

// resources returns what kustomize makes of the build.
func (b build) resources(t *testing.T) []*resource.Resource {
	t.Helper()
	dir := filepath.Join("kubernetes", b.dir)
	if len(b.components) > 0 {
		dir = t.TempDir()
		in := func(name string) string { // kustomize takes no absolute path
			abs, err := filepath.Abs(filepath.Join("kubernetes", name))
			if err != nil {
				t.Fatal(err)
			}
			rel, err := filepath.Rel(dir, abs)
			if err != nil {
				t.Fatal(err)
			}
			return rel
		}
		overlay := types.Kustomization{TypeMeta: types.TypeMeta{APIVersion: types.KustomizationVersion,
			Kind: types.KustomizationKind},
			Resources: []string{in(b.dir)}}
		for _, c := range b.components {
			overlay.Components = append(overlay.Components, in(filepath.Join("components", c)))
		}
		text, err := yaml.Marshal(overlay)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return made.Resources()
}

// objects decodes what kustomize makes of the build into Kubernetes' types. A key that a type does not have is an
// error, as is a kind that Kubernetes does not have. Kinds of the Prometheus operator, which have no types here, are
// left out.
func (b build) objects(t *testing.T) (all []runtime.Object) {
	t.Helper()
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme,
		json.SerializerOptions{Yaml: true, Strict: true})
	for _, r := range b.resources(t) {
		if r.GetGvk().Group == "monitoring.coreos.com" {
			continue
		}
		text, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		o, _, err := strict.Decode(text, nil, nil)
		if err != nil {
			t.Errorf("%s %s: %v", r.GetKind(), r.GetName(), err)
			continue
		}
		all = append(all, o)
	}
	return all
}

// find returns the one object of a type and name that kustomize makes of a build.
func find[T interface {
	runtime.Object
	GetName() string
}](t *testing.T, b build, name string) T {
	t.Helper()
	for _, o := range b.objects(t) {
		if found, ok := o.(T); ok && found.GetName() == name {
			return found
		}
	}
	t.Fatalf("%s has no %T named %s", b.dir, *new(T), name)
	panic("unreachable")
}

// files returns the files that a kustomization uses, relative to it.
func files(k types.Kustomization) []string {
	all := slices.Concat(k.Resources, k.Components)
	for _, p := range k.Patches {
		all = append(all, p.Path)
	}
	for _, c := range k.ConfigMapGenerator {
		for _, f := range c.FileSources {
			_, file, named := strings.Cut(f, "=") // KEY=FILE or FILE
			if !named {
				file = f
			}
			all = append(all, file)
		}
	}
	return all
}

// Every build has only keys and kinds that Kubernetes has: kubectl would reject others or, worse, ignore them.
func TestManifests_Strict(t *testing.T) {
	for _, b := range []build{base, token, metrics, prometheus, openshift, flavors, watchNodes, prePull, places} {
		if n := len(b.objects(t)); n < 5 {
			t.Errorf("%s with %v has only %d objects", b.dir, b.components, n)
		}
	}
}

// Every file is used by the kustomization beside it, and holds an object if it is a manifest.
func TestManifests_Files(t *testing.T) {
	factory := provider.NewDefaultDepProvider().GetResourceFactory()
	dirs := 0
	err := filepath.WalkDir("kubernetes", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "kustomization.yaml" {
			return err
		}
		dirs++
		dir := filepath.Dir(path)
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var k types.Kustomization
		if err := k.Unmarshal(data); err != nil { // an unknown key is an error
			t.Fatalf("%s: %v", path, err)
		}
		if want := map[bool]string{true: types.ComponentKind,
			false: types.KustomizationKind}[strings.Contains(dir, "components")]; k.Kind != want {
			t.Errorf("%s: kind %q", dir, k.Kind)
		}
		used := files(k)
		for _, name := range used {
			file := filepath.Join(dir, name)
			if info, err := os.Stat(file); err != nil {
				t.Errorf("%s: %v", path, err)
			} else if info.IsDir() || filepath.Ext(name) != ".yaml" || name == "policy.yaml" || name == "flavors.yaml" {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if all, err := factory.SliceFromBytes(text); err != nil || len(all) == 0 {
				t.Errorf("%s has %d objects: %v", file, len(all), err)
			}
		}
		return filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
			name, _ := filepath.Rel(dir, file)
			if err == nil && !d.IsDir() && name != "kustomization.yaml" && !slices.Contains(used, name) {
				t.Errorf("%s is not in %s", file, path)
			}
			return err
		})
	})
	if err != nil || dirs < 2 {
		t.Fatalf("%d kustomizations found: %v", dirs, err)
	}
}

// Every volume is mounted and has a source, and kernelspecs are mounted where gateways look for them.
func TestManifests_Mounts(t *testing.T) {
	keys := map[string]map[string]string{} // data by config map
	for _, o := range base.objects(t) {
		if c, ok := o.(*corev1.ConfigMap); ok {
			keys[c.Name] = c.Data
		}
	}
	pod := find[*appsv1.Deployment](t, base, "ekg").Spec.Template.Spec
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
		data, items := keys[v.ConfigMap.Name], v.ConfigMap.Items
		if data == nil {
			t.Errorf("no config map %s is created", v.ConfigMap.Name)
		}
		if v.Name != "kernelspecs" {
			continue
		}
		if len(items) != len(data) {
			t.Errorf("%d of %d kernelspecs are mounted", len(items), len(data))
		}
		for _, item := range items {
			if name := strings.TrimSuffix(item.Key, ".json"); data[item.Key] == "" || item.Path != name+"/kernel.json" {
				t.Errorf("kernelspec %s is mounted as %s", item.Key, item.Path)
			}
		}
	}
	if len(mounted) > 0 {
		t.Errorf("mounts without a volume: %v", mounted)
	}
}

// Labels, ports and images are the same in manifests and in the code.
func TestManifests_Code(t *testing.T) {
	gateway := find[*appsv1.Deployment](t, base, "ekg").Spec.Template
	policy := find[*networkingv1.NetworkPolicy](t, base, "ekg-kernels").Spec
	if got := policy.PodSelector.MatchExpressions; len(got) != 1 || got[0].Key != podspec.LabelKernel {
		t.Errorf("the network policy selects %v, kernels' pods have %s", got, podspec.LabelKernel)
	}
	env := func(pod corev1.PodTemplateSpec, name string) string {
		for _, e := range pod.Spec.Containers[0].Env {
			if e.Name == name {
				return e.Value
			}
		}
		return ""
	}
	from := policy.Ingress[0].From[0].PodSelector.MatchLabels
	for key, value := range gateway.Labels {
		if from[key] != value || !slices.Contains(strings.Split(replicas.Selector, ","), key+"="+value) {
			t.Errorf("gateways have %s=%s; the network policy admits %v", key, value, from)
		}
	}
	if image := gateway.Spec.Containers[0].Image; image == "" || env(gateway, "EKG_SUPERVISOR_IMAGE") != image {
		t.Errorf("gateways have the image %s, supervisors %s", image, env(gateway, "EKG_SUPERVISOR_IMAGE"))
	}
	ports := map[string]int32{}
	scraped := find[*appsv1.Deployment](t, metrics, "ekg").Spec.Template
	for _, p := range scraped.Spec.Containers[0].Ports {
		ports[p.Name] = p.ContainerPort
	}
	if ports["peers"] != replicas.Port {
		t.Errorf("the port for peers is %d, the code's is %d", ports["peers"], replicas.Port)
	}
	port := fmt.Sprint(ports["metrics"])
	if listen := env(scraped, "EKG_METRICS_LISTEN"); port == "0" || !strings.HasSuffix(listen, ":"+port) ||
		scraped.Annotations["prometheus.io/port"] != port {
		t.Errorf("metrics: listens at %s, scraped at %s, port %s", listen, scraped.Annotations["prometheus.io/port"], port)
	}
	admits := find[*networkingv1.NetworkPolicy](t, metrics, "ekg-metrics").Spec
	if ingress := admits.Ingress[0]; !maps.Equal(admits.PodSelector.MatchLabels, gateway.Labels) ||
		ingress.Ports[0].Port.StrVal != "metrics" ||
		len(ingress.From) == 0 {
		t.Errorf("the network policy admits to %v %v from %v", admits.PodSelector, ingress.Ports[0].Port, ingress.From)
	}
}

// Gateways cannot read secrets, nor run commands in pods.
func TestManifests_NoSecrets(t *testing.T) {
	rules := 0
	for _, o := range base.objects(t) {
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
		t.Error("no rules were found: the test proves nothing")
	}
}

// Only the component keep-kernels keeps pods of kernels from being evicted, whatever their number. It keeps
// no warm kernel.
func TestManifests_KeepKernels(t *testing.T) {
	for _, o := range token.objects(t) {
		if b, ok := o.(*policyv1.PodDisruptionBudget); ok && b.Namespace == "ekg-kernels" {
			t.Errorf("%s keeps kernels", b.Name)
		}
	}
	b := find[*policyv1.PodDisruptionBudget](t, keep, "ekg-kernels")
	e := b.Spec.Selector.MatchExpressions
	if b.Namespace != "ekg-kernels" || len(e) != 2 || e[0].Key != podspec.LabelKernel ||
		e[0].Operator != metav1.LabelSelectorOpExists || len(b.Spec.Selector.MatchLabels) > 0 ||
		e[1].Key != podspec.LabelManagedBy || e[1].Operator != metav1.LabelSelectorOpNotIn ||
		!slices.Equal(e[1].Values, []string{podspec.ManagerWarm}) {
		t.Errorf("the budget is for %+v in %s", b.Spec.Selector, b.Namespace)
	}
	// Pods without a controller: https://kubernetes.io/docs/tasks/run-application/configure-pdb
	if m := b.Spec.MinAvailable; m == nil || m.Type != intstr.Int || m.IntVal < 100000 || b.Spec.MaxUnavailable != nil {
		t.Errorf("it allows %+v", b.Spec)
	}
}

// The namespace's security standard admits the gateway's pod.
func TestManifests_Restricted(t *testing.T) {
	namespace := find[*corev1.Namespace](t, base, "ekg")
	if got := namespace.Labels["pod-security.kubernetes.io/enforce"]; got != "restricted" {
		t.Errorf("security standard %q", got)
	}
	pod := find[*appsv1.Deployment](t, base, "ekg").Spec.Template.Spec
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

// The kernelspecs of kernelspecs/examples have no problems under the shipped policy. Manifests and chart ship them all.
func TestManifests_Kernelspecs(t *testing.T) {
	policy, err := wish.ReadPolicy("kubernetes/base/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	check := podbuild.Options{Policy: policy}.Check(nil)
	files, err := filepath.Glob("../kernelspecs/examples/*/kernel.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no kernelspecs", err)
	}
	examples := map[string]any{}
	for _, file := range files {
		name := filepath.Base(filepath.Dir(file))
		for _, p := range kernelspecs.Check(filepath.Dir(file), "", check) {
			t.Errorf("%s: %v", name, p)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !pinnedImage.Match(text) {
			t.Errorf("%s: its image has no version and digest", name)
		}
		examples[name] = decoded(t, text)
	}
	var values struct {
		Kernelspecs struct{ Specs map[string]any }
	}
	text, err := os.ReadFile("helm/ekg/values.yaml")
	if err == nil {
		err = yaml.Unmarshal(text, &values)
	}
	if err != nil || !reflect.DeepEqual(values.Kernelspecs.Specs, examples) {
		t.Errorf("the chart's kernelspecs differ from kernelspecs/examples: %v\n%v\n%v", err, values.Kernelspecs.Specs,
			examples)
	}
	shipped := map[string]any{}
	for file, text := range find[*corev1.ConfigMap](t, base, "ekg-kernelspecs").Data {
		shipped[strings.TrimSuffix(file, ".json")] = decoded(t, []byte(text))
	}
	if !reflect.DeepEqual(shipped, examples) {
		t.Errorf("the manifests' kernelspecs differ from kernelspecs/examples: %v", shipped)
	}
}

// decoded returns the value of a JSON text.
func decoded(t *testing.T, text []byte) (v any) {
	t.Helper()
	if err := yaml.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// pinnedImage matches the image of a kernelspec with a dated tag and a digest.
var pinnedImage = regexp.MustCompile(`"image": "[^"@]+:[^"@]*\d{4}-\d\d-\d\d@sha256:[0-9a-f]{64}"`)

// The Dockerfile has the lines that deploy/devcluster reads to build the same image without a container engine.
func TestDockerfile(t *testing.T) {
	data, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{`FROM scratch`, `USER (\d+):(\d+)`, `ENTRYPOINT \["/usr/bin/ekg"\]`,
		`COPY --from=build \S+/bin/ekg \S+/bin/ekg-supervisor \S+/bin/ekg-gpu \S+/bin/ekg-gpu-agent /usr/bin/`,
		`COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/`} {
		if n := len(regexp.MustCompile(`(?m)^`+line+`$`).FindAll(data, -1)); n != 1 {
			t.Errorf("%d lines are %s", n, line)
		}
	}
	_, last, _ := strings.Cut(string(data), "\nFROM scratch\n")
	if n := len(regexp.MustCompile(`(?m)^[A-Z]+ `).FindAllString(last, -1)); n != 4 {
		t.Errorf("the last stage has %d instructions, and deploy/devcluster knows 4:\n%s", n, last)
	}
}
