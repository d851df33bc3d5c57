package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// bench is a run of the harness.
type bench struct {
	// Fixed.
	ctx           context.Context
	options       options
	dir           string              // programs, and the folders of the peers; short, because it holds sockets
	labDir        string              // of hack/env/setup
	peersDir      string              // of hack/env/peers
	libzmq        string              // the library
	directProgram string              // libzmq/direct.c, compiled
	specs         map[string][]string // the command lines of kernelspecs
	wanted        []string            // names of peers

	// Of the goroutine that runs the scenarios.
	scenario string         // name of the one that runs; others read it
	peers    []peer         // that are running
	sizes    map[string]int // of floods of ekg, by scenario and framing

	// Guarded by mu.
	mu      sync.Mutex
	results *results
	started []*process // all of them
}

func newBench(ctx context.Context, o options) (*bench, error) {
	dir, err := os.MkdirTemp("", "ekg-bench-")
	if err != nil {
		return nil, err
	}
	b := &bench{ctx: ctx, options: o, dir: dir, sizes: map[string]int{},
		wanted: []string{peerPlain, peerEKG, peerEG, peerJS}}
	if o.quick {
		b.wanted = b.wanted[:3]
	}
	if o.peers != "" {
		b.wanted = strings.Split(o.peers, ",")
		for _, p := range b.wanted {
			if !slices.Contains([]string{peerPlain, peerEKG, peerEG, peerJS}, p) {
				return nil, fmt.Errorf("unknown peer %q", p)
			}
		}
	}
	if o.before != "" {
		b.wanted = append(b.wanted, peerBefore)
	}
	context.AfterFunc(ctx, b.killStarted) // Ctrl-C need not wait for a measurement
	if err := b.prepare(); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

// prepare installs the peers and builds the programs.
func (b *bench) prepare() error {
	lab, err := b.output("hack/env/setup", "lab")
	if err != nil {
		return err
	}
	b.labDir = lab
	if slices.Contains(b.wanted, peerEG) {
		if b.peersDir, err = b.output("hack/env/peers"); err != nil {
			return err
		}
	}
	libraries, err := filepath.Glob(filepath.Join(lab, "lab/lib/python3*/site-packages/pyzmq.libs/libzmq*.so*"))
	if err != nil || len(libraries) != 1 {
		return fmt.Errorf("%d files with pyzmq's libzmq in %s: %v", len(libraries), lab, err)
	}
	b.libzmq = libraries[0]
	b.say("building")
	for _, program := range []string{"./cmd/ekg", "./cmd/ekg-supervisor", "./launcher/launchertest/kernel"} {
		build := exec.CommandContext(b.ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", b.dir+"/", program)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("go build %s: %w\n%s", program, err, out)
		}
	}
	b.directProgram = filepath.Join(b.dir, "direct")
	if _, err := b.output("cc", "-O2", "-o", b.directProgram, "hack/bench/libzmq/direct.c", "-ldl"); err != nil {
		return err
	}
	stub := filepath.Join(b.dir, "stub")
	if _, err := b.output("cc", "-O2", "-static", "-o", stub, "hack/bench/stub/stub.c"); err != nil {
		return err
	}
	if err := b.startHost(); err != nil {
		return err
	}
	fake := filepath.Join(b.dir, "kernel")
	b.specs = map[string][]string{
		specHosted:  {stub, b.hostSocket(), "{connection_file}"},
		specFake:    {fake, "-f", "{connection_file}"},
		specDrops:   {fake, "-f", "{connection_file}", "--hwm", "1000"},
		specPython3: {filepath.Join(lab, "lab/bin/python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"},
	}
	b.results = &results{Date: time.Now().UTC().Format(time.RFC3339), Command: b.options.command,
		Quick: b.options.quick, Rounds: b.options.rounds, Machine: machine(), Versions: b.versions()}
	return nil
}

// The names of kernelspecs.
const (
	specFake    = "fake"
	specHosted  = "hosted" // one of many in a process
	specDrops   = "drops"  // drops output while 1000 messages wait, as libzmq does by default
	specPython3 = "python3"
)

// startHost starts this program again, as the host of fake kernels.
func (b *bench) startHost() error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), hostVariable+"="+b.hostSocket())
	cmd.Stderr = os.Stderr
	_, err = b.start(cmd, filepath.Join(b.dir, "host.log"))
	return err
}

// output runs a command and returns what it prints, without the last line break.
func (b *bench) output(argv ...string) (string, error) {
	cmd := exec.CommandContext(b.ctx, argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// close stops the peers, kills what is left, and removes the folder.
func (b *bench) close() {
	b.stopPeers()
	b.killStarted()
	if err := os.RemoveAll(b.dir); err != nil {
		b.say("remove %s: %v", b.dir, err)
	}
}

// killStarted kills all processes that the harness has started itself. A measurement that waits for one of them ends.
func (b *bench) killStarted() {
	b.mu.Lock()
	started := slices.Clone(b.started)
	b.mu.Unlock()
	for _, p := range started {
		p.kill()
	}
}

// say writes a line for the user.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...)
}

// usePeers returns the wanted peers, running. They go on to run until stopPeers.
func (b *bench) usePeers() []peer {
	if b.peers != nil {
		return b.peers
	}
	for _, name := range b.wanted {
		if name == peerPlain {
			b.peers = append(b.peers, &direct{b: b})
			continue
		}
		s, err := b.startServer(name)
		if err != nil {
			b.say("%v", err)
			b.fail(name, "", err)
			continue
		}
		b.peers = append(b.peers, s)
	}
	return b.peers
}

func (b *bench) stopPeers() {
	var all sync.WaitGroup
	for _, p := range b.peers {
		all.Go(p.stop)
	}
	all.Wait()
	b.peers = nil
}

// fail records a failure. All are figures; none is tried again.
func (b *bench) fail(peer, framing string, err error) {
	b.say("%s, %s %s: %v", b.scenario, peer, framing, err)
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.results.figure(b.scenario, metricFailed, peer, framing)
	f.Failures = append(f.Failures, err.Error())
}

// add records a value.
func (b *bench) add(metric, peer, framing string, value float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.results.figure(b.scenario, metric, peer, framing)
	f.Values = append(f.Values, value)
}

// machine describes the machine.
func machine() string {
	name := "unknown processor"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, rest, ok := strings.Cut(string(b), "model name\t: "); ok {
			name, _, _ = strings.Cut(rest, "\n")
		}
	}
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease") // only a description
	var load string
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		load, _, _ = strings.Cut(string(b), " ")
	}
	return fmt.Sprintf("%d processors (%s), Linux %s, load %s at the start", runtime.NumCPU(), name,
		strings.TrimSpace(string(release)), load)
}

// versions returns the versions of what is measured.
func (b *bench) versions() map[string]string {
	v := map[string]string{"go": strings.TrimPrefix(runtime.Version(), "go")}
	if s, err := b.output("git", "describe", "--tags", "--always", "--dirty"); err == nil {
		v["ekg"] = s
	}
	python := filepath.Join(b.labDir, "lab/bin/python")
	const show = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
	for _, name := range []string{"jupyter_server", "ipykernel", "tornado", "pyzmq"} {
		if s, err := b.output(python, "-c", show, name); err == nil {
			v[name] = s
		}
	}
	if s, err := b.output(python, "-c", "import zmq; print(zmq.zmq_version())"); err == nil {
		v["libzmq"] = s
	}
	if b.peersDir != "" {
		eg := filepath.Join(b.peersDir, "eg/bin/python")
		for _, name := range []string{"jupyter_enterprise_gateway", "jupyter_server", "jupyter_client", "tornado"} {
			s, err := b.output(eg, "-c", show, name)
			if err != nil {
				continue
			}
			if name != "jupyter_enterprise_gateway" {
				name = "EG's " + name
			}
			v[name] = s
		}
	}
	return v
}
