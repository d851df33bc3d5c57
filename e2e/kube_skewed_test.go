//go:build e2e

package e2e

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// clockShift is a file of package time. It reads the number of seconds by which the clock is wrong.
const clockShift = `package time

import "syscall"

var clockShift = func() (seconds int64) {
	text, _ := syscall.Getenv("CLOCK_SHIFT_SECONDS")
	sign := int64(1)
	for _, c := range text {
		if c == '-' {
			sign = -1
		} else {
			seconds = 10*seconds + int64(c-'0')
		}
	}
	return sign * seconds
}()
`

// withClockShift builds the present ekg with a Go library whose time.Now is wrong by $CLOCK_SHIFT_SECONDS, and returns
// its folder. Only the wall clock is wrong, as on a machine without time synchronization. The monotonic clock is not.
func withClockShift(t *testing.T, in installed) string {
	t.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	text, err := os.ReadFile(filepath.Join(library, "time.go"))
	if err != nil {
		t.Fatal(err)
	}
	const before = "func Now() Time {\n"
	begin := bytes.Index(text, []byte(before))
	end := -1
	const reads = "sec, nsec, mono := runtimeNow()\n"
	if begin >= 0 {
		end = bytes.Index(text[begin:], []byte(reads))
	}
	if end < 0 {
		t.Fatalf("%s/time.go: time.Now does not read the clock as this test expects", library)
	}
	at := begin + end + len(reads)
	changed := string(text[:at]) + "\tsec += clockShift\n" + string(text[at:])
	dir := t.TempDir()
	list := map[string]map[string]string{"Replace": {
		filepath.Join(library, "time.go"):       filepath.Join(dir, "time.go"),
		filepath.Join(library, "clockshift.go"): filepath.Join(dir, "clockshift.go"),
	}}
	b, err := json.Marshal(list)
	if err := errors.Join(err, os.WriteFile(filepath.Join(dir, "overlay.json"), b, 0o600),
		os.WriteFile(filepath.Join(dir, "time.go"), []byte(changed), 0o600),
		os.WriteFile(filepath.Join(dir, "clockshift.go"), []byte(clockShift), 0o600)); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", dir+"/", "./cmd/ekg",
		"./cmd/ekg-supervisor")
	build.Dir = in.repository
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build with another clock: %v\n%s", err, out)
	}
	return dir
}

// certifiedSince returns the time from which all certificates of the cluster are valid.
func (c *cluster) certifiedSince(t *testing.T) (since time.Time) {
	t.Helper()
	files, err := filepath.Glob(c.pki("*.crt"))
	if err != nil || len(files) == 0 {
		t.Fatal("the cluster has no certificates: ", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(text)
		if block == nil {
			t.Fatal("no certificate: ", file)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if certificate.NotBefore.After(since) {
			since = certificate.NotBefore
		}
	}
	return since
}

// TestChaos_KubeSkewed: one replica's clock is up to an hour ahead, and another's up to 4 minutes behind, but no further
// than to the cluster's certificates. Users start, use, restart and end kernels through both. No kernel is missing, dead
// or doubled. Limits hold. A kernel is culled when it was idle for as long as it may be, not earlier.
func TestChaos_KubeSkewed(t *testing.T) {
	n := seed(t)
	random := rand.New(rand.NewPCG(n, 5))
	c := theCluster(t)
	ns := c.newNamespace(t)
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(strings.Repeat("k", 40)), 0o600); err != nil {
		t.Fatal(err)
	}
	users := fmt.Sprintf(`{"client-certificate": %q, "client-key": %q}`, c.pki("admin.crt"), c.pki("admin.key"))
	bin := withClockShift(t, theInstallation(t))
	kubeconfig := c.writeKubeconfig(t, "https://"+nodeIP+":6443", users)
	var gateways []*inCluster
	behind := min(30+random.IntN(200), int(time.Since(c.certifiedSince(t)).Seconds())-1)
	for _, shift := range []int{400 + random.IntN(3200), -behind} {
		g := c.newGateway(t, ns, kubeconfig, "--master-key-file", key, "--max-kernels", "4", "--cull-idle-timeout", "40s",
			"--cull-interval", "1s")
		g.gateway.in.bin = bin
		g.vars = append(g.vars, fmt.Sprint("CLOCK_SHIFT_SECONDS=", shift))
		g.start()
		t.Logf("a clock is wrong by %d s", shift)
		gateways = append(gateways, g)
	}
	any := func() *inCluster { return gateways[random.IntN(2)] }
	x := map[string]int{}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if len(x) < 3 {
			id := any().kernel("pod")
			x[id] = 0
		}
		for id := range x {
			switch random.IntN(6) {
			case 0:
				any().want(204, "DELETE", "/api/kernels/"+id, "", nil)
				delete(x, id)
			case 1:
				any().want(200, "POST", "/api/kernels/"+id+"/restart", "", nil)
				x[id] = 0
			default:
				x[id]++
				any().dial(t, id, fmt.Sprint("s", messageNumber.Add(1)), true).
					says("x = globals().get('x', 0) + 1; print('x is', x)", fmt.Sprintf("x is %d\n", x[id]))
			}
			for _, g := range gateways {
				for id := range x {
					g.listedOnce(id)
				}
			}
		}
	}
	for len(x) < 4 {
		x[any().kernel("pod")] = 0
	}
	for _, g := range gateways {
		if status, b := g.ask("POST", "/api/kernels", `{"name": "pod"}`); status != 403 {
			t.Errorf("a kernel more than the limit: %d %s", status, b)
		}
	}
	idle := time.Now()
	for id := range x {
		gateways[0].dial(t, id, fmt.Sprint("s", messageNumber.Add(1)), true).says("print(1)", "1\n")
	}
	for _, g := range gateways {
		g.eventually(2*time.Minute, "all are culled", func() error {
			var all []model
			g.want(200, "GET", "/api/kernels", "", &all)
			for _, m := range all { // culled ones are shown for some minutes
				if m.ExecutionState != "dead" {
					return fmt.Errorf("%+v", m)
				}
				if since := time.Since(idle); since < 39*time.Second || !strings.Contains(m.Reason, "it was idle for 40s") {
					t.Fatalf("after %v: %+v", since, m)
				}
			}
			return nil
		})
	}
	if took := time.Since(idle); took < 39*time.Second {
		t.Errorf("they were culled after %v", took)
	}
}
