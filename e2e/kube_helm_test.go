//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// helmValues installs the images of the tests.
const helmValues = `
image: localhost/ekg:dev
authToken: ` + secret + `
kernelspecs:
  specs:
    python3-gpu: null
    python3:
      argv: [python3, -m, ipykernel_launcher, -f, "{connection_file}"]
      display_name: Python 3
      language: python
      metadata: {ekg: {image: "localhost/kernel-py:dev", resources: null}}
`

// TestE2E_KubeHelm: a kernel keeps its variables through an upgrade, a rollback, and an uninstallation of the chart
// with an installation after it.
func TestE2E_KubeHelm(t *testing.T) {
	const home, release = "ekg-helm", "ekg"
	c := theCluster(t)
	c.needsOwn(t, "the chart is installed into it")
	g := prepare(t, "")
	k := &inCluster{gateway: g, cluster: c, namespace: home + "-kernels", replicaNS: home}
	dir := t.TempDir()
	values := filepath.Join(dir, "values.yaml")
	if err := os.WriteFile(values, []byte(helmValues), 0o600); err != nil {
		t.Fatal(err)
	}
	helm := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(filepath.Join(g.in.repository, "hack/helm"), append(args, "--namespace", home)...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig, "HELM_CACHE_HOME="+dir, "HELM_CONFIG_HOME="+dir,
			"HELM_DATA_HOME="+dir)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, &stderr)
		}
		return string(out)
	}
	t.Cleanup(func() {
		c.kubectl(t, "", "delete", "namespace", home, k.namespace, "--ignore-not-found", "--timeout=60s")
	})
	chart := filepath.Join(g.in.repository, "deploy/helm/ekg")
	notes := helm("install", release, chart, "--create-namespace", "--values", values)
	if !strings.Contains(notes, "kubectl -n ekg-helm rollout status deployment/ekg") {
		t.Errorf("the notes are\n%s", notes)
	}
	k.rolledOut()
	k.balance()
	key := k.masterKey()
	var m model
	k.want(201, "POST", "/api/kernels", `{"name": "python3"}`, &m)
	first := k.dial(t, m.ID, "first", true)
	if r := first.finish(first.begin("x = 41"), time.Minute); r.stdout != "" {
		t.Errorf("%q", r.stdout)
	}
	number := 41
	lives := func(after string) {
		t.Helper()
		k.rolledOut()
		if got := k.masterKey(); got != key {
			t.Errorf("after %s there is another master key", after)
		}
		number++
		kernel := k.dial(t, m.ID, after, true)
		r := kernel.finish(kernel.begin("x += 1; print(x)"), time.Minute)
		if strings.TrimSpace(r.stdout) != strconv.Itoa(number) {
			t.Errorf("after %s the cell printed %q, want %d", after, r.stdout, number)
		}
	}
	helm("upgrade", release, chart, "--values", values, "--set", "deployment.replicas=1,settings.max-kernels=1")
	lives("the upgrade")
	if n := k.replicaCount(); n != 1 {
		t.Errorf("%d replicas after the upgrade", n)
	}
	if status, b := k.ask("POST", "/api/kernels", `{"name": "python3"}`); status != 403 {
		t.Errorf("a kernel beyond the limit of the upgraded settings: %d %s", status, b)
	}
	helm("rollback", release, "1")
	lives("the rollback")
	if n := k.replicaCount(); n != 2 {
		t.Errorf("%d replicas after the rollback", n)
	}
	helm("uninstall", release, "--wait")
	if pods := k.podsOf(m.ID); len(pods) != 1 {
		t.Fatalf("the uninstallation left %d pods of the kernel", len(pods))
	}
	policies := c.kubectl(t, "", "-n", k.namespace, "get", "networkpolicies", "-o", "name")
	if !strings.Contains(policies, "/ekg-kernels\n") || !strings.Contains(policies, "/ekg-kernels-egress\n") {
		t.Errorf("the uninstallation left these policies: %s", policies)
	}
	helm("install", release, chart, "--values", values)
	lives("the second installation")
	k.want(204, "DELETE", "/api/kernels/"+m.ID, "", nil)
}

// masterKey returns the master key of the installation.
func (k *inCluster) masterKey() string {
	k.t.Helper()
	return k.cluster.kubectl(k.t, "", "-n", k.replicaNS, "get", "secret", "ekg-master-key", "-o", "jsonpath={.data}")
}

// replicaCount returns how many gateways the Deployment asks for.
func (k *inCluster) replicaCount() (n int) {
	k.t.Helper()
	out := k.cluster.kubectl(k.t, "", "-n", k.replicaNS, "get", "deployment", "ekg", "-o", "jsonpath={.spec.replicas}")
	if err := json.Unmarshal([]byte(out), &n); err != nil {
		k.t.Fatal(err)
	}
	return n
}
