package child

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
)

// Supervisor and child share a unix socket. The supervisor listens; the child dials, again and again for as long as it
// lives. Both send hello at once and JSON lines from then on. Both ignore unknown members and unknown types of lines.
//
//	child:      hello {version, kernel?}                the kernel that it runs, or ran last, if there was one
//	            started {life, pid, interrupt_mode, holds, text}
//	                                                    answers start; with holds, calls of CUDA wait; text says why not
//	            failed {life, text}                     answers start with one sentence for the kernel's owner
//	            used {life, used, age}                  nanoseconds of processor time that the kernel's session had used
//	                                                    age nanoseconds before
//	            looked {life, gpu}                      the result of a look at GPUs, some time after measure
//	            sampled {life, samples}                 a line of samples of GPUs, after watch
//	            answered {life, answer}                 answers ask, once the driver is ready
//	            called {life}                           calls of CUDA wait; once a second until pass
//	            memory {life, memory}                   bytes of resident memory of the kernel's processes
//	            exit {life, exit}                       once for each life that was started
//	supervisor: hello {version, grace}                  grace is the pod's termination grace in nanoseconds
//	            start {life, start}                     ends the kernel that may still run
//	            signal {life, signal}                   to the kernel's process group
//	            kill {life}                             the kernel's whole session
//	            forget {life}                           drops the kernel's output so far
//	            measure {life, no_processors?, look?}   asks for used; not with no_processors, which an older child
//	                                                    ignores; with a program and a time also for looked
//	            watch {life, watch}                     asks for sampled until the kernel ends; an older child ignores it
//	            ask {life, ask}                         moves the kernel's GPU memory; an older child ignores it
//	            pass {life}                             lets calls of CUDA go on that wait now
//	            connection {life, connection}           what the kernel's launcher has told; hello repeats it
//	            memory {life}                           asks for memory; an older child ignores it
//	            end {}                                  ends the kernel; the child exits with 0
//
// life is a name that the supervisor gives to each start. Lines about another life than the present one are ignored.
const protocolVersion = 1

// Bounds of the lines between supervisor and child. A start holds the kernel's environment, which Linux limits to less.
// An exit holds twice maxOutput.
const (
	maxLine    = 1 << 20 // bytes
	maxOutput  = 4 << 10 // bytes of a kernel's newest output, of each stream
	maxQueue   = 64      // lines that wait to be sent
	quoteLimit = 300     // bytes of another program's text that an error quotes

	writeLimit = 5 * time.Second // for the peer to take a line
	helloLimit = 5 * time.Second // for the peer to send hello

	maxAge = time.Minute // of a measurement; a child may be another program
)

// The types of lines.
const (
	lineHello   = "hello"
	lineStarted = "started"
	lineFailed  = "failed"
	lineExit    = "exit"
	lineStart   = "start"
	lineSignal  = "signal"
	lineKill    = "kill"
	lineMeasure = "measure"
	lineUsed    = "used"
	lineLooked  = "looked"
	lineWatch   = "watch"
	lineSampled = "sampled"
	lineAsk     = "ask"
	lineMemory  = "memory"
	lineEnd     = "end"
	lineCalled  = "called"
	linePass    = "pass"

	lineAnswered   = "answered"
	lineConnection = "connection"
)

// line is one line in either direction.
type line struct {
	Type          string              `json:"type"`
	Version       int                 `json:"version,omitempty"` // protocolVersion
	Kernel        *Kernel             `json:"kernel,omitempty"`
	Grace         time.Duration       `json:"grace,omitempty"` // nanoseconds
	Life          string              `json:"life,omitempty"`
	Start         *StartOptions       `json:"start,omitempty"`
	PID           int                 `json:"pid,omitempty"`
	InterruptMode string              `json:"interrupt_mode,omitempty"` // of the image's kernelspec; "": as configured
	Holds         bool                `json:"holds,omitempty"`
	Signal        int                 `json:"signal,omitempty"`
	Text          string              `json:"text,omitempty"`
	Used          time.Duration       `json:"used,omitempty"` // nanoseconds
	Age           time.Duration       `json:"age,omitempty"`  // nanoseconds
	NoProcessors  bool                `json:"no_processors,omitempty"`
	Look          process.GPULook     `json:"look,omitzero"`
	GPU           *process.GPUUse     `json:"gpu,omitempty"`
	Watch         process.GPUWatch    `json:"watch,omitzero"`
	Samples       *gpu.Samples        `json:"samples,omitempty"`
	Ask           *process.GPUCommand `json:"ask,omitempty"`
	Answer        *gpu.Answer         `json:"answer,omitempty"`
	Memory        int64               `json:"memory,omitempty"` // bytes
	Exit          *exit               `json:"exit,omitempty"`
	Connection    json.RawMessage     `json:"connection,omitempty"`
}

// StartOptions says what a child starts.
type StartOptions struct {
	KernelID        string            `json:"kernel_id"`
	Argv            []string          `json:"argv,omitempty"`             // with {connection_file}; empty: a kernelspec's
	ImageKernelspec string            `json:"image_kernelspec,omitempty"` // its name; "": python3, or the only one
	Env             map[string]string `json:"env,omitempty"`              // in addition to the container's own
	WorkingDir      string            `json:"working_dir,omitempty"`      // the container's own if it does not exist
	ConnectionFile  json.RawMessage   `json:"connection"`                 // content of the connection file

	// Launcher says that Argv is a launcher of Enterprise Gateway. Its connection file has no content.
	Launcher bool `json:"launcher,omitempty"`

	HoldGPUCalls bool `json:"hold_gpu_calls,omitempty"` // the first calls of CUDA wait; an older child ignores it

	// Path of the connection file, which the supervisor has written: it runs on the same machine. Argv is set then, and
	// Env is the whole environment. "": the child chooses the path.
	ConnectionPath string `json:"connection_path,omitempty"`
}

// Kernel is a kernel that a child was told to start before.
type Kernel struct {
	Life           string          `json:"life"`
	PID            int             `json:"pid"`
	InterruptMode  string          `json:"interrupt_mode,omitempty"`
	ConnectionFile json.RawMessage `json:"connection"`       // content, as in StartOptions
	Exit           *exit           `json:"exit,omitempty"`   // nil: it runs
	Holds          bool            `json:"holds,omitempty"`  // its first calls of CUDA wait
	Passes         string          `json:"passes,omitempty"` // why they do not, if they were meant to
}

// exit says how a kernel ended.
type exit struct {
	process.Exit
	Stdout     string    `json:"stdout"` // the last maxOutput bytes
	Stderr     string    `json:"stderr"`
	StdoutSaid time.Time `json:"stdout_said,omitzero"` // when text was last written
	StderrSaid time.Time `json:"stderr_said,omitzero"`
}

// link is a connection between supervisor and child. A goroutine of its own writes the lines, so that a sender never
// waits for the peer.
type link struct {
	conn net.Conn
	in   *bufio.Reader
	out  chan []byte
	once sync.Once
	gone chan struct{} // closed by close
	done chan struct{} // closed when the writer has ended
}

// newLink starts the writer, which ends after close.
func newLink(conn net.Conn) *link {
	l := &link{conn: conn, in: bufio.NewReaderSize(conn, 4<<10), out: make(chan []byte, maxQueue),
		gone: make(chan struct{}), done: make(chan struct{})}
	go l.write()
	return l
}

func (l *link) write() {
	defer close(l.done)
	for {
		select {
		case b := <-l.out:
			l.conn.SetWriteDeadline(time.Now().Add(writeLimit)) //nolint:errcheck // the write fails too
			if _, err := l.conn.Write(b); err != nil {
				l.close()
				return
			}
		case <-l.gone:
			return
		}
	}
}

var errBacklog = errors.New("the peer takes no lines")

// send hands a line to the writer. If too many lines wait, it closes the connection.
func (l *link) send(ln line) error {
	b, err := json.Marshal(ln)
	if err != nil {
		return err
	}
	if len(b) >= maxLine {
		return fmt.Errorf("a line of %d bytes is too long", len(b))
	}
	select {
	case <-l.gone:
		return net.ErrClosed
	default:
	}
	select {
	case l.out <- append(b, '\n'):
		return nil
	default:
		l.close()
		return errBacklog
	}
}

// receive returns the next line.
func (l *link) receive() (line, error) {
	b, err := api.ReadLine(l.in, maxLine)
	if err != nil {
		return line{}, err
	}
	var ln line
	if err := json.Unmarshal(b, &ln); err != nil {
		return line{}, fmt.Errorf("a line is not JSON of the protocol: %w", err)
	}
	return ln, nil
}

// sendHello sends hello as a hello line with the protocol's version.
func (l *link) sendHello(hello line) error {
	hello.Type, hello.Version = lineHello, protocolVersion
	return l.send(hello)
}

// awaitHello returns the peer's first line, which must be hello and come within helloLimit.
func (l *link) awaitHello() (line, error) {
	if err := l.conn.SetReadDeadline(time.Now().Add(helloLimit)); err != nil {
		return line{}, err
	}
	hello, err := l.receive()
	switch {
	case err != nil:
		return hello, err
	case hello.Type != lineHello:
		return hello, fmt.Errorf("the first line is %q, not hello", api.PlainText(hello.Type, quoteLimit))
	case hello.Version != protocolVersion:
		return hello, fmt.Errorf("the peer speaks version %d, not %d", hello.Version, protocolVersion)
	}
	return hello, l.conn.SetReadDeadline(time.Time{})
}

// close ends the connection. A line that is being written may be cut off.
func (l *link) close() {
	l.once.Do(func() {
		close(l.gone)
		_ = l.conn.Close() // whatever is unsent is lost
	})
}
