package connection

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/flow"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
)

const (
	batchBytes  = 256 << 10 // bytes written before pings and close requests are checked
	payloadKept = 4 << 10   // bytes of the buffer for small messages that an idle connection keeps
	littleOwed  = 64 << 10  // unacknowledged bytes that the buffers of a gateway's client take at once
)

// write moves the cursor through the log until the connection ends. It is long because one loop handles everything that
// a writer waits for.
func (c *Conn) write(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var restOver <-chan time.Time
	over := c.o.Over
	var pace flow.Pacer
	for {
		c.flow.Cork()
		more, err := false, c.writeDirect()
		if err == nil {
			more, err = c.writeBatch()
		}
		if err == nil {
			err = c.writePings()
		}
		if ferr := c.flow.Flush(); err == nil {
			err = ferr
		}
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				c.noteLocal()
			}
			// If a close frame was sent, the reader has sent it, and waits for the peer.
			if !errors.Is(err, websocket.ErrCloseSent) && !errors.Is(err, flow.ErrClosing) {
				c.flow.Close() //nolint:errcheck // the connection is broken already
			}
			return
		}
		if more {
			goroutines.Wake(c.reader.Wake) // the next round checks everything else first
		} else if restOver != nil && !c.windowFull() {
			c.writeEnd()
			return
		}
		news, due := c.reader.Wake, time.Until(c.nextDue())
		if wait := pace.Wrote(len(c.batch), c.batchSize, time.Now()); wait > 0 {
			news, due = nil, min(wait, due)
		}
		timer.Reset(due)
		select {
		case <-ctx.Done():
			return
		case <-news:
		case <-c.reader.Urgent:
		case <-c.acks:
		case data := <-c.pongs:
			// For a relay a pong proves that all before it was handled, and rejected messages were answered.
			if err := c.writeDirect(); err != nil {
				return
			}
			if err := c.flow.WriteFrame(flow.Pong, data); err != nil {
				return
			}
		case f := <-c.end:
			c.writeClose(f)
			return
		case <-over:
			over, restOver = nil, time.After(restTimeout)
		case <-restOver:
			c.writeEnd()
			return
		case <-timer.C:
			if c.flow.Gone() {
				c.noteLocal()
				c.flow.Close() //nolint:errcheck // the peer is gone
				return
			}
		}
	}
}

// writeEnd closes the websocket because the kernel has ended. Clients compare the beginning of the reason.
//
// It ends the writing half of the connection too, unless the peer has much to read. A gateway then delivers the rest,
// and the end of the supervisor does not wait for a client that answers no close frame.
func (c *Conn) writeEnd() {
	reason := "the kernel is gone: " + c.o.Handler.EndReason()
	c.writeClose(framing.CloseError{Code: websocket.CloseNormalClosure, Reason: reason})
	if c.owed() <= littleOwed {
		c.closeWrite()
	}
}

// closeWrite ends the writing half of the connection. The peer gets everything that was written.
func (c *Conn) closeWrite() { _ = c.flow.CloseWrite() } // an error shows in the next read

func (c *Conn) writeClose(f framing.CloseError) {
	c.noteLocal()
	closing := websocket.FormatCloseMessage(f.Code, framing.ShortReason(f.Reason))
	err := c.flow.WriteFrame(flow.Close, closing)
	if err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, flow.ErrClosing) {
		c.o.Logger.Debug("close frame was not delivered", logkey.Err, err)
	}
}

// writeDirect sends the messages of Send.
func (c *Conn) writeDirect() error {
	c.mu.Lock()
	direct := c.direct
	c.direct, c.directSize = nil, 0
	c.mu.Unlock()
	for i := range direct {
		if _, err := c.writeOwn(c.cursor, &direct[i]); err != nil {
			return err
		}
	}
	return nil
}

// writeBatch sends entries of the log, up to batchBytes, and reports whether there may be more.
func (c *Conn) writeBatch() (more bool, err error) {
	c.batchSize = 0
	if c.windowFull() {
		c.batch = c.batch[:0]
		return false, nil
	}
	c.reader.Pass(c.cursor)
	batch, now, lost := c.o.Log.Read(c.cursor, c.o.SessionNumber, batchBytes, c.batch)
	if lost.Total() > 0 {
		if err := c.writeLoss(lost); err != nil {
			return false, err
		}
	}
	shared := c.o.Log.Shares(c.o.Framing)
	for _, e := range batch {
		c.pingNow = c.pingNow || e.Essential
		if err := c.markEntry(e.At.Seq); err != nil {
			return false, err
		}
		if err := c.writeEntry(e, shared); err != nil {
			return false, err
		}
	}
	if cap(c.payload) > payloadKept {
		c.payload = nil
	}
	clear(batch)
	c.batch = batch
	more = now.Seq != c.cursor.Seq
	c.cursor = now
	return more, nil
}

// writeEntry sends an entry of the log, or the notice that replaces it. With shared, other connections may send it too.
func (c *Conn) writeEntry(e *messagelog.Entry, shared bool) (err error) {
	why, replaced := c.o.Replaced[e.At.Seq]
	n := 0
	switch {
	case replaced:
		m := notice.LeftOut(&e.Message, int64(e.Message.Size()), why)
		n, err = c.writeOwn(e.At, &m)
	case shared || e.Message.Size() >= framing.SplitFrom:
		f := c.o.Log.Encode(e, c.o.Framing)
		n = f.Size()
		c.noteSent(e.At.Seq, n)
		err = c.writeFrame(e.At, f.Binary, f.Parts...)
	default:
		n, err = c.writeOwn(e.At, &e.Message)
	}
	c.batchSize += int64(n)
	if err == nil {
		err = c.noteBuffers(e)
	}
	return err
}

// writeOwn sends a small message that no other connection sends, and returns its size. at is its place in the log, or
// that of the message before it.
func (c *Conn) writeOwn(at messagelog.Position, m *jupyter.Message) (int, error) {
	var isBinary bool
	c.payload, isBinary = framing.Append(c.payload[:0], m, c.o.Framing)
	n := len(c.payload)
	return n, c.writeFrame(at, isBinary, c.payload)
}

// writeFrame sends one websocket message, whose payload has several parts. A relay gets it behind its cursor.
func (c *Conn) writeFrame(at messagelog.Position, isBinary bool, parts ...[]byte) error {
	n := 0
	for _, part := range parts {
		n += len(part)
	}
	c.mu.Lock()
	c.sent += int64(n)
	c.messages++
	c.mu.Unlock()
	c.sincePing += int64(n)
	if c.o.Relay {
		c.place = c.o.Log.Cursor(at)
		c.parts = append(append(c.parts[:0], c.place[:]), parts...)
		defer clear(c.parts)
		return c.flow.WriteFrame(flow.Binary, c.parts...)
	}
	opcode := byte(flow.Text)
	if isBinary {
		opcode = flow.Binary
	}
	if c.compresses && n >= compressFrom {
		return c.writeCompressed(opcode, n, parts)
	}
	return c.flow.WriteFrame(opcode, parts...)
}

// noteBuffers shows in the cell that the entry was sent without its buffers, if it was. Each cell shows it once.
func (c *Conn) noteBuffers(e *messagelog.Entry) error {
	if !c.o.Framing.DropsBuffers() || len(e.Message.Buffers) == 0 || bytes.Equal(c.textOnly, e.Message.Parent) {
		return nil
	}
	c.textOnly = e.Message.Parent
	m := notice.Line(jupyter.StringField(e.Message.Header, "session"), e.Message.Parent,
		"Binary data was left out: what stands between this page and the gateway takes text only. Widgets and plots may be "+
			"incomplete. See docs/jupyter-ekg.md.")
	_, err := c.writeOwn(e.At, &m)
	return err
}

// writeLoss tells a client how many messages of output it has missed.
func (c *Conn) writeLoss(lost messagelog.Loss) error {
	m := c.o.Handler.LossNotice(lost)
	_, err := c.writeOwn(c.cursor, &m)
	return err
}
