package supervisor

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/activity"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/savedstate"
)

// savedState returns the present state in the form of the saved state's file.
func (s *Supervisor) savedState() ([]byte, error) {
	var b savedstate.State
	s.mu.Lock()
	b.Epoch = s.epoch
	idle := s.clock.Idle()
	b.Use = savedstate.Use{
		Started:   s.started,
		IdleSince: idle.Since,
		LongWork:  idle.LongWork,
		Left:      s.lastLeft,
		Connected: s.activeConnections > 0,
		KeepUntil: s.keepUntil,
		Starting:  idle.Starting,
	}
	keys := make(map[uint64]string, len(s.sessions))
	for key, sess := range s.sessions {
		if sess.id != "" { // otherwise it ends with its connection
			keys[sess.number] = key
			b.Sessions = append(b.Sessions, savedstate.Session{Key: key, Cell: sess.lastCell})
		}
	}
	for r := range s.requests.Open() {
		if len(b.Requests) >= savedstate.MaxRequests {
			break
		}
		h := &savedstate.Request{Session: keys[r.Session], ID: r.ID, Channel: r.Channel, Type: r.Type,
			Header: r.Header, Cell: r.Cell, Main: r.Main, Replied: r.Replied, Idled: r.Idled}
		h.Since = s.clock.BusySince(r.ID)
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

// restore restores the clients' sessions and requests from the previous supervisor, if there was one. A notice in the
// clients' cells says that undelivered output is lost.
//
// If the kernel lives, its requests are doubtful, as after a broken connection. Requests that have no answer when the
// kernel answers the supervisor's first request will get none. If the kernel has died meanwhile, all of them end here.
func (s *Supervisor) restore(lives bool) {
	b := s.inherited
	if !lives && b.Epoch == 0 {
		return // there was no other supervisor
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.adopted = true
	s.epoch = max(s.epoch, b.Epoch+1) // beginLife counts this life
	s.restoreUseLocked(b.Use, lives)
	heirs := map[string]*session{}
	for _, h := range b.Sessions {
		if sess := s.sessions[h.Key]; sess != nil { // its client has returned already
			heirs[h.Key] = sess
			if sess.lastCell == nil {
				sess.lastCell = h.Cell
			}
			continue
		}
		if len(s.sessions) >= maxSessions {
			continue
		}
		s.connNumber++
		sess := &session{number: s.connNumber, id: h.Key, conns: map[*clientConn]struct{}{}, lastCell: h.Cell, left: s.now()}
		s.sessions[h.Key], heirs[h.Key] = sess, sess
	}
	fate := "The kernel runs on with its variables"
	if !lives {
		fate = "The kernel has died meanwhile, and another is started"
	}
	told := map[uint64][]byte{} // by session: the header of its running or waiting cell, which shows the notice
	for _, h := range b.Requests {
		sess := heirs[h.Session]
		if sess == nil {
			continue
		}
		r := &requests.Request{
			ID:            h.ID,
			Session:       sess.number,
			Channel:       h.Channel,
			Type:          h.Type,
			Header:        h.Header,
			Cell:          h.Cell,
			Main:          h.Main,
			Replied:       h.Replied,
			Idled:         h.Idled,
			Doubtful:      true,
			LossAnnounced: true,
		}
		r.Sent.Store(true)
		if r.Finished() || r.Channel != jupyter.Shell && r.Channel != jupyter.Control {
			continue
		}
		s.addRequestLocked(r)
		if r.Executes() && told[r.Session] == nil {
			told[r.Session] = r.Header
		}
	}
	for _, sess := range heirs {
		cell := told[sess.number]
		if cell == nil {
			cell = sess.lastCell
		}
		if len(cell) > 0 {
			s.log.Append(
				sess.number,
				s.noticeLocked(cell, "The program that keeps this kernel's output was started again. %s; output of before "+
					"that had not arrived here is lost.", fate),
				true,
			)
		}
	}
	if lives {
		s.adoptRunningLocked(b.Requests)
		return
	}
	s.abortAllLocked("error", "KernelDied", "the kernel's container ended while its supervisor was away")
}

// restoreUseLocked continues the clocks of the previous supervisor. If the kernel is started again, it keeps only its
// first start and the time until which its owner keeps it.
func (s *Supervisor) restoreUseLocked(u savedstate.Use, lives bool) {
	if u.Started.IsZero() {
		return // the previous supervisor has not saved it
	}
	s.started, s.keepUntil = u.Started, u.KeepUntil
	if !lives || u.Starting {
		return
	}
	s.clock.Resume(activity.Idle{Since: u.IdleSince, LongWork: u.LongWork})
	s.lastLeft = u.Left
	if u.Connected {
		s.lastLeft = s.now().UTC() // its connections ended with the previous supervisor
	}
}

// adoptRunningLocked marks the oldest restored cell as running, since the kernel sends no status before its end.
// Requests to subshells have no order relative to the supervisor's own, and are given up.
func (s *Supervisor) adoptRunningLocked(left []*savedstate.Request) {
	if r := s.requests.OldestCell(); r != nil {
		var since time.Time
		if at := slices.IndexFunc(left,
			func(h *savedstate.Request) bool { return h.ID == r.ID && !h.Since.IsZero() }); at >= 0 {
			since = left[at].Since
		}
		s.clock.Adopt(r.ID, r.Type, since)
	}
	for r := range s.requests.Open() {
		switch {
		case !r.Finished() && !r.Main:
			s.loseLocked(r, "its answer is lost with the program that was to deliver it")
		case r.Replied && !r.Finished():
			s.abortLocked(r, "", "", "")
		}
	}
}
