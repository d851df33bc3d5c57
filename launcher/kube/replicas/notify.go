package replicas

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

const (
	answerTime = 2 * time.Second // for a replica to answer a notification
	// silentTime is how long a client waits for replicas that have not answered the last notification. A replica that
	// answers again needs a few milliseconds.
	silentTime = 100 * time.Millisecond
	// maxMissed bounds the kernels of which a silent replica is notified when it answers again. For others it relies on
	// its watch.
	maxMissed = 1000
)

// silentReplica is a replica that has not answered a notification.
type silentReplica struct {
	missed map[string]bool // kernels
	asked  chan struct{}   // not nil: a goroutine notifies it; closed at the end
}

// Notify makes every other replica read a kernel. It returns when all have done so, at the latest after answerTime. It
// waits only for silentTime for replicas that have not answered before.
func (rs *Replicas) Notify(ctx context.Context, id string) {
	if rs == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	var wg sync.WaitGroup
	for name, ip := range rs.known() {
		if asked := rs.notifySilent(name, ip, id); asked != nil {
			wg.Go(func() {
				select {
				case <-asked:
				case <-time.After(silentTime):
				}
			})
			continue
		}
		wg.Go(func() {
			if err := rs.notify(ctx, address(ip), id); err != nil {
				rs.log.Info("a replica could not be notified of a kernel; this is tried again", logkey.Replica, name,
					logkey.Kernel, id, logkey.Err, err)
				rs.missed(name, id)
			}
		})
	}
	wg.Wait()
}

// notify makes the replica at an address read a kernel.
func (rs *Replicas) notify(ctx context.Context, address, id string) error {
	resp, err := rs.do(ctx, http.MethodPost, address, "/kernels/"+id, rs.kernels.Ending(id))
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // it is empty
	if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<10)); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusNoContent {
		return fmt.Errorf("it answers %s", resp.Status)
	}
	return nil
}

// missed records that a replica has not answered a notification.
func (rs *Replicas) missed(name, id string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.silent[name] == nil {
		rs.silent[name] = &silentReplica{missed: map[string]bool{}}
	}
	rs.silent[name].addMissed(id)
}

func (s *silentReplica) addMissed(id string) {
	if len(s.missed) < maxMissed {
		s.missed[id] = true
	}
}

// notifySilent notifies a silent replica in the background, of this kernel and of all that it has missed. The result is
// closed when the replica has answered or fails again. It is nil if the replica is not silent.
func (rs *Replicas) notifySilent(name, ip, id string) (asked <-chan struct{}) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	s := rs.silent[name]
	if s == nil {
		return nil
	}
	if id != "" {
		s.addMissed(id)
	}
	if s.asked != nil {
		return s.asked
	}
	done := make(chan struct{})
	s.asked = done
	if !rs.opts.Goroutines.Go(func() {
		defer close(done)
		rs.catchUp(name, ip, s)
	}) {
		close(done) // this gateway is ending
	}
	return done
}

// catchUp notifies a silent replica of all that it has missed, until it fails again.
func (rs *Replicas) catchUp(name, ip string, s *silentReplica) {
	for {
		rs.mu.Lock()
		ids := slices.Collect(maps.Keys(s.missed))
		if len(ids) == 0 {
			delete(rs.silent, name)
			rs.mu.Unlock()
			rs.log.Info("a replica answers again", logkey.Replica, name)
			return
		}
		rs.mu.Unlock()
		for _, id := range ids {
			ctx, cancel := context.WithTimeout(rs.life, answerTime)
			err := rs.notify(ctx, address(ip), id)
			cancel()
			rs.mu.Lock()
			if err != nil {
				s.asked = nil
				rs.mu.Unlock()
				rs.log.Debug("a replica does not answer yet", logkey.Replica, name, logkey.Err, err)
				return
			}
			delete(s.missed, id)
			rs.mu.Unlock()
		}
	}
}

// notifyAllSilent tries every silent replica again. It forgets those that are no replicas any more.
func (rs *Replicas) notifyAllSilent() {
	known := rs.known()
	rs.mu.Lock()
	var again []string
	for name := range rs.silent {
		if known[name] == "" {
			delete(rs.silent, name)
		} else {
			again = append(again, name)
		}
	}
	rs.mu.Unlock()
	for _, name := range again {
		rs.notifySilent(name, known[name], "")
	}
}
