package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/usage"
)

// peer is what is compared.
type peer interface {
	name() string
	framings() []string
	// startKernel returns a new kernel of a kernelspec. It need not be ready.
	startKernel(ctx context.Context, spec string) (kernel, error)
	// stop ends the peer and all its kernels.
	stop()
}

// kernel is a kernel of a peer.
type kernel interface {
	// connect returns a client of the kernel, when the kernel answers. A quick client acknowledges TCP at once.
	connect(framing string, quick bool) (client, error)
	// processes returns the ids of the servers' processes between client and kernel.
	processes() []int
	// remove ends the kernel.
	remove() error
}

// The names of peers.
const (
	peerEKG   = "ekg"
	peerEG    = "EG" // Enterprise Gateway
	peerJS    = "JS" // jupyter_server
	peerPlain = "direct"

	peerHarness = "harness" // of failures of the harness itself
	peerBefore  = "before"  // ekg with the programs of -before
)

// server is a peer that speaks Jupyter's REST and websockets.
type server struct {
	b       *bench
	label   string
	dir     string
	host    string // host:port
	process *process
	client  *http.Client

	// Of a server whose kernels have their supervisors many to a process; see hostedServer.
	hosts  []*process
	users  []string // tokens; empty: the server has no users
	token  string   // of requests; "": none is sent
	starts *atomic.Int64
}

func (s *server) isEKG() bool        { return s.label == peerEKG || s.label == peerBefore }
func (s *server) name() string       { return s.label }
func (s *server) framings() []string { return []string{framingJSON, framingV1} }

// startServer starts a peer of a name.
func (b *bench) startServer(label string) (*server, error) {
	s, err := b.newServer(label, false)
	if err != nil {
		return nil, err
	}
	return s, s.run()
}

// newServer makes the folder of a peer. hosted is for startHosts.
func (b *bench) newServer(label string, hosted bool) (*server, error) {
	dir, err := os.MkdirTemp(b.dir, strings.ToLower(label)+"-")
	if err != nil {
		return nil, err
	}
	for spec, argv := range b.specs {
		folder := filepath.Join(dir, "kernels", spec)
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return nil, err
		}
		kernel := map[string]any{"argv": argv, "display_name": spec, "language": "python"}
		if hosted { // a machine has too few ports for 10,000 kernels
			kernel["metadata"] = map[string]any{"ekg": map[string]any{"transport": "ipc"}}
		}
		data, err := json.Marshal(kernel)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(folder, "kernel.json"), data, 0o600); err != nil {
			return nil, err
		}
	}
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	return &server{b: b, label: label, dir: dir, host: fmt.Sprintf("127.0.0.1:%d", ports[0]), starts: new(atomic.Int64),
		client: &http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 100}}}, nil
}

// run starts the server's process.
func (s *server) run() error {
	_, port, err := net.SplitHostPort(s.host)
	if err != nil {
		return err
	}
	cmd := s.b.command(s.label, s.dir, port)
	if len(s.users) > 0 {
		cmd.Args = append(slices.DeleteFunc(cmd.Args, func(a string) bool { return a == "--no-auth" }),
			"--users-file", s.usersFile(), "--max-kernels-per-user", strconv.Itoa(hostedMost),
			"--supervisor", filepath.Join(s.dir, "stub"))
	}
	cmd.Dir = s.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "LANG=C.UTF-8", "JUPYTER_PATH=" + s.dir,
		"JUPYTER_RUNTIME_DIR=" + filepath.Join(s.dir, "r"), "IPYTHONDIR=" + filepath.Join(s.dir, "ipython")}
	if s.process, err = s.b.start(cmd, filepath.Join(s.dir, "server.log")); err != nil {
		return err
	}
	if err := s.ready(time.Minute); err != nil {
		s.stop()
		return err
	}
	return nil
}

// command returns the command line of a peer. Neither requires a token, and none limits the rate of output.
func (b *bench) command(label, dir, port string) *exec.Cmd {
	switch label {
	case peerEKG, peerBefore:
		programs := b.dir
		if label == peerBefore {
			programs = b.options.before
		}
		return exec.Command(filepath.Join(programs, "ekg"), "serve", "--listen", "127.0.0.1:"+port, "--no-auth",
			"--kernelspec-dir", filepath.Join(dir, "kernels"), "--state-dir", filepath.Join(dir, "s"),
			"--runtime-dir", filepath.Join(dir, "r"), "--stop-kernels-on-exit", "--log-level", "warn")
	case peerEG:
		// Never with persistent sessions: with local kernels, Enterprise Gateway would then signal every process.
		return exec.Command(filepath.Join(b.peersDir, "eg/bin/jupyter-enterprisegateway"), "--ip=127.0.0.1",
			"--port="+port, "--port_retries=0", "--log-level=WARN",
			"--EnterpriseGatewayApp.list_kernels=True")
	default:
		return exec.Command(filepath.Join(b.labDir, "lab/bin/jupyter-server"), "--ip=127.0.0.1",
			"--port="+port, "--port-retries=0", "--log-level=WARN", "--allow-root", "--no-browser",
			"--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True", "--ServerApp.allow_remote_access=True",
			"--ZMQChannelsWebsocketConnection.limit_rate=False", "--ServerApp.root_dir="+dir)
	}
}

// ready waits until the server lists its kernels.
func (s *server) ready(limit time.Duration) error {
	var err error
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		select {
		case <-s.process.done:
			log, _ := os.ReadFile(filepath.Join(s.dir, "server.log")) // only for the message
			return fmt.Errorf("%s has ended: %.2000s", s.label, log)
		default:
		}
		if _, err = s.request(http.MethodGet, "/api/kernels", nil, http.StatusOK); err == nil {
			return nil
		}
	}
	return fmt.Errorf("%s is not ready after %v: %w", s.label, limit, err)
}

// request does a request and returns the body of its answer.
func (s *server) request(method, path string, content []byte, want int) ([]byte, error) {
	var body bytes.Buffer
	err := s.requestInto(&body, method, path, content, want)
	return body.Bytes(), err
}

// requestInto does a request and writes the body of its answer into an empty buffer.
func (s *server) requestInto(body *bytes.Buffer, method, path string, content []byte, want int) error {
	req, err := http.NewRequest(method, "http://"+s.host+path, bytes.NewReader(content))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if s.token != "" {
		req.Header.Set("Authorization", "token "+s.token)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()                   // it was read to its end
	body.Grow(int(max(0, resp.ContentLength)) + bytes.MinRead) // else a long list would be copied several times
	_, err = body.ReadFrom(resp.Body)
	if err == nil && resp.StatusCode != want {
		err = fmt.Errorf("%s %s: %s: %.300s", method, path, resp.Status, body.Bytes())
	}
	return err
}

// serverKernel is a kernel of a gateway.
type serverKernel struct {
	s    *server
	id   string
	pids []int // see processes
}

func (s *server) startKernel(_ context.Context, spec string) (kernel, error) {
	// Enterprise Gateway starts no kernels for root, as whom it may run here.
	env := map[string]string{"KERNEL_USERNAME": "bench"}
	body, err := json.Marshal(map[string]any{"name": spec, "env": env})
	if err != nil {
		return nil, err
	}
	starter := s
	if len(s.users) > 0 {
		starter = s.as(s.users[int(s.starts.Add(1))%len(s.users)])
	}
	data, err := starter.request(http.MethodPost, "/api/kernels", body, http.StatusCreated)
	if err != nil {
		return nil, err
	}
	var model struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(data, &model); err != nil {
		return nil, err
	}
	return &serverKernel{s: s, id: model.ID}, nil
}

// connect also sees that the kernel answers. A first cell that gets no answer is recorded as a failure. The client then
// connects again, as a user would, so that the peer's other figures are not lost.
func (k *serverKernel) connect(framing string, quick bool) (client, error) {
	const attempts, patience = 4, 4 * time.Second
	for n := range attempts {
		c, err := dialWebsocket(k.s.host, k.id, framing, quick)
		if err != nil {
			return nil, err
		}
		got, err := c.ask(asking{codes: []string{""}, deadline: patience << n})
		if err == nil && got.complete {
			return c, nil
		}
		c.close()
		if err != nil {
			return nil, err
		}
		k.s.b.fail(k.s.label, framing, fmt.Errorf("no answer to the first cell of a connection in %v", patience<<n))
	}
	return nil, fmt.Errorf("kernel %s does not answer", k.id)
}

func (k *serverKernel) processes() []int {
	if k.pids == nil {
		k.pids = []int{k.s.process.pid()}
		if k.s.isEKG() {
			for _, p := range usage.WithText(k.id) {
				if strings.Contains(p.Command, "ekg-supervisor --config ") {
					k.pids = append(k.pids, p.PID)
				}
			}
		}
	}
	return k.pids
}

func (k *serverKernel) remove() error {
	_, err := k.s.request(http.MethodDelete, "/api/kernels/"+k.id, nil, http.StatusNoContent)
	return err
}

// stop kills the server and its kernels. All of them have the server's folder on their command line. Some start others
// when these end, so it looks again until none is left.
func (s *server) stop() {
	if s.process != nil {
		s.process.kill()
	}
	for range 50 {
		left := usage.WithText(s.dir)
		if len(left) == 0 {
			break
		}
		for _, p := range left {
			kill(p.PID)
		}
		time.Sleep(20 * time.Millisecond)
	}
	for _, h := range s.hosts {
		h.kill()
	}
	s.client.CloseIdleConnections()
}

// processesOfAll returns the processes between clients and several kernels, each once.
func processesOfAll(kernels []kernel) []int {
	var all []int
	for _, k := range kernels {
		for _, pid := range k.processes() {
			if !slices.Contains(all, pid) {
				all = append(all, pid)
			}
		}
	}
	return all
}
