package supervisor

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/activity"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/savedstate"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/session"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/starter"
)

// savedState returns the present state in the form of the saved state's file.
func (s *Supervisor) savedState() ([]byte, error) {
	s.mu.Lock()
	b := s.savedStateLocked()
	s.mu.Unlock()
	return json.Marshal(b)
}

func (s *Supervisor) savedStateLocked() (b savedstate.State) {
	b.Epoch = s.kernel.epoch
	if s.cfg.Secret.Identity == "" {
		b.Identity = s.identity
	}
	b.LastDeath, b.DeathSeen = s.kernel.death.Death, s.kernel.death.seen
	idle, now := s.use.Idle(), s.now()
	b.Use = savedstate.Use{
		SavedAt:      now.UTC(),
		SinceBoot:    s.sinceBoot(),
		Started:      savedstate.Time(s.use.Started, now),
		IdleSince:    savedstate.Time(idle.Since, now),
		LongWork:     savedstate.Time(idle.LongWork, now),
		LastActivity: s.use.LastActivity().UTC(),
		Left:         savedstate.Time(s.use.Left, now),
		Connected:    s.clients.sessions.Active() > 0,
		KeepUntil:    s.use.KeepUntil,
		KeepGPUUntil: s.use.KeepGPUUntil,
		CellBegan:    s.clients.cellBegan,
		Starting:     idle.Starting,
		GPU:          s.use.GPUs.Sum,
	}
	keys := make(map[uint64]string, s.clients.sessions.Len())
	for sess := range s.clients.sessions.All() {
		if sess.Lasting {
			keys[sess.Number] = sess.Key
			b.Sessions = append(b.Sessions, savedstate.Session{Key: sess.Key, Cell: sess.LastCell})
		}
	}
	for r := range s.clients.requests.Open() {
		if len(b.Requests) >= savedstate.MaxRequests {
			break
		}
		h := &savedstate.Request{Session: keys[r.Session], ID: r.ID, Channel: r.Channel, Type: r.Type,
			Header: r.Header, Cell: r.Cell, Main: r.Main, Replied: r.Replied, Idled: r.Idled}
		h.Since = savedstate.Time(s.use.BusySince(r.ID, r.Type), now)
		if p := s.clients.prompts.Of(r); p != nil {
			h.Prompt = savedstate.NewPrompt(&p.Message)
		}
		b.Requests = append(b.Requests, h)
	}
	return b
}

// restore restores the clients' sessions and requests from the previous supervisor, if there was one. A notice in the
// clients' cells says that undelivered output is lost.
//
// If the kernel lives, its requests are doubtful, as after a broken connection. Requests that have no answer when the
// kernel answers the supervisor's first request will get none. If the kernel has died meanwhile, all of them end here.
// If it is restarted, they end with life.endUnstarted.
func (s *Supervisor) restore(kernel starter.Fate) {
	saved, lives := s.inherited, kernel == starter.Lives
	if !lives && saved.Epoch == 0 {
		return // there was no other supervisor
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kernel.adopted = true
	s.timeline.fate(s.nowLocked(), kernel)
	if len(saved.Identity) > 0 && s.cfg.Secret.Identity == "" {
		s.identity = saved.Identity
	}
	s.kernel.epoch = max(s.kernel.epoch, saved.Epoch+1) // beginLife counts this life
	s.kernel.death = death{saved.LastDeath, saved.DeathSeen}
	ended := starter.PlaceOf(&s.cfg).Kernel() + " ended while its supervisor was away"
	if kernel == starter.Died && !saved.Use.CellBegan.IsZero() {
		s.kernel.death.die(s.now(), ended)
	}
	s.restoreUseLocked(saved.Use, lives)
	restored := s.clients.restoreSessions(saved.Sessions)
	cells := s.clients.restoreRequests(saved.Requests, restored)
	if !saved.Complete || !lives {
		s.clients.announceRestore(restored, cells, kernel, ended)
	}
	if lives {
		s.clients.cellBegan = saved.Use.CellBegan
		s.clients.adoptRunning(saved.Requests, savedstate.NewPast(saved.Use, s.now(), s.sinceBoot()))
		return
	}
	if kernel == starter.Died {
		s.clients.abortAll("error", "KernelDied", ended)
	}
}

// restoreSessions returns the sessions of the previous supervisor by their keys, as far as there is room. The
// client of a session may have returned already.
func (cs *clients) restoreSessions(saved []savedstate.Session) map[string]*session.Session {
	restored := map[string]*session.Session{}
	for _, h := range saved {
		user, readOnly := parseKey(h.Key)
		o := session.Options{Key: h.Key, User: user, Owner: cs.owns(user), ReadOnly: readOnly}
		sess := cs.sessions.Restore(o, cs.now())
		if sess == nil {
			continue
		}
		if sess.LastCell == nil {
			sess.LastCell = h.Cell
		}
		restored[h.Key] = sess
	}
	return restored
}

// restoreRequests restores the requests of restored sessions. By session number, it returns the header of the
// first cell that runs or waits.
func (cs *clients) restoreRequests(
	saved []*savedstate.Request, restored map[string]*session.Session,
) (cells map[uint64][]byte) {
	cells = map[uint64][]byte{}
	for _, h := range saved {
		sess := restored[h.Session]
		if sess == nil {
			continue
		}
		r := &requests.Request{
			ID: h.ID, Session: sess.Number, User: sess.User, Channel: h.Channel, Type: h.Type, Header: h.Header, Cell: h.Cell,
			Main: h.Main, Replied: h.Replied, Idled: h.Idled, Doubtful: true, LossAnnounced: true,
		}
		r.Sent.Store(true)
		if r.Finished() || r.Channel != jupyter.Shell && r.Channel != jupyter.Control {
			continue
		}
		cs.add(r)
		if h.Prompt != nil {
			cs.ask(r, h.Prompt.Message(r.Header))
		}
		if r.Executes() && cells[r.Session] == nil {
			cells[r.Session] = r.Header
		}
	}
	return cells
}

// announceRestore shows each restored session that output is lost: in its running or waiting cell, else in its
// last one. ended says how a kernel that has died meanwhile did that.
func (cs *clients) announceRestore(
	restored map[string]*session.Session, cells map[uint64][]byte, kernel starter.Fate, ended string,
) {
	what := [...]string{
		starter.Lives: "The kernel still runs and has its variables",
		starter.Died: "The kernel has died meanwhile, before " + api.ShownTime(cs.now()) + ": " + ended +
			". Its variables are gone, and another is started",
		starter.Restarted: "The kernel is restarted",
	}[kernel]
	for _, sess := range restored {
		cell := cells[sess.Number]
		if cell == nil {
			cell = sess.LastCell
		}
		if len(cell) > 0 {
			cs.log.Append(sess.Number, cs.notices.Line(cell, "The program that keeps this kernel's output was started again. "+
				"%s. Output that had not reached this page by then is lost.", what), true)
		}
	}
}

// restoreUseLocked continues the clocks of the previous supervisor. If the kernel is started again, it keeps only its
// first start and the time until which its owner keeps it.
func (s *Supervisor) restoreUseLocked(u savedstate.Use, lives bool) {
	if u.Started.IsZero() {
		return // the previous supervisor has not saved it
	}
	p := savedstate.NewPast(u, s.now(), s.sinceBoot())
	s.use.Started, s.use.Keeps = p.At(u.Started), activity.Keeps{KeepUntil: u.KeepUntil, KeepGPUUntil: u.KeepGPUUntil}
	s.use.GPUs.Sum = u.GPU
	if !lives || u.Starting {
		return
	}
	s.use.Resume(activity.Idle{Since: p.At(u.IdleSince), LongWork: p.At(u.LongWork)}, p.Shown(u.LastActivity))
	s.use.Left = p.At(u.Left)
	if u.Connected {
		s.use.Left = p.Now // its connections ended with the previous supervisor
	}
}

// adoptRunning marks the oldest restored cell as running, since the kernel sends no status before its end.
// Requests to subshells have no order relative to the supervisor's own, and are given up.
func (cs *clients) adoptRunning(left []*savedstate.Request, p savedstate.Past) {
	if r := cs.requests.OldestCell(); r != nil {
		var since time.Time
		if at := slices.IndexFunc(left,
			func(h *savedstate.Request) bool { return h.ID == r.ID && !h.Since.IsZero() }); at >= 0 {
			since = p.At(left[at].Since)
		}
		cs.use.Adopt(r.ID, r.Type, since)
	}
	for r := range cs.requests.Open() {
		switch {
		case !r.Finished() && !r.Main:
			cs.lose(r, "the answer was lost when the program that keeps this kernel's output ended")
		case r.Replied && !r.Finished():
			cs.abort(r, "", "", "")
		}
	}
}
