package deploy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	decoder "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// helm runs helm, and returns its standard output and its errors.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command("../hack/helm", args...)
	dir := t.TempDir()
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+dir, "HELM_CONFIG_HOME="+dir, "HELM_DATA_HOME="+dir)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, &stderr)
	}
	return stdout.String(), nil
}

// template returns the objects of the chart by kind, namespace and name. values is YAML.
func template(t *testing.T, values string) (map[string]*unstructured.Unstructured, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := helm(t, "template", "ekg", "helm/ekg", "--namespace", "ekg", "--values", file)
	if err != nil {
		return nil, err
	}
	all := map[string]*unstructured.Unstructured{}
	for dec := decoder.NewYAMLOrJSONDecoder(strings.NewReader(out), 4096); ; {
		var o unstructured.Unstructured
		if err := dec.Decode(&o.Object); err == io.EOF {
			return all, nil
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, out)
		}
		if o.Object != nil {
			if all[key(&o)] != nil {
				t.Errorf("there are two %s", key(&o))
			}
			all[key(&o)] = &o
		}
	}
}

func mustTemplate(t *testing.T, values string) map[string]*unstructured.Unstructured {
	t.Helper()
	all, err := template(t, values)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func key(o *unstructured.Unstructured) string {
	return o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()
}

// object returns one object of the chart.
func object[T any](t *testing.T, all map[string]*unstructured.Unstructured, key string) (found T) {
	t.Helper()
	o := all[key]
	if o == nil {
		t.Fatalf("no %s; there are %v", key, slices.Sorted(maps.Keys(all)))
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &found); err != nil {
		t.Fatal(err)
	}
	return found
}

const deployment = "Deployment ekg/ekg"

// gatewayPod returns the description of the gateways' pods.
func gatewayPod(t *testing.T, all map[string]*unstructured.Unstructured) corev1.PodTemplateSpec {
	t.Helper()
	return object[appsv1.Deployment](t, all, deployment).Spec.Template
}

// variable returns a variable of the gateways' container.
func variable(pod corev1.PodTemplateSpec, name string) string {
	for _, e := range pod.Spec.Containers[0].Env {
		if e.Name == name {
			return e.Value
		}
	}
	return ""
}

// policyName matches the name that kustomize gives the config map with the policy.
var policyName = regexp.MustCompile(`\bekg-policy-[a-z0-9]{10}\b`)

// comparable removes what differs on purpose between the chart and the manifests, and what has no order.
func comparable(t *testing.T, o *unstructured.Unstructured) map[string]any {
	t.Helper()
	o = o.DeepCopy()
	labels := o.GetLabels()
	for _, l := range []string{"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "app.kubernetes.io/version",
		"app.kubernetes.io/name", "helm.sh/chart"} {
		delete(labels, l)
	}
	if len(labels) == 0 {
		labels = nil
	}
	o.SetLabels(labels)
	notes := o.GetAnnotations()
	delete(notes, "helm.sh/resource-policy")
	if len(notes) == 0 {
		notes = nil
	}
	o.SetAnnotations(notes)
	if o.GetKind() == "ConfigMap" { // compare what the files say
		data, _, err := unstructured.NestedStringMap(o.Object, "data")
		if err != nil {
			t.Fatal(err)
		}
		parsed := map[string]any{}
		for name, text := range data {
			var v any
			if err := yaml.Unmarshal([]byte(text), &v); err != nil {
				t.Fatalf("%s %s: %v", key(o), name, err)
			}
			parsed[name] = v
		}
		o.Object["data"] = parsed
	}
	if o.GetKind() == "Deployment" && o.GetName() == "ekg" { // no order is meant
		// A changed policy restarts the gateways: here by the name of the config map, in the chart by this annotation.
		unstructured.RemoveNestedField(o.Object, "spec", "template", "metadata", "annotations", "checksum/policy")
		if a, _, _ := unstructured.NestedMap(o.Object, "spec", "template", "metadata", "annotations"); len(a) == 0 {
			unstructured.RemoveNestedField(o.Object, "spec", "template", "metadata", "annotations")
		}
		pod, _, _ := unstructured.NestedMap(o.Object, "spec", "template", "spec")
		byName := func(list any) {
			slices.SortFunc(list.([]any), func(a, b any) int {
				return strings.Compare(a.(map[string]any)["name"].(string), b.(map[string]any)["name"].(string))
			})
		}
		byName(pod["volumes"])
		for _, c := range pod["containers"].([]any) {
			byName(c.(map[string]any)["volumeMounts"])
			byName(c.(map[string]any)["env"])
			byName(c.(map[string]any)["ports"])
		}
		for _, v := range pod["volumes"].([]any) {
			items, _, _ := unstructured.NestedSlice(v.(map[string]any), "configMap", "items")
			slices.SortFunc(items, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
			if len(items) > 0 {
				v.(map[string]any)["configMap"].(map[string]any)["items"] = items
			}
		}
		if err := unstructured.SetNestedMap(o.Object, pod, "spec", "template", "spec"); err != nil {
			t.Fatal(err)
		}
	}
	return o.Object
}

// The chart's objects are those of the manifests, with each component. The chart creates the two secrets besides, and
// leaves the gateways' namespace to `helm install --create-namespace`.
func TestHelm_Manifests(t *testing.T) {
	examples, err := os.ReadFile("kubernetes/components/flavors/flavors.yaml")
	if err != nil {
		t.Fatal(err)
	}
	list := strings.ReplaceAll(strings.SplitN(string(examples), "flavors:\n", 2)[1], "\n", "\n  ")
	for _, tt := range []struct {
		name, values string
		build        build
	}{
		{"token", "", token},
		{"metrics", "metrics: {enabled: true}", metrics},
		{"prometheus", "metrics: {enabled: true, podMonitor: {enabled: true}, rules: {enabled: true}}", prometheus},
		{"openshift", "openshift: true", openshift},
		{"flavors", "flavors:\n  list:\n  " + list, flavors},
		{"watch-nodes", "watchNodes: true", watchNodes},
		{"watch-gpus", "watchGPUs: true", watchGPUs},
		{"pre-pull", "prePull: [{name: python3, images: [" + shippedImage(t) + "]}]", prePull},
		{"placeholders", "placeholders: [{name: python3, resources: {requests: {cpu: 550m, memory: 1152Mi}}}]", places},
		{"homes", "homes: true", homes},
		{"delete-homes", "homes: true\ndeleteHomes: true", deleteHomes},
		{"owner-namespaces", "ownerNamespaces: true", ownerSpaces},
		{"driver-ports", "driverPorts: true", ports},
		{"objects", "objects: true", kernelObjects},
		{"gpu-agent", "gpuAgent: {enabled: true}", gpuAgent},
		{"keep-kernels", "keepKernels: true", keep},
	} {
		t.Run(tt.name, func(t *testing.T) {
			chart := mustTemplate(t, tt.values)
			for _, r := range tt.build.resources(t) {
				text, err := r.AsYAML()
				if err != nil {
					t.Fatal(err)
				}
				var want unstructured.Unstructured
				if err := yaml.Unmarshal(policyName.ReplaceAll(text, []byte("ekg-policy")), &want.Object); err != nil {
					t.Fatal(err)
				}
				k := key(&want)
				if k == "Namespace /ekg" {
					continue
				}
				got := chart[k]
				delete(chart, k)
				if got == nil {
					t.Errorf("the chart has no %s", k)
					continue
				}
				if a, b := comparable(t, got), comparable(t, &want); !reflect.DeepEqual(normal(t, a), normal(t, b)) {
					t.Errorf("%s differs:\n%s\nwanted:\n%s", k, dump(t, a), dump(t, b))
				}
			}
			for k := range chart {
				if k != "Secret ekg/ekg-master-key" && k != "Secret ekg/ekg-token" {
					t.Errorf("only the chart has %s", k)
				}
			}
		})
	}
}

// normal returns an object with one type for all numbers.
func normal(t *testing.T, o any) (same any) {
	t.Helper()
	text, err := json.Marshal(o)
	if err == nil {
		err = json.Unmarshal(text, &same)
	}
	if err != nil {
		t.Fatal(err)
	}
	return same
}

func dump(t *testing.T, o any) string {
	t.Helper()
	text, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// allValues switches everything on.
const allValues = `
jobs: {claim: shared}
global: {imagePullSecrets: [pull, {name: other}], commonLabels: {team: a}}
imagePullSecretsCreate: {enabled: true, annotations: {a: b}, secrets: [{name: pull, data: e30=}]}
image: registry.example.com/ekg:1.0
imagePullPolicy: IfNotPresent
deployment:
  annotations: {a: b}
  podAnnotations: {c: d}
  priorityClassName: high
  nodeSelector: {a: b}
  tolerations: [{key: a, operator: Exists}]
  affinity: {nodeAffinity: {}}
  extraEnv: {A: 1, B: "x y"}
settings: {cull-idle-timeout: 2h, max-kernels: 50, allow-origin: ["https://a.example.com"], base-url: /ekg}
users: {file: {users: [{name: ann, tokens: []}]}, tokenReview: true, hubTokenSecret: hub}
masterKey: {existingSecret: mine}
service: {type: NodePort, nodePort: 30123, externalIPs: {k8sMasterPublicIP: 10.0.0.1}, annotations: {a: b}}
ingress: {enabled: true, ingressClassName: nginx, hostName: ekg.example.com, path: /ekg, annotations: {a: b},
  tls: [{hosts: [ekg.example.com], secretName: ekg-tls}]}
tls: {existingSecret: pair}
kernels: {podSecurity: restricted}
kernelspecs:
  image: registry.example.com/specs:1.0
  specs: {python3-gpu: null, r: {argv: [R], display_name: R, language: R}}
flavors: {list: [{name: cpu, label: none, none: true}]}
homes: true
deleteHomes: true
ownerNamespaces: true
driverPorts: true
objects: true
watchNodes: true
watchGPUs: true
prePull: [{name: gpu, images: [a, b], nodeSelector: {gpu: "yes"}, tolerations: [{operator: Exists}],
  runtimeClassName: nvidia, imagePullSecrets: [pull]}]
placeholders: [{name: gpu, replicas: 2, resources: {limits: {nvidia.com/gpu: 1}}, nodeSelector: {gpu: "yes"}},
  {name: none, replicas: 0, resources: {}}]
keepKernels: true
priorityClasses: [{name: low, value: -10, preemptionPolicy: Never, description: jobs}]
networkPolicy: {egress: {except: [203.0.113.7/32, "2001:db8::7/128"]}}
metrics: {enabled: true, namespace: prom, podMonitor: {enabled: true, labels: {a: b}}, rules: {enabled: true},
  dashboard: {enabled: true}}
gpuAgent: {enabled: true, runtimeClassName: nvidia}
kernel: {cullConnected: false, defaultKernelName: r}
logLevel: WARNING
`

// With and without all values, the chart has only keys and kinds that Kubernetes has.
func TestHelm_Strict(t *testing.T) {
	strict := serializer.NewSerializerWithOptions(serializer.DefaultMetaFactory, scheme.Scheme, scheme.Scheme,
		serializer.SerializerOptions{Yaml: true, Strict: true})
	for _, values := range []string{"", allValues} {
		for k, o := range mustTemplate(t, values) {
			if o.GroupVersionKind().Group == "monitoring.coreos.com" {
				continue
			}
			if _, _, err := strict.Decode([]byte(dump(t, o.Object)), nil, nil); err != nil {
				t.Errorf("%s: %v", k, err)
			}
		}
	}
	for _, values := range []string{"", allValues} {
		file := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := helm(t, "lint", "--strict", "helm/ekg", "--values", file); err != nil {
			t.Error(err)
		}
	}
}

// Values have the effect that their names promise.
func TestHelm_Values(t *testing.T) {
	all := mustTemplate(t, allValues)
	pod := gatewayPod(t, all)
	for name, want := range map[string]string{
		"EKG_SUPERVISOR_IMAGE": "registry.example.com/ekg:1.0",
		"EKG_USERS_FILE":       "/etc/ekg/users/users.yaml",
		"EKG_TOKEN_FILE":       "",
		"EKG_CONFIG":           "/etc/ekg/config/ekg.yaml",
		"EKG_KERNELSPEC_DIR":   "/etc/ekg/kernelspecs,/usr/local/share/jupyter/kernels",
		"EKG_TLS_CERT":         "/etc/ekg/tls/tls.crt",
		"EKG_JOBS_DIR":         "/var/lib/ekg/jobs",
		"A":                    "1",
		"B":                    "x y",
	} {
		if got := variable(pod, name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if !slices.ContainsFunc(pod.Spec.Containers[0].Env, func(v corev1.EnvVar) bool {
		return v.Name == "EKG_HUB_TOKEN" && v.ValueFrom != nil && v.ValueFrom.SecretKeyRef.Name == "hub"
	}) {
		t.Errorf("the variables are %+v", pod.Spec.Containers[0].Env)
	}
	if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == "shared"
	}) {
		t.Errorf("the volumes are %+v", pod.Spec.Volumes)
	}
	if p := pod.Spec.Containers[0].ReadinessProbe.HTTPGet; p.Path != "/ekg/readyz" || p.Scheme != "HTTPS" {
		t.Errorf("the probe is %+v", p)
	}
	if c := pod.Spec.InitContainers; len(c) != 1 || c[0].Image != "registry.example.com/specs:1.0" ||
		!slices.Equal(c[0].Args, []string{"cp", "-r", "/kernels", "/usr/local/share/jupyter"}) {
		t.Errorf("the init containers are %+v", c)
	}
	if s := pod.Spec.ImagePullSecrets; len(s) != 2 || s[0].Name != "pull" || s[1].Name != "other" {
		t.Errorf("the pull secrets are %v", s)
	}
	specs := object[corev1.ConfigMap](t, all, "ConfigMap ekg/ekg-kernelspecs").Data
	if got := slices.Sorted(maps.Keys(specs)); !slices.Equal(got, []string{"python3.json", "r.json"}) {
		t.Errorf("the kernelspecs are %v", got)
	}
	var settings map[string]any
	text := object[corev1.ConfigMap](t, all, "ConfigMap ekg/ekg-config").Data["ekg.yaml"]
	if err := yaml.Unmarshal([]byte(text), &settings); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"cull-idle-timeout": "2h", "max-kernels": 50.0, "base-url": "/ekg", "log-level": "warn",
		"allow-origin": []any{"https://a.example.com"}, "cull-connected": false, "default-kernel": "r",
		"auth-token-review": true}
	if !reflect.DeepEqual(settings, want) {
		t.Errorf("the settings are %v, want %v", settings, want)
	}
	checkWaiting(t, all)
	service := object[corev1.Service](t, all, "Service ekg/ekg").Spec
	if service.Type != "NodePort" || service.Ports[0].NodePort != 30123 ||
		!slices.Equal(service.ExternalIPs, []string{"10.0.0.1"}) {
		t.Errorf("the service is %+v", service)
	}
	ingress := object[networkingv1.Ingress](t, all, "Ingress ekg/ekg").Spec
	if ingress.Rules[0].Host != "ekg.example.com" || ingress.Rules[0].HTTP.Paths[0].Path != "/ekg" ||
		ingress.TLS[0].SecretName != "ekg-tls" {
		t.Errorf("the ingress is %+v", ingress)
	}
	except := object[networkingv1.NetworkPolicy](t, all, "NetworkPolicy ekg-kernels/ekg-kernels-egress").Spec.Egress[1].To
	if !slices.Contains(except[1].IPBlock.Except, "203.0.113.7/32") ||
		!slices.Contains(except[2].IPBlock.Except, "2001:db8::7/128") {
		t.Errorf("the exceptions are %+v", except)
	}
	for _, k := range []string{"Secret ekg/ekg-master-key", "Secret ekg/ekg-token"} {
		if all[k] != nil {
			t.Errorf("there is %s", k)
		}
	}
}

// checkWaiting checks the workloads that allValues keep ready.
func checkWaiting(t *testing.T, all map[string]*unstructured.Unstructured) {
	t.Helper()
	for name, want := range map[string]int32{"gpu": 2, "none": 0} {
		if d := object[appsv1.Deployment](t, all, "Deployment ekg-kernels/ekg-placeholder-"+name); *d.Spec.Replicas != want ||
			all["PriorityClass /"+d.Spec.Template.Spec.PriorityClassName] == nil {
			t.Errorf("placeholders: %+v", d.Spec)
		}
	}
	pod := object[appsv1.DaemonSet](t, all, "DaemonSet ekg-kernels/ekg-pre-pull-gpu").Spec.Template.Spec
	if len(pod.Containers) != 2 || pod.Containers[1].Image != "b" ||
		pod.InitContainers[0].SecurityContext.RunAsUser == nil ||
		!maps.Equal(pod.NodeSelector, map[string]string{"gpu": "yes", "kubernetes.io/os": "linux"}) ||
		len(pod.Tolerations) != 1 || *pod.RuntimeClassName != "nvidia" || pod.ImagePullSecrets[0].Name != "pull" {
		t.Errorf("images: %+v", pod)
	}
	open := mustTemplate(t, allValues+"openshift: true\n")
	pod = object[appsv1.DaemonSet](t, open, "DaemonSet ekg-kernels/ekg-pre-pull-gpu").Spec.Template.Spec
	if pod.InitContainers[0].SecurityContext.RunAsUser != nil || pod.Containers[0].SecurityContext.RunAsUser != nil {
		t.Errorf("on OpenShift: %+v", pod)
	}
}

// What must survive an uninstallation is kept, and the secrets are made once.
func TestHelm_Kept(t *testing.T) {
	all := mustTemplate(t, "")
	for _, k := range []string{"Namespace /ekg-kernels", "NetworkPolicy ekg-kernels/ekg-kernels",
		"NetworkPolicy ekg-kernels/ekg-kernels-egress"} {
		if all[k] == nil || all[k].GetAnnotations()["helm.sh/resource-policy"] != "keep" {
			t.Errorf("%s is not kept", k)
		}
	}
	for name, entry := range map[string]string{"ekg-master-key": "key", "ekg-token": "token"} {
		s := object[corev1.Secret](t, all, "Secret ekg/"+name)
		// A hook belongs to no release: upgrades, rollbacks and uninstallations leave it alone.
		if s.Annotations["helm.sh/hook"] != "pre-install,pre-upgrade" || len(s.Data[entry]) != 64 {
			t.Errorf("%s: %v, %d characters", name, s.Annotations, len(s.Data[entry]))
		}
		again := object[corev1.Secret](t, mustTemplate(t, ""), "Secret ekg/"+name)
		if bytes.Equal(again.Data[entry], s.Data[entry]) {
			t.Errorf("%s is not random", name)
		}
	}
}

// Values of Enterprise Gateway's chart work, or the error or the notes say what to use.
func TestHelm_EnterpriseGateway(t *testing.T) {
	all := mustTemplate(t, `
logLevel: DEBUG
mirrorWorkingDirs: false
authToken: a-token-of-an-operator
service: {type: NodePort, ports: [{name: http, port: 8888, targetPort: 8888}, {name: http-response, port: 8877}]}
deployment: {serviceAccountName: enterprise-gateway-sa, terminationGracePeriodSeconds: 60, replicas: 1,
  extraEnv: {EG_MAX_KERNELS_PER_USER: 3}}
kernel: {clusterRole: kernel-controller, shareGatewayNamespace: false, launchTimeout: 60, cullIdleTimeout: 3600,
  cullConnected: false, allowedKernels: [python_kubernetes], defaultKernelName: python3,
  defaultServiceAccountName: default}
nfs: {enabled: true, internalServerIPAddress: 10.0.0.2}
kip: {enabled: true, interval: 300}
`)
	pod := gatewayPod(t, all)
	if pod.Spec.ServiceAccountName != "enterprise-gateway-sa" || *pod.Spec.TerminationGracePeriodSeconds != 60 ||
		variable(pod, "EG_MAX_KERNELS_PER_USER") != "3" {
		t.Errorf("%+v", pod.Spec)
	}
	if all["ServiceAccount ekg/enterprise-gateway-sa"] == nil || all["PodDisruptionBudget ekg/ekg"] != nil {
		t.Error("there is no account, or a budget that one replica cannot satisfy")
	}
	if s := object[corev1.Service](t, all, "Service ekg/ekg").Spec; s.Ports[0].Port != 8888 || len(s.Ports) != 1 {
		t.Errorf("the ports are %v", s.Ports)
	}
	if s := object[corev1.Secret](t, all, "Secret ekg/ekg-token"); string(s.Data["token"]) != "a-token-of-an-operator" ||
		s.Annotations["helm.sh/hook"] != "" {
		t.Errorf("the token is %s, annotations %v", s.Data["token"], s.Annotations)
	}
	config := object[corev1.ConfigMap](t, all, "ConfigMap ekg/ekg-config").Data["ekg.yaml"]
	for _, line := range []string{`cull-idle-timeout: "3600"`, "cull-connected: false", "log-level: debug",
		"default-kernel: python3", "allowed-kernelspec:\n- python_kubernetes"} {
		if !strings.Contains(config, line) {
			t.Errorf("no line %s in\n%s", line, config)
		}
	}
	if v := pod.Spec.Volumes[slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Name == "more-kernelspecs"
	})]; v.NFS == nil || v.NFS.Server != "10.0.0.2" {
		t.Errorf("%+v", v)
	}
}

// Values that cannot work are rejected, all at once, each with its name.
func TestHelm_Rejected(t *testing.T) {
	for _, tt := range []struct {
		values string
		words  []string
	}{
		{"image: elyra/enterprise-gateway:3.2.3", []string{"image: elyra/enterprise-gateway:3.2.3 is Enterprise Gateway's"}},
		{"image: ekg:latest", []string{"name a version instead of latest"}},
		{"settings: {listen: 0.0.0.0:1, kube-policy: x}", []string{"2 values",
			"settings.listen: the chart sets it. Use service.port.", "settings.kube-policy: the chart sets it. Use policy."}},
		{"settings: {cull-idle: 3}", []string{"settings", "cull-idle"}},
		{"kip: {}\nmetric: {}", []string{"metric"}},
		{"kernels: {namespace: ekg}", []string{"kernels need another namespace"}},
		{"authToken: x\nusers: {existingSecret: u}", []string{"with users there is no shared token"}},
		{"ingress: {enabled: true, path: /a}", []string{"set settings.base-url to /a"}},
		{"logLevel: LOUD", []string{"logLevel: LOUD"}},
		{"metrics: {rules: {enabled: true}}", []string{"they need metrics.enabled"}},
		{"nfs: {enabled: true}\nkernelspecsPvc: {enabled: true}", []string{"both are enabled",
			"nfs.internalServerIPAddress: is missing", "kernelspecsPvc.name: is missing"}},
		{"kernelspecs: {specs: {../x: {argv: [], display_name: x, language: x}}}", []string{"../x"}},
		{"kernelspecs: {specs: {x: {argv: []}}}", []string{"display_name"}},
	} {
		_, err := template(t, tt.values)
		for _, w := range tt.words {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: the error lacks %q: %v", tt.values, w, err)
			}
		}
	}
}

// The notes name the next commands, and Enterprise Gateway's values that have no effect.
func TestHelm_Notes(t *testing.T) {
	for _, tt := range []struct {
		values  string
		has, no []string
	}{
		{"", []string{"kubectl -n ekg rollout status deployment/ekg", "port-forward service/ekg 8888:80",
			"jupyter lab --gateway-url http://127.0.0.1:8888", "get secret ekg-token"}, []string{"without an effect"}},
		{"kernel: {clusterRole: x, launchTimeout: 60}\nkip: {enabled: true}", []string{"Values without an effect:",
			"kernel.clusterRole: has no effect", "settings.start-wait", "kip: has no effect"}, nil},
		{"service: {ports: [{name: http, port: 80, targetPort: 9000, protocol: TCP}, {name: http-response, port: 8877}]}",
			[]string{"service.ports http targetPort: has no effect. The gateways listen on port 8888", "http protocol: has",
				"service.ports http-response: has no effect"}, nil},
		{"service: {ports: [{name: http, port: 80, targetPort: 8888}]}", nil, []string{"without an effect"}},
		{"kernel: {allowedKernels: [python_kubernetes]}",
			[]string{"kernel.allowedKernels: names none of kernelspecs.specs"}, nil},
		{"kernel: {allowedKernels: [python3]}", nil, []string{"allowedKernels"}},
		{"policy: {kernelspecs: {objects: [Service]}}", []string{"policy.kernelspecs.objects: has no effect"}, nil},
		{"policy: {kernelspecs: {objects: [ConfigMap]}}", nil, []string{"without an effect"}},
		{"objects: true\npolicy: {kernelspecs: {objects: [Service]}}", nil, []string{"without an effect"}},
		{"users: {existingSecret: u}\ningress: {enabled: true, hostName: a.b, tls: [{}]}",
			[]string{"jupyter lab --gateway-url https://a.b/"}, []string{"ekg-token"}},
	} {
		file := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(file, []byte(tt.values), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := helm(t, "install", "ekg", "helm/ekg", "--namespace", "ekg", "--values", file, "--dry-run=client")
		if err != nil {
			t.Fatal(err)
		}
		_, notes, _ := strings.Cut(out, "NOTES:")
		for _, w := range tt.has {
			if !strings.Contains(notes, w) {
				t.Errorf("%s: the notes lack %q:\n%s", tt.values, w, notes)
			}
		}
		for _, w := range tt.no {
			if strings.Contains(notes, w) {
				t.Errorf("%s: the notes have %q:\n%s", tt.values, w, notes)
			}
		}
	}
}

// The chart and the manifests name the same release of the image, and no file names an image without a release.
func TestHelm_Version(t *testing.T) {
	var chart struct{ Version, AppVersion string }
	text, err := os.ReadFile("helm/ekg/Chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &chart); err != nil {
		t.Fatal(err)
	}
	image := find[*appsv1.Deployment](t, base, "ekg").Spec.Template.Spec.Containers[0].Image
	if !strings.HasSuffix(image, ":"+chart.AppVersion) || chart.Version != chart.AppVersion {
		t.Errorf("the chart is %+v, the image is %s", chart, image)
	}
	if c, err := exec.Command("git", "grep", "-nE", `(newTag|image|FROM).*[: ]latest\b`, "--", ".", "../docs",
		"../README.md", "../hack", "../e2e", "../python", "../.github", "../.ci", ":!helm_test.go", ":!../hack/multiarch",
		":!helm/ekg/templates/_validate.tpl").Output(); err == nil {
		t.Errorf("these lines name an image without a release:\n%s", c)
	}
}
