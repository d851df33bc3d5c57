package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs/notebook"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// start starts the job's kernel and waits until it is up.
func (h *hold) start(e *entry) error {
	ctx, release := h.untilStopped(h.ctx)
	defer release()
	err := retry(ctx, h.log, "start its kernel", func() error {
		return h.m.kernels.Start(ctx, e.Author, e.Kernel, e.Start)
	})
	if err == nil {
		err = h.m.kernels.Up(ctx, e.Kernel, func(reason string) {
			err := retry(ctx, h.log, "note what it waits for", func() error {
				return h.update(ctx, func(e *entry) { e.Reason = reason })
			})
			if err != nil && ctx.Err() == nil {
				h.log.Warn("the reason why a job waits cannot be stored", logkey.Err, err)
			}
			h.m.look() // it is admitted, so the author's next job may start
		})
	}
	var wait *WaitError
	switch {
	case err == nil:
		defer h.m.look() // the author's next job may start
		now := time.Now().UTC()
		err := h.must("note that it runs", func(e *entry) { e.State, e.Reason, e.Started = Running, "", now })
		if err == nil && e.Attempt == 1 {
			h.m.observer.JobBegan(e.Flavor, now.Sub(e.Created))
		}
		return err
	case h.ctx.Err() != nil:
		return err
	case errors.Is(context.Cause(ctx), errStopped):
		return h.outcome(Stopped, reasonStopped, false)
	case errors.As(err, &wait):
		return h.must("wait", func(e *entry) { e.Outcome = &outcome{State: Queued, Reason: wait.Reason, Waits: true} })
	case errors.Is(err, launcher.ErrUnavailable):
		return err
	}
	var refused *RefusedError
	return h.outcome(Failed, "its kernel could not be started: "+err.Error(), !errors.As(err, &refused))
}

// Reasons for which this gateway ends a wait or a run by itself.
var (
	errStopped = errors.New("jobs: stopped")
	errGaveWay = errors.New("jobs: gave way")
	errTimeout = errors.New("jobs: out of time")
)

// run runs the notebook, from where it was left.
func (h *hold) run(e *entry) error {
	stop, release := h.untilStopped(context.Background())
	defer release()
	if e.Timeout > 0 {
		var cancel context.CancelFunc
		over := e.Started.Add(time.Duration(e.Timeout) * time.Second)
		stop, cancel = context.WithDeadlineCause(stop, over, errTimeout)
		defer cancel()
	}
	again, cursor := e.Run == nil && e.Before != nil, ""
	document, resume, free, err := h.document(stop, e, again)
	if errors.Is(err, errNoTurn) {
		return h.cutUnread(e, context.Cause(stop))
	}
	if err != nil {
		return err
	}
	defer free()
	if resume != nil && !again {
		cursor = resume.Cursor
	}
	relay := notebook.OpenRelay(notebook.RelayOptions{
		Dial: func(ctx context.Context, query url.Values) (*websocket.Conn, error) {
			return h.m.kernels.Dial(ctx, e.Author, e.Kernel, query)
		},
		Session:   fmt.Sprintf("job-%s-%d", e.ID, e.Attempt),
		Cursor:    cursor,
		Interrupt: func(ctx context.Context) error { return h.m.kernels.Interrupt(ctx, e.Author, e.Kernel) },
		Failed:    h.unreachable(),
		Budget:    h.m.budget,
	})
	defer relay.Close()
	r := notebook.Run{Conn: relay, Document: document, ID: fmt.Sprintf("%s-%d", e.ID, e.Attempt), Resume: resume,
		Again: again, Pieces: h.m.store.pieces(h.id, h.log), AllowErrors: e.AllowErrors, Save: h.save, Stop: stop.Done(),
		Budget:    h.m.budget,
		SaveEvery: h.m.store.keeper.RecordPace(),
		// Outputs get at most two thirds of a record: JSON makes them longer, and the run adds a little to them.
		OutputLimit: min(notebook.DefaultOutputLimit, h.m.store.keeper.MaxRecord()*2/3), Most: h.m.store.keeper.MaxRecord()}
	result, err := h.m.perform(h.ctx, &r)
	if err != nil {
		return err
	}
	switch result.Status {
	case notebook.Completed:
		return h.outcome(Succeeded, "", false)
	case notebook.Stopped:
		return h.cut(e, context.Cause(stop))
	}
	reason := result.Reason
	if result.Lost { // the cluster knows more than the kernel's last message
		if why := h.m.kernels.Lost(h.ctx, e.Kernel); why != "" {
			reason = "its kernel has ended: " + why
		}
	}
	if result.Cell > 0 {
		reason = fmt.Sprintf("cell %d: %s", result.Cell, reason)
	}
	return h.outcome(Failed, reason, result.Lost)
}

// logAgain is the time between two log lines about the same trouble.
const logAgain = time.Minute

// unreachable returns a function that logs that the kernel cannot be reached: at first, and then once in a while.
func (h *hold) unreachable() func(error) {
	var logged time.Time
	return func(err error) {
		if err == nil {
			logged = time.Time{}
			return
		}
		if time.Since(logged) > logAgain {
			logged = time.Now()
			h.log.Warn("the kernel of a job cannot be reached", logkey.Err, err)
		}
	}
}

// untilStopped returns a context that ends when the job, or its attempt, is to end. The cause says why. release must
// be called.
func (h *hold) untilStopped(parent context.Context) (ctx context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(parent)
	detach := context.AfterFunc(h.stopping, func() { cancel(context.Cause(h.stopping)) })
	if h.stopping.Err() != nil { // AfterFunc may take a moment, and a run that has a result already does not
		cancel(context.Cause(h.stopping))
	}
	return ctx, func() {
		detach()
		cancel(nil)
	}
}

// errNoTurn says that a run is to end while it waits for room for its notebook.
var errNoTurn = errors.New("jobs: ended while it waited for room")

// document returns the notebook to run, and the state of the run that goes on, or that is followed by another one; nil
// if there is none. Without room in the budget, it waits until there is some, or stop ends, which is errNoTurn. free
// gives the room back.
func (h *hold) document(
	stop context.Context, e *entry, again bool,
) (doc *notebook.Document, from *notebook.State, free func(), err error) {
	read := func() (doc *notebook.Document, err error) {
		err = retry(h.ctx, h.log, "read its notebook", func() error {
			source, err := h.m.store.source(h.ctx, e)
			if err != nil {
				return err
			}
			doc, err = e.prepared(source, e.Language, e.From)
			return err
		})
		return doc, err
	}
	if shown := e.shown(); shown != nil {
		state, err := parseState(shown)
		if err != nil || state.Result != nil && !again { // the result is all that is needed
			return nil, &state, func() {}, err
		}
		from, read = &state, func() (*notebook.Document, error) {
			return state.Document(h.ctx, h.m.store.pieces(h.id, h.log))
		}
	}
	doc, free, err = h.m.budget.Document(h.ctx, e.Owner, read, func(room func(context.Context) error) error {
		return h.awaitRoom(stop, room)
	})
	return doc, from, free, err
}

// awaitRoom waits until there is room for the job's notebook. The record says so meanwhile.
func (h *hold) awaitRoom(stop context.Context, room func(context.Context) error) error {
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel()
	defer context.AfterFunc(stop, cancel)()
	if err := h.must("note what it waits for", func(e *entry) { e.Reason = reasonMemory }); err != nil {
		return err
	}
	err := room(ctx)
	if h.ctx.Err() == nil && err != nil {
		return errNoTurn
	}
	if err != nil {
		return err
	}
	return h.must("note that it goes on", func(e *entry) { e.Reason = "" })
}

// save replaces the record by one with the state of the run. It then removes the pieces that the record no longer
// names.
func (h *hold) save(ctx context.Context, state *notebook.State, p notebook.Progress) error {
	b, err := json.Marshal(state)
	if err != nil {
		return err
	}
	before := h.entry()
	err = retry(ctx, h.log, "save its progress", func() error {
		return h.update(ctx, func(e *entry) {
			e.Run, e.Cell, e.Cells, e.Reached, e.Silent = b, p.Cell, p.Cells, state.Reached, 0
			e.Reason = "" // a gateway that has died may have waited
		})
	})
	if err != nil {
		return err
	}
	now := h.entry()
	old, oldErr := before.pieces()
	named, err := now.pieces()
	if err := errors.Join(oldErr, err); err != nil {
		return err
	}
	maps.DeleteFunc(old, func(id string, _ bool) bool { return named[id] })
	if err := h.m.store.removePieces(ctx, old); err != nil {
		h.log.Warn("old pieces of a notebook cannot be removed; this is tried again later", logkey.Err, err)
	}
	return nil
}
