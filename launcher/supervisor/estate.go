package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

const (
	estateFile  = "requests.json"       // in Config.SpillDir
	estatePause = 20 * time.Millisecond // the least time between two writes
	estateMost  = 2000                  // requests that are written
	estateSize  = 64 << 20              // bytes that are read
)

// estate keeps on disk what a supervisor that adopts the kernel has to know of this one's clients: which requests are with the
// kernel, and which cell each session has run last. It is written behind what happens, by a goroutine of its own: what came
// in the last moment before a supervisor was killed is missing. A nil estate keeps nothing.
type estate struct {
	path  string
	dirty chan struct{} // capacity 1
	left  bequest       // by the supervisor before; owned by Run
}

// bequest is the content of the file.
type bequest struct {
	Epoch    uint64         `json:"epoch"`
	Sessions []heirSession  `json:"sessions"`
	Requests []*heirRequest `json:"requests"` // in order of arrival
	Use      heirUse        `json:"use,omitzero"`
}

// heirUse is what is known of the kernel's use; see usage.
type heirUse struct {
	Started   time.Time `json:"started"`
	IdleSince time.Time `json:"idle_since"`
	Worked    time.Time `json:"worked,omitzero"`
	Left      time.Time `json:"left,omitzero"`
	Connected bool      `json:"connected,omitempty"`
	KeepUntil time.Time `json:"keep_until,omitzero"`
	Fresh     bool      `json:"fresh,omitempty"` // the kernel is not up yet
}

type heirSession struct {
	Key  string          `json:"key"`            // in Supervisor.sessions
	Cell json.RawMessage `json:"cell,omitempty"` // session.cell
}

type heirRequest struct {
	Session string          `json:"session"` // key; "": nobody waits for it any more
	ID      string          `json:"id"`
	Channel wire.Channel    `json:"channel"`
	Type    string          `json:"type"`
	Header  json.RawMessage `json:"header"`
	Cell    string          `json:"cell,omitempty"`
	Main    bool            `json:"main"`
	Replied bool            `json:"replied"`
	Idled   bool            `json:"idled"`
	Since   time.Time       `json:"since,omitzero"` // when the kernel began to work on it
}

func newEstate(dir string) *estate {
	return &estate{path: filepath.Join(dir, estateFile), dirty: make(chan struct{}, 1)}
}

// changed notes that there is something to write.
func (e *estate) changed() {
	if e != nil {
		poke(e.dirty)
	}
}

// keep writes what take returns, as often as there is something new, until ctx ends.
func (e *estate) keep(ctx context.Context, take func() ([]byte, error)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.dirty:
		}
		// An error is no reason to stop: the disk may be full for a while, and then a supervisor has to be killed too.
		if b, err := take(); err == nil {
			writeFile(e.path, b) //nolint:errcheck // see above
		}
		if !pause(ctx, estatePause) {
			return
		}
	}
}

// read reads what the supervisor before has left, if there was one.
func (e *estate) read() error {
	st, err := os.Stat(e.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && st.Size() > estateSize {
		err = errors.New("it is too large")
	}
	if err != nil {
		return err
	}
	data, err := os.ReadFile(e.path)
	if err != nil {
		return err
	}
	var left bequest
	if err := json.Unmarshal(data, &left); err != nil {
		return err
	}
	e.left = left
	return nil
}

// bequeath is the present content of the estate.
func (s *Supervisor) bequeath() ([]byte, error) {
	var b bequest
	s.mu.Lock()
	b.Epoch = s.epoch
	b.Use = heirUse{Started: s.started, IdleSince: s.clock.idleSince, Worked: s.clock.worked, Left: s.left, Connected: s.connections() > 0,
		KeepUntil: s.keepUntil, Fresh: s.clock.fresh}
	keys := make(map[*session]string, len(s.sessions))
	for key, sess := range s.sessions {
		if sess.id != "" { // else it ends with its connection, which ends with us
			keys[sess] = key
			b.Sessions = append(b.Sessions, heirSession{Key: key, Cell: sess.cell})
		}
	}
	for _, r := range s.order {
		if r.finished() || len(b.Requests) >= estateMost {
			continue
		}
		h := &heirRequest{Session: keys[r.session], ID: r.id, Channel: r.channel, Type: r.msgType,
			Header: r.header, Cell: r.cell, Main: r.main, Replied: r.replied, Idled: r.idled}
		if p := s.clock.inProgress[r.id]; p != nil {
			h.Since = p.since
		}
		b.Requests = append(b.Requests, h)
	}
	s.mu.Unlock()
	return json.Marshal(b)
}

// firstLife reports whether this supervisor has not run the kernel yet.
func (s *Supervisor) firstLife() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kernelInfo == nil && !s.adopted
}

// inherit takes over what a supervisor before this one has left, if there was one: who its clients are and what they wait
// for. They are told that what it had not delivered is lost.
//
// If the kernel lives, what it was asked is in doubt, as it is behind a broken connection: what it has not answered by the
// time it answers our own first question was answered to nobody. If it has died in the meantime, without a child that could
// tell how, everything ends here.
func (s *Supervisor) inherit(lives bool) {
	var b bequest
	if s.estate != nil {
		b = s.estate.left
	}
	if !lives && b.Epoch == 0 {
		return // nobody was before
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.adopted = true
	s.epoch = max(s.epoch, b.Epoch+1) // begin has counted or will count
	s.inheritUse(b.Use, lives)
	heirs := map[string]*session{}
	for _, h := range b.Sessions {
		if sess := s.sessions[h.Key]; sess != nil { // it has come back already
			heirs[h.Key] = sess
			if sess.cell == nil {
				sess.cell = h.Cell
			}
			continue
		}
		if len(s.sessions) >= maxSessions {
			continue
		}
		s.connNumber++
		sess := &session{number: s.connNumber, id: h.Key, conns: map[*conn]struct{}{}, cell: h.Cell, left: s.now()}
		s.sessions[h.Key], heirs[h.Key] = sess, sess
	}
	fate := "The kernel runs on with its variables"
	if !lives {
		fate = "The kernel has died meanwhile, and another is started"
	}
	told := map[*session][]byte{} // where: the cell that runs or waits, else the last
	for _, h := range b.Requests {
		r := &request{id: h.ID, session: heirs[h.Session], channel: h.Channel, msgType: h.Type, header: h.Header, cell: h.Cell,
			main: h.Main, replied: h.Replied, idled: h.Idled, doubt: true, lossTold: true}
		r.sent.Store(true)
		if r.session == nil || r.finished() || r.channel != wire.Shell && r.channel != wire.Control {
			continue
		}
		r.session.pending++
		s.note(r)
		if r.msgType == "execute_request" && told[r.session] == nil {
			told[r.session] = r.header
		}
	}
	for _, sess := range heirs {
		cell := told[sess]
		if cell == nil {
			cell = sess.cell
		}
		if len(cell) > 0 {
			s.log.append(sess, s.notice(cell, "The program that keeps this kernel's output was started again. %s; output of before "+
				"that had not arrived here is lost.", fate), true)
		}
	}
	if lives {
		s.adoptBusy(b.Requests)
		return
	}
	s.abortOutstanding("error", "KernelDied", "the kernel's container ended while its supervisor was away")
}

// inheritUse goes on with the clocks of the supervisor before. Of a kernel that is started anew only its age and what its owner
// wants are the same. s.mu is held.
func (s *Supervisor) inheritUse(u heirUse, lives bool) {
	if u.Started.IsZero() {
		return // it wrote none
	}
	s.started, s.keepUntil = u.Started, u.KeepUntil
	if !lives || u.Fresh {
		return
	}
	s.clock.fresh, s.clock.idleSince, s.clock.worked, s.left = false, u.IdleSince, u.Worked, u.Left
	if u.Connected {
		s.left = s.now().UTC() // its clients had no chance to stay
	}
}

// adoptBusy marks the oldest inherited cell as running: no status of the kernel will tell before its end. What is not for
// the main shell or control is in no order with our questions, and is given up. s.mu is held.
func (s *Supervisor) adoptBusy(left []*heirRequest) {
	if r := s.oldestCell(); r != nil {
		s.clock.busy[r.id] = s.now()
		s.clock.begun(wire.Header{MsgID: r.id, MsgType: r.msgType})
		at := slices.IndexFunc(left, func(h *heirRequest) bool { return h.ID == r.id && !h.Since.IsZero() })
		if p := s.clock.inProgress[r.id]; p != nil && at >= 0 {
			p.since = left[at].Since
		}
	}
	for _, r := range s.order {
		switch {
		case !r.finished() && !r.main:
			s.lose(r, "its answer is lost with the program that was to deliver it")
		case r.replied && !r.finished():
			s.abort(r, "", "", "")
		}
	}
}
