package supervisor

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/usage"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// newGatewayPath starts gateway, supervisor and kernel as they are installed, each as a process of its own. It connects
// one client to the gateway.
func newGatewayPath(b *testing.B, v1 bool) *websocketPath {
	dir := benchDir(b)
	for _, program := range []string{"../../cmd/ekg", "../../cmd/ekg-supervisor", "../launchertest/kernel"} {
		if out, err := exec.Command("go", "build", "-o", dir+"/", program).CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
	}
	spec, err := json.Marshal(map[string]any{"display_name": "Fake", "language": "fake",
		"argv": []string{filepath.Join(dir, "kernel"), "-f", "{connection_file}"}})
	if err != nil {
		b.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "specs", "fake"), 0o700); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "specs", "fake", "kernel.json"), spec, 0o600); err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(dir, "ekg"), "serve", "--listen", "127.0.0.1:0", "--no-auth", "--kernelspec-dir",
		filepath.Join(dir, "specs"), "--state-dir", filepath.Join(dir, "state"), "--runtime-dir", filepath.Join(dir, "run"),
		"--stop-kernels-on-exit", "--log-level", "error")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt) //nolint:errcheck // seen by Wait
		cmd.Wait()                       //nolint:errcheck // nothing more is done with it
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		b.Fatalf("the gateway does not say where it listens: %v", err)
	}
	fields := strings.Fields(line)
	u, err := url.Parse(fields[len(fields)-1])
	if err != nil {
		b.Fatal(err)
	}
	resp, err := http.Post(fmt.Sprintf("http://%s/api/kernels", u.Host), "application/json",
		strings.NewReader(`{"name":"fake"}`))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		b.Fatal(err)
	}
	var m api.Model
	if err := json.Unmarshal(body, &m); err != nil || m.ExecutionState != api.Idle {
		b.Fatalf("%v: %s", err, body)
	}
	return &websocketPath{b: b, conn: dialChannels(b, "tcp", u.Host, m.ID, v1), gateway: findGateway(cmd.Process.Pid, dir)}
}

// gatewayProcesses are the processes of a gateway and of its supervisor.
type gatewayProcesses struct{ gateway, supervisor []int }

// findGateway finds the processes of a supervisor below a folder.
func findGateway(gateway int, dir string) *gatewayProcesses {
	g := &gatewayProcesses{gateway: []int{gateway}}
	for _, p := range usage.WithText(dir) {
		if p.PID != gateway && strings.Contains(p.Command, "ekg-supervisor") {
			g.supervisor = append(g.supervisor, p.PID)
		}
	}
	return g
}

// cpuTime is the time that gateway and supervisor of a path have used.
type cpuTime struct{ gateway, supervisor time.Duration }

// cpuOf returns how much time was used so far; zero if the path has no processes of its own.
func cpuOf(p path) (used cpuTime) {
	if w, ok := p.(*websocketPath); ok && w.gateway != nil {
		used = cpuTime{usage.ProcessorTime(w.gateway.gateway), usage.ProcessorTime(w.gateway.supervisor)}
	}
	return used
}

// peak returns the largest memory of a supervisor so far, in MB.
func (g *gatewayProcesses) peak() (most float64) {
	for _, pid := range g.supervisor {
		most = max(most, float64(usage.Peak([]int{pid}))/1e6)
	}
	return most
}
