//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
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
	const release = "ekg"
	k, helm := newHelm(t, "ekg-helm")
	chart := filepath.Join(k.gateway.in.repository, "deploy/helm/ekg")
	notes := helm("install", release, chart, "--create-namespace")
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
	helm("upgrade", release, chart, "--set", "deployment.replicas=1,settings.max-kernels=1",
		"--set-json", `prePull=[{"name": "py", "images": ["localhost/kernel-py:dev"]}]`,
		"--set-json", `placeholders=[{"name": "py", "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}}]`)
	lives("the upgrade")
	for _, ahead := range []string{"daemonset/ekg-pre-pull-py", "deployment/ekg-placeholder-py"} {
		k.cluster.kubectl(t, "", "-n", k.namespace, "rollout", "status", ahead, "--timeout=2m")
	}
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
	policies := k.cluster.kubectl(t, "", "-n", k.namespace, "get", "networkpolicies", "-o", "name")
	if !strings.Contains(policies, "/ekg-kernels\n") || !strings.Contains(policies, "/ekg-kernels-egress\n") {
		t.Errorf("the uninstallation left these policies: %s", policies)
	}
	helm("install", release, chart)
	lives("the second installation")
	k.want(204, "DELETE", "/api/kernels/"+m.ID, "", nil)
}

// TestE2E_KubeHelmUpgrade: kernels keep their variables, and a running cell goes on, through an upgrade from the chart
// and the programs of the previous release, and through the rollback to them. A websocket ends with its gateway. The
// next one of its session has all of the cell.
func TestE2E_KubeHelmUpgrade(t *testing.T) {
	const release, earlier = "ekg", "localhost/ekg:previous"
	k, helm := newHelm(t, "ekg-helm-upgrade")
	programs, source := t.TempDir(), sourceOf(t, k.gateway.in, previousChart)
	built := previous(t, k.gateway.in, previousChart)
	// Containers run the programs as another user.
	err := errors.Join(os.Chmod(programs, 0o755), os.CopyFS(filepath.Join(programs, "usr/bin"), os.DirFS(built)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.cluster.run("image", earlier, programs, "--user", "65532:65532", "--", "/usr/bin/ekg"); err != nil {
		t.Fatal(err)
	}
	helm("install", release, filepath.Join(source, "deploy/helm/ekg"), "--create-namespace", "--set", "image="+earlier)
	k.rolledOut()
	k.runsImage(earlier)
	k.balance()
	key := k.masterKey()
	var first, second model
	k.want(201, "POST", "/api/kernels", `{"name": "python3"}`, &first)
	page := k.dial(t, first.ID, "page", true)
	page.says("x = 41", "")
	number := 41
	through := func(step string, change func()) {
		t.Helper()
		cell := page.begin("import os, time\nprint('began')\nwhile not os.path.exists('/tmp/" + step + "'):\n" +
			"    time.sleep(0.1)\nx += 1\nprint(x)")
		page.prints("began")
		change()
		k.rolledOut()
		if got := k.masterKey(); got != key {
			t.Errorf("after the %s there is another master key", step)
		}
		page.ended(time.Minute)
		page = k.dial(t, first.ID, "page", true)
		pods := k.podsOf(first.ID)
		if len(pods) != 1 {
			t.Fatalf("after the %s the kernel has %d pods", step, len(pods))
		}
		k.cluster.kubectl(t, "", "-n", k.namespace, "exec", pods[0].Metadata.Name, "-c", "kernel", "--",
			"touch", "/tmp/"+step)
		number++
		// The first websocket may have had the first line.
		r := page.finish(cell, time.Minute)
		if want := strconv.Itoa(number) + "\n"; strings.TrimPrefix(r.stdout, "began\n") != want {
			t.Errorf("after the %s the cell printed %q, want %q", step, r.stdout, want)
		}
		page.says("print(x)", strconv.Itoa(number)+"\n")
	}
	through("upgrade", func() {
		helm("upgrade", release, filepath.Join(k.gateway.in.repository, "deploy/helm/ekg"))
	})
	k.runsImage("localhost/ekg:dev")
	k.want(201, "POST", "/api/kernels", `{"name": "python3"}`, &second)
	k.dial(t, second.ID, "second", true).says("y = 'of the next release'", "")

	through("rollback", func() { helm("rollback", release, "1") })
	k.runsImage(earlier)
	k.dial(t, second.ID, "second again", true).says("print(y)", "of the next release\n")
	for _, m := range []model{first, second} {
		k.want(204, "DELETE", "/api/kernels/"+m.ID, "", nil)
	}
}

// newHelm returns an installation by Helm in the namespace home, and a function that runs Helm with the values of the
// tests. It returns Helm's output. Both namespaces are deleted at the end of the test.
func newHelm(t *testing.T, home string) (k *inCluster, helm func(args ...string) string) {
	t.Helper()
	c := theCluster(t)
	c.needsOwn(t, "the chart is installed into it")
	g := prepare(t, "")
	k = &inCluster{gateway: g, cluster: c, namespace: home + "-kernels", replicaNS: home}
	dir := t.TempDir()
	values := filepath.Join(dir, "values.yaml")
	if err := os.WriteFile(values, []byte(helmValues), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.kubectl(t, "", "delete", "namespace", home, k.namespace, "--ignore-not-found", "--timeout=60s")
	})
	return k, func(args ...string) string {
		t.Helper()
		if args[0] == "install" || args[0] == "upgrade" {
			args = append(args, "--values", values)
		}
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
}

// runsImage checks which image the gateways run.
func (k *inCluster) runsImage(want string) {
	k.t.Helper()
	got := k.cluster.kubectl(k.t, "", "-n", k.replicaNS, "get", "deployment", "ekg", "-o",
		"jsonpath={.spec.template.spec.containers[*].image}")
	if got != want {
		k.t.Errorf("the gateways run the image %s, want %s", got, want)
	}
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
