//go:build e2e

package main_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// This file runs the gateway in the cluster, as deploy/kubernetes installs it: two replicas behind a proxy that gives every
// request to the next one.

// kustomization puts the tests' images into what is installed.
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

const podKernelspec = `{"argv": ["python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "Python 3", "language": "python",
 "metadata": {"ekg": {"image": "localhost/kernel-py:dev"}}}`

// install installs ekg as its documentation says, and returns a gateway that stands for all replicas.
func installInCluster(t *testing.T) *inCluster {
	t.Helper()
	c := theCluster(t)
	if c.script == "" {
		t.Skip("nothing is installed into a cluster that is not the tests' own")
	}
	g := prepare(t, "")
	overlay, err := filepath.Rel(g.dir, filepath.Join(g.in.repository, "deploy/kubernetes/overlays/token"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"kustomization.yaml": fmt.Sprintf(kustomization, overlay), "python3.json": podKernelspec, "python3-gpu.json": podKernelspec} {
		if err := os.WriteFile(filepath.Join(g.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		c.kubectl(t, "", "delete", "namespace", "ekg", "ekg-kernels", "--ignore-not-found", "--timeout=60s")
	})
	c.kubectl(t, "", "apply", "-k", g.dir)
	c.kubectl(t, "", "-n", "ekg", "create", "secret", "generic", "ekg-master-key", "--from-literal=key="+strings.Repeat("k", 40))
	c.kubectl(t, "", "-n", "ekg", "create", "secret", "generic", "ekg-token", "--from-literal=token="+g.token)
	k := &inCluster{g, c, "ekg-kernels"}
	k.rolledOut()
	proxy := httptest.NewServer(k.roundRobin())
	t.Cleanup(proxy.Close)
	g.url = proxy.URL
	return k
}

// rolledOut waits until the replicas are there.
func (k *inCluster) rolledOut() {
	k.t.Helper()
	if _, err := k.cluster.tryKubectl("", "-n", "ekg", "rollout", "status", "deployment/ekg", "--timeout=100s"); err != nil {
		out, _ := k.cluster.tryKubectl("", "-n", "ekg", "logs", "-l", "app.kubernetes.io/component=gateway", "--tail=20", "--prefix") // more for the reader
		k.t.Fatalf("%v\n%s", err, out)
	}
}

// replicas lists the addresses of the gateways that are ready, by pod.
func (k *inCluster) replicas() map[string]string {
	all := map[string]string{}
	out, err := k.cluster.tryKubectl("", "-n", "ekg", "get", "pods", "-l", "app.kubernetes.io/component=gateway", "-o", "json")
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
			if p.Metadata.DeletionTimestamp == "" && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].Ready {
				all[p.Metadata.Name] = p.Status.PodIP
			}
		}
	}
	return all
}

// roundRobin gives every request to another replica than the one before, of those that were ready a second ago.
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
		for known.Load() == nil || len(*known.Load()) == 0 {
			time.Sleep(20 * time.Millisecond)
			if ips := slices.Sorted(maps.Values(k.replicas())); len(ips) > 0 {
				known.Store(&ips)
			}
		}
		ips := *known.Load()
		return ips[int(next.Add(1))%len(ips)]
	}
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: choose() + ":8888"})
			r.Out.Host = r.In.Host // a page of this origin stays one
		},
		ErrorLog: log.New(io.Discard, "", 0), // a killed replica is what these tests are about
	}
}

// TestE2E_KubeReplicas: any replica serves any kernel at any moment, and none of them is missed.
func TestE2E_KubeReplicas(t *testing.T) {
	k := installInCluster(t)
	if n := len(k.replicas()); n != 2 {
		t.Fatalf("%d replicas are ready", n)
	}
	t.Run("every replica knows what a POST has answered", func(t *testing.T) {
		k := k.in(t)
		var ids []string
		for range 3 {
			var m model
			k.want(201, "POST", "/api/kernels", `{"name": "python3"}`, &m)
			ids = append(ids, m.ID)
			k.want(201, "POST", "/api/sessions", fmt.Sprintf(`{"path": "%[1]s.ipynb", "type": "notebook", "name": "x", "kernel": {"id": %[1]q}}`, m.ID), nil)
			for range 2 {
				if _, b := k.ask("GET", "/api/sessions", ""); !strings.Contains(string(b), m.ID+".ipynb") {
					t.Errorf("sessions lack that of %s", m.ID)
				}
			}
			for range 2 {
				k.want(200, "GET", "/api/kernels/"+m.ID, "", nil)
				var all []model
				k.want(200, "GET", "/api/kernels", "", &all)
				if !slices.ContainsFunc(all, func(o model) bool { return o.ID == m.ID }) {
					t.Errorf("a list lacks %s", m.ID)
				}
			}
		}
		for _, id := range ids {
			k.want(204, "DELETE", "/api/kernels/"+id, "", nil)
			for range 2 {
				k.want(404, "GET", "/api/kernels/"+id, "", nil)
			}
		}
	})
	t.Run("replicas are killed while a cell prints", func(t *testing.T) {
		k := k.in(t)
		id := k.kernel("python3")
		const lines = 800
		c := k.dial(t, id, "printing", true)
		cell := c.begin(fmt.Sprintf("import sys, time\nx = 41\nfor i in range(%d):\n    sys.stdout.write(f'line {i}\\n')\n    sys.stdout.flush()\n    time.sleep(0.01)", lines))
		killed := make(chan error, 1)
		go func() {
			var err error
			for pod := range k.replicas() {
				time.Sleep(time.Second)
				err = syscall.Kill(k.containerProcess("ekg", pod, "ekg"), syscall.SIGKILL)
				if err != nil {
					break
				}
			}
			killed <- err
		}()
		seen := map[string]int{}
		for ended := false; !ended; {
			for m := range c.got {
				if m.Parent.MsgID != cell {
					continue
				}
				for line := range strings.Lines(m.field("text")) {
					seen[strings.TrimSpace(line)]++
				}
				if ended = ended || m.Header.MsgType == "execute_reply"; ended && len(seen) >= lines {
					break
				}
			}
			if !ended {
				k.eventually(60*time.Second, "the session is back", func() (err error) {
					c, err = k.tryDial(t, id, "printing", true)
					return err
				})
				c.send("shell", "kernel_info_request", "{}")
			}
		}
		if err := <-killed; err != nil {
			t.Fatal(err)
		}
		missing := 0
		for i := range lines {
			if seen[fmt.Sprint("line ", i)] == 0 {
				missing++
			}
		}
		if missing > 0 {
			t.Errorf("%d of %d lines are missing", missing, lines)
		}
		k.rolledOut()
		k.cluster.kubectl(t, "", "-n", "ekg", "rollout", "restart", "deployment/ekg")
		k.rolledOut()
		back := k.dial(t, id, "after", true)
		if r := back.finish(back.begin("print(x + 1)"), 60*time.Second); r.stdout != "42\n" {
			t.Errorf("after a rollout: %q", r.stdout)
		}
	})
	t.Run("the API server is frozen", func(t *testing.T) {
		k := k.in(t)
		for _, ip := range k.replicas() {
			k.url = "http://" + ip + ":8888" // the proxy would ask the cluster
		}
		id := k.kernel("python3")
		c := k.dial(t, id, "s", true)
		c.finish(c.begin("x = 1"), 60*time.Second)
		if _, err := k.cluster.run("freeze", "apiserver"); err != nil {
			t.Fatal(err)
		}
		thawed := false
		thaw := func() {
			if !thawed {
				thawed = true
				if _, err := k.cluster.run("thaw", "apiserver"); err != nil {
					t.Error(err)
				}
			}
		}
		defer thaw()
		began := time.Now()
		if r := c.finish(c.begin("print(x + 1)"), 20*time.Second); r.stdout != "2\n" {
			t.Errorf("a cell meanwhile: %q", r.stdout)
		}
		for time.Since(began) < 15*time.Second {
			if status, b := k.ask("GET", "/api/kernels/"+id, ""); status != 200 {
				t.Errorf("the kernel meanwhile: %d %s", status, b)
			}
			if status, b := k.ask("GET", "/api/kernels", ""); status != 200 && status != 503 {
				t.Errorf("the list meanwhile: %d %s", status, b)
			}
			time.Sleep(500 * time.Millisecond)
		}
		if status, b := k.ask("GET", "/api/kernels", ""); status != 503 {
			t.Errorf("a list that may be old: %d %s", status, b)
		}
		if status, b := k.ask("GET", "/api/kernels/00000000-0000-4000-8000-00000000000f", ""); status != 503 {
			t.Errorf("a kernel that nobody knows: %d %s", status, b)
		}
		thaw()
		k.eventually(30*time.Second, "the list is there again", func() error {
			if status, b := k.ask("GET", "/api/kernels", ""); status != 200 || !strings.Contains(string(b), id) {
				return fmt.Errorf("%d %s", status, b)
			}
			return nil
		})
	})
	t.Run("gateways may do what they do, and no more", func(t *testing.T) { k.in(t).checkRights() })
	var all []model
	k.want(200, "GET", "/api/kernels", "", &all)
	for _, m := range all {
		k.want(204, "DELETE", "/api/kernels/"+m.ID, "", nil)
	}
	k.nothingLeft()
}

// checkRights compares what the Role allows with what the API server has seen the gateways do.
func (k *inCluster) checkRights() {
	k.t.Helper()
	var role struct {
		Rules []struct {
			Resources []string
			Verbs     []string
		}
	}
	if err := json.Unmarshal([]byte(k.cluster.kubectl(k.t, "", "-n", "ekg-kernels", "get", "role", "ekg", "-o", "json")), &role); err != nil {
		k.t.Fatal(err)
	}
	allowed := map[string]bool{}
	for _, rule := range role.Rules {
		for _, r := range rule.Resources {
			for _, v := range rule.Verbs {
				allowed[v+" "+r] = true
			}
		}
	}
	f, err := os.Open("/var/lib/ekg-devcluster/log/audit.log")
	if err != nil {
		k.t.Fatal(err)
	}
	defer f.Close()
	used := map[string]bool{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e struct {
			Verb           string
			User           struct{ Username string }
			ObjectRef      struct{ Resource, Namespace, Subresource string }
			ResponseStatus struct{ Code int }
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			k.t.Fatal(err)
		}
		if e.User.Username != "system:serviceaccount:ekg:ekg" || e.ObjectRef.Namespace != "ekg-kernels" {
			continue
		}
		used[e.Verb+" "+e.ObjectRef.Resource] = true
		if e.ResponseStatus.Code == http.StatusForbidden {
			k.t.Errorf("%s of %s was forbidden", e.Verb, e.ObjectRef.Resource)
		}
	}
	if err := lines.Err(); err != nil {
		k.t.Fatal(err)
	}
	for what := range allowed {
		if !used[what] {
			k.t.Errorf("the Role allows to %s, which no gateway has done", what)
		}
	}
	for what := range used {
		if !allowed[what] {
			k.t.Errorf("a gateway has done %s, which the Role does not allow", what)
		}
	}
	k.t.Logf("used: %q", slices.Sorted(maps.Keys(used)))
}

// TestE2E_KubeClients runs the clients' own suites against kernels in pods, each request at another replica.
func TestE2E_KubeClients(t *testing.T) {
	k := installInCluster(t)
	env := []string{"EKG_KERNELS=python3"}
	python := filepath.Join(k.gateway.in.dir, "lab/bin/python")
	for _, script := range []string{"direct.py", "through_server.py"} {
		t.Run(script, func(t *testing.T) {
			k.in(t).script(5*time.Minute, env, python, filepath.Join(k.gateway.in.repository, "testdata/python", script))
		})
	}
	t.Run("services.mjs", func(t *testing.T) {
		k.in(t).script(5*time.Minute, env, "node", filepath.Join(k.gateway.in.repository, "testdata/js/services.mjs"))
	})
}

// TestE2E_KubeJupyterLab is JupyterLab in a browser, with the extension in its server, while all replicas are killed.
func TestE2E_KubeJupyterLab(t *testing.T) {
	k := installInCluster(t)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /kill", func(w http.ResponseWriter, _ *http.Request) {
		for pod := range k.replicas() {
			if pid := k.containerProcess("ekg", pod, "ekg"); pid == 0 || syscall.Kill(pid, syscall.SIGKILL) != nil {
				http.Error(w, pod+" has no process", http.StatusInternalServerError)
				return
			}
		}
	})
	mux.HandleFunc("POST /start", func(http.ResponseWriter, *http.Request) {}) // the kubelet does that
	control := httptest.NewServer(mux)
	t.Cleanup(control.Close)
	k.script(10*time.Minute, []string{"EKG_CONTROL=" + control.URL, "EKG_EXTENSION=" + theExtension(t), "EKG_KERNELS=python3",
		"EKG_ARTIFACTS=" + strings.TrimSuffix(k.log, ".log"), "EKG_ONLY=back after 1 s|page is reloaded|tab is closed"},
		"node", filepath.Join(k.gateway.in.repository, "testdata/browser/away.mjs"))
}
