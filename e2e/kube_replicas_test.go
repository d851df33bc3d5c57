//go:build e2e

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// This file tests the gateway inside the cluster, as deploy/kubernetes installs it. Two replicas stand behind a proxy
// that sends each request to another replica than the one before.

// TestE2E_KubeReplicas: any replica serves any kernel at any moment, and any replica may fail.
func TestE2E_KubeReplicas(t *testing.T) {
	k := installInCluster(t)
	began := time.Now()
	if n := len(k.replicas()); n != 2 {
		t.Fatalf("%d replicas are ready", n)
	}
	var ids []string // of kernels that were shut down
	t.Run("every replica knows what a POST has answered", func(t *testing.T) { ids = k.in(t).everyReplicaKnows() })
	t.Run("replicas are killed while a cell prints", func(t *testing.T) { k.in(t).replicasKilled() })
	t.Run("gateways that started later know why a kernel has ended", func(t *testing.T) {
		k := k.in(t)
		for _, id := range ids {
			if status, b := k.ask("GET", "/api/kernels/"+id, ""); status != 404 ||
				!strings.Contains(string(b), "shut down on request") {
				t.Errorf("%d %s", status, b)
			}
		}
		out, err := k.cluster.tryKubectl("", "-n", k.namespace, "get", "configmap", longAgo, "--ignore-not-found",
			"-o", "name")
		if err != nil || out != "" {
			t.Errorf("an expired config map is still there: %q, %v", out, err)
		}
		out, err = k.cluster.tryKubectl("", "-n", k.namespace, "get", "daemonsets,deployments", "-o", "name")
		if err != nil || out != "" {
			t.Errorf("objects of another setting are still there: %q, %v", out, err)
		}
	})
	t.Run("jobs end, also without the gateways that began them", func(t *testing.T) { k.in(t).jobsEnd() })
	t.Run("the Role allows what gateways do, and no more", func(t *testing.T) { k.in(t).checkRights(began) })
	t.Run("replicas are listed with version and health, also one that is killed", func(t *testing.T) {
		k.in(t).replicasListed()
	})
	var all []model
	k.want(200, "GET", "/api/kernels", "", &all)
	for _, m := range all {
		k.want(204, "DELETE", "/api/kernels/"+m.ID, "", nil)
	}
	k.nothingLeft()
}

// everyReplicaKnows starts three kernels and shuts them down. It returns their ids.
func (k *inCluster) everyReplicaKnows() (ids []string) {
	for range 3 {
		var m model
		k.want(201, "POST", "/api/kernels", `{"name": "python3"}`, &m)
		ids = append(ids, m.ID)
		k.want(201, "POST", "/api/sessions",
			fmt.Sprintf(`{"path": "%[1]s.ipynb", "type": "notebook", "name": "x", "kernel": {"id": %[1]q}}`, m.ID), nil)
		for range 2 {
			if _, b := k.ask("GET", "/api/sessions", ""); !strings.Contains(string(b), m.ID+".ipynb") {
				k.t.Errorf("the sessions lack the one of kernel %s", m.ID)
			}
		}
		for range 2 {
			k.want(200, "GET", "/api/kernels/"+m.ID, "", nil)
			var all []model
			k.want(200, "GET", "/api/kernels", "", &all)
			if !slices.ContainsFunc(all, func(o model) bool { return o.ID == m.ID }) {
				k.t.Errorf("a list lacks %s", m.ID)
			}
		}
	}
	for _, id := range ids {
		k.want(204, "DELETE", "/api/kernels/"+id, "", nil)
		for range 2 {
			k.want(404, "GET", "/api/kernels/"+id, "", nil)
		}
	}
	return ids
}

// killReplica kills the gateway in a pod, unless it is being restarted.
func (k *inCluster) killReplica(pod string) {
	k.t.Helper()
	if pid := k.containerProcess("ekg", pod, "ekg"); pid != 0 {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			k.t.Fatal(err)
		}
	}
}

// replicasKilled runs a cell that prints while all replicas are killed and then replaced.
func (k *inCluster) replicasKilled() {
	t := k.t
	id := k.kernel("python3")
	r := newReturning(t, k.gateway, id, subprotocolV1, 10*time.Second)
	cell := r.begin(`import signal, time
x, n, interrupts = 41, 0, []
signal.signal(signal.SIGINT, lambda *_: interrupts.append(n))
while not interrupts and n < 5000:
    print('line', n, 'x' * 12000, flush=True)
    n += 1
    time.sleep(0.01 if n < 600 else 0.1)
print('total', n, flush=True)`)
	after := func(lines int) {
		t.Helper()
		r.until(60*time.Second, fmt.Sprintf("line %d of the cell", lines), func() bool {
			return r.has(func(m message) bool { // ipykernel sometimes splits a line, so a later line will do
				var n int
				_, err := fmt.Sscanf(m.field("text"), "line %d ", &n)
				return m.Parent.MsgID == cell && err == nil && n >= lines
			})
		})
	}
	pods := slices.Sorted(maps.Keys(k.replicas()))
	after(50)
	k.killReplica(pods[0])
	after(maxRepeat/12000 + 100) // more output than a repetition may hold
	for _, pod := range slices.Backward(pods) {
		k.killReplica(pod) // one of them has the connection
	}
	k.rolledOut()
	connections := 0
	r.until(60*time.Second, "the connection is back", func() bool {
		connections = r.connections
		return connections > 1 && r.ws != nil
	})
	k.cluster.kubectl(t, "", "-n", "ekg", "rollout", "restart", "deployment/ekg")
	k.rolledOut()
	r.until(60*time.Second, "the connection has moved to a new replica", func() bool {
		return r.connections > connections && r.ws != nil
	})
	k.want(204, "POST", "/api/kernels/"+id+"/interrupt", "", nil) // only this ends the cell
	wantNumbered(t, r.session, r.ended(cell, 2*time.Minute))
	r.mu.Lock()
	t.Logf("%d messages in %d connections; %d messages came twice, at most %d bytes at once",
		len(r.got), r.connections, r.repeated, r.maxRepeat)
	if r.connections < 2 {
		t.Error("the connection was never cut")
	}
	r.mu.Unlock()
	back := k.dial(t, id, "after", true)
	if r := back.finish(back.begin("print(x + 1)"), 60*time.Second); r.stdout != "42\n" {
		t.Errorf("after the failures the cell printed %q", r.stdout)
	}
}

// replicasListed compares GET /api/gateways of each replica with the pods, and the page before, while and after one of
// them is killed. The container of a gateway that is killed again and again is restarted later and later.
func (k *inCluster) replicasListed() {
	t := k.t
	k.rolledOut()
	pods := k.replicas()
	if len(pods) != 2 {
		t.Fatalf("%d replicas are ready", len(pods))
	}
	version := ""
	for name, ip := range pods {
		g := *k.gateway
		g.url = "http://" + ip + ":8888"
		k.eventually(30*time.Second, name+" lists both", func() error {
			var all []struct {
				Name, Version, Problem string
				Self, Ready            bool
				Started                time.Time
			}
			g.want(200, "GET", "/api/gateways", "", &all)
			for _, r := range all {
				if pods[r.Name] == "" || !r.Ready || r.Problem != "" || r.Self != (r.Name == name) ||
					time.Since(r.Started) > time.Hour || r.Version != all[0].Version {
					return fmt.Errorf("%+v", all)
				}
			}
			if len(all) != 2 || all[0].Version == "" {
				return fmt.Errorf("%+v", all)
			}
			version = all[0].Version
			return nil
		})
	}
	killed := slices.Sorted(maps.Keys(pods))[0]
	control := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if pid := k.containerProcess("ekg", killed, "ekg"); pid != 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended meanwhile
		}
	}))
	t.Cleanup(control.Close)
	k.script(4*time.Minute, []string{"EKG_CONTROL=" + control.URL, "EKG_VERSION=" + version, "EKG_KILLED=" + killed,
		"EKG_REPLICAS=" + strings.Join(slices.Sorted(maps.Keys(pods)), ","),
		"EKG_ARTIFACTS=" + strings.TrimSuffix(k.log, ".log")},
		"node", filepath.Join(k.gateway.in.repository, "e2e/testdata/browser/page-replicas.mjs"))
}

// checkRights compares the Role's rules with the requests of the gateways that the API server has logged. An API server
// that has just started forbids everything for a moment. Rejections before since are therefore ignored.
func (k *inCluster) checkRights(since time.Time) {
	k.t.Helper()
	var role struct {
		Rules []struct {
			Resources []string
			Verbs     []string
		}
	}
	text := k.cluster.kubectl(k.t, "", "-n", "ekg-kernels", "get", "role", "ekg", "-o", "json")
	if err := json.Unmarshal([]byte(text), &role); err != nil {
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
	defer func() { _ = f.Close() }()
	used := map[string]bool{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e struct {
			Verb           string
			StageTimestamp time.Time
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
		if e.ResponseStatus.Code == http.StatusForbidden && e.StageTimestamp.After(since) {
			k.t.Errorf("%s of %s was forbidden", e.Verb, e.ObjectRef.Resource)
		}
	}
	if err := lines.Err(); err != nil {
		k.t.Fatal(err)
	}
	for what := range allowed {
		if !used[what] {
			k.t.Errorf("the Role allows %s, which no gateway has used", what)
		}
	}
	for what := range used {
		if !allowed[what] {
			k.t.Errorf("a gateway has used %s, which the Role does not allow", what)
		}
	}
	k.t.Logf("used: %q", slices.Sorted(maps.Keys(used)))
}

// TestE2E_KubeClients runs the clients' own suites against kernels in pods. Each request goes to another replica than
// the one before.
func TestE2E_KubeClients(t *testing.T) {
	k := installInCluster(t)
	t.Run("start time", func(t *testing.T) { k.in(t).startTimes(t) })
	env := []string{"EKG_KERNELS=python3"}
	python := filepath.Join(k.gateway.in.dir, "lab/bin/python")
	for _, script := range []string{"direct.py", "through_server.py"} {
		t.Run(script, func(t *testing.T) {
			k.in(t).script(5*time.Minute, env, python, filepath.Join(k.gateway.in.repository, "e2e/testdata/python", script))
		})
	}
	t.Run("services.mjs", func(t *testing.T) {
		k.in(t).script(5*time.Minute, env, "node", filepath.Join(k.gateway.in.repository, "e2e/testdata/js/services.mjs"))
	})
}

// TestE2E_KubeJupyterLab runs JupyterLab in a browser, with the extension in its server, while all replicas are killed.
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
	mux.HandleFunc("POST /start", func(http.ResponseWriter, *http.Request) {}) // the kubelet restarts them
	control := httptest.NewServer(mux)
	t.Cleanup(control.Close)
	env := []string{
		"EKG_CONTROL=" + control.URL,
		"EKG_EXTENSION=" + theExtension(t),
		"EKG_KERNELS=python3",
		"EKG_ARTIFACTS=" + strings.TrimSuffix(k.log, ".log"),
		"EKG_ONLY=back after 1 s|^the page is reloaded|tab is closed for",
	}
	k.script(10*time.Minute, env, "node", filepath.Join(k.gateway.in.repository, "e2e/testdata/browser/away.mjs"))
}
