package connection

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/flow"
)

// read handles the client's messages until the connection ends. It never waits for the kernel.
func (c *Conn) read() {
	c.ws.SetPongHandler(func(data string) error { c.pong(data); return nil })
	defer c.releaseInput()
	closing := false
	c.ws.SetPingHandler(func(data string) error {
		if closing {
			return nil // for a relay a pong proves that all before it was accepted
		}
		select {
		case c.pongs <- []byte(data):
		default: // the peer has not read the pongs to its last pings
		}
		return nil
	})
	c.ws.SetCloseHandler(func(code int, _ string) error {
		c.mu.Lock()
		c.closing = true
		c.tooBig = c.tooBig || code == websocket.CloseMessageTooBig
		c.mu.Unlock()
		c.answerClose(code)
		return nil
	})
	for {
		kind, r, err := c.ws.NextReader()
		if err != nil {
			c.rejectFrames(err)
			return
		}
		if closing { // the close frame is sent, and the peer may still send
			if _, err := io.Copy(io.Discard, r); err != nil {
				c.rejectFrames(err)
				return
			}
			continue
		}
		data, err := c.readMessage(r)
		var end *framing.CloseError
		switch {
		case err == nil:
			end = c.handleMessage(kind, data)
		case errors.Is(err, errTooLarge):
			end = &framing.CloseError{Code: websocket.CloseMessageTooBig,
				Reason: fmt.Sprintf("a message of more than %d bytes", c.o.MaxMessage)}
		case errors.Is(err, errNoRoom):
			// A wait could be for messages that never end. 1009 would make a client drop a message that has room later.
			end = &framing.CloseError{Code: websocket.CloseTryAgainLater,
				Reason: "large messages of other connections are not complete: send this again later"}
		default:
			c.rejectFrames(err)
			return
		}
		c.releaseInput()
		if end != nil {
			closing = true
			c.closeWith(*end)
		}
	}
}

// answerClose answers the peer's close frame (RFC 6455, section 5.5.1). The answer follows the output that is being
// written, which a peer that reads no more would hold up: the connection is closed after answerTimeout.
func (c *Conn) answerClose(code int) {
	late := time.AfterFunc(answerTimeout, func() { c.flow.Close() }) //nolint:errcheck // the peer has given it up
	defer late.Stop()
	err := c.flow.WriteFrame(flow.Close, websocket.FormatCloseMessage(code, ""))
	if err == nil {
		err = c.flow.Flush()
	}
	if err != nil && !errors.Is(err, flow.ErrClosing) { // the peer's frame may be an answer
		c.o.Logger.Debug("close frame was not delivered", logkey.Err, err)
	}
}

// rejectFrames closes the websocket properly if invalid frames have ended reading. Closing the socket with unread bytes
// in it would reset the connection, and the peer would lose the close frame.
func (c *Conn) rejectFrames(err error) {
	var ended *websocket.CloseError
	var network net.Error
	if errors.As(err, &ended) || errors.As(err, &network) || errors.Is(err, net.ErrClosed) {
		return // the peer or the writer has ended it
	}
	c.noteLocal()
	if errors.Is(err, websocket.ErrReadLimit) { // the library has sent the close frame of other errors
		c.writeClose(framing.CloseError{Code: websocket.CloseMessageTooBig, Reason: "a frame with an impossible length"})
	}
	if err := c.flow.Flush(); err != nil {
		return // the connection is broken
	}
	c.closeWrite()
	_ = c.flow.SetReadDeadline(time.Now().Add(closeGrace)) // an error shows in the next read
	_, _ = io.Copy(io.Discard, c.flow)                     // until the peer has closed, too
}

// closeWith makes the writer close the websocket.
func (c *Conn) closeWith(f framing.CloseError) {
	select {
	case c.end <- f:
	default:
	}
}

// handleMessage handles one message of the client. It returns how to close the websocket if the message is not
// acceptable.
func (c *Conn) handleMessage(kind int, data []byte) *framing.CloseError {
	m, h, err := framing.Decode(c.o.Framing, kind == websocket.BinaryMessage, data)
	var end *framing.CloseError
	switch {
	case errors.Is(err, framing.ErrIgnored):
		c.o.Logger.Debug("message for no channel of the kernel was ignored")
		return nil
	case errors.As(err, &end):
		return end
	}
	c.mu.Lock()
	c.signs += signsNeeded
	c.mu.Unlock()
	m.Header = bytes.Clone(m.Header) // it outlives the rest of the message
	return c.o.Handler.Receive(m, h)
}
