package supervisor

import (
	"bytes"
	"context"
	"errors"
	"sync"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/routes"
)

// ownRequests are the supervisor's own requests to the kernel. No client sees them or their answers. They may be used
// concurrently.
type ownRequests struct {
	// Fixed.
	session string          // session id of all of them
	over    <-chan struct{} // closed when the kernel has ended for good

	mu      sync.Mutex             // guards replies; no other lock is taken under it
	replies map[string]chan []byte // by msg_id: where execute awaits its reply; capacity 1
}

// execute has the kernel execute code. It returns the content of the reply. The code runs in the user's namespace, and
// waits while the kernel is busy.
func (o *ownRequests) execute(ctx context.Context, b *bridge, code string) ([]byte, error) {
	m := jupyter.New(jupyter.Shell, "execute_request", o.session, nil, map[string]any{"code": code, "silent": true,
		"store_history": false, "user_expressions": struct{}{}, "allow_stdin": false, "stop_on_error": false})
	id, reply := jupyter.StringField(m.Header, "msg_id"), make(chan []byte, 1)
	o.mu.Lock()
	o.replies[id] = reply
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.replies, id)
	}()
	if err := b.sockets[jupyter.Shell].Send(m.Frames(b.signer)); err != nil {
		return nil, err
	}
	select {
	case content := <-reply:
		return content, nil
	case <-ctx.Done():
		return nil, errors.New("it did not answer in time")
	case <-o.over:
		return nil, routes.ErrOver
	}
}

// pass passes a reply to the execute that awaits it, if one does.
func (o *ownRequests) pass(m *jupyter.Message, parent jupyter.Header) {
	if m.Channel != jupyter.Shell {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if reply := o.replies[parent.MsgID]; reply != nil {
		delete(o.replies, parent.MsgID)
		reply <- bytes.Clone(m.Content) // it outlives the messages around it
	}
}
