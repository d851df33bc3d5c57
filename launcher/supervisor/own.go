package supervisor

import (
	"bytes"
	"context"
	"errors"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/routes"
)

// executeOwn has the kernel execute code that no client sees. It returns the content of the reply. The code runs in the
// user's namespace, and waits while the kernel is busy. It may be called concurrently.
func (s *Supervisor) executeOwn(ctx context.Context, b *bridge, code string) ([]byte, error) {
	m := jupyter.New(jupyter.Shell, "execute_request", s.ownSession, nil, map[string]any{"code": code, "silent": true,
		"store_history": false, "user_expressions": struct{}{}, "allow_stdin": false, "stop_on_error": false})
	id, reply := jupyter.StringField(m.Header, "msg_id"), make(chan []byte, 1)
	s.mu.Lock()
	s.ownReplies[id] = reply
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.ownReplies, id)
	}()
	if err := b.sockets[jupyter.Shell].Send(m.Frames(b.signer)); err != nil {
		return nil, err
	}
	select {
	case content := <-reply:
		return content, nil
	case <-ctx.Done():
		return nil, errors.New("it did not answer in time")
	case <-s.over:
		return nil, routes.ErrOver
	}
}

// passOwnReplyLocked passes a reply to the executeOwn that awaits it, if one does.
func (s *Supervisor) passOwnReplyLocked(m *jupyter.Message, parent jupyter.Header) {
	if reply := s.ownReplies[parent.MsgID]; reply != nil && m.Channel == jupyter.Shell {
		delete(s.ownReplies, parent.MsgID)
		reply <- bytes.Clone(m.Content) // it outlives the messages around it
	}
}
