package kube

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/cluster"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// Pauses between two attempts of an informer whose requests are not answered.
const (
	firstWatchRetry = 800 * time.Millisecond
	lastWatchRetry  = 30 * time.Second
)

// answers wakes informers when the API server answers any request. The zero value can be used.
type answers struct {
	mu   sync.Mutex
	next chan struct{} // closed at the next answer; nil: no informer waits
}

// wait returns a channel that is closed at the next answer.
func (a *answers) wait() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.next == nil {
		a.next = make(chan struct{})
	}
	return a.next
}

// kick records an answer.
func (a *answers) kick() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.next != nil {
		close(a.next)
		a.next = nil
	}
}

// untilAnswered makes an informer's request until the API server answers it. client-go's informers would wait up to
// 30 s between two attempts, also when the API server answers other requests by then.
func untilAnswered[T any](ctx context.Context, l *watches, ask func() (T, error)) (T, error) {
	for pause := firstWatchRetry; ; pause = min(2*pause, lastWatchRetry) {
		got, err := ask()
		if err == nil || cluster.IsAnswer(err) {
			return got, err
		}
		if pause == firstWatchRetry && ctx.Err() == nil {
			l.log.Warn("the cluster's pods cannot be watched; this is tried again", logkey.Err, err)
		}
		// The first pause is never cut short: other requests may be answered all the time.
		for _, wait := range []struct {
			time    time.Duration
			answers <-chan struct{}
		}{{firstWatchRetry, nil}, {pause - firstWatchRetry + rand.N(pause/2), l.answers.wait()}} {
			timer := time.NewTimer(wait.time)
			select {
			case <-timer.C:
			case <-wait.answers:
			case <-ctx.Done():
			case <-l.ctx.Done():
			}
			timer.Stop()
		}
		if ctx.Err() != nil || l.ctx.Err() != nil {
			return got, err
		}
	}
}
