package gateway

import (
	"errors"
	"net/http"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

// limitedUsers bounds of how many users it is remembered when they have started kernels. Whoever is forgotten begins anew.
const limitedUsers = 1 << 14

// startLimits bounds how many kernels each user may start. Where there is one owner, all share one bound.
type startLimits struct {
	perMinute int // 0: as many as they like
	byUser    *lru.Cache[string, *rate.Limiter]
}

func newStartLimits(perMinute int) (*startLimits, error) {
	if perMinute < 0 {
		return nil, errors.New("StartsPerMinute is negative")
	}
	byUser, err := lru.New[string, *rate.Limiter](limitedUsers)
	return &startLimits{perMinute, byUser}, err
}

// take counts a start, or refuses it.
func (l *startLimits) take(user string) error {
	if l.perMinute == 0 {
		return nil
	}
	fresh := rate.NewLimiter(rate.Limit(float64(l.perMinute)/60), l.perMinute)
	limiter, there, _ := l.byUser.PeekOrAdd(user, fresh)
	if !there {
		limiter = fresh
	}
	l.byUser.Get(user) // it is the newest now
	place := limiter.Reserve()
	wait := place.Delay()
	if wait == 0 {
		return nil
	}
	place.Cancel()
	p := refuse(http.StatusTooManyRequests, "You may start %d kernels in a minute. Try again in %v.", l.perMinute, roundUp(wait)).by(limitCheck)
	p.retry = wait
	return p
}

// roundUp makes whole seconds of a time, as Retry-After wants them.
func roundUp(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}
