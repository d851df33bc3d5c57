//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"
)

const (
	comparedKernel = "00000000-0000-4000-8000-000000000000" // that of `ekg kernelspec render`
	comparedUser   = "ann"
)

// comparedPolicy allows what the templates ask for.
const comparedPolicy = `
kernelspecs: {secrets: [object-store], capabilities: [NET_BIND_SERVICE], objects: [ConfigMap]}
clients:
  allow: [KERNEL_CPUS, KERNEL_CPUS_LIMIT, KERNEL_MEMORY, KERNEL_MEMORY_LIMIT, KERNEL_GPUS, KERNEL_GPUS_LIMIT,
    KERNEL_UID, KERNEL_GID, KERNEL_VOLUMES, KERNEL_VOLUME_MOUNTS]
  persistentVolumeClaims: ["*"]
  volumes: [persistentVolumeClaim]
`

// comparedSpecs are the kernelspecs whose pods are compared. The first one has the template of the release. The
// variables are those of a client that the template uses. Paths under leftOut are those that ekg-migrate names.
var comparedSpecs = []struct {
	name      string
	variables []string
	leftOut   []string
}{
	{name: "shipped", variables: []string{"KERNEL_CPUS=2", "KERNEL_CPUS_LIMIT=3", "KERNEL_MEMORY=2Gi",
		"KERNEL_MEMORY_LIMIT=3Gi", "KERNEL_GPUS=1", "KERNEL_GPUS_LIMIT=1", "KERNEL_UID=1234", "KERNEL_GID=4321",
		`KERNEL_VOLUMES=[{"name": "own", "persistentVolumeClaim": {"claimName": "own"}}]`,
		"KERNEL_VOLUME_MOUNTS=- {name: own, mountPath: /own}"}},
	{name: "gpu", variables: []string{"KERNEL_CPUS=3", "KERNEL_MEMORY=9Gi", "KERNEL_MEMORY_LIMIT=14Gi",
		"KERNEL_GPUS_LIMIT=1", "KERNEL_UID=1234", `KERNEL_VOLUMES=[{"name": "own", "persistentVolumeClaim": ` +
			`{"claimName": "own"}}]`, "KERNEL_VOLUME_MOUNTS=- {name: own, mountPath: /own}"}},
	{name: "homes", variables: []string{"KERNEL_UID=1234", "KERNEL_GID=4321"},
		leftOut: []string{"metadata.labels.user", "container.env.BUCKET",
			"container.volumeMounts./mnt/node", "spec.volumes.node"}},
	{name: "older", variables: []string{"KERNEL_CPUS=2", "KERNEL_MEMORY=5Gi", "KERNEL_UID=1234",
		`KERNEL_VOLUMES=[{"name": "own", "persistentVolumeClaim": {"claimName": "own"}}]`,
		"KERNEL_VOLUME_MOUNTS=- {name: own, mountPath: /own}", "KERNEL_PROJECT=x"}},
	{name: "strict", leftOut: []string{"spec.automountServiceAccountToken", "spec.securityContext.sysctls",
		"container.ports", "beside.audit.ports"}},
	{name: "r", variables: []string{"KERNEL_CPUS_LIMIT=3", "KERNEL_MEMORY_LIMIT=3Gi"},
		leftOut: []string{"container.env.LONG_ID"}},
}

// comparison is one comparison of two pods, by path.
type comparison struct {
	eg, ekg  map[string]string
	launcher map[string]string // the environment of Enterprise Gateway's launcher
}

// allowed are the differences between a pod of Enterprise Gateway and that of the converted kernelspec.
// docs/from-enterprise-gateway.md has the same table.
var allowed = []struct {
	field, difference string
	is                func(c comparison, path string) bool
}{
	{"names of pod and container", "the pod has the kernel's id and a number, the container is `kernel`",
		func(_ comparison, path string) bool {
			return path == "metadata.name" || path == "container.name"
		}},
	{"`labels`, `annotations`", "ekg adds its own", func(c comparison, path string) bool {
		for _, prefix := range []string{"metadata.labels.", "metadata.annotations."} {
			for _, domain := range []string{"elastic-kernel-gateway.github.io/", "app.kubernetes.io/", "sidecar.istio.io/",
				"linkerd.io/", "karpenter.sh/", "kubectl.kubernetes.io/", "cluster-autoscaler.kubernetes.io/"} {
				if c.added(path, prefix+domain) {
					return true
				}
			}
		}
		return false
	}},
	{"`restartPolicy`", "`OnFailure` instead of `Never`: the kubelet restarts a kernel in its pod",
		func(c comparison, path string) bool {
			return path == "spec.restartPolicy" && c.eg[path] == "Never" && c.ekg[path] == "OnFailure"
		}},
	{"`serviceAccountName`", "a service account that is `default` is not named", func(c comparison, path string) bool {
		return path == "spec.serviceAccountName" && c.eg[path] == "default" && c.ekg[path] == ""
	}},
	{"the pod's `securityContext`",
		"`runAsUser`, `runAsGroup`, `runAsNonRoot` and `seccompProfile` are those of each container",
		func(c comparison, path string) bool {
			where, name := "container", ""
			if in, inner := containerOf(path); in != "" {
				where, name = in, inner
			}
			name, inContainer := strings.CutPrefix(name, "securityContext.")
			if !inContainer {
				name, _ = strings.CutPrefix(path, "spec.securityContext.")
			}
			own, wanted := c.eg[where+".securityContext."+name], c.eg["spec.securityContext."+name]
			if own != "" {
				wanted = own
			}
			return wanted != "" && c.ekg[where+".securityContext."+name] == wanted && c.ekg["spec.securityContext."+name] == ""
		}},
	{"containers beside the kernel's",
		"all are init containers; those that go on running have the restart policy `Always`",
		func(c comparison, path string) bool {
			_, inner := containerOf(path)
			return inner == "restartPolicy" && c.eg[path] == "" && c.ekg[path] == "Always"
		}},
	{"a container's `securityContext`",
		"capabilities are dropped, privileges cannot be gained, and seccomp is the runtime's default",
		func(c comparison, path string) bool {
			return c.addedTo(path, "securityContext.capabilities.drop", "securityContext.allowPrivilegeEscalation",
				"securityContext.seccompProfile.")
		}},
	{"`automountServiceAccountToken`, `enableServiceLinks`", "both are false", func(c comparison, path string) bool {
		return c.added(path, "spec.automountServiceAccountToken", "spec.enableServiceLinks") && c.ekg[path] == "false"
	}},
	{"`volumes`, `volumeMounts`", "ekg adds its own", func(c comparison, path string) bool {
		return c.added(path, "spec.volumes.ekg.", "spec.volumes.secret.", "spec.volumes.spill.",
			"spec.volumes.home.emptyDir.", "container.volumeMounts./ekg.", "container.volumeMounts./ekg-home.")
	}},
	{"`name` of a volume", "a volume with the name of one of ekg's is renamed", func(c comparison, path string) bool {
		_, inner := containerOf(path)
		if strings.HasPrefix(inner, "volumeMounts.") && strings.HasSuffix(path, ".name") {
			return c.ekg[path] == "eg-"+c.eg[path]
		}
		if old := strings.Replace(path, "spec.volumes.eg-", "spec.volumes.", 1); old != path {
			return c.eg[old] == c.ekg[path]
		}
		now := strings.Replace(path, "spec.volumes.", "spec.volumes.eg-", 1)
		return now != path && c.eg[path] == c.ekg[now] && c.ekg[path] == ""
	}},
	{"`/dev/shm`", "with a GPU it has 1Gi, unless `shmSize` is set", func(c comparison, path string) bool {
		return c.added(path, "spec.volumes.dshm.", "container.volumeMounts./dev/shm.")
	}},
	{"`nodeSelector`", "nodes run Linux", func(c comparison, path string) bool {
		return c.added(path, "spec.nodeSelector.kubernetes.io/os")
	}},
	{"`terminationGracePeriodSeconds`", "it follows `--stop-grace` unless it is set",
		func(c comparison, path string) bool {
			return c.added(path, "spec.terminationGracePeriodSeconds")
		}},
	{"the container's `command`, and `terminationMessagePolicy`", "they are ekg's",
		func(c comparison, path string) bool {
			return c.added(path, "container.command") || c.addedTo(path, "terminationMessage")
		}},
	{"`env`", "variables of the launcher's process and of its protocol are not copied",
		func(c comparison, path string) bool {
			name, isVariable := strings.CutPrefix(path, "container.env.")
			value, there := c.launcher[strings.TrimSuffix(name, ".value")]
			return isVariable && there && c.eg[path] == value && c.ekg[path] == ""
		}},
	{"`NVIDIA_VISIBLE_DEVICES`", "it is `void` without a GPU", func(c comparison, path string) bool {
		return c.addedTo(path, "env.NVIDIA_VISIBLE_DEVICES.") && c.ekg[path] == "void"
	}},
	{"`value` of a variable that is the pod's name, user or id", "it is a `fieldRef` to the pod's own field",
		func(c comparison, path string) bool {
			base := strings.TrimSuffix(strings.TrimSuffix(path, ".value"), ".valueFrom.fieldRef.fieldPath")
			if base == path || c.eg[base+".value"] == "" {
				return false
			}
			switch c.ekg[base+".valueFrom.fieldRef.fieldPath"] {
			case "metadata.annotations['elastic-kernel-gateway.github.io/owner']":
				return c.eg[base+".value"] == c.ekg["metadata.annotations.elastic-kernel-gateway.github.io/owner"]
			case "metadata.name":
				return c.eg[base+".value"] == c.eg["metadata.name"]
			}
			return false
		}},
	{"`requests` of a device", "the request equals the limit", func(c comparison, path string) bool {
		limit := strings.Replace(path, ".requests.", ".limits.", 1)
		return c.added(path, "container.resources.requests.") && strings.Contains(path, "/") && c.ekg[limit] == c.ekg[path]
	}},
}

// added reports whether only ekg's pod has a path, which begins with one of these.
func (c comparison) added(path string, prefixes ...string) bool {
	return c.eg[path] == "" && slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(path, p) })
}

// addedTo reports whether only ekg's pod has a path of a container, which begins in it with one of these.
func (c comparison) addedTo(path string, prefixes ...string) bool {
	container, inner := containerOf(path)
	return container != "" && c.eg[path] == "" &&
		slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(inner, p) })
}

var containerPath = regexp.MustCompile(`^(container|beside\.[^.]+)\.(.*)$`)

// containerOf divides a path into that of its container and the rest. It returns "" for other paths.
func containerOf(path string) (container, inner string) {
	if m := containerPath.FindStringSubmatch(path); m != nil {
		return m[1], m[2]
	}
	return "", ""
}

// enterprisePeers returns the folder with Enterprise Gateway and its source, which it installs if need be.
func enterprisePeers(t *testing.T, in installed) string {
	t.Helper()
	setup := exec.Command(filepath.Join(in.repository, "hack/env/peers"))
	setup.Stderr = os.Stderr
	out, err := setup.Output()
	if err != nil {
		t.Fatalf("hack/env/peers: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// TestE2E_EnterprisePods: the pod of a converted kernelspec is the one that Enterprise Gateway's own launcher creates
// with its template, but for the allowed differences.
func TestE2E_EnterprisePods(t *testing.T) {
	t.Parallel()
	in := theInstallation(t)
	peers := enterprisePeers(t, in)
	document, err := os.ReadFile(filepath.Join(in.repository, "docs/from-enterprise-gateway.md"))
	if err != nil {
		t.Fatal(err)
	}
	t.Run("variables", func(t *testing.T) { documentsVariables(t, filepath.Join(peers, "eg-source"), string(document)) })
	used := map[string]bool{}
	for _, tt := range comparedSpecs {
		for i, variables := range [][]string{nil, tt.variables} {
			if i > 0 && len(variables) == 0 {
				continue
			}
			t.Run(fmt.Sprintf("%s with %d variables", tt.name, len(variables)), func(t *testing.T) {
				dir := enterpriseSpec(t, in, peers, tt.name)
				c := comparison{launcher: map[string]string{}}
				c.eg = enterprisePod(t, peers, dir, variables, c.launcher)
				c.ekg = convertedPod(t, in, dir, variables, len(tt.leftOut) > 0)
				compare(t, c, tt.leftOut, used)
			})
		}
	}
	for _, a := range allowed {
		row := "| " + a.field + " | " + a.difference + " |"
		if !used[row] {
			t.Errorf("no pod has this difference any more: %s", row)
		}
		if !bytes.Contains(document, []byte(row+"\n")) {
			t.Errorf("docs/from-enterprise-gateway.md lacks: %s", row)
		}
	}
}

// documentsVariables checks that the document has each KERNEL_* variable of Enterprise Gateway's source.
func documentsVariables(t *testing.T, source, document string) {
	variable := regexp.MustCompile(`\bKERNEL_[A-Z]+(_[A-Z]+)*\b`)
	internal := []string{"KERNEL_SESSIONS_DIR_NAME", "KERNEL_ASSEMBLY"} // no variables of an environment
	found := 0
	for _, dir := range []string{"enterprise_gateway/services", "enterprise_gateway/mixins.py", "etc/kernel-launchers",
		"etc/kernelspecs"} {
		err := filepath.WalkDir(filepath.Join(source, dir), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			for _, name := range variable.FindAllString(string(text), -1) {
				found++
				if !slices.Contains(internal, name) && !strings.Contains(document, "`"+name+"`") {
					t.Errorf("docs/from-enterprise-gateway.md lacks %s, which is in %s", name, path)
				}
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	if found < 100 {
		t.Errorf("found only %d names", found)
	}
}

// compare reports differences that are not allowed.
func compare(t *testing.T, c comparison, leftOut []string, used map[string]bool) {
	t.Helper()
	paths := maps.Clone(c.eg)
	maps.Copy(paths, c.ekg)
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		if c.eg[path] == c.ekg[path] {
			continue
		}
		if slices.ContainsFunc(leftOut, func(p string) bool { return path == p || strings.HasPrefix(path, p+".") }) {
			if c.ekg[path] != "" && !strings.HasSuffix(path, "automountServiceAccountToken") {
				t.Errorf("%s was to be left out: got %q", path, c.ekg[path])
			}
			continue
		}
		found := false
		for _, a := range allowed {
			if a.is(c, path) {
				used["| "+a.field+" | "+a.difference+" |"], found = true, true
			}
		}
		if !found {
			t.Errorf("%s: got %q, and Enterprise Gateway has %q", path, c.ekg[path], c.eg[path])
		}
	}
}

// enterpriseSpec returns a folder with a kernelspec, its template and Enterprise Gateway's launcher.
func enterpriseSpec(t *testing.T, in installed, peers, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	source := filepath.Join(peers, "eg-source/etc/kernel-launchers/kubernetes/scripts")
	copyFile := func(from, to string) {
		t.Helper()
		text, err := os.ReadFile(from)
		if err == nil {
			err = errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, text, 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	spec := filepath.Join(in.repository, "testdata/enterprise/migrate/convert", name)
	template := filepath.Join(spec, "scripts/kernel-pod.yaml.j2")
	if name == "shipped" {
		spec = filepath.Join(peers, "eg-source/etc/kernelspecs/python_kubernetes")
		template = filepath.Join(source, "kernel-pod.yaml.j2")
	}
	copyFile(filepath.Join(spec, "kernel.json"), filepath.Join(dir, "kernel.json"))
	copyFile(template, filepath.Join(dir, "scripts/kernel-pod.yaml.j2"))
	copyFile(filepath.Join(source, "launch_kubernetes.py"), filepath.Join(dir, "scripts/launch_kubernetes.py"))
	return dir
}

// enterprisePod runs Enterprise Gateway's launcher as Enterprise Gateway does, and returns the pod that it creates. It
// fills env with the launcher's environment.
func enterprisePod(t *testing.T, peers, dir string, variables []string, env map[string]string) map[string]string {
	t.Helper()
	pods := make(chan []byte, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var object map[string]any
		if err == nil {
			err = json.Unmarshal(body, &object)
		}
		if err != nil || r.Method != http.MethodPost {
			http.Error(w, "unexpected", http.StatusBadRequest)
			return
		}
		if r.URL.Path == "/api/v1/namespaces/kernels/pods" {
			pods <- body
		}
		object["metadata"].(map[string]any)["uid"] = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(object) // the launcher reports a broken answer
	}))
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"clusters": [{"name": "c", "cluster": {"server": %q}}], "users": [{"name": "c", "user": {}}],
"contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]}`, server.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	var spec struct {
		Env      map[string]string `json:"env"`
		Language string            `json:"language"`
		Metadata struct {
			Proxy struct {
				Config map[string]string `json:"config"`
			} `json:"process_proxy"`
		} `json:"metadata"`
	}
	text, err := os.ReadFile(filepath.Join(dir, "kernel.json"))
	if err == nil {
		err = json.Unmarshal(text, &spec)
	}
	if err != nil {
		t.Fatal(err)
	}
	image := spec.Metadata.Proxy.Config["image_name"]
	maps.Copy(env, map[string]string{"KUBECONFIG": kubeconfig, "KERNEL_ID": comparedKernel,
		"KERNEL_USERNAME": comparedUser, "KERNEL_POD_NAME": comparedUser + "-" + comparedKernel,
		"KERNEL_NAMESPACE": "kernels", "KERNEL_SERVICE_ACCOUNT_NAME": "default", "KERNEL_IMAGE": image,
		"KERNEL_EXECUTOR_IMAGE": image, "KERNEL_UID": "1000", "KERNEL_GID": "100", "KERNEL_GATEWAY": "1",
		"KERNEL_LANGUAGE": strings.ToLower(spec.Language)})
	maps.Copy(env, spec.Env)
	for _, v := range variables {
		name, value, _ := strings.Cut(v, "=")
		env[name] = value
	}
	launch := exec.Command(filepath.Join(peers, "eg/bin/python"), filepath.Join(dir, "scripts/launch_kubernetes.py"),
		"--kernel-id", comparedKernel, "--port-range", "0..0", "--response-address", "10.0.0.1:8877", "--public-key", "key")
	launch.Env = []string{} // not this process's
	for name, value := range env {
		launch.Env = append(launch.Env, name+"="+value)
	}
	if out, err := launch.CombinedOutput(); err != nil {
		t.Fatalf("launch_kubernetes.py: %v\n%s", err, out)
	}
	maps.Copy(env, map[string]string{"KERNEL_NAME": filepath.Base(dir), "PORT_RANGE": "0..0", "PUBLIC_KEY": "key",
		"RESPONSE_ADDRESS": "10.0.0.1:8877", "KERNEL_SPARK_CONTEXT_INIT_MODE": "none", "LC_CTYPE": "C.UTF-8"})
	var pod map[string]any
	if err := json.Unmarshal(<-pods, &pod); err != nil {
		t.Fatal(err)
	}
	return flatten(t, pod, 0)
}

// convertedPod converts a kernelspec and returns the pod that ekg would create.
func convertedPod(t *testing.T, in installed, dir string, variables []string, leavesOut bool) map[string]string {
	t.Helper()
	out, policy := t.TempDir(), filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, []byte(comparedPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(cmd *exec.Cmd) (string, int) {
		t.Helper()
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		t.Logf("%s: %s", cmd, &stderr)
		return stdout.String(), cmd.ProcessState.ExitCode()
	}
	_, code := run(migrateCommand(t, in, "kernelspec", "--output", out, "--kube-policy", policy, dir))
	if code != 0 && code != 3 || leavesOut && code == 0 {
		t.Fatalf("convert: %d", code)
	}
	args := []string{"kernelspec", "render", "--kernelspec-dir", out, "--kube-policy", policy, "--kube-namespace",
		"kernels", "--user", comparedUser}
	for _, v := range variables {
		args = append(args, "--env", v)
	}
	text, code := run(exec.Command(filepath.Join(in.bin, "ekg"), append(args, filepath.Base(dir))...))
	if code != 0 {
		t.Fatalf("render: %d", code)
	}
	var pod map[string]any
	first, _, _ := strings.Cut(text, "\n---\n")
	if err := yaml.Unmarshal([]byte(first), &pod); err != nil {
		t.Fatal(err)
	}
	return flatten(t, pod, 1)
}

// flatten returns the values of a pod by path. The kernel's container is under "container", and those beside it are
// under "beside" by name; ekg's own are left out. Elements of lists with
// names, and mounts, have their name in the path.
func flatten(t *testing.T, pod map[string]any, kernel int) map[string]string {
	t.Helper()
	delete(pod, "status")
	spec := pod["spec"].(map[string]any)
	containers := spec["containers"].([]any)
	pod["container"] = containers[kernel]
	delete(spec, "containers")
	others, _ := spec["initContainers"].([]any)
	delete(spec, "initContainers")
	if kernel == 0 {
		others = append(others, containers[1:]...)
	}
	beside := map[string]any{}
	for _, c := range others {
		beside[c.(map[string]any)["name"].(string)] = c
	}
	pod["beside"] = beside
	flat := map[string]string{}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for key, value := range v {
				walk(strings.TrimPrefix(path+"."+key, "."), value)
			}
			if len(v) == 0 {
				flat[path] = "{}"
			}
		case []any:
			for i, item := range v {
				name := fmt.Sprint(i)
				container, _ := containerOf(path)
				if m, ok := item.(map[string]any); ok && container != "" || path == "spec.volumes" {
					for _, key := range []string{"name", "mountPath"} {
						if text, ok := m[key].(string); ok {
							name = text
						}
					}
				}
				walk(path+"."+name, item)
			}
		case nil:
		default:
			flat[path] = fmt.Sprint(v)
		}
	}
	walk("", pod)
	// The name is in the path.
	named := regexp.MustCompile(`^((container|beside\.[^.]+)\.env\.[^.]+|spec\.volumes\.[^.]+)\.name$`)
	maps.DeleteFunc(flat, func(path, value string) bool {
		return named.MatchString(path) ||
			value == "{}" && (strings.HasSuffix(path, ".resources") || path == "beside" || strings.HasSuffix(path, ".metadata"))
	})
	return flat
}
