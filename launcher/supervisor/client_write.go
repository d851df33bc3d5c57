package supervisor

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/flow"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
)

// write moves the cursor through the log until the connection ends. It is long because one loop handles everything that
// a writer waits for.
func (c *clientConn) write(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var goodbye <-chan time.Time
	over := c.s.over
	var pace flow.Pacer
	for {
		c.flow.Cork()
		more, err := c.writeBatch()
		if err == nil {
			err = c.writePings()
		}
		if ferr := c.flow.Flush(); err == nil {
			err = ferr
		}
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				c.noteEndedHere()
			}
			if !errors.Is(err, websocket.ErrCloseSent) { // the reader has sent it, and waits for the peer
				c.flow.Close() //nolint:errcheck // the connection is broken already
			}
			return
		}
		if more {
			poke(c.reader.Wake) // the next round checks everything else first
		} else if goodbye != nil && !c.windowFull() {
			c.writeClose(framing.CloseError{Code: websocket.CloseNormalClosure, Reason: "the kernel is gone: " +
				c.s.farewellText()})
			return
		}
		wake, due := c.reader.Wake, time.Until(c.nextDue())
		if wait := pace.Wrote(len(c.batch), time.Now()); wait > 0 {
			wake, due = nil, min(wait, due)
		}
		timer.Reset(due)
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-c.reader.Urgent:
		case <-c.acks:
		case data := <-c.pongs:
			if err := c.ws.WriteControl(websocket.PongMessage, data, time.Now().Add(flow.Patience)); err != nil {
				return
			}
		case f := <-c.end:
			c.writeClose(f)
			return
		case <-over:
			over, goodbye = nil, time.After(farewell)
		case <-goodbye:
			c.writeClose(
				framing.CloseError{Code: websocket.CloseNormalClosure, Reason: "the kernel is gone: " + c.s.farewellText()},
			)
			return
		case <-timer.C:
			if time.Now().After(c.flow.Deadline()) {
				c.noteEndedHere()
				c.flow.Close() //nolint:errcheck // the peer is gone
				return
			}
		}
	}
}

func (s *Supervisor) farewellText() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.farewell
}

// noteEndedHere notes that the connection does not end because of a message.
func (c *clientConn) noteEndedHere() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endedHere = true
}

func (c *clientConn) writeClose(f framing.CloseError) {
	c.noteEndedHere()
	closing := websocket.FormatCloseMessage(f.Code, framing.ShortReason(f.Reason))
	err := c.ws.WriteControl(websocket.CloseMessage, closing, time.Now().Add(closeGrace))
	if err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, websocket.ErrCloseSent) {
		c.s.logger.Debug("close frame was not delivered", logkey.Err, err)
	}
}

func (c *clientConn) windowFull() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.acksEver && c.sent-c.ackedBytes >= ackWindow
}

// writeBatch sends entries of the log, up to batchBytes, and reports whether there may be more.
func (c *clientConn) writeBatch() (more bool, err error) {
	if c.windowFull() {
		c.batch = c.batch[:0]
		return false, nil
	}
	batch, now, lost := c.s.log.Read(c.cursor, c.session.number, batchBytes, c.batch)
	if lost > 0 {
		if err := c.writeLoss(lost); err != nil {
			return false, err
		}
	}
	for _, e := range batch {
		f, err := c.encode(e)
		if err != nil {
			c.s.logger.Warn("message of the kernel cannot be sent in this framing", logkey.Err, err)
			continue
		}
		c.pingNow = c.pingNow || e.Essential
		c.noteSent(e.At.Seq, len(f.Data))
		if err := c.writeFrame(e.At, f); err != nil {
			return false, err
		}
	}
	clear(batch)
	c.batch = batch
	more = now.Seq != c.cursor.Seq
	c.cursor = now
	return more, nil
}

// writeFrame sends the entry at a position in the log.
func (c *clientConn) writeFrame(at messagelog.Position, f *framing.Frame) error {
	kind := websocket.TextMessage
	if f.Binary {
		kind = websocket.BinaryMessage
	}
	c.mu.Lock()
	c.sent += int64(len(f.Data))
	c.mu.Unlock()
	c.sincePing += int64(len(f.Data))
	if c.relay {
		return c.writeRelayed(at, f)
	}
	return c.ws.WriteMessage(kind, f.Data)
}

// writeLoss tells a client that was away or slow how many messages of output it has missed.
func (c *clientConn) writeLoss(lost uint64) error {
	c.s.mu.Lock()
	c.s.lost.Add(int64(lost))
	m := c.s.noticeLocked(
		c.session.lastCell,
		"%d messages of output are missing here: this page was away or too slow for longer than the gateway keeps output.",
		lost,
	)
	c.s.mu.Unlock()
	f, err := framing.Encode(&m, c.framing)
	if err != nil {
		return err
	}
	return c.writeFrame(c.cursor, f)
}

// nextDue returns when the writer has to act again: for the next ping, or because the peer is gone.
func (c *clientConn) nextDue() time.Time {
	due := c.lastPing.Add(pingIdle)
	if c.sincePing > 0 {
		due = c.lastPing.Add(ackDelay)
		if c.pingOutstanding() {
			due = c.lastPing.Add(ackLatest)
		}
	}
	if end := c.flow.Deadline(); end.Before(due) {
		return end.Add(time.Millisecond)
	}
	return due
}

func (c *clientConn) pingOutstanding() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pings) > 0
}

// writePings sends a numbered ping if one is due.
func (c *clientConn) writePings() error {
	now := time.Now()
	since := now.Sub(c.lastPing)
	switch {
	case c.sincePing >= ackBytes:
	case c.pingNow:
		// JupyterLab reconnects as soon as it reads that the kernel restarts. If that message were not acknowledged by then,
		// JupyterLab would read it again, as another restart.
	case c.sincePing > 0 && since >= ackDelay && !c.pingOutstanding():
	case c.sincePing > 0 && since >= ackLatest:
	case since >= pingIdle:
	default:
		return nil
	}
	c.mu.Lock()
	c.pingNumber++
	n := c.pingNumber
	if len(c.pings) >= 1024 { // the peer does not answer; its next pong proves the rest
		c.pings = append(c.pings[:0], c.pings[512:]...)
	}
	c.pings = append(c.pings, sentPing{number: n, at: c.cursor, sent: c.sent})
	c.mu.Unlock()
	c.lastPing, c.sincePing, c.pingNow = now, 0, false
	return c.ws.WriteControl(websocket.PingMessage, binary.BigEndian.AppendUint64(nil, n), now.Add(flow.Patience))
}
