package kernels

import "sync"

// pendingStarts counts the requests that wait for the same kernel. A client that chooses the kernel's id can repeat its
// request. A kernel is abandoned only when the last request has ended and none was answered.
type pendingStarts struct {
	mu   sync.Mutex
	byID map[string]*attempts // guarded by mu
}

// attempts is the requests for one kernel.
type attempts struct {
	of *pendingStarts
	id string

	// Guarded by of.mu.
	waiting  int
	created  bool
	answered bool
}

// enter begins one request. Its caller must call leave.
func (s *pendingStarts) enter(id string) *attempts {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID == nil {
		s.byID = map[string]*attempts{}
	}
	a := s.byID[id]
	if a == nil {
		a = &attempts{of: s, id: id}
		s.byID[id] = a
	}
	a.waiting++
	return a
}

// leave ends one request, and reports whether its caller has to remove the kernel.
func (a *attempts) leave(created, answered bool) bool {
	a.of.mu.Lock()
	defer a.of.mu.Unlock()
	a.waiting--
	a.created = a.created || created
	a.answered = a.answered || answered
	if a.waiting > 0 {
		return false
	}
	delete(a.of.byID, a.id)
	return a.created && !a.answered
}
