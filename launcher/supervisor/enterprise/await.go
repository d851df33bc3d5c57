package enterprise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

const (
	maxSenders = 8               // connections at one time
	sendLimit  = 5 * time.Second // for a launcher to send its answer

	acceptPause = 50 * time.Millisecond // after a connection that could not be accepted
)

// Expectation listens for the answer of one start. The caller calls Await once, and Close in any case.
type Expectation struct {
	listener listener
	key      *Key
	kernelID string
}

// listener is a *net.TCPListener. In tests it can fail.
type listener interface {
	AcceptTCP() (*net.TCPConn, error)
	Addr() net.Addr
	Close() error
}

// Expect listens at an address of loopback for the launcher of a kernel. Port 0 is a free one. The error is one
// sentence for the kernel's owner.
func Expect(address, kernelID string, key *Key) (*Expectation, error) {
	a, err := net.ResolveTCPAddr("tcp", address)
	if err == nil && !a.IP.IsLoopback() {
		err = errors.New("it is not an address of loopback")
	}
	var l *net.TCPListener
	if err == nil {
		l, err = net.ListenTCP("tcp", a)
	}
	if err != nil {
		return nil, fmt.Errorf("the kernel's launcher cannot be given the address %s for its answer: %w", address, err)
	}
	return &Expectation{listener: l, key: key, kernelID: kernelID}, nil
}

// Variables returns the variables of the launcher's process that concern the answer. Launchers before release 2.6 read
// the names with EG_.
func (e *Expectation) Variables() map[string]string {
	vars := map[string]string{"KERNEL_ID": e.kernelID}
	for name, value := range map[string]string{"RESPONSE_ADDRESS": e.listener.Addr().String(),
		"PUBLIC_KEY": e.key.Public()} {
		vars[name], vars["EG_"+name] = value, value
	}
	return vars
}

// Close ends the listening. It may be called more than once, and concurrently with Await.
func (e *Expectation) Close() { _ = e.listener.Close() } // it was closed before, or nothing was sent

// Await returns the launcher's answer and closes the Expectation. An answer that cannot be read ends the wait, and the
// error is then one sentence for the kernel's owner. Connections that send nothing are ignored. The error is that of
// ctx if it ends first.
func (e *Expectation) Await(ctx context.Context) (Answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	type result struct {
		answer Answer
		err    error
	}
	first := make(chan result, 1)
	var senders sync.WaitGroup
	defer senders.Wait()
	defer cancel()
	defer e.Close()
	senders.Go(func() {
		places := make(chan struct{}, maxSenders)
		for {
			conn, err := e.listener.AcceptTCP()
			switch {
			case errors.Is(err, net.ErrClosed):
				return
			case err != nil: // for example, the process has too many open files at the moment
				select {
				case <-time.After(acceptPause):
				case <-ctx.Done():
					return
				}
				continue
			}
			select {
			case places <- struct{}{}:
			default:
				_ = conn.Close() // nothing was sent
				continue
			}
			senders.Go(func() {
				defer func() { <-places }()
				if answer, err := e.receive(ctx, conn); !errors.Is(err, errNothing) {
					select {
					case first <- result{answer, err}:
					default: // another was first
					}
				}
			})
		}
	})
	select {
	case r := <-first:
		return r.answer, r.err
	case <-ctx.Done():
		return Answer{}, ctx.Err()
	}
}

// errNothing says that a connection carried no answer.
var errNothing = errors.New("the connection carried nothing")

// receive reads one connection. The launcher's end of the connection is the end of its answer.
func (e *Expectation) receive(ctx context.Context, conn *net.TCPConn) (Answer, error) {
	defer conn.Close()                                      //nolint:errcheck // nothing was written
	defer context.AfterFunc(ctx, func() { conn.Close() })() //nolint:errcheck // nothing was written
	if !conn.RemoteAddr().(*net.TCPAddr).IP.IsLoopback() || // the listener's address excludes it already
		conn.SetReadDeadline(time.Now().Add(sendLimit)) != nil {
		return Answer{}, errNothing
	}
	text, err := io.ReadAll(io.LimitReader(conn, maxAnswer+1))
	if ctx.Err() != nil || strings.TrimSpace(string(text)) == "" {
		return Answer{}, errNothing
	}
	if err == nil {
		var answer Answer
		if answer, err = e.key.Read(text, e.kernelID); err == nil {
			return answer, nil
		}
	}
	return Answer{}, fmt.Errorf("the answer of the kernel's launcher cannot be used: %w", err)
}
