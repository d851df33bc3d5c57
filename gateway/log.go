package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// Times of a kernel's log on its way to the client.
const (
	logOpenTime = 10 * time.Second // for the supervisor to begin its answer
	logSilence  = 60 * time.Second // of the supervisor, which sends an empty line every 15 s to one who follows
	logPatience = 60 * time.Second // for the client to take what was read, at most logBuffer bytes
	logBuffer   = 32 << 10
)

// logName is how a supervisor names its log.
var logName = regexp.MustCompile(`^[0-9a-f]{16}$`)

var errSilent = errors.New("nothing has come for a minute")

// getLog passes on what the kernel's supervisor has in its log, each piece as it comes. An answer that the supervisor
// did not end is cut off, so that a client can tell: what follows the last line it got is still to be had.
func (g *Gateway) getLog(w http.ResponseWriter, r *http.Request) error {
	id, err := g.kernelID(r)
	if err != nil {
		return err
	}
	if _, err := g.kernel(r.Context(), id); err != nil {
		return err
	}
	c, err := g.streams.add(r.Context(), id)
	if err != nil {
		return err
	}
	defer g.streams.remove(c)
	// The way to the supervisor ends when logStream says so, which may be a moment after the client's.
	up, cancel := context.WithCancelCause(context.WithoutCancel(r.Context()))
	defer cancel(nil)
	resp, err := g.openLog(up, cancel, c.ctx, r, id)
	if err != nil {
		if r.Context().Err() != nil {
			return r.Context().Err()
		}
		return g.explainLog(r.Context(), id, err)
	}
	defer func() { _ = resp.Body.Close() }() // read to its end, or of no use any more
	h := w.Header()
	h.Set("Content-Type", "application/x-ndjson")
	h.Set("Cache-Control", "no-store")
	if name := resp.Header.Get(headerLog); logName.MatchString(name) {
		h.Set(headerLog, name)
	}
	h.Set("X-Accel-Buffering", "no") // nginx would hold lines back
	h.Set("Connection", "close")     // its deadlines would be those of the next request
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	err = copyLog(c.ctx, cancel, w, resp.Body)
	switch {
	case err == nil:
		return nil
	case r.Context().Err() != nil:
		return r.Context().Err()
	}
	g.log.Debug("kernel log was cut off", "kernel", id, "err", err)
	panic(http.ErrAbortHandler)
}

// openLog asks the supervisor for its log and waits for the beginning of the answer.
func (g *Gateway) openLog(
	up context.Context, cancel context.CancelCauseFunc, client context.Context, r *http.Request, id string,
) (*http.Response, error) {
	out, err := g.outgoing(up, r, id, r.Method, "log")
	if err != nil {
		return nil, err
	}
	slow := time.AfterFunc(logOpenTime, func() { cancel(context.DeadlineExceeded) })
	defer slow.Stop()
	stop := context.AfterFunc(client, func() { cancel(context.Cause(client)) })
	defer stop()
	resp, err := g.transport.RoundTrip(out)
	if err != nil {
		return nil, &undeliveredError{err}
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	body, err := g.readAnswer(resp)
	if err != nil {
		return nil, err
	}
	return nil, supervisorProblem(resp.StatusCode, body)
}

// explainLog says why there is no log: a kernel that is dead keeps it as long as its supervisor is there.
func (g *Gateway) explainLog(ctx context.Context, id string, err error) error {
	var never *dialError
	if errors.As(err, &never) && errors.Is(err, launcher.ErrNotFound) {
		if k, kernelErr := g.kernel(ctx, id); kernelErr == nil && k.State == launcher.Dead {
			return refuse(http.StatusNotFound, "The kernel's log is gone, since its supervisor has ended: %s", k.Reason)
		}
	}
	return g.explain(ctx, id, err)
}

// copyLog copies until the log ends, one side is gone, or client ends. It returns nil if the log has ended by itself.
func copyLog(client context.Context, cancel context.CancelCauseFunc, w http.ResponseWriter, body io.Reader) error {
	rc := http.NewResponseController(w)
	done, ended := make(chan struct{}), make(chan struct{})
	stop := context.AfterFunc(client, func() {
		defer close(ended)
		cause := context.Cause(client)
		_ = rc.SetWriteDeadline(time.Now().Add(flushTime)) // where there is none to set, nothing blocks
		if errors.Is(cause, errKernelStopped) {
			// The end of the log is on its way.
			select {
			case <-time.After(flushTime):
			case <-done:
			}
		}
		cancel(cause)
	})
	defer func() {
		close(done)
		if !stop() {
			<-ended // it must not touch the connection any more
		}
	}()
	if err := pass(client, rc, w, nil); err != nil { // the head: the kernel may say nothing for long
		return err
	}
	silent := time.AfterFunc(logSilence, func() { cancel(errSilent) })
	defer silent.Stop()
	buf := make([]byte, logBuffer)
	for {
		silent.Reset(logSilence)
		n, err := body.Read(buf)
		silent.Stop()
		if n > 0 {
			if werr := pass(client, rc, w, buf[:n]); werr != nil {
				return werr
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("supervisor: %w", err)
		}
	}
}

// pass writes a piece of the log to the client, at once.
func pass(client context.Context, rc *http.ResponseController, w io.Writer, b []byte) error {
	err := rc.SetWriteDeadline(time.Now().Add(logPatience))
	if client.Err() != nil { // only now: its shorter deadline may just have been overwritten
		err = rc.SetWriteDeadline(time.Now().Add(flushTime))
	}
	if err != nil {
		return &unwritten{err}
	}
	if _, err := w.Write(b); err != nil {
		return &unwritten{err}
	}
	if err := rc.Flush(); err != nil {
		return &unwritten{err}
	}
	return nil
}
