package limits

import (
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

// rateUsers bounds the number of users that a Rate remembers. A user who is forgotten has a full allowance again.
const rateUsers = 1 << 14

// Rate bounds how often each user may do something in a minute. It may be used concurrently.
type Rate struct {
	perMinute int // 0: no bound
	byUser    *lru.Cache[string, *rate.Limiter]
}

// NewRate allows each user to do something perMinute times in a minute; 0 means no bound. The number must not be
// negative.
func NewRate(perMinute int) *Rate {
	byUser, err := lru.New[string, *rate.Limiter](rateUsers)
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	return &Rate{perMinute, byUser}
}

// Take counts one start of a user, and returns 0. If the user has no start left, it counts nothing, and returns how
// long the user has to wait.
func (r *Rate) Take(user string) (wait time.Duration) {
	if r.perMinute == 0 {
		return 0
	}
	limiter := rate.NewLimiter(rate.Limit(float64(r.perMinute)/60), r.perMinute)
	if known, there, _ := r.byUser.PeekOrAdd(user, limiter); there {
		limiter = known
	}
	r.byUser.Get(user) // marks it as the most recently used
	reservation := limiter.Reserve()
	if wait = reservation.Delay(); wait > 0 {
		reservation.Cancel()
	}
	return wait
}
