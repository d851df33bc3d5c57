package supervisor

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/connection"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/routes"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/session"
)

// A relay is the jupyter-ekg extension of a jupyter server, between the supervisor and a browser. It asks for
// jupyter.SubprotocolRelay, and gets the v1 framing behind an opaque cursor of jupyter.RelayCursor bytes. A new
// connection with the cursor of the last message that was passed on reads on exactly behind it. A relay acknowledges
// when its browser does. It repeats messages that may not have been accepted, so messages with an accepted msg_id are
// dropped.

// clientConn joins a websocket on .../channels to its session. It is the websocket's connection.Handler.
type clientConn struct {
	s        *Supervisor
	framing  framing.Framing
	relay    bool // see connection.Options
	readOnly bool
	guest    bool   // it may use the kernel, which another user owns
	user     string // "" if the gateway names none
	compress bool   // the gateway lets the client's messages be compressed
	takeOver bool   // the gateway hands over the client's socket
	watched  bool   // the gateway ends the connection of a client that is gone

	// Fixed when the client has joined. Supervisor.mu guards what they point to, except for conn.
	attachment *session.Attachment
	session    *session.Session
	conn       *connection.Conn
	send       func(...jupyter.Message) // conn.Send, but for tests

	asked []asked // kernel_info_requests of a reader that wait for the kernel; guarded by Supervisor.mu
}

// Serve implements routes.Kernel.
func (s *Supervisor) Serve(w http.ResponseWriter, r *http.Request) error {
	if !websocket.IsWebSocketUpgrade(r) {
		return routes.Error{Status: http.StatusBadRequest, Text: "this is a websocket: an upgrade request is expected"}
	}
	if !api.SpeaksWebsocket(w, r) {
		return routes.Error{Status: http.StatusUpgradeRequired, Text: "this websocket has version 13 of the protocol"}
	}
	right, user := r.Header.Get(api.HeaderRight), r.Header.Get(api.HeaderUser)
	c := &clientConn{s: s, readOnly: right == api.RightRead, guest: right == api.RightUse && !s.OwnedBy(user), user: user,
		compress: r.Header.Get(api.HeaderCompress) != "", takeOver: api.ConfirmsHandOver(r),
		watched: r.Header.Get(api.HeaderWatched) != ""}
	c.framing, c.relay = framing.Choose(r, websocket.Subprotocols(r))
	if err := s.join(c, sessionKey(r, c.readOnly), r.URL.Query().Get("cursor")); err != nil {
		return err
	}
	defer s.leave(c)
	var extra http.Header
	if c.takeOver {
		extra = http.Header{api.HeaderHandOver: {api.HandOverVersion}}
	}
	if !c.conn.Upgrade(w, r, extra) {
		return nil
	}
	begun := time.Now()
	log := s.logger.With(logkey.Connection, c.attachment.Number, logkey.Request, routes.RequestID(r))
	log.Info("websocket opened")
	sent := c.conn.Serve()
	log.Info("websocket closed", logkey.Took, time.Since(begun), logkey.Sent, sent)
	return nil
}

// sessionKey returns the key of a client's session, or "". It keeps users, and clients with the right to read, out of
// each other's sessions: replies and prompts go to sessions, and every message that a page causes shows its session id.
func sessionKey(r *http.Request, readOnly bool) string {
	id := r.URL.Query().Get("session_id")
	if id == "" {
		return ""
	}
	return fmt.Sprintf("%s\x00%v\x00%s", r.Header.Get(api.HeaderUser), readOnly, id)
}

// parseKey returns the user and the right of a key of sessionKey.
func parseKey(key string) (user string, readOnly bool) {
	user, rest, _ := strings.Cut(key, "\x00")
	return user, strings.HasPrefix(rest, "true\x00")
}

// OwnedBy implements routes.Kernel. Without users everyone is the owner.
func (s *Supervisor) OwnedBy(user string) bool {
	return s.assigning.owner == "" || s.assigning.owner == user
}

// join attaches a client to its session and makes its connection. A new session gets the present state before live
// messages, with the running cell's parent. leave undoes it.
func (s *Supervisor) join(c *clientConn, key, cursor string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.over:
		return routes.ErrOver
	default:
	}
	if err := s.clients.attach(c, key); err != nil {
		return err
	}
	fresh := !c.session.Used()
	if p, ok := s.log.ParseCursor(cursor); ok && c.relay {
		c.attachment.ResumeAt(p)
	}
	c.conn = connection.New(connection.Options{
		Number:        c.attachment.Number,
		Framing:       c.framing,
		Relay:         c.relay,
		Handler:       c,
		SessionNumber: c.session.Number,
		Log:           s.log,
		Cursor:        c.attachment.Cursor,
		Replaced:      c.attachment.Replaced(),
		Acknowledges:  c.attachment.Acknowledges(),
		Compress:      c.compress,
		MaxMessage:    s.maxMessageOf(c),
		Input:         s.input.Of(c.user, s.OwnedBy(c.user)),
		TakeOver:      c.takeOver,
		Watched:       c.watched,
		Over:          s.over,
		Logger:        s.logger,
	})
	c.send = c.conn.Send
	if fresh && s.use.State() != api.Starting { // otherwise the kernel's own first status follows
		// JupyterLab leaves the first connection of its session unread. So each one gets the status until one is used.
		c.send(s.clients.presentStatus())
	}
	s.clients.offerAgain(c)
	s.clients.connected[c] = struct{}{}
	s.handlers.Add(1)
	return nil
}

// maxMessageOf returns the bound of one message of a client, in bytes.
func (s *Supervisor) maxMessageOf(c *clientConn) int64 {
	switch {
	case c.readOnly:
		return min(s.maxMessage, connection.MaxReaderMessage)
	case !s.OwnedBy(c.user):
		return min(s.maxMessage, connection.MaxSharedMessage)
	}
	return s.maxMessage
}

func (s *Supervisor) leave(c *clientConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.clients.connected, c)
	s.clients.detach(c, session.End(c.conn.End()))
	s.handlers.Done()
}

// Receive implements connection.Handler.
func (c *clientConn) Receive(m jupyter.Message, h jupyter.Header) *framing.CloseError {
	return c.s.accept(c, m, h)
}

// Acknowledge implements connection.Handler.
func (c *clientConn) Acknowledge(p messagelog.Position, messages int) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.attachment.NotePong() {
		c.s.clients.sessions.Activate(c.attachment)
	}
	c.attachment.Acknowledge(p, messages)
}

// Unanswered implements connection.Handler.
func (c *clientConn) Unanswered() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.clients.sessions.Unanswered(c.attachment)
}

// LossNotice implements connection.Handler.
func (c *clientConn) LossNotice(lost messagelog.Loss) jupyter.Message {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.traffic.Lost.Add(int64(lost.Total()))
	return c.s.notices.Line(c.session.LastCell, "%s", missing(lost))
}

// EndReason implements connection.Handler.
func (c *clientConn) EndReason() string {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return c.s.endReason
}
