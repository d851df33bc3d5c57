//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// This file provides a real cluster for tests, and gateways outside and inside it. The cluster is the one of
// KUBECONFIG, or else deploy/devcluster's.

// cluster is a Kubernetes cluster that has the tests' images.
type cluster struct {
	kubeconfig string
	script     string // deploy/devcluster/devcluster; "" for another cluster, whose programs the tests must not stop
}

// TestMain stops the cluster if these tests started it. It says first in what state failed tests have left it.
func TestMain(m *testing.M) {
	code := m.Run()
	if clusterStarted {
		if code != 0 {
			status, err := (&cluster{script: clusterScript}).run("status")
			if err != nil {
				status += err.Error()
			}
			fmt.Fprintf(os.Stderr, "the cluster after the tests:\n%s\n", status)
		}
		if _, err := (&cluster{script: clusterScript}).run("down"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

var (
	clusterStarted bool // by these tests
	clusterScript  string
)

// startCluster starts the cluster with the images of this checkout, once.
var startCluster = sync.OnceValues(func() (*cluster, error) {
	if given := os.Getenv("KUBECONFIG"); given != "" {
		return &cluster{kubeconfig: given}, nil
	}
	repository, err := filepath.Abs("..")
	if err != nil {
		return nil, err
	}
	c := &cluster{script: filepath.Join(repository, "deploy/devcluster/devcluster")}
	_, err = c.run("kubectl", "--request-timeout=5s", "get", "--raw", "/readyz")
	clusterStarted, clusterScript = err != nil, c.script
	out, err := c.run("up")
	if err != nil {
		return nil, err
	}
	if _, err := c.run("images"); err != nil {
		return nil, err
	}
	c.kubeconfig = strings.TrimPrefix(strings.TrimSpace(out), "export KUBECONFIG=")
	return c, nil
})

func theCluster(t *testing.T) *cluster {
	t.Helper()
	if os.Getenv("KUBECONFIG") == "" && os.Getuid() != 0 {
		t.Skip("starting a cluster needs root, and KUBECONFIG names no other cluster")
	}
	c, err := startCluster()
	if err != nil {
		t.Fatal(err)
	}
	if c.script != "" {
		mendOnce(t, c)
	}
	return c
}

var (
	mendMu sync.Mutex
	mended = map[string]bool{} // by names of whole tests
)

// mendOnce repairs the cluster when a test uses it for the first time, if an earlier one has left it broken. So one
// failure does not fail all later tests. Later in a test the cluster may be broken on purpose.
func mendOnce(t *testing.T, c *cluster) {
	t.Helper()
	mendMu.Lock()
	defer mendMu.Unlock()
	test, _, _ := strings.Cut(t.Name(), "/")
	if mended[test] {
		return
	}
	mended[test] = true
	well := func() error {
		if _, err := c.run("up"); err != nil { // starts the programs that do not run
			return err
		}
		out, err := c.run("kubectl", "--request-timeout=5s", "get", "node/node1", "-o",
			`jsonpath={.status.conditions[?(@.type=="Ready")].status}{.spec.taints[*].key}`)
		if err == nil && out != "True" {
			err = fmt.Errorf("the node's readiness and taints are %q", out)
		}
		return err
	}
	err := poll(20*time.Second, "the cluster works", well)
	if err == nil {
		return
	}
	t.Logf("the cluster was left broken: %v", err)
	for _, args := range [][]string{{"thaw", "apiserver"}, {"stop", "kubelet"}, {"start", "kubelet"},
		{"kubectl", "uncordon", "node1"}} {
		if _, err := c.run(args...); err != nil {
			t.Log(err)
		}
	}
	eventually(t, time.Minute, "the cluster works", well)
}

// needsOwn skips the test if the cluster is not deploy/devcluster's. The reason says what the test does with it.
func (c *cluster) needsOwn(t *testing.T, reason string) {
	t.Helper()
	if c.script == "" {
		t.Skip("the test needs the tests' own cluster: " + reason)
	}
}

// run runs the cluster's script.
func (c *cluster) run(args ...string) (string, error) {
	cmd := exec.Command(c.script, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("devcluster %s: %w\n%s", strings.Join(args, " "), err, &stderr)
	}
	return string(out), err
}

// images builds images and loads them into the cluster. The script does not begin while mendOnce starts a program again
// for another test.
func (c *cluster) images(t *testing.T, names ...string) {
	t.Helper()
	eventually(t, time.Minute, "the images are loaded", func() error {
		_, err := c.run(append([]string{"images"}, names...)...)
		return err
	})
}

// kubectl runs kubectl and returns what it prints.
func (c *cluster) kubectl(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	out, err := c.tryKubectl(stdin, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (c *cluster) tryKubectl(stdin string, args ...string) (string, error) {
	program := "kubectl"
	if c.script != "" {
		program, args = c.script, append([]string{"kubectl"}, args...)
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, &stderr)
	}
	return string(out), err
}

// inCluster is a gateway outside of the cluster, with its own namespace in the cluster.
type inCluster struct {
	*gateway
	cluster   *cluster
	namespace string
	replicaNS string // of the gateways, if they run in the cluster
}

// newNamespace creates a namespace for a test.
func (c *cluster) newNamespace(t *testing.T) string {
	t.Helper()
	name := strings.ToLower(strings.TrimPrefix(t.Name(), "TestE2E_"))
	ns := "e2e-" + strings.NewReplacer("/", "-", "_", "-").Replace(name)
	ns = ns[:min(len(ns), 40)] + fmt.Sprintf("-%d", time.Now().UnixNano()%1e6)
	c.kubectl(t, "", "create", "namespace", ns)
	t.Cleanup(func() { c.kubectl(t, "", "delete", "namespace", ns, "--wait=false") })
	return ns
}

// newKubeGateway prepares a gateway that reaches the cluster by a kubeconfig. Its specs are pod, which runs ipykernel,
// and those that the test adds before it starts the gateway.
func newKubeGateway(t *testing.T, args ...string) *inCluster {
	t.Helper()
	c := theCluster(t)
	return c.newGateway(t, c.newNamespace(t), c.kubeconfig, args...)
}

// newGateway prepares a gateway with this namespace for its kernels and this kubeconfig for the cluster.
func (c *cluster) newGateway(t *testing.T, ns, kubeconfig string, args ...string) *inCluster {
	t.Helper()
	g := prepare(t, "", append([]string{"--launcher", "kubernetes", "--kubeconfig", kubeconfig, "--kube-namespace", ns,
		"--supervisor-image", "localhost/ekg:dev"}, args...)...)
	k := &inCluster{gateway: g, cluster: c, namespace: ns}
	k.podSpec("pod", map[string]any{"image": "localhost/kernel-py:dev"})
	return k
}

// in returns the same gateway for a subtest.
func (k *inCluster) in(t *testing.T) *inCluster {
	g := *k.gateway
	g.t = t
	same := *k
	same.gateway = &g
	return &same
}

// podSpec writes a kernelspec of ipykernel with this description of its pod.
func (k *inCluster) podSpec(name string, ekg map[string]any, argv ...string) {
	k.t.Helper()
	if len(argv) == 0 {
		argv = []string{"python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"}
	}
	k.specWith(name, map[string]any{"metadata": map[string]any{"ekg": ekg}}, argv...)
}

// pods lists the kernels' pods of the namespace.
func (k *inCluster) pods() []podObject {
	k.t.Helper()
	var list struct{ Items []podObject }
	out := k.cluster.kubectl(k.t, "", "-n", k.namespace, "get", "pods", "-o", "json")
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		k.t.Fatal(err)
	}
	return list.Items
}

// podsOf lists one kernel's pods.
func (k *inCluster) podsOf(id string) (all []podObject) {
	k.t.Helper()
	for _, p := range k.pods() {
		if p.Metadata.Labels["elastic-kernel-gateway.github.io/kernel-id"] == id {
			all = append(all, p)
		}
	}
	return all
}

// podObject holds the fields of a pod that these tests read.
type podObject struct {
	Metadata struct {
		Name, UID   string
		Labels      map[string]string
		Annotations map[string]string
	}
	Status struct {
		Phase             string
		ContainerStatuses []struct {
			Name         string
			RestartCount int
			ContainerID  string
		}
	}
}

// nothingLeft checks that no pod and no secret of a kernel is left in the namespace.
func (k *inCluster) nothingLeft() {
	k.t.Helper()
	k.eventually(60*time.Second, "no pod and no secret is left", func() error {
		out, err := k.cluster.tryKubectl("", "-n", k.namespace, "get", "pods,secrets",
			"-l", "app.kubernetes.io/managed-by=ekg", "-o", "name")
		if err == nil && strings.TrimSpace(out) != "" {
			err = fmt.Errorf("there are %s", strings.Fields(out))
		}
		return err
	})
}

// deleteAll deletes all kernels at once, and checks that nothing is left. An overloaded API server makes a gateway
// answer 503, which asks for the same request again.
func (k *inCluster) deleteAll() {
	k.t.Helper()
	var all []model
	k.want(200, "GET", "/api/kernels", "", &all)
	var wg sync.WaitGroup
	for _, m := range all {
		wg.Go(func() {
			for again := 0; ; again++ {
				status, b, err := k.tryAsk("DELETE", "/api/kernels/"+m.ID, "")
				if err == nil && status == 503 && again < 3 {
					continue
				}
				ended := status == 204 || status == 404 && again > 0 // an earlier request has ended it
				if err != nil || !ended {
					k.t.Errorf("DELETE of %s: %d %s %v", m.ID, status, b, err)
				}
				return
			}
		})
	}
	wg.Wait()
	k.nothingLeft()
}

// mainProcess returns the process id of a container's first process.
func (k *inCluster) mainProcess(t *testing.T, namespace, pod, container string) int {
	t.Helper()
	if pid := k.containerProcess(namespace, pod, container); pid != 0 {
		return pid
	}
	t.Fatalf("container %s of %s has no first process", container, pod)
	return 0
}

// containerProcess returns the process id of a container's first process, or 0 if it has none.
func (k *inCluster) containerProcess(namespace, pod, container string) int {
	out, err := k.cluster.tryKubectl("", "-n", namespace, "get", "pod", pod,
		"-o", `jsonpath={.status.containerStatuses[?(@.name=="`+container+`")].containerID}`)
	id := strings.TrimPrefix(out, "containerd://")
	if err != nil || id == "" {
		return 0
	}
	for _, p := range processes(k.t, func(process) bool { return true }) {
		group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.pid))
		if err != nil || !bytes.Contains(group, []byte(id)) {
			continue // the process has ended or belongs to another container
		}
		if status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid)); err == nil &&
			namespacePID(string(status)) == "1" {
			return p.pid
		}
	}
	return 0
}

// namespacePID returns the process id in the innermost namespace.
func namespacePID(status string) string {
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
			f := strings.Fields(rest)
			return f[len(f)-1]
		}
	}
	return ""
}

// The rest of this file runs the gateway in the cluster, as deploy/kubernetes installs it. Two replicas stand behind a
// proxy that sends each request to another replica than the one before.

// kustomization replaces the images in the installation with those of the tests.
const kustomization = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
  - %s
images:
  - {name: ghcr.io/elastic-kernel-gateway/ekg, newName: localhost/ekg, newTag: dev}
replacements:
  - source: {kind: Deployment, name: ekg, fieldPath: "spec.template.spec.containers.[name=ekg].image"}
    targets:
      - select: {kind: Deployment, name: ekg}
        fieldPaths: ["spec.template.spec.containers.[name=ekg].env.[name=EKG_SUPERVISOR_IMAGE].value"]
configMapGenerator:
  - name: ekg-kernelspecs
    namespace: ekg
    behavior: replace
    files: [python3.json, python3-gpu.json]
`

const podKernelspec = `{"argv": ["python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
 "display_name": "Python 3", "language": "python",
 "metadata": {"ekg": {"image": "localhost/kernel-py:dev"}}}`

// longAgo is the name of an expired config map of kernels' ends.
const longAgo = "ekg-endings-2020010100"

// installInCluster installs ekg as its documentation describes. The returned gateway stands for all replicas.
func installInCluster(t *testing.T) *inCluster {
	t.Helper()
	c := theCluster(t)
	c.needsOwn(t, "ekg is installed into it")
	g := prepare(t, "")
	overlay, err := filepath.Rel(g.dir, filepath.Join(g.in.repository, "deploy/kubernetes/overlays/token"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"kustomization.yaml": fmt.Sprintf(kustomization, overlay),
		"python3.json": podKernelspec, "python3-gpu.json": podKernelspec} {
		if err := os.WriteFile(filepath.Join(g.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		c.kubectl(t, "", "delete", "namespace", "ekg", "ekg-kernels", "--ignore-not-found", "--timeout=60s")
	})
	c.kubectl(t, "", "apply", "-k", g.dir)
	c.kubectl(t, "", "-n", "ekg", "create", "secret", "generic", "ekg-master-key",
		"--from-literal=key="+strings.Repeat("k", 40))
	c.kubectl(t, "", "-n", "ekg", "create", "secret", "generic", "ekg-token", "--from-literal=token="+g.token)
	k := &inCluster{gateway: g, cluster: c, namespace: "ekg-kernels", replicaNS: "ekg"}
	// A gateway removes this expired config map.
	c.kubectl(t, "", "-n", k.namespace, "create", "configmap", longAgo)
	c.kubectl(t, "", "-n", k.namespace, "label", "configmap", longAgo, "app.kubernetes.io/managed-by=ekg",
		"app.kubernetes.io/component=endings")
	k.rolledOut()
	k.balance()
	return k
}

// balance lets the test's requests go to all replicas in turn.
func (k *inCluster) balance() {
	proxy := httptest.NewServer(k.roundRobin())
	k.t.Cleanup(proxy.Close)
	k.url = proxy.URL
	k.finds = []string{"EKG_GATEWAY_URL=" + k.url, "EKG_TOKEN=" + k.token}
}

// rolledOut waits until all replicas are ready.
func (k *inCluster) rolledOut() {
	k.t.Helper()
	_, err := k.cluster.tryKubectl("", "-n", k.replicaNS, "rollout", "status", "deployment/ekg", "--timeout=100s")
	if err != nil {
		// The newest lines of the gateways' logs say more to a person. An error of this command adds nothing.
		logs, _ := k.cluster.tryKubectl("", "-n", k.replicaNS, "logs", "-l", "app.kubernetes.io/component=gateway",
			"--tail=20", "--prefix")
		k.t.Fatalf("%v\n%s", err, logs)
	}
}

// replicas returns the addresses of the ready gateways by pod name.
func (k *inCluster) replicas() map[string]string {
	all := map[string]string{}
	out, err := k.cluster.tryKubectl("", "-n", k.replicaNS, "get", "pods", "-l", "app.kubernetes.io/component=gateway",
		"-o", "json")
	var list struct {
		Items []struct {
			Metadata struct{ Name, DeletionTimestamp string }
			Status   struct {
				PodIP             string
				ContainerStatuses []struct{ Ready bool }
			}
		}
	}
	if err == nil && json.Unmarshal([]byte(out), &list) == nil {
		for _, p := range list.Items {
			if p.Metadata.DeletionTimestamp == "" && len(p.Status.ContainerStatuses) == 1 &&
				p.Status.ContainerStatuses[0].Ready {
				all[p.Metadata.Name] = p.Status.PodIP
			}
		}
	}
	return all
}

// roundRobin sends each request to another replica than the one before. It chooses among the replicas that were ready a
// second ago.
func (k *inCluster) roundRobin() http.Handler {
	var next atomic.Int64
	var known atomic.Pointer[[]string]
	var seen atomic.Int64
	choose := func() string {
		now := time.Now().UnixMilli()
		if last := seen.Load(); now-last > 1000 && seen.CompareAndSwap(last, now) {
			if ips := slices.Sorted(maps.Values(k.replicas())); len(ips) > 0 {
				known.Store(&ips)
			}
		}
		if known.Load() == nil {
			look := func() error {
				ips := slices.Sorted(maps.Values(k.replicas()))
				if len(ips) == 0 {
					return errors.New("none is ready")
				}
				known.Store(&ips)
				return nil
			}
			if poll(time.Minute, "a replica is ready", look) != nil {
				return "" // the client gets a 502
			}
		}
		ips := *known.Load()
		return ips[int(next.Add(1))%len(ips)]
	}
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: choose() + ":8888"})
			r.Out.Host = r.In.Host // the Host header must still match a page's Origin
		},
		ErrorLog: log.New(io.Discard, "", 0), // these tests kill replicas on purpose
	}
}

// during calls ask twice a second until limit has passed since began.
func during(limit time.Duration, began time.Time, ask func()) {
	again := time.NewTicker(500 * time.Millisecond)
	defer again.Stop()
	for ; time.Since(began) < limit; <-again.C {
		ask()
	}
}
