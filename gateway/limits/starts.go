package limits

import (
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

// maxStarters bounds the number of users whose recent starts are remembered. A user who is forgotten starts with a full
// allowance.
const maxStarters = 1 << 14

// Starts bounds how many kernels each user may start in a minute. It may be used concurrently.
type Starts struct {
	perMinute int // 0: no bound
	byUser    *lru.Cache[string, *rate.Limiter]
}

// NewStarts allows each user perMinute starts in a minute; 0 means no bound. The number must not be negative.
func NewStarts(perMinute int) *Starts {
	byUser, err := lru.New[string, *rate.Limiter](maxStarters)
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	return &Starts{perMinute, byUser}
}

// Take counts a start of a user. If the user has started too many, the start is not counted, and Take returns how long
// the user has to wait for the next one; otherwise it returns 0.
func (s *Starts) Take(user string) (wait time.Duration) {
	if s.perMinute == 0 {
		return 0
	}
	limiter := rate.NewLimiter(rate.Limit(float64(s.perMinute)/60), s.perMinute)
	if known, there, _ := s.byUser.PeekOrAdd(user, limiter); there {
		limiter = known
	}
	s.byUser.Get(user) // marks it as the most recently used
	reservation := limiter.Reserve()
	if wait = reservation.Delay(); wait > 0 {
		reservation.Cancel()
	}
	return wait
}
