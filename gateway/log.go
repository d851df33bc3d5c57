package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/channels"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Deadlines of a kernel's log on its way to the client.
const (
	logOpenTime = 10 * time.Second // for the supervisor to begin its answer
	logSilence  = 60 * time.Second // of the supervisor, which sends an empty line every 15 s to a client that follows
	logPatience = 60 * time.Second // for the client to take a piece of at most logBuffer bytes
	logBuffer   = 32 << 10
)

// logName is the form of a log's name, api.HeaderLog.
var logName = regexp.MustCompile(`^[0-9a-f]{16}$`)

var errSilent = errors.New("the supervisor has sent nothing for a minute")

// getLog passes on the log of the kernel's supervisor, each piece as it comes. An answer that the supervisor did not
// finish is cut off, so that the client knows that more lines follow.
func (g *Gateway) getLog(w http.ResponseWriter, r *call) error {
	id, err := g.kernelID(r)
	if err != nil {
		return err
	}
	if _, err := g.kernels.Kernel(r.Context(), id); err != nil {
		return err
	}
	c, err := g.logReaders.open(r, id)
	if err != nil {
		return err
	}
	defer g.logReaders.Remove(c)
	// The request to the supervisor ends when copyLog cancels it, which may be a moment after the client's request.
	up, cancel := context.WithCancelCause(context.WithoutCancel(r.Context()))
	defer cancel(nil)
	resp, err := g.openLog(up, cancel, c.Context(), r, id)
	if err != nil {
		if r.Context().Err() != nil {
			return r.Context().Err()
		}
		return g.explainLog(r.Context(), r.Who, id, err)
	}
	defer func() { _ = resp.Body.Close() }() // read to its end, or of no use any more
	h := w.Header()
	h.Set("Content-Type", "application/x-ndjson")
	h.Set("Cache-Control", "no-store")
	if name := resp.Header.Get(api.HeaderLog); logName.MatchString(name) {
		h.Set(api.HeaderLog, name)
	}
	h.Set("X-Accel-Buffering", "no") // or nginx would hold lines back
	h.Set("Connection", "close")     // its deadlines would apply to the next request
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	err = copyLog(c.Context(), cancel, w, resp.Body)
	switch {
	case err == nil:
		return nil
	case r.Context().Err() != nil:
		return r.Context().Err()
	}
	g.log.Debug("kernel log was cut off", logkey.Kernel, id, logkey.Err, err)
	panic(http.ErrAbortHandler)
}

// openLog asks the supervisor for its log and returns when the answer begins. cancel cancels the context up.
func (g *Gateway) openLog(
	up context.Context, cancel context.CancelCauseFunc, client context.Context, r *call, id string,
) (*http.Response, error) {
	out, err := g.outgoing(up, &r.Act, id, r.Method, "log", g.queryOf(r.Request))
	if err != nil {
		return nil, err
	}
	slow := time.AfterFunc(logOpenTime, func() { cancel(context.DeadlineExceeded) })
	defer slow.Stop()
	stop := context.AfterFunc(client, func() { cancel(context.Cause(client)) })
	defer stop()
	resp, err := g.transport.RoundTrip(out)
	if err != nil {
		return nil, &kernels.UndeliveredError{Err: err}
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

// explainLog returns the reason why a log cannot be read. A dead kernel keeps its log while its supervisor lives.
func (g *Gateway) explainLog(ctx context.Context, who kernels.Caller, id string, err error) error {
	var never *kernels.DialError
	if errors.As(err, &never) && errors.Is(err, launcher.ErrNotFound) {
		if k, kernelErr := g.kernels.Kernel(ctx, id); kernelErr == nil && k.State == api.Dead {
			return refuse(http.StatusNotFound, "The kernel's log is gone, since its supervisor has ended: %s",
				who.ReasonOf(&k))
		}
	}
	return g.kernels.Explain(ctx, who, id, err)
}

// copyLog copies until the log ends, one side is gone, or the client's context ends. It returns nil if the log has
// ended.
func copyLog(client context.Context, cancel context.CancelCauseFunc, w http.ResponseWriter, body io.Reader) error {
	rc := http.NewResponseController(w)
	done, ended := make(chan struct{}), make(chan struct{})
	stop := context.AfterFunc(client, func() {
		defer close(ended)
		cause := context.Cause(client)
		_ = rc.SetWriteDeadline(time.Now().Add(channels.FlushTime)) // fails only where no write can block
		if errors.Is(cause, channels.ErrKernelStopped) {
			// The supervisor is sending the end of the log.
			select {
			case <-time.After(channels.FlushTime):
			case <-done:
			}
		}
		cancel(cause)
	})
	defer func() {
		close(done)
		if !stop() {
			<-ended // so that it no longer touches the connection
		}
	}()
	if err := pass(client, rc, w, nil); err != nil { // sends the header; the first line may come much later
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

// pass writes a piece of the log to the client and flushes it.
func pass(client context.Context, rc *http.ResponseController, w io.Writer, b []byte) error {
	err := rc.SetWriteDeadline(time.Now().Add(logPatience))
	if client.Err() != nil { // checked after setting, which may have overwritten the shorter deadline
		err = rc.SetWriteDeadline(time.Now().Add(channels.FlushTime))
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
