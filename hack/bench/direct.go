package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
)

// direct is the peer without a gateway. The harness starts the kernels. The client is the program of libzmq/direct.c.
type direct struct {
	b *bench
}

func (*direct) name() string       { return "direct" }
func (*direct) framings() []string { return []string{""} }
func (*direct) stop()              {}

// directKernel is a kernel without a gateway.
type directKernel struct {
	b       *bench
	conn    launchertest.Connection
	dir     string
	process *process
}

func (d *direct) startKernel(_ context.Context, spec string) (kernel, error) {
	dir, err := os.MkdirTemp(d.b.dir, "direct-")
	if err != nil {
		return nil, err
	}
	k := &directKernel{b: d.b, dir: dir, conn: launchertest.NewConnection("tcp", "")}
	ports, err := freePorts(5)
	if err != nil {
		return nil, err
	}
	c := &k.conn
	c.ShellPort, c.IOPubPort, c.StdinPort, c.ControlPort, c.HBPort = ports[0], ports[1], ports[2], ports[3], ports[4]
	file := filepath.Join(dir, "connection.json")
	data, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return nil, err
	}
	argv := make([]string, 0, 8)
	for _, a := range d.b.specs[spec] {
		argv = append(argv, strings.ReplaceAll(a, "{connection_file}", file))
	}
	k.process, err = d.b.start(exec.Command(argv[0], argv[1:]...), filepath.Join(dir, "kernel.log"))
	return k, err
}

func (k *directKernel) remove() error  { k.process.kill(); return nil }
func (*directKernel) processes() []int { return nil }

// connect starts a client. It returns when the subscription works.
func (k *directKernel) connect(string, bool) (client, error) {
	if err := k.listening(10 * time.Second); err != nil {
		return nil, err
	}
	c := &directClient{signer: jupyter.NewSigner([]byte(k.conn.Key)), session: "bench-" + jupyter.NewID()}
	cmd := exec.Command(k.b.directProgram, k.b.libzmq)
	var err error
	if c.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out, c.stdout = bufio.NewReader(out), out
	if c.process, err = k.b.start(cmd, filepath.Join(k.dir, "client.log")); err != nil {
		c.close()
		return nil, err
	}
	if _, err := fmt.Fprintf(c.in, "connect %s %s\n", k.conn.Endpoint(k.conn.ShellPort),
		k.conn.Endpoint(k.conn.IOPubPort)); err != nil {
		c.close()
		return nil, err
	}
	if _, err := c.line(10 * time.Second); err != nil {
		c.close()
		return nil, err
	}
	// Until the subscription works, idles are lost.
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		a, err := c.ask(asking{codes: repeat("", 2), deadline: 20 * time.Millisecond})
		if err != nil || a.complete {
			return c, err
		}
	}
	c.close()
	return nil, errors.New("the kernel does not answer")
}

// listening waits until the kernel's ports are bound. libzmq would try again after 100 ms.
func (k *directKernel) listening(limit time.Duration) error {
	end := time.Now().Add(limit)
	for _, port := range []int{k.conn.ShellPort, k.conn.IOPubPort} {
		for {
			c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err == nil {
				_ = c.Close() // only a try
				break
			}
			if time.Now().After(end) {
				return err
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// directClient is a running libzmq/direct.c.
type directClient struct {
	process *process
	in      io.WriteCloser
	out     *bufio.Reader
	stdout  io.Closer
	signer  *jupyter.Signer
	session string
}

func (c *directClient) close() {
	if c.process != nil {
		c.process.kill()
	}
	_ = c.in.Close() // nothing more is written
	_ = c.stdout.Close()
}

// line reads one line. After limit it ends the program.
func (c *directClient) line(limit time.Duration) (string, error) {
	timer := time.AfterFunc(limit, c.process.kill)
	defer timer.Stop()
	s, err := c.out.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("the client on libzmq has ended: %w", err)
	}
	return s, nil
}

func (c *directClient) ask(a asking) (answer, error) {
	var wire []byte
	for _, code := range a.codes {
		m := executeRequest(c.session, code)
		wire = appendWire(wire, &m, c.signer)
	}
	limit := a.limit
	if limit == 0 {
		limit = a.deadline
	}
	if _, err := fmt.Fprintf(c.in, "ask %d %d %d %d %d %d %d\n%s", len(a.codes), a.pace, limit, a.deadline, a.pauseAt,
		a.pause, len(wire), wire); err != nil {
		return answer{}, err
	}
	s, err := c.line(a.deadline + a.pause + 10*time.Second)
	if err != nil {
		return answer{}, err
	}
	fields := strings.Fields(s)
	if len(fields) < 5 || fields[0] != "done" {
		return answer{}, fmt.Errorf("the client on libzmq says %.100q", s)
	}
	numbers := make([]int64, len(fields)-1)
	for i, f := range fields[1:] {
		if numbers[i], err = strconv.ParseInt(f, 10, 64); err != nil {
			return answer{}, err
		}
	}
	got := answer{complete: numbers[0] == 1, outputs: int(numbers[1]), bytes: numbers[2], took: time.Duration(numbers[3])}
	for _, n := range numbers[4:] {
		got.times = append(got.times, time.Duration(n))
	}
	return got, nil
}

// nextPort is the last port that freePorts has tried. Linux gives connections ports from 32768 on by default, so the
// ports below it stay free until a kernel binds them.
var nextPort atomic.Int64

// freePorts returns ports of loopback that were free just now, and that it has not returned before.
func freePorts(n int) ([]int, error) {
	const first, last = 12_000, 32_767
	var ports []int
	for range last - first {
		port := int(first + nextPort.Add(1)%(last-first))
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue // taken
		}
		_ = l.Close() // nothing was accepted
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("no %d free ports from %d to %d", n, first, last)
}
