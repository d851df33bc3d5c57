//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
)

// enterpriseKernelspec copies a kernelspec of Enterprise Gateway's source as it is, but for the image's name.
func (k *inCluster) enterpriseKernelspec(source, name string, replace ...string) {
	k.t.Helper()
	k.enterpriseKernelspecAs(source, name, name, replace...)
}

// enterpriseKernelspecAs copies a kernelspec of Enterprise Gateway's source under another name, with replacements.
func (k *inCluster) enterpriseKernelspecAs(source, name, as string, replace ...string) {
	k.t.Helper()
	text, err := os.ReadFile(filepath.Join(source, "etc", "kernelspecs", name, "kernel.json"))
	if err == nil {
		err = os.MkdirAll(filepath.Join(k.dir, "specs", as), 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(k.dir, "specs", as, "kernel.json"),
			[]byte(strings.NewReplacer(replace...).Replace(string(text))), 0o644)
	}
	if err != nil {
		k.t.Fatal(err)
	}
}

// authorizationTest is metadata.process_proxy of the kernelspec authorization_test of Enterprise Gateway's tests.
var authorizationTest = map[string]any{
	"class_name": "enterprise_gateway.services.processproxies.processproxy.LocalProcessProxy",
	"config":     map[string]any{"authorized_users": "bob,alice,bad_guy", "unauthorized_users": "bad_guy"},
}

// enterpriseUsers gives a gateway that is not running yet the users of Enterprise Gateway's tests.
func (g *gateway) enterpriseUsers() {
	g.t.Helper()
	file := filepath.Join(g.dir, "users.yaml")
	text := fmt.Sprintf("users:\n- {name: bob, tokens: [%q]}\n- {name: bad_guy, tokens: [%q]}\n",
		identity.Hash("token-bob"), identity.Hash("token-bad"))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		g.t.Fatal(err)
	}
	g.args, g.token = append(g.args, "--users-file", file), ""
}

// enterpriseItests are Enterprise Gateway's own integration tests of a kernelspec.
type enterpriseItests struct {
	classes []string // in enterprise_gateway.itests
	ran     int      // how many tests there are
}

// The tests of Python and of lists of users, those of R, and those of Python with a Spark context.
var (
	itestsOfPython = enterpriseItests{ran: 7,
		classes: []string{"test_python_kernel.TestPythonKernelLocal", "test_authorization.TestAuthorization"}}
	itestsOfR     = enterpriseItests{ran: 4, classes: []string{"test_r_kernel.TestRKernelLocal"}}
	itestsOfSpark = enterpriseItests{ran: 10, classes: []string{"test_python_kernel.TestPythonKernelClient"}}
)

// run runs the tests. The variables name the kernelspec, and what the tests expect.
func (tests enterpriseItests) run(t *testing.T, g *gateway, peers string, vars ...string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(peers, "eg", "bin", "python"), "testdata/python/enterprise_itests.py")
	for _, class := range tests.classes {
		cmd.Args = append(cmd.Args, "enterprise_gateway.itests."+class)
	}
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(peers, "eg-source"), "GATEWAY_HOST="+g.addr,
		"KERNEL_USERNAME=bob", "KERNEL_LAUNCH_TIMEOUT=60", "ITEST_HOSTNAME_PREFIX=.", "EKG_TOKEN_bob=token-bob",
		"EKG_TOKEN_bad_guy=token-bad")
	cmd.Env = append(cmd.Env, vars...)
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !strings.Contains(string(out), fmt.Sprintf("Ran %d tests", tests.ran)) {
		t.Error(err)
	}
}

// TestE2E_EnterpriseTests: Enterprise Gateway's own integration tests pass with kernels of this machine.
func TestE2E_EnterpriseTests(t *testing.T) {
	t.Parallel()
	peers := enterprisePeers(t, theInstallation(t))
	g := prepare(t, "")
	g.enterpriseUsers()
	g.specWith("authorization_test", map[string]any{"metadata": map[string]any{"process_proxy": authorizationTest}},
		filepath.Join(g.in.dir, "lab/bin/python"), "-m", "ipykernel_launcher", "-f", "{connection_file}")
	g.start()
	itestsOfPython.run(t, g, peers, "PYTHON_KERNEL_LOCAL_NAME=python3")
}

// enterpriseGateway prepares a gateway whose kernels have an image with a launcher of Enterprise Gateway. peers is the
// folder with Enterprise Gateway's own files.
func enterpriseGateway(t *testing.T, image string) (k *inCluster, peers string) {
	t.Helper()
	peers = enterprisePeers(t, theInstallation(t))
	c := theCluster(t)
	c.needsOwn(t, "it loads an image")
	c.images(t, image)
	k = c.newGateway(t, c.newNamespace(t), c.kubeconfig, "--start-wait", "30s")
	k.enterpriseUsers()
	return k, peers
}

// TestE2E_KubeEnterpriseImage: an image with the launcher of Enterprise Gateway runs unchanged, by Enterprise Gateway's
// own kernelspecs. Enterprise Gateway's own integration tests pass.
func TestE2E_KubeEnterpriseImage(t *testing.T) {
	t.Parallel() // it mostly waits
	k, peers := enterpriseGateway(t, "kernel-eg")
	source := filepath.Join(peers, "eg-source")
	k.enterpriseKernelspec(source, "python_kubernetes", "elyra/kernel-py:VERSION", "localhost/kernel-eg:dev")
	k.enterpriseKernelspec(source, "spark_python_kubernetes", "elyra/kernel-spark-py:VERSION", "localhost/kernel-eg:dev")
	k.enterpriseKernelspec(source, "R_kubernetes", "elyra/kernel-r:VERSION", "localhost/kernel-eg:dev")
	k.enterpriseKernelspec(source, "spark_R_kubernetes", "elyra/kernel-spark-r:VERSION", "localhost/kernel-eg:dev")
	k.podSpec("small", map[string]any{"image": "localhost/kernel-eg:dev", "launcher": "enterprise-gateway",
		"resources": map[string]any{"limits": map[string]any{"memory": "300Mi"}}}, "/usr/local/bin/bootstrap-kernel.sh")
	k.podSpec("silent", map[string]any{"image": "localhost/kernel-eg:dev", "launcher": "enterprise-gateway"},
		"sleep", "1000")
	k.specWith("authorization_test", map[string]any{"metadata": map[string]any{"process_proxy": authorizationTest,
		"ekg": map[string]any{"image": "localhost/kernel-eg:dev", "launcher": "enterprise-gateway"}}},
		"/usr/local/bin/bootstrap-kernel.sh")
	k.start()
	k.token = "token-bob"

	t.Run("life", func(t *testing.T) { k.in(t).enterpriseLife() })
	t.Run("life in R", func(t *testing.T) { k.in(t).enterpriseLifeInR("r_kubernetes") })
	t.Run("memory runs out", func(t *testing.T) { k.in(t).cellRunsOutOfMemory() })
	t.Run("no answer", func(t *testing.T) {
		k := k.in(t)
		status, b := k.ask("POST", "/api/kernels", `{"name": "silent", "env": {"KERNEL_LAUNCH_TIMEOUT": "5"}}`)
		const why = "the kernel's launcher has not answered within 5s"
		if status == 201 { // the pod itself took longer
			var m model
			if err := json.Unmarshal(b, &m); err != nil {
				t.Fatal(err)
			}
			k.dies(m.ID, why, time.Minute)
		} else if !strings.Contains(string(b), why) {
			t.Errorf("%d %s", status, b)
		}
	})
	t.Run("Spark's kernelspec without Spark", func(t *testing.T) {
		k := k.in(t)
		id := k.kernel("spark_python_kubernetes")
		k.state(id, "idle", time.Minute)
		k.dial(t, id, "s", true).says("import os; print(os.environ['KERNEL_SPARK_CONTEXT_INIT_MODE'])", "none\n")
		k.want(204, "DELETE", "/api/kernels/"+id, "", nil)
	})
	// Enterprise Gateway's image for it is that of R with Spark. The launcher needs SparkR only for a Spark context.
	t.Run("Spark's kernelspec of R without Spark", func(t *testing.T) { k.in(t).enterpriseLifeInR("spark_r_kubernetes") })
	t.Run("integration tests", func(t *testing.T) {
		itestsOfPython.run(t, k.gateway, peers, "PYTHON_KERNEL_LOCAL_NAME=python_kubernetes")
	})
	t.Run("integration tests of R", func(t *testing.T) {
		itestsOfR.run(t, k.gateway, peers, "R_KERNEL_LOCAL_NAME=R_kubernetes")
	})
	k.deleteAll()
	k.nothingLeft()
}

// enterpriseLife runs, interrupts, restarts and kills a kernel of Enterprise Gateway's kernelspec.
func (k *inCluster) enterpriseLife() {
	t := k.t
	id := k.kernel("python_kubernetes")
	k.state(id, "idle", time.Minute)
	c := k.dial(t, id, "s", true)
	c.says("x = 41 + 1; print(x)", "42\n")
	c.says("import os; print(os.environ['RESPONSE_ADDRESS'], os.environ['KERNEL_USERNAME'])", "127.0.0.1:8877 bob\n")
	labels := k.podsOf(id)[0].Metadata.Labels
	if labels["kernel_id"] != id || labels["component"] != "kernel" || labels["app"] != "enterprise-gateway" {
		t.Errorf("labels: %v", labels)
	}
	cell := c.begin("import time\nprint('begun', 1, flush=True)\ntime.sleep(600)")
	c.begun(cell)
	k.want(204, "POST", "/api/kernels/"+id+"/interrupt", "", nil)
	if r := c.finish(cell, time.Minute); r.reply.field("ename") != "KeyboardInterrupt" {
		t.Errorf("the cell ended with %s", r.reply.Content)
	}
	c.says("print(x)", "42\n")
	k.cutOutput(id)
	k.want(200, "POST", "/api/kernels/"+id+"/restart", "", nil)
	k.state(id, "idle", time.Minute)
	c = k.dial(t, id, "again", true)
	c.says("print('x' in globals())", "False\n")
	c.begin("import os; os.kill(os.getpid(), 9)")
	c.shows("was killed (SIGKILL)", time.Minute)
	k.state(id, "idle", time.Minute)
	k.dial(t, id, "third", true).says("print('again')", "again\n")
	if pods := k.podsOf(id); len(pods) != 1 || pods[0].Metadata.Name != id+"-1" {
		t.Errorf("it is not the same pod: %+v", pods)
	}
	k.want(204, "DELETE", "/api/kernels/"+id, "", nil)
	k.podsGone(id)
}

// cutOutput cuts a client's connection three times while a cell prints. The client gets all lines, and so does the log.
func (k *inCluster) cutOutput(id string) {
	t := k.t
	t.Helper()
	p := newFaultProxy(t, k.addr)
	r := newReturning(t, p.through(k.gateway), id, subprotocolV1, 5*time.Second)
	cell := r.begin(numbered(600, 5*time.Millisecond, "/"))
	for cut := 1; cut <= 3; cut++ {
		line := fmt.Sprintf("line %d ", cut*100)
		r.until(time.Minute, line, func() bool {
			return r.has(func(m message) bool { return m.Parent.MsgID == cell && strings.Contains(m.field("text"), line) })
		})
		for _, link := range p.live() {
			link.end()
		}
	}
	wantNumbered(t, "the client", r.ended(cell, time.Minute))
	r.mu.Lock()
	connections := r.connections
	r.mu.Unlock()
	if connections < 4 {
		t.Errorf("the client had %d connections", connections)
	}
	status, log := k.ask("GET", "/api/kernels/"+id+"/log?parent="+cell, "")
	logged := &outcome{}
	for line := range strings.Lines(string(log)) {
		var m message
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%d: %v in %.300s", status, err, line)
		}
		logged.take(m, cell)
	}
	wantNumbered(t, "the log", logged)
}

// enterpriseLifeInR runs, interrupts, restarts and deletes a kernel of a kernelspec of Enterprise Gateway for R.
func (k *inCluster) enterpriseLifeInR(spec string) {
	t := k.t
	id := k.kernel(spec)
	k.state(id, "idle", 2*time.Minute)
	c := k.dial(t, id, "s", true)
	c.says("x <- 41 + 1; cat(x, Sys.getenv('RESPONSE_ADDRESS'), Sys.getenv('KERNEL_SPARK_CONTEXT_INIT_MODE'))",
		"42 127.0.0.1:8877 none")
	cell := c.begin("cat('begun', 1, '\\n')\nSys.sleep(600)")
	c.begun(cell)
	k.want(204, "POST", "/api/kernels/"+id+"/interrupt", "", nil)
	c.finish(cell, time.Minute)
	c.says("cat(x)", "42")
	k.want(200, "POST", "/api/kernels/"+id+"/restart", "", nil)
	k.state(id, "idle", 2*time.Minute)
	k.dial(t, id, "again", true).says("cat(exists('x'))", "FALSE")
	k.want(204, "DELETE", "/api/kernels/"+id, "", nil)
	k.podsGone(id)
}
