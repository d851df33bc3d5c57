package launchertest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// Connection is the content of a kernel's connection file. A kernel in this process chooses a port where the port is 0.
type Connection struct {
	ShellPort       int    `json:"shell_port"`
	IOPubPort       int    `json:"iopub_port"`
	StdinPort       int    `json:"stdin_port"`
	ControlPort     int    `json:"control_port"`
	HBPort          int    `json:"hb_port"`
	IP              string `json:"ip"`
	Transport       string `json:"transport"`
	Key             string `json:"key"`
	SignatureScheme string `json:"signature_scheme"`
	KernelName      string `json:"kernel_name"`
}

// NewConnection returns a Connection with a random key: on loopback (transport tcp), or on sockets in dir (transport
// ipc), whose path must be short.
func NewConnection(transport, dir string) Connection {
	c := Connection{
		IP:              "127.0.0.1",
		Transport:       transport,
		Key:             jupyter.NewID(),
		SignatureScheme: "hmac-sha256",
		KernelName:      "fake",
	}
	if transport == "ipc" {
		c.IP = filepath.Join(dir, "k")
		c.ShellPort, c.IOPubPort, c.StdinPort, c.ControlPort, c.HBPort = 1, 2, 3, 4, 5
	}
	return c
}

// ReadConnection reads a connection file.
func ReadConnection(path string) (Connection, error) {
	var c Connection
	b, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// Endpoint returns the ZeroMQ address of a port.
func (c *Connection) Endpoint(port int) string {
	if c.Transport == "ipc" {
		return fmt.Sprintf("ipc://%s-%d", c.IP, port)
	}
	return fmt.Sprintf("tcp://%s:%d", c.IP, port)
}

func (c *Connection) listen(typ string, port *int) (*kernelSocket, error) {
	if c.Transport == "ipc" {
		return listenZMTP(typ, "unix", fmt.Sprintf("%s-%d", c.IP, *port))
	}
	s, err := listenZMTP(typ, "tcp", fmt.Sprintf("%s:%d", c.IP, *port))
	if err == nil {
		*port = tcpPort(s.listener)
	}
	return s, err
}

// FakeKernelOptions says how a fake kernel deviates from a correct kernel. The zero value is a correct kernel.
type FakeKernelOptions struct {
	Protocol       string        // protocol_version in kernel_info_reply; "5.3" if empty
	Welcome        bool          // send iopub_welcome to the first subscriber, as ipykernel 7 does
	SubscribeDelay time.Duration // before a subscription takes effect, as when a kernel's iopub thread is late
	Subshells      bool          // speak JEP 91
	Python         bool          // call itself Python, and ignore lines with exec(
	NoHandover     bool          // ignore a second connection with an identity that is in use, as xeus kernels do
	HighWaterMark  int           // messages that wait for an iopub subscriber, before more are dropped; 0: no drops
	NoGreeting     bool          // accept connections and say nothing, not even ZMTP's greeting
	NeverReady     bool          // do the ZMTP handshake and answer nothing
	OneThread      bool          // answer no heartbeat while a cell runs, as IRkernel does
	IgnoreShutdown bool          // do not answer shutdown_request and go on
	Stderr         io.Writer     // where complain writes; nowhere if nil
}

// FakeKernel is a Jupyter kernel that runs lists of commands; see the package comment. It cannot be restarted; start
// another one instead.
type FakeKernel struct {
	// Fixed.
	opts     FakeKernelOptions
	conn     Connection
	signer   *jupyter.Signer
	session  string
	shell    *kernelSocket
	control  *kernelSocket
	stdin    *kernelSocket
	hb       *kernelSocket
	iopub    *kernelSocket
	queue    chan request // shell requests of the main shell, in order
	urgent   chan request // control requests
	answers  chan input   // input_replies
	handlers map[string]func(*execution)
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup

	running sync.RWMutex // held while a cell runs

	counter  atomic.Int64 // of messages, over all channels
	welcomed atomic.Bool
	seen     signatures

	// Guarded by mu.
	mu        sync.Mutex
	interrupt context.CancelCauseFunc // of the running cell; nil between cells
	executed  int                     // execution_count
	variables map[string]string
	comms     map[string]string       // comm_id → target_name
	subshells map[string]chan request // by subshell_id
	filled    []byte                  // see filler
	over      bool                    // ended or ending; no goroutine may be started
	code      int                     // exit code; -9 after crash
}

// StartFakeKernel binds a kernel's sockets and answers on them until it is closed, gets a shutdown request, or runs a
// cell that ends it.
func StartFakeKernel(conn Connection, opts FakeKernelOptions) (*FakeKernel, error) {
	if opts.Protocol == "" {
		opts.Protocol = "5.3"
	}
	if opts.Stderr == nil {
		opts.Stderr = io.Discard
	}
	ctx, cancel := context.WithCancel(context.Background())
	k := &FakeKernel{opts: opts, conn: conn, signer: jupyter.NewSigner([]byte(conn.Key)), session: jupyter.NewID(),
		queue: make(chan request, requestQueue), urgent: make(chan request, requestQueue), answers: make(chan input, 16),
		ctx: ctx, cancel: cancel, variables: map[string]string{}, comms: map[string]string{},
		subshells: map[string]chan request{}, handlers: handlers}
	for _, s := range []struct {
		socket **kernelSocket
		typ    string
		port   *int
	}{
		{&k.shell, "ROUTER", &k.conn.ShellPort}, {&k.control, "ROUTER", &k.conn.ControlPort},
		{&k.stdin, "ROUTER", &k.conn.StdinPort}, {&k.hb, "ROUTER", &k.conn.HBPort}, {&k.iopub, "XPUB", &k.conn.IOPubPort},
	} {
		bound, err := k.conn.listen(s.typ, s.port)
		if err != nil {
			k.end(1)
			k.Wait()
			return nil, fmt.Errorf("fake kernel: %w", err)
		}
		bound.handover, bound.silent, bound.mark = !opts.NoHandover, opts.NoGreeting, opts.HighWaterMark
		*s.socket = bound
	}
	k.shell.receive = k.receiver(jupyter.Shell)
	k.control.receive = k.receiver(jupyter.Control)
	k.stdin.receive = k.receiver(jupyter.Stdin)
	k.hb.receive = func(identity string, frames [][]byte) {
		if opts.NeverReady {
			return
		}
		if opts.OneThread {
			k.running.RLock() // one cell at a time holds it
			defer k.running.RUnlock()
		}
		k.hb.sendTo(identity, frames)
	}
	k.iopub.subscribe, k.iopub.late = k.welcome, opts.SubscribeDelay
	for _, s := range k.sockets() {
		k.wg.Go(s.serve)
	}
	k.wg.Go(func() { k.work(k.queue, jupyter.Shell) })
	k.wg.Go(func() { k.work(k.urgent, jupyter.Control) })
	k.publish("status", nil, content{"execution_state": "starting"}, nil)
	return k, nil
}

// Connection returns the kernel's addresses, with the chosen ports.
func (k *FakeKernel) Connection() Connection { return k.conn }

// Interrupt does what SIGINT does to a kernel: the running cell fails with KeyboardInterrupt.
func (k *FakeKernel) Interrupt() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.interrupt != nil {
		k.interrupt(errInterrupted)
	}
}

// Done is closed when the kernel has ended, by itself or by Close.
func (k *FakeKernel) Done() <-chan struct{} { return k.ctx.Done() }

// Wait waits until the kernel has ended, with all its goroutines, and returns its exit code: negative for a signal.
func (k *FakeKernel) Wait() int {
	<-k.ctx.Done()
	k.wg.Wait()
	for _, s := range k.sockets() {
		s.wg.Wait()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.code
}

// Close ends the kernel as a signal would, without further messages, and waits for its goroutines.
func (k *FakeKernel) Close() {
	k.end(-15)
	k.Wait()
}

func (k *FakeKernel) sockets() []*kernelSocket {
	var bound []*kernelSocket
	for _, s := range []*kernelSocket{k.shell, k.control, k.stdin, k.hb, k.iopub} {
		if s != nil {
			bound = append(bound, s)
		}
	}
	return bound
}

// linger is how long an ending kernel waits for its last messages to leave, as ipykernel.
const linger = time.Second

// leave ends the kernel from inside, after its messages have been sent.
func (k *FakeKernel) leave(code int) {
	end := time.Now().Add(linger)
	for _, s := range k.sockets() {
		s.flush(time.Until(end))
	}
	k.end(code)
}

func (k *FakeKernel) end(code int) {
	k.mu.Lock()
	if k.over {
		k.mu.Unlock()
		return
	}
	k.over, k.code = true, code
	k.mu.Unlock()
	for _, s := range k.sockets() {
		s.shut()
	}
	k.cancel()
}

// spawn starts a goroutine of the kernel, unless it is ending.
func (k *FakeKernel) spawn(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.over {
		k.wg.Go(f)
	}
}

// content is the content of a message from the kernel.
type content map[string]any

// header makes a message header. The msg_id ends in a counter over all channels, as ipykernel's does.
func (k *FakeKernel) header(msgType string) []byte {
	b := make([]byte, 0, 256)
	b = append(b, `{"msg_id":"`...)
	b = append(b, k.session...)
	b = append(b, '_')
	b = strconv.AppendInt(b, int64(os.Getpid()), 10)
	b = append(b, '_')
	b = strconv.AppendInt(b, k.counter.Add(1)-1, 10)
	b = append(b, `","msg_type":"`...)
	b = append(b, msgType...)
	b = append(b, `","username":"fake","session":"`...)
	b = append(b, k.session...)
	b = append(b, `","date":"`...)
	b = time.Now().UTC().AppendFormat(b, "2006-01-02T15:04:05.000000Z")
	b = append(b, `","version":"`...)
	b = append(b, k.opts.Protocol...)
	return append(b, `"}`...)
}

func encode(c content) []byte {
	b, err := json.Marshal(c)
	if err != nil {
		panic(err) // all content is the kernel's own
	}
	return b
}

// publish sends a message on iopub. parent is the raw header of the request it belongs to, or nil.
func (k *FakeKernel) publish(msgType string, parent []byte, c content, buffers [][]byte) {
	k.publishRaw(msgType, parent, encode(c), buffers)
}

func (k *FakeKernel) publishRaw(msgType string, parent, body []byte, buffers [][]byte) {
	m := k.message(jupyter.IOPub, msgType, parent, body)
	m.Buffers = buffers
	topic := "kernel." + k.session + "." + msgType
	k.iopub.publish(topic, encodeMessage([]byte(topic), m.Frames(k.signer)))
}

// publishParts publishes a message whose content is in two parts. It uses b for what stands before a large second part,
// which it does not copy, and returns b. A benchmark's kernel must be faster than what is measured.
func (k *FakeKernel) publishParts(b []byte, msgType string, parent, content, rest []byte) []byte {
	const metadata = "{}"
	header := k.header(msgType)
	topic := "kernel." + k.session + "." + msgType
	b = appendFrame(b, flagMore, []byte(topic))
	b = appendFrame(b, flagMore, []byte(jupyter.Delimiter))
	// A signature is one of all parts together, so it does not matter where one ends.
	b = appendFrame(b, flagMore, k.signer.Sign(header, parent, append([]byte(metadata), content...), rest))
	b = appendFrame(b, flagMore, header)
	b = appendFrame(b, flagMore, parent)
	b = appendFrame(b, flagMore, []byte(metadata))
	b = append(appendFrameHead(b, 0, len(content)+len(rest)), content...)
	if len(rest) <= outboxOwn {
		b, rest = append(b, rest...), nil
	}
	k.iopub.publishParts(topic, b, rest)
	return b
}

func (k *FakeKernel) message(c jupyter.Channel, msgType string, parent, body []byte) jupyter.Message {
	if parent == nil {
		parent = []byte("{}")
	}
	return jupyter.Message{Channel: c, Header: k.header(msgType), Parent: parent, Metadata: []byte("{}"), Content: body}
}

// welcome sends iopub_welcome to the first subscriber, if the options say so. The message has no topic frame.
func (k *FakeKernel) welcome(p *zmtpPeer) {
	if !k.opts.Welcome || k.opts.NeverReady || k.welcomed.Swap(true) {
		return
	}
	m := k.message(jupyter.IOPub, "iopub_welcome", nil, encode(content{"subscription": ""}))
	p.out.put(encodeMessage(nil, m.Frames(k.signer)), k.opts.HighWaterMark)
}
