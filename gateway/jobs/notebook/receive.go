package notebook

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

func headers(m *jupyter.Message) (own, parent jupyter.Header) {
	own, ownErr := jupyter.ParseHeader(m.Header)
	parent, parentErr := jupyter.ParseHeader(m.Parent)
	if ownErr != nil || parentErr != nil {
		return jupyter.Header{}, jupyter.Header{} // such a message concerns no cell
	}
	return own, parent
}

// receive returns the next message. When Stop is closed it interrupts the kernel, once. It reports stop if the cell has
// not ended after that.
func (r *run) receive(ctx context.Context) (m *jupyter.Message, stop bool, err error) {
	for {
		waiting, cancel := context.WithCancelCause(ctx)
		done := r.watch(waiting, cancel)
		got, cursor, err := r.Conn.Receive(waiting)
		cancel(nil)
		<-done
		switch cause := context.Cause(waiting); {
		case err == nil:
			r.state.Cursor = cursor
			return &got, false, nil
		case ctx.Err() != nil || errors.Is(err, ErrGone):
			return nil, false, err
		case errors.Is(cause, errStop) && !r.state.Running: // another client's cell is running
			return nil, true, nil
		case errors.Is(cause, errStop):
			if err := r.interrupt(ctx); err != nil {
				return nil, false, err
			}
		case errors.Is(cause, errPatience):
			return nil, true, nil
		default:
			return nil, false, err
		}
	}
}

var (
	errStop     = errors.New("the run is stopped")
	errPatience = errors.New("the cell has not ended after an interrupt")
)

// watch ends a receive when the run is stopped, and when the patience after that is over. The receiver waits for done.
func (r *run) watch(ctx context.Context, cancel context.CancelCauseFunc) (done <-chan struct{}) {
	end := make(chan struct{})
	stop, cause := r.Stop, errStop
	var patience <-chan time.Time
	if r.stopped {
		stop, cause, patience = nil, errPatience, time.After(time.Until(r.stopAt))
	}
	go func() {
		defer close(end)
		select {
		case <-ctx.Done():
		case <-stop:
			cancel(cause)
		case <-patience:
			cancel(cause)
		}
	}()
	return end
}

// interrupt interrupts the kernel for a stop. A kernel that cannot be interrupted is as one that ignores it.
func (r *run) interrupt(ctx context.Context) error {
	r.stopped, r.stopAt = true, time.Now().Add(r.StopPatience)
	if err := r.Conn.Interrupt(ctx); err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return nil
}

// handle applies a message to its cell.
func (r *run) handle(ctx context.Context, m *jupyter.Message) error {
	own, parent := headers(m)
	present := parent.MsgID == r.msgID(r.state.Cell)
	switch {
	case m.Channel == jupyter.Shell && own.MsgType == "execute_reply" && present:
		var c content // no notebook has it
		if json.Unmarshal(m.Content, &c) != nil {
			c.Status = "error"
		}
		cell := r.doc.cells[r.state.Cell]
		cell.time("shell.execute_reply", m)
		cell.setCount(integer(c.ExecutionCount))
		r.state.Replied = true
		r.state.Reply = &Reply{Status: short(c.Status, maxNameSize), Ename: short(c.Ename, maxNameSize),
			Evalue: short(c.Evalue, maxSentence)}
	case m.Channel == jupyter.IOPub && own.MsgType == "status":
		r.noteStatus(m, present)
	case m.Channel == jupyter.IOPub:
		if cell, ok := r.cellOf(parent.MsgID); ok {
			changed, err := r.apply(ctx, cell, own.MsgType, m)
			r.changed = changed || r.changed
			return err
		}
	case m.Channel == jupyter.Stdin && own.MsgType == "input_request" && present:
		return r.refuseInput(ctx)
	}
	return nil
}

func (r *run) noteStatus(m *jupyter.Message, present bool) {
	var c content
	if json.Unmarshal(m.Content, &c) != nil {
		return
	}
	if present && (c.ExecutionState == "busy" || c.ExecutionState == "idle") {
		r.doc.cells[r.state.Cell].time("iopub.status."+c.ExecutionState, m)
	}
	switch c.ExecutionState {
	case "idle":
		r.state.Idled = r.state.Idled || present
	case "restarting":
		r.state.Broken = "the kernel was restarted while the notebook ran"
	case "dead":
		r.state.Broken = "the kernel died while the notebook ran"
	}
}

const noInput = "a notebook that runs without its author cannot ask for input"

// refuseInput ends a cell that asks for input although its request allows none.
func (r *run) refuseInput(ctx context.Context) error {
	if err := r.tail(ctx, r.state.Cell); err != nil {
		return err
	}
	r.addError(r.state.Cell, &content{Ename: "StdinNotImplementedError", Evalue: noInput})
	r.changed, r.state.Refused = true, true
	if err := r.Conn.Interrupt(ctx); err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return nil
}
