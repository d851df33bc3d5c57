//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// This file follows docs/from-jupyterhub.md, step by step, with JupyterHub and KubeSpawner in the cluster.

// hubVolumes are homes that any claim of their storage class gets, in folders of the node.
const hubVolumes = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s-home-%[2]d}
spec:
  capacity: {storage: 10Gi}
  accessModes: [ReadWriteMany]
  storageClassName: %[1]s
  hostPath: {path: %[3]q}
`

// installHub installs a hub with the settings that the document begins with. It returns the address of its proxy.
func (c *cluster) installHub(w *walk, document string, in installed, ns string) string {
	t := w.t
	t.Helper()
	folder := func() string {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o777); err != nil { // users' servers have their own user
			t.Fatal(err)
		}
		return dir
	}
	data := folder()
	if err := os.WriteFile(filepath.Join(data, "numbers"), []byte("1 2 3"), 0o644); err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, fmt.Sprintf(claimOn, ns, "datasets", data), "apply", "-f", "-")
	volumes := []string{"pv/" + ns + "-datasets"}
	for i := range 2 {
		c.kubectl(t, fmt.Sprintf(hubVolumes, ns, i, folder()), "apply", "-f", "-")
		volumes = append(volumes, fmt.Sprintf("pv/%s-home-%d", ns, i))
	}
	t.Cleanup(func() { c.kubectl(t, "", append([]string{"delete", "--wait=false"}, volumes...)...) })

	config := regexp.MustCompile("(?s)```python\n(.*?)```").FindStringSubmatch(document)
	if config == nil {
		t.Fatal("the document has no settings of a hub")
	}
	for of, value := range map[string]string{"registry.example.com/lab:1": "localhost/jupyterhub:dev",
		"registry.example.com/torch:1": "localhost/jupyterhub:dev", `"shared"`: `"` + ns + `"`} {
		if strings.Count(config[1], of) != 1 {
			t.Errorf("the hub's settings have %s not once", of)
		}
		config[1] = strings.Replace(config[1], of, value, 1)
	}
	values, err := json.Marshal(map[string]string{"image": "localhost/jupyterhub:dev", "config": config[1],
		"database": folder(), "extension": theExtension(t)})
	file := filepath.Join(w.dir, "hub.yaml")
	if err = errors.Join(err, os.WriteFile(file, values, 0o600)); err != nil {
		t.Fatal(err)
	}
	w.steps["hub"] = "helm install $HUB -n $NS --values " + file + `
kubectl -n $NS rollout status deployment/hub --timeout=2m
kubectl -n $NS rollout status deployment/proxy --timeout=2m
`
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.tryKubectl("", "-n", ns, "logs", "deploy/hub", "--tail=80"))
			t.Log(c.tryKubectl("", "-n", ns, "get", "pods,events"))
		}
	})
	w.must("hub")
	return "http://" + c.clusterIP(ns, "proxy-public")
}

// clusterIP returns the address of a Service; "" if the Service does not exist.
func (c *cluster) clusterIP(ns, name string) string {
	out, err := c.tryKubectl("", "-n", ns, "get", "service", name, "-o", "jsonpath={.spec.clusterIP}")
	if err != nil {
		return ""
	}
	return out
}

// hubUser is a user of the hub. Requests of the gateway go to the user's server.
type hubUser struct {
	*gateway
	account *gateway // requests for the user at the hub's API
	browser *http.Client
	proxy   string
}

// logIn logs a user in at the hub's page, and creates a token there.
func (g *gateway) logIn(proxy, name string) *hubUser {
	g.t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		g.t.Fatal(err)
	}
	at := func(path string) *gateway {
		to := *g
		to.url = proxy + path + url.PathEscape(name)
		return &to
	}
	u := &hubUser{at("/user/"), at("/hub/api/users/"), &http.Client{Jar: jar, Timeout: time.Minute}, proxy}
	u.page("GET", "/hub/login", nil)
	u.page("POST", "/hub/login?next=%2Fhub%2Fhome", url.Values{"username": {name}, "password": {"any"}})
	var created struct{ Token string }
	answer := u.page("POST", "/hub/api/users/"+url.PathEscape(name)+"/tokens", nil)
	if err := json.Unmarshal([]byte(answer), &created); err != nil || created.Token == "" {
		g.t.Fatalf("the token of %s: %v in %s", name, err, answer)
	}
	u.token, u.account.token = created.Token, created.Token
	return u
}

// page sends a request as the user's browser does, and returns the page.
func (u *hubUser) page(method, path string, form url.Values) string {
	u.t.Helper()
	req, err := http.NewRequest(method, u.proxy+path, strings.NewReader(form.Encode()))
	if err != nil {
		u.t.Fatal(err)
	}
	for _, cookie := range u.browser.Jar.Cookies(&url.URL{Scheme: "http", Host: req.Host, Path: "/hub/"}) {
		if cookie.Name == "_xsrf" {
			req.Header.Set("X-XSRFToken", cookie.Value)
		}
	}
	req.Header.Set("Content-Type", "application/json")
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	resp, err := u.browser.Do(req)
	if err != nil {
		u.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 400 {
		u.t.Fatalf("%s %s: %s %v: %s", method, path, resp.Status, err, b)
	}
	return string(b)
}

// hubAnswers waits until the network leads to a hub that was restarted.
func (u *hubUser) hubAnswers() {
	u.t.Helper()
	u.eventually(time.Minute, "the hub answers", func() error { return answers200(u.proxy + "/hub/health") })
}

// servers returns whether the user's server is ready, and whether there is one.
func (u *hubUser) servers() (ready, some bool) {
	u.t.Helper()
	var user struct {
		Servers map[string]struct{ Ready bool }
	}
	u.account.want(http.StatusOK, "GET", "", "", &user)
	return user.Servers[""].Ready, len(user.Servers) > 0
}

// starts starts the user's server with a profile.
func (u *hubUser) starts(profile string) {
	u.t.Helper()
	began := time.Now()
	status, b := u.account.ask("POST", "/server", fmt.Sprintf(`{"profile": %q}`, profile))
	if status != 201 && status != 202 {
		u.t.Fatalf("a server with the profile %s: %d %s", profile, status, b)
	}
	u.eventually(time.Minute, "the server is ready", func() error {
		ready, some := u.servers()
		switch {
		case ready:
			return nil
		case !some:
			u.t.Fatal("the server has failed")
		}
		return errors.New("it starts")
	})
	u.t.Logf("a server with the profile %s: %v", profile, time.Since(began).Round(100*time.Millisecond))
}

// stops stops the user's server.
func (u *hubUser) stops() {
	u.t.Helper()
	if status, b := u.account.ask("DELETE", "/server", ""); status != 202 && status != 204 {
		u.t.Fatalf("the end of a server: %d %s", status, b)
	}
	u.eventually(time.Minute, "the server has ended", func() error {
		if _, some := u.servers(); some {
			return errors.New("it is there")
		}
		return nil
	})
}

// notebook starts a kernel for a notebook, as JupyterLab does, and returns its id.
func (u *hubUser) notebook(path, kernelspec string) string {
	u.t.Helper()
	var session struct{ Kernel model }
	u.want(http.StatusCreated, "POST", "/api/sessions", fmt.Sprintf(
		`{"path": %[1]q, "name": %[1]q, "type": "notebook", "kernel": {"name": %[2]q}}`, path, kernelspec), &session)
	return session.Kernel.ID
}

// TestE2E_KubeHub: a hub with KubeSpawner gets ekg by the commands of the document. Kernels have the homes that
// KubeSpawner has made. They outlive the servers of their users, and are theirs when the servers are back.
func TestE2E_KubeHub(t *testing.T) {
	t.Parallel() // it mostly waits
	in, c := theInstallation(t), theCluster(t)
	c.needsOwn(t, "it loads an image, and its volumes are folders of this machine")
	c.images(t, "jupyterhub")
	text, err := os.ReadFile(filepath.Join(in.repository, "docs/from-jupyterhub.md"))
	if err != nil {
		t.Fatal(err)
	}
	document := string(text)
	g, ns := prepare(t, ""), c.newNamespace(t)
	service := func(name, port string) string {
		return "http://$(kubectl -n $" + name + " --ignore-not-found -o jsonpath={.spec.clusterIP}):" + port
	}
	w := stepsOf(t, document, map[string]string{
		"NS": ns, "EKG_NS": ns + "-ekg", "CHART": filepath.Join(in.repository, "deploy/helm/ekg"),
		"IMAGE": "localhost/ekg:dev", "LAB_IMAGE": "localhost/jupyterhub:dev", "CPU_IMAGE": "localhost/jupyterhub:dev",
		"GPU_IMAGE": "localhost/jupyterhub:dev", "STORAGE": ns,
		"HUB":     `"jupyterhub ` + filepath.Join(in.repository, "e2e/testdata/jupyterhub") + `"`,
		"HUB_URL": service("NS get service hub", "8081"), "EKG_URL": service("EKG_NS get service ekg", "8888"), "IDLE": "5s",
	})
	w.dir, w.env = t.TempDir(), c.tools(t, g)
	t.Cleanup(func() {
		c.kubectl(t, "", "delete", "namespace", ns+"-ekg", "--ignore-not-found", "--wait=false")
	})
	proxy := c.installHub(w, document, in, ns)
	ann := g.logIn(proxy, "ann")
	ann.starts("gpu")
	before := ann.dial(t, ann.notebook("before.ipynb", "python3"), "before", true)
	before.says("import os; open('kept', 'w').write('by the server'); print(os.environ['TEAM'],"+
		" os.environ['TORCH_DEVICE'], os.listdir('/data'))", "vision cuda ['numbers']\n")
	for _, step := range []string{"2", "3", "4", "5"} {
		w.must(step)
	}
	before.says("x = 1; print(os.path.exists('kept'))", "True\n")
	ann.hubAnswers()

	ann.stops()
	ann.starts("ekg")
	var specs struct {
		Kernelspecs map[string]struct {
			Spec struct {
				Name string `json:"display_name"`
			}
		}
	}
	ann.want(http.StatusOK, "GET", "/api/kernelspecs", "", &specs)
	if len(specs.Kernelspecs) != 2 || specs.Kernelspecs["python3--gpu"].Spec.Name != "Python 3 (GPU)" {
		t.Errorf("the kernelspecs are %v", specs.Kernelspecs)
	}
	id := ann.notebook("a.ipynb", "python3--gpu")
	ann.dial(t, id, "a", true).says("import os; x = 41; print(open('kept').read(), os.getcwd(), os.environ['TEAM'],"+
		" os.environ['TORCH_DEVICE'], os.environ['KERNEL_USERNAME'], os.listdir('/data'), os.access('/data', os.W_OK))",
		"by the server /home/jovyan vision cuda ann ['numbers'] False\n")
	gpus := c.kubectl(t, "", "-n", ns, "get", "pods", "-l", "component!=hub,component!=proxy", "-o",
		`jsonpath={range .items[*]}{.metadata.name} {.spec.containers[?(@.name=="kernel")].resources.limits.nvidia\.com/gpu}`+
			`{.spec.containers[?(@.name=="notebook")].resources.limits.nvidia\.com/gpu}{"\n"}{end}`)
	lines := slices.Sorted(strings.SplitSeq(strings.TrimSuffix(gpus, "\n"), "\n"))
	if !slices.Equal(lines, []string{id + "-1 1", "jupyter-ann "}) {
		t.Errorf("the pods and their GPUs are\n%s", gpus)
	}
	if out, err := w.run("6", ""); err != nil || !strings.Contains(out, id+"-1") {
		t.Errorf("the pods do not have %s: %v", id, err)
	}

	ann.stops()
	if out := c.kubectl(t, "", "-n", ns, "get", "pods", "-o", "name"); strings.Contains(out, "/jupyter-ann") {
		t.Errorf("the server's pod is there: %s", out)
	}
	bob := g.logIn(proxy, "bob@x")
	ekg := *g
	ekg.url, ekg.token = "http://"+c.clusterIP(ns+"-ekg", "ekg")+":8888", bob.token
	ekg.want(http.StatusNotFound, "GET", "/api/kernels/"+id, "", nil)
	if _, err := ekg.tryDial(t, id, "bob", true); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("bob's websocket to ann's kernel: %v", err)
	}
	own := ekg.kernel("python3")
	ekg.dial(t, own, "bob", true).says(
		"import os; open('kept', 'w').write('by a kernel'); print(os.getcwd(), os.path.exists('a.ipynb'))",
		"/home/jovyan False\n")
	ekg.want(http.StatusNoContent, "DELETE", "/api/kernels/"+own, "", nil)

	ann.starts("ekg")
	var sessions []struct {
		Path   string
		Kernel model
	}
	ann.want(http.StatusOK, "GET", "/api/sessions", "", &sessions)
	if len(sessions) != 1 || sessions[0].Path != "a.ipynb" || sessions[0].Kernel.ID != id {
		t.Fatalf("the sessions of the next server are %+v, want one with %s", sessions, id)
	}
	intruder := *ann.gateway
	intruder.token = bob.token
	if status, b := intruder.ask("GET", "/api/sessions", ""); status != http.StatusForbidden {
		t.Errorf("bob at ann's server: %d %s", status, b)
	}
	back := ann.dial(t, id, "back", true)
	back.says("x += 1; print(x)", "42\n")

	w.must("7")
	ann.hubAnswers()
	if page := bob.page("GET", "/hub/spawn", nil); strings.Contains(page, "profile-item-gpu") ||
		!strings.Contains(page, "profile-item-ekg") {
		t.Errorf("the page of profiles is\n%s", page)
	}
	back = ann.dial(t, id, "back", true)
	back.says("x += 1; print(x)", "43\n")
	idle := ann.notebook("b.ipynb", "python3--gpu")
	ekg.token = ann.token
	if m := ekg.state(idle, "dead", time.Minute); !strings.Contains(m.Reason, "idle for 5s") {
		t.Errorf("the kernel has ended: %s", m.Reason)
	}
	if ready, _ := ann.servers(); !ready {
		t.Error("the server has ended with its kernel")
	}
	ekg.state(id, "idle", time.Minute)

	w.must("Back to servers with GPUs")
	ann.hubAnswers()
	bob.starts("gpu")
	after := bob.dial(t, bob.notebook("after.ipynb", "python3"), "after", true)
	after.says("print(open('kept').read())", "by a kernel\n")
	if out := c.kubectl(t, "", "-n", ns, "get", "pods", "-o", "name"); strings.Contains(out, id) {
		t.Errorf("a kernel is left: %s", out)
	}
}
