// Package relay stands in the place of a kernel on a user's machine, whose kernel runs at a gateway. It is `ekg relay`,
// the process of a kernelspec that `ekg kernelspec add` writes. Programs that know only kernelspecs and ZeroMQ start it
// as they start every kernel.
//
// Run binds the five sockets of the connection file, starts a kernel at the gateway, and passes messages both ways over
// one websocket, with the same notebook.Relay as jobs. So nothing is lost or run twice when the connection breaks.
// asked.go knows which program asked what. state.go is the file by which the next process finds the kernel.
//
// Goroutines: the one that starts the kernel and says why it waits, the one that reads the kernel's messages, and those
// of the sockets and of the notebook.Relay. Run waits for all of them.
package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs/notebook"
	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
	"github.com/elastic-kernel-gateway/ekg/jupyter/zmtp"
)

// Times of a relay.
const (
	lookEvery   = time.Second            // at a kernel that starts
	parentEvery = 500 * time.Millisecond // at the parent
	lastWords   = time.Second            // for programs to take the last messages
	patience    = 3 * time.Second        // without a gateway, before a cell says so
	programs    = 50 * time.Second       // until a kernel has to answer; programs wait for 60 s
	stopTime    = 30 * time.Second       // to delete the kernel
	largest     = 512<<20 + 1<<20        // bytes of a kernel's message, as the supervisor bounds it
)

// Gateway is the gateway at which the kernel runs. Its methods may be called concurrently. An error that wraps
// notebook.ErrGone says that the kernel does not exist any more.
type Gateway interface {
	// Name is its URL, without a token.
	Name() string
	// Start starts the kernel and returns its id. The kernel may still be starting.
	Start(ctx context.Context) (id string, err error)
	Restart(ctx context.Context, id string) error
	Interrupt(ctx context.Context, id string) error
	Stop(ctx context.Context, id string) error
	// State returns the execution state, and the reason that the kernel's model has.
	State(ctx context.Context, id string) (state, reason string, err error)
	// Dial is notebook.RelayOptions.Dial.
	Dial(ctx context.Context, id string, query url.Values) (*websocket.Conn, error)
}

// Options says what Run does.
type Options struct {
	File     string // the connection file
	Gateway  Gateway
	Existing string // id of a kernel that runs; "": one is started
	Keep     bool   // the kernel goes on when the program that has started the relay dies, or the relay gets a signal
	// ParentGone reports whether the program that has started the relay has died.
	ParentGone func() bool
	Signals    <-chan os.Signal
	Say        func(text string) // prints a line for people
}

// These ends of a relay are wanted.
var (
	errShutdown = errors.New("a program has shut the kernel down")
	errRestart  = errors.New("a program restarts the kernel")
	errSignal   = errors.New("the relay was ended by a signal")
	errParent   = errors.New("the program that has started the relay has ended")
)

// relay is one run.
type relay struct {
	o       Options
	session string // of what it says itself
	signer  *jupyter.Signer
	life    context.Context
	end     context.CancelCauseFunc
	started chan struct{} // closed when kernel is known
	kernel  string        // its id; read after started
	note    note
	wire    *notebook.Relay
	sockets map[jupyter.Channel]*zmtp.Socket
	asked   *asked
	warned  sync.Once

	mu   sync.Mutex
	away time.Time // since when the gateway does not answer; zero: it does
	why  error     // why it does not
	said bool      // that it does not

	running sync.WaitGroup
}

// Run relays until the kernel ends, a program shuts it down or restarts it, a signal comes, or the program that has
// started the relay ends. The error says why the kernel is lost.
func Run(o Options) error {
	file, err := readConnectionFile(o.File)
	if err != nil {
		return err
	}
	r := &relay{o: o, session: jupyter.NewID(), signer: jupyter.NewSigner([]byte(file.Key)),
		started: make(chan struct{}), note: noteOf(o, file), sockets: map[jupyter.Channel]*zmtp.Socket{},
		asked: newAsked()}
	r.life, r.end = context.WithCancelCause(context.Background())
	defer r.end(nil)
	r.wire = notebook.OpenRelay(notebook.RelayOptions{Session: r.session, Most: largest, Failed: r.reached,
		Refused: r.refused, Interrupt: func(ctx context.Context) error { return o.Gateway.Interrupt(ctx, r.kernel) },
		Dial: func(ctx context.Context, query url.Values) (*websocket.Conn, error) {
			select {
			case <-r.started:
				return o.Gateway.Dial(ctx, r.kernel, query)
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}})
	defer r.wire.Close()
	// A heartbeat is answered while the kernel starts. All sockets are bound before a kernel is started or restarted: of
	// two relays with one connection file, the second ends here.
	heart, err := zmtp.Listen(file.at(file.Heartbeat, zmtp.Options{Type: zmtp.Rep}))
	if err != nil {
		return err
	}
	defer heart.Close(0)
	if err := r.bind(file); err != nil {
		return errors.Join(err, r.unbind(0))
	}
	r.running.Go(func() { r.contain(r.start) })
	r.running.Go(func() { r.contain(r.receive) })
	r.wait()
	// Nothing that programs send from now on is passed on.
	cause := context.Cause(r.life)
	r.running.Wait()
	return errors.Join(r.leave(cause), r.unbind(lastWords))
}

// contain ends the relay with the error of do.
func (r *relay) contain(do func() error) {
	if err := goroutines.Contain(do); err != nil {
		r.end(err)
	}
}

// wait waits for the end of the relay.
func (r *relay) wait() {
	tick := time.NewTicker(parentEvery)
	defer tick.Stop()
	slow := time.After(programs)
	for r.life.Err() == nil {
		select {
		case <-r.life.Done():
		case <-tick.C:
			if r.o.ParentGone() {
				r.end(errParent)
			}
			r.tell()
		case <-slow:
			r.slow()
		case s := <-r.o.Signals:
			if s != os.Interrupt && s != syscall.SIGINT {
				r.end(errSignal)
				continue
			}
			r.running.Go(func() {
				if err := r.interrupt(); err != nil {
					r.o.Say("the kernel was not interrupted: " + err.Error())
				}
			})
		}
	}
}

// interrupt interrupts the kernel, if it has been started.
func (r *relay) interrupt() error {
	select {
	case <-r.started:
		return r.o.Gateway.Interrupt(r.life, r.kernel)
	default:
		return errors.New("it is not started yet")
	}
}

// start starts the kernel, or takes one that runs, and says what a start waits for.
func (r *relay) start() error {
	id, err := r.take()
	if err != nil {
		return err
	}
	r.kernel = id
	if err := r.note.write(id); err != nil {
		r.o.Say("a restart will not find the kernel " + id + ": " + err.Error())
	}
	close(r.started)
	for told := ""; ; {
		state, reason, err := r.o.Gateway.State(r.life, id)
		switch {
		case err != nil: // the websocket says whether the kernel is gone
		case state == "dead":
			return fmt.Errorf("the kernel %s is dead: %s", id, reason)
		case state != "starting" && state != "restarting":
			return nil
		case reason != "" && reason != told:
			told = reason
			r.o.Say("the kernel waits: " + reason)
		}
		if goroutines.Sleep(r.life, lookEvery) != nil {
			return nil
		}
	}
}

// take returns the id of the kernel that this relay has from now on.
func (r *relay) take() (string, error) {
	if left := r.note.read(); left != "" {
		err := r.o.Gateway.Restart(r.life, left)
		if !errors.Is(err, notebook.ErrGone) {
			return left, err
		}
		r.o.Say("the kernel " + left + " is gone, so another one is started")
	}
	if r.o.Existing != "" {
		return r.o.Existing, nil
	}
	return r.o.Gateway.Start(r.life)
}

// slow says how a program waits longer for a kernel that has not answered yet.
func (r *relay) slow() {
	if r.asked.answered() {
		return
	}
	r.o.Say(fmt.Sprintf("the kernel has not answered for %v; most programs wait for 60 s. papermill waits longer with "+
		"--start-timeout SECONDS, nbclient and nbconvert with startup_timeout, and nbval with --nbval-kernel-startup-timeout",
		programs))
}

// reached gets the error of each try to connect to the gateway.
func (r *relay) reached(err error) {
	r.mu.Lock()
	back := err == nil && r.said
	r.why = err
	switch {
	case err == nil:
		r.away, r.said = time.Time{}, false
	case r.away.IsZero():
		r.away = time.Now()
	}
	r.mu.Unlock()
	if back {
		r.o.Say("the gateway answers again")
	}
}

// tell says on stderr and in the cell that the gateway does not answer, once each time.
func (r *relay) tell() {
	r.mu.Lock()
	tell := !r.said && !r.away.IsZero() && time.Since(r.away) >= patience
	r.said = r.said || tell
	why := r.why
	r.mu.Unlock()
	if !tell {
		return
	}
	text := fmt.Sprintf("The gateway does not answer. Nothing is lost: this goes on when it does. (%v)", why)
	r.o.Say(text)
	if cell := r.asked.cell(); cell != nil {
		m := notice.Line(r.session, cell, text)
		r.publish(&m)
	}
}

// leave ends the relay for a cause. It deletes the kernel after a shutdown, and unless Keep is set also after a signal
// and after the end of the program that has started the relay.
func (r *relay) leave(cause error) error {
	wanted := errors.Is(cause, errRestart)
	if errors.Is(cause, errSignal) || errors.Is(cause, errParent) {
		wanted = r.o.Keep
	}
	ended := errors.Is(cause, errShutdown) || errors.Is(cause, errSignal) || errors.Is(cause, errParent)
	select {
	case <-r.started:
	default: // the gateway has removed what it began to start
		if ended || wanted {
			return nil
		}
		return cause
	}
	switch {
	case wanted:
		if !errors.Is(cause, errRestart) {
			r.note.remove()
			r.o.Say("the kernel " + r.kernel + " goes on: " + cause.Error())
		}
		return nil
	case !ended: // it is dead or gone; a restart begins with it
		return cause
	}
	r.note.remove()
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	if err := r.o.Gateway.Stop(ctx, r.kernel); err != nil && !errors.Is(err, notebook.ErrGone) {
		return fmt.Errorf("the kernel %s was not deleted, and goes on: %w", r.kernel, err)
	}
	return nil
}

// bind binds the sockets of the channels.
func (r *relay) bind(file connectionFile) error {
	for _, c := range []struct {
		channel jupyter.Channel
		port    int
	}{{jupyter.Shell, file.Shell}, {jupyter.Control, file.Control}, {jupyter.Stdin, file.Stdin},
		{jupyter.IOPub, file.IOPub}} {
		o := zmtp.Options{Type: zmtp.Router,
			Receive: func(p *zmtp.Peer, frames [][]byte) { r.fromProgram(c.channel, p, frames) }}
		if c.channel == jupyter.IOPub {
			o = zmtp.Options{Type: zmtp.XPub, Subscribed: r.welcome}
		}
		socket, err := zmtp.Listen(file.at(c.port, o))
		if err != nil {
			return fmt.Errorf("the %s socket: %w", c.channel, err)
		}
		r.sockets[c.channel] = socket
	}
	return nil
}

// unbind closes the sockets, all at once.
func (r *relay) unbind(linger time.Duration) error {
	r.end(nil) // what waits in a message of a program ends
	var closing sync.WaitGroup
	for _, s := range r.sockets {
		closing.Go(func() { s.Close(linger) })
	}
	closing.Wait()
	return nil
}

// topic is the first frame of a message on iopub.
func topic(m *jupyter.Message) []byte {
	return []byte("ekg." + cmp.Or(jupyter.StringField(m.Header, "msg_type"), "message"))
}

// isOutput reports whether a program that falls behind may lose a message of this type. Statuses and errors are kept.
func isOutput(msgType string) bool {
	switch msgType {
	case "stream", "display_data", "update_display_data", "execute_result", "comm_msg":
		return true
	}
	return false
}
