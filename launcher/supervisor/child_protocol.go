package supervisor

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"
)

// Between a supervisor and the child that runs its kernel in another container there is a unix socket. The supervisor
// listens, the child dials, again and again for as long as it lives. Both say hello at once and send JSON lines from then
// on. Neither minds members or types of lines that it does not know.
//
//	child:      hello {version, kernel?}                what it runs, or ran last, if there was anything
//	            started {life, pid, interrupt_mode}     the answer to start
//	            failed {life, text}                     likewise: one sentence for the kernel's owner
//	            used {life, used}                       nanoseconds of processor time that the kernel's session has used
//	            looked {life, gpu}                      what was seen of GPUs, some time after measure
//	            exit {life, exit}                       once for each life that was started
//	supervisor: hello {version, grace}                  grace is what the pod has for its end, in nanoseconds
//	            start {life, start}                     ends what may still run
//	            signal {life, signal}                   to the kernel's process group
//	            kill {life}                             the kernel's whole session
//	            forget {life}                           what the kernel has written so far
//	            measure {life, look?}                   asks for used, and with a program and a time to look at GPUs for looked
//	            end {}                                  ends the kernel, and the child exits with 0
//
// life is a name that the supervisor gives to each start. What is said of another life than the present one is ignored.
const childProtocol = 1

// Bounds of the lines between supervisor and child. A start holds the kernel's environment, which the kernel of the machine
// limits to less; an exit holds twice childWords.
const (
	maxChildLine  = 1 << 20          // bytes
	childWords    = 4 << 10          // bytes of what a kernel has written last, of each stream
	childWrite    = 5 * time.Second  // for the other side to take a line
	childHello    = 5 * time.Second  // for the other side to say hello
	childQueue    = 64               // lines that wait to be sent
	childReturns  = 2 * time.Second  // for a child that lives to dial again, and for the cluster to tell why it does not
	childStarts   = 60 * time.Second // for an answer to start
	childKills    = 10 * time.Second // for an answer to kill
	childFarewell = 2 * time.Second  // for the child to take the end
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
	lineForget  = "forget"
	lineMeasure = "measure"
	lineUsed    = "used"
	lineLooked  = "looked"
	lineEnd     = "end"
)

// childLine is one line in either direction.
type childLine struct {
	Type          string        `json:"type"`
	Version       int           `json:"version,omitempty"` // childProtocol
	Kernel        *childKernel  `json:"kernel,omitempty"`
	Grace         time.Duration `json:"grace,omitempty"` // nanoseconds
	Life          string        `json:"life,omitempty"`
	Start         *childStart   `json:"start,omitempty"`
	PID           int           `json:"pid,omitempty"`
	InterruptMode string        `json:"interrupt_mode,omitempty"` // of the image's kernelspec; "" where Config decides
	Signal        int           `json:"signal,omitempty"`
	Text          string        `json:"text,omitempty"`
	Used          time.Duration `json:"used,omitempty"` // nanoseconds
	Look          gpuLook       `json:"look,omitzero"`
	GPU           *gpuUse       `json:"gpu,omitempty"`
	Exit          *childExit    `json:"exit,omitempty"`
}

// childStart is what a child is to run.
type childStart struct {
	KernelID        string            `json:"kernel_id"`
	Argv            []string          `json:"argv,omitempty"`             // with {connection_file}; empty: the image's kernelspec
	ImageKernelspec string            `json:"image_kernelspec,omitempty"` // its name; "": python3, or the only one
	Env             map[string]string `json:"env,omitempty"`              // in addition to the container's own
	WorkingDir      string            `json:"working_dir,omitempty"`      // where it is missing the container's own is taken
	Connection      json.RawMessage   `json:"connection"`                 // content of the connection file
}

// childKernel is what a child tells of a kernel that it was told to start before.
type childKernel struct {
	Life          string          `json:"life"`
	PID           int             `json:"pid"`
	InterruptMode string          `json:"interrupt_mode,omitempty"`
	Connection    json.RawMessage `json:"connection"`     // as it was in start
	Exit          *childExit      `json:"exit,omitempty"` // nil: it runs
}

// childExit says how a kernel ended.
type childExit struct {
	Code   int       `json:"code"`            // -1 if a signal ended it
	Signal int       `json:"signal"`          // 0 if it exited by itself
	At     time.Time `json:"at"`              // UTC
	OOM    bool      `json:"oom"`             // see exitInfo
	Limit  int64     `json:"limit,omitempty"` // likewise
	Stdout string    `json:"stdout"`          // the last childWords bytes
	Stderr string    `json:"stderr"`
}

func (e *childExit) info() exitInfo {
	return exitInfo{Code: e.Code, Signal: syscall.Signal(e.Signal), At: e.At, OOM: e.OOM, Limit: e.Limit}
}

// childConn is a connection between supervisor and child. Lines are sent by its writer, so that nobody who has something
// to say waits for the other side.
type childConn struct {
	conn net.Conn
	in   *bufio.Reader
	out  chan []byte
	once sync.Once
	gone chan struct{} // closed by close
	done chan struct{} // closed when the writer has ended
}

// newChildConn starts the writer, which ends after close.
func newChildConn(conn net.Conn) *childConn {
	c := &childConn{conn: conn, in: bufio.NewReaderSize(conn, 4<<10), out: make(chan []byte, childQueue),
		gone: make(chan struct{}), done: make(chan struct{})}
	go c.write()
	return c
}

func (c *childConn) write() {
	defer close(c.done)
	for {
		select {
		case b := <-c.out:
			c.conn.SetWriteDeadline(time.Now().Add(childWrite)) //nolint:errcheck // then the write fails
			if _, err := c.conn.Write(b); err != nil {
				c.close()
				return
			}
		case <-c.gone:
			return
		}
	}
}

var errChildDeaf = errors.New("the other side takes no lines")

// send hands a line to the writer. A connection whose other side takes nothing is closed.
func (c *childConn) send(l childLine) error {
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	if len(b) >= maxChildLine {
		return fmt.Errorf("a line of %d bytes is too long", len(b))
	}
	select {
	case <-c.gone:
		return net.ErrClosed
	default:
	}
	select {
	case c.out <- append(b, '\n'):
		return nil
	default:
		c.close()
		return errChildDeaf
	}
}

// receive returns the next line.
func (c *childConn) receive() (childLine, error) {
	b, err := readLine(c.in, maxChildLine)
	if err != nil {
		return childLine{}, err
	}
	var l childLine
	if err := json.Unmarshal(b, &l); err != nil {
		return childLine{}, fmt.Errorf("a line that is no JSON of the protocol: %w", err)
	}
	return l, nil
}

// sendHello says hello.
func (c *childConn) sendHello(hello childLine) error {
	hello.Type, hello.Version = lineHello, childProtocol
	return c.send(hello)
}

// awaitHello returns what the other side says first, which has to come within childHello.
func (c *childConn) awaitHello() (childLine, error) {
	if err := c.conn.SetReadDeadline(time.Now().Add(childHello)); err != nil {
		return childLine{}, err
	}
	l, err := c.receive()
	switch {
	case err != nil:
		return l, err
	case l.Type != lineHello:
		return l, fmt.Errorf("the first line is %q, not a hello", plain(l.Type))
	case l.Version != childProtocol:
		return l, fmt.Errorf("the other side speaks version %d, not %d", l.Version, childProtocol)
	}
	return l, c.conn.SetReadDeadline(time.Time{})
}

// close ends the connection; a line that is being written may be cut off.
func (c *childConn) close() {
	c.once.Do(func() {
		close(c.gone)
		c.conn.Close() //nolint:errcheck // nothing is left to be done about it
	})
}
