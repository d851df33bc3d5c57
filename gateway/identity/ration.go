package identity

import (
	"sync"
	"time"
)

// Bounds of a Ration.
const (
	rationBurst  = 200 // lines at once
	rationPerSec = 10  // lines in a second, later
)

// Ration bounds how many lines a log gets about requests without a known user, which anyone can send. The lines that it
// holds back are counted, so that a later line can say how many they were. The zero value is ready. It may be used
// concurrently.
type Ration struct {
	mu   sync.Mutex
	used float64   // guarded by mu; lines at most, refilled with time
	at   time.Time // guarded by mu; when used was computed
	held int       // guarded by mu; lines held back since the last one that was not
}

// Take asks for one line now. If there may be one, others says how many lines were held back before it. Otherwise the
// line is held back, and others says how many are.
func (r *Ration) Take(now time.Time) (others int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if since := now.Sub(r.at).Seconds(); since > 0 {
		r.used, r.at = max(0, r.used-since*rationPerSec), now
	}
	if r.used+1 > rationBurst {
		r.held++
		return r.held, false
	}
	r.used++
	others, r.held = r.held, 0
	return others, true
}

// Held returns how many lines were held back since the last one, and counts them as reported.
func (r *Ration) Held() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	held := r.held
	r.held = 0
	return held
}
