//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// This file follows docs/from-enterprise-gateway.md, step by step, with Enterprise Gateway in the cluster.

// walk runs the commands of the document in the order of its steps.
type walk struct {
	t     *testing.T
	dir   string            // the working directory of all steps
	env   []string          // of the shell
	names string            // the assignments of the first step, with the test's values
	steps map[string]string // by the number or the title of the step
	seen  map[string]string // lines that the document shows after a step
}

// stepsOf reads a section of the document. In its first step, values are replaced. Each of them must be there.
func stepsOf(t *testing.T, document string, values map[string]string) *walk {
	t.Helper()
	_, text, found := strings.Cut(document, "\n## Step by step\n")
	text, _, ends := strings.Cut(text, "\n## ")
	if !found || !ends {
		t.Fatal("the document has no section with steps")
	}
	w := &walk{t: t, steps: map[string]string{}, seen: map[string]string{}}
	block := regexp.MustCompile("(?s)```(sh|text)\n(.*?)```")
	for _, section := range strings.Split(text, "\n### ")[1:] {
		title, body, _ := strings.Cut(section, "\n")
		if number, _, numbered := strings.Cut(title, ". "); numbered {
			title = number
		}
		for _, b := range block.FindAllStringSubmatch(body, -1) {
			if b[1] == "sh" {
				w.steps[title] += b[2]
			} else {
				w.seen[title] += b[2]
			}
		}
	}
	for line := range strings.Lines(w.steps["1"]) {
		name, _, _ := strings.Cut(line, "=")
		value, known := values[name]
		if !known {
			t.Fatalf("the test has no value for %q", line)
		}
		delete(values, name)
		w.names += name + "=" + value + "\n"
	}
	if len(values) > 0 || len(w.steps) < 8 {
		t.Fatalf("the document lacks %v, or has too few steps: %d", values, len(w.steps))
	}
	return w
}

// run runs the commands of a step, and then more. It returns what they print. The document's lines must be among it.
func (w *walk) run(step, more string) (string, error) {
	commands, found := w.steps[step]
	if !found {
		return "", fmt.Errorf("the document has no step %q", step)
	}
	began := time.Now()
	shell := exec.Command("bash", "-euo", "pipefail", "-c", w.names+commands+more)
	shell.Dir, shell.Env = w.dir, w.env
	out, err := shell.CombinedOutput()
	w.t.Logf("step %s, %v:\n%s%s", step, time.Since(began).Round(time.Second), commands, out)
	if err != nil {
		return "", fmt.Errorf("step %s: %w: %s", step, err, out)
	}
	lines := strings.Split(string(out), "\n")
	for line := range strings.Lines(w.seen[step]) {
		if !slices.Contains(lines, strings.TrimSuffix(line, "\n")) {
			w.t.Errorf("step %s does not print %q", step, line)
		}
	}
	return string(out), nil
}

// must is run for a step that must succeed.
func (w *walk) must(step string) {
	w.t.Helper()
	if _, err := w.run(step, ""); err != nil {
		w.t.Fatal(err)
	}
}

// control lets a script run steps. The last lines of an answer are those of printenv for the variables of JupyterLab.
func (w *walk) control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{step}", func(rw http.ResponseWriter, r *http.Request) {
		more := ""
		if r.PathValue("step") == "5" {
			more = "printenv JUPYTER_GATEWAY_URL JUPYTER_GATEWAY_AUTH_TOKEN\n"
		}
		out, err := w.run(r.PathValue("step"), more)
		if err != nil {
			w.t.Error(err)
			http.Error(rw, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(rw, out) // the script notices a broken answer
	})
	return mux
}

// enterpriseVolume holds the kernelspecs of Enterprise Gateway, in a folder of the node.
const enterpriseVolume = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s}
spec:
  capacity: {storage: 1Mi}
  accessModes: [ReadOnlyMany]
  storageClassName: ""
  hostPath: {path: %[2]s}
  claimRef: {name: kernelspecs, namespace: %[1]s}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: kernelspecs, namespace: %[1]s}
spec:
  accessModes: [ReadOnlyMany]
  storageClassName: ""
  volumeName: %[1]s
  resources: {requests: {storage: 1Mi}}
`

// teamTemplate edits the pod template of the release as an operator would.
var teamTemplate = strings.NewReplacer(
	"source: kernel-pod.yaml", "source: kernel-pod.yaml\n    user: {{ kernel_username | yaml_safe }}",
	`#    - name: MY_CUSTOM_ENV`, `    - name: TEAM`, `#      value: "my_custom_value"`, `      value: "ml"`,
	"    volumeMounts:\n", "    volumeMounts:\n    - {name: scratch, mountPath: /scratch}\n",
	"  volumes:\n", "  volumes:\n  - {name: scratch, emptyDir: {}}\n")

// enterpriseKernelspecs writes three kernelspecs of the release. One has an edited template.
func enterpriseKernelspecs(t *testing.T, source, dir string) {
	t.Helper()
	read := func(path string) string {
		text, err := os.ReadFile(filepath.Join(source, "etc", path))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	const scripts = "kernel-launchers/kubernetes/scripts/"
	image := regexp.MustCompile(`elyra/[a-z-]+:VERSION`)
	template := read(scripts + "kernel-pod.yaml.j2")
	edited := teamTemplate.Replace(template)
	if strings.Count(edited, "\n") != strings.Count(template, "\n")+3 || !strings.Contains(edited, "name: TEAM") {
		t.Fatalf("the template of the release is another one:\n%s", template)
	}
	for _, spec := range []struct{ name, from, template string }{
		{"python_kubernetes", "python_kubernetes", template}, {"python_tf_kubernetes", "python_tf_kubernetes", template},
		{"team", "python_kubernetes", edited},
	} {
		kernel := image.ReplaceAllString(read("kernelspecs/"+spec.from+"/kernel.json"), "localhost/kernel-eg:dev")
		for name, text := range map[string]string{
			"kernel.json":                  strings.ReplaceAll(kernel, "kernels/"+spec.from, "kernels/"+spec.name),
			"scripts/launch_kubernetes.py": read(scripts + "launch_kubernetes.py"),
			"scripts/kernel-pod.yaml.j2":   spec.template,
		} {
			path := filepath.Join(dir, spec.name, name)
			err := os.MkdirAll(filepath.Dir(path), 0o755)
			if err = errors.Join(err, os.WriteFile(path, []byte(text), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// installEnterprise installs Enterprise Gateway by its own chart, and returns the address of its Service.
func (c *cluster) installEnterprise(w *walk, g *gateway, source, ns string) string {
	t := w.t
	t.Helper()
	specs := filepath.Join(g.dir, "kernels")
	enterpriseKernelspecs(t, source, specs)
	if err := os.Chmod(g.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, fmt.Sprintf(enterpriseVolume, ns, specs), "apply", "-f", "-")
	t.Cleanup(func() { c.kubectl(t, "", "delete", "pv", ns, "--wait=false") })
	w.steps["enterprise"] = fmt.Sprintf(`helm install enterprise-gateway %s/etc/kubernetes/helm/enterprise-gateway -n $NS \
	--set image=localhost/enterprise-gateway:dev,authToken=%s,kip.enabled=false,kernel.allowedKernels=null \
	--set kernelspecsPvc.enabled=true,kernelspecsPvc.name=kernelspecs
kubectl -n $NS rollout status deployment/enterprise-gateway --timeout=2m
`, source, g.token)
	w.steps["no enterprise"] = `helm uninstall enterprise-gateway -n $NS --ignore-not-found
kubectl delete namespace --selector app=enterprise-gateway,component=kernel --wait=false
`
	t.Cleanup(func() { w.must("no enterprise") }) // it has objects outside of its namespace
	w.must("enterprise")
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.tryKubectl("", "-n", ns, "logs", "deploy/enterprise-gateway", "--tail=60"))
		}
	})
	return c.serviceURL(t, ns, "enterprise-gateway")
}

// serviceURL returns the address of a Service.
func (c *cluster) serviceURL(t *testing.T, ns, name string) string {
	t.Helper()
	return "http://" + c.kubectl(t, "", "-n", ns, "get", "service", name, "-o", "jsonpath={.spec.clusterIP}") + ":8888"
}

// serves waits until a gateway answers at the address, with this kernel unless it is "".
func (g *gateway) serves(what, kernel string) {
	g.t.Helper()
	g.eventually(2*time.Minute, what, func() error {
		http.DefaultClient.CloseIdleConnections() // they lead to where the Service led before
		status, b, err := g.tryAsk("GET", "/api/kernels", "")
		if err == nil && (status != 200 || !strings.Contains(string(b), kernel)) {
			err = fmt.Errorf("%d %s", status, b)
		}
		return err
	})
}

// programs makes a folder with these programs, by the commands that run them.
func programs(t *testing.T, commands map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, command := range commands {
		text := "#!/bin/sh\nexec " + command + ` "$@"` + "\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// teamCell prints what the edited template, its kernelspec and a client give a kernel.
const teamCell = `import json, os
print(json.dumps([os.environ['TEAM'], os.path.ismount('/scratch'), os.access('/scratch', os.W_OK), os.getuid(),
    os.getgid(), os.getcwd(), os.environ['KERNEL_USERNAME']]))`

// team starts a kernel with the edited template. It returns what the cell prints, and the kernel's id.
func (g *gateway) team() (printed, id string) {
	g.t.Helper()
	var m model
	g.want(201, "POST", "/api/kernels", `{"name": "team", "env": {"KERNEL_USERNAME": "ann"}}`, &m)
	r := g.dial(g.t, m.ID, "team", false).execute(teamCell, time.Minute)
	if !strings.HasPrefix(r.stdout, `["ml", true, true, `) {
		g.t.Fatalf("the cell printed %q; reply %s", r.stdout, r.reply.Content)
	}
	return r.stdout, m.ID
}

// tools returns an environment with kubectl, helm, ekg and ekg-migrate for commands of a document.
func (c *cluster) tools(t *testing.T, g *gateway) []string {
	migrate, env := migrateProgram(t, g.in)
	return append(os.Environ(), "KUBECONFIG="+c.kubeconfig, "HELM_CACHE_HOME="+g.dir, "HELM_CONFIG_HOME="+g.dir,
		"HELM_DATA_HOME="+g.dir, "PATH="+programs(t, map[string]string{"kubectl": c.script + " kubectl",
			"helm": filepath.Join(g.in.repository, "hack/helm"), "ekg": filepath.Join(g.in.bin, "ekg"),
			"ekg-migrate": "env " + env[0] + " " + migrate})+":"+os.Getenv("PATH"))
}

// TestE2E_KubeMovingIn: ekg is installed beside Enterprise Gateway and then instead of it, by the commands of the
// document. Open JupyterLabs notice what the document says.
func TestE2E_KubeMovingIn(t *testing.T) {
	t.Parallel() // it mostly waits
	in := theInstallation(t)
	source := filepath.Join(enterprisePeers(t, in), "eg-source")
	c := theCluster(t)
	c.needsOwn(t, "it loads images")
	c.images(t, "kernel-eg", "enterprise-gateway")
	document, err := os.ReadFile(filepath.Join(in.repository, "docs/from-enterprise-gateway.md"))
	if err != nil {
		t.Fatal(err)
	}
	g, ns := prepare(t, ""), c.newNamespace(t)
	w := stepsOf(t, string(document), map[string]string{
		"NS": ns, "CHART": filepath.Join(in.repository, "deploy/helm/ekg"), "IMAGE": "localhost/ekg:dev",
	})
	w.dir, w.env = t.TempDir(), c.tools(t, g)
	t.Cleanup(func() {
		c.kubectl(t, "", "delete", "namespace", ns+"-kernels", "--ignore-not-found", "--timeout=60s")
	})
	g.url = c.installEnterprise(w, g, source, ns)
	g.serves("Enterprise Gateway answers", "")
	before, id := g.team()
	g.want(204, "DELETE", "/api/kernels/"+id, "", nil)

	control := httptest.NewServer(w.control())
	defer control.Close()
	g.script(10*time.Minute, []string{"EKG_CONTROL=" + control.URL,
		"EKG_ARTIFACTS=" + filepath.Join(in.artifacts, "movingin")}, "node",
		filepath.Join(in.repository, "e2e/testdata/browser/movingin.mjs"))

	w.must("7")
	after, id := g.team()
	if after != before {
		t.Errorf("a kernel of ekg prints %s, and one of Enterprise Gateway printed %s", after, before)
	}
	w.must("Back to Enterprise Gateway")
	g.serves("Enterprise Gateway answers again", "[]")
	w.must("6")
	g.serves("ekg answers again", id)
	w.must("7")
	w.must("8")
	g.url = c.serviceURL(t, ns, "enterprise-gateway")
	g.serves("ekg answers without Enterprise Gateway", id)
	k := &inCluster{gateway: g, cluster: c, namespace: ns + "-kernels"}
	k.dial(t, id, "s", true).says("import os; print(os.environ['TEAM'])", "ml\n")
	k.deleteAll()
}
