package kube

import (
	"context"
	"encoding/json"
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
	peerTime = 2 * time.Second // for a peer to answer a notification
	// silentTime is how long a client waits for peers that have not answered the last notification. A peer that answers
	// again needs a few milliseconds.
	silentTime = 100 * time.Millisecond
	// maxMissed bounds the kernels of which a silent peer is notified when it answers again. For others it relies on its
	// watch.
	maxMissed = 1000
)

// silentPeer is a peer that has not answered a notification.
type silentPeer struct {
	missed map[string]bool // kernels
	asked  chan struct{}   // not nil: a goroutine notifies it; closed at the end
}

// notifyPeers makes every other replica read a kernel. It returns when all have done so, at the latest after peerTime.
// It waits only for silentTime for peers that have not answered before.
func (l *Launcher) notifyPeers(ctx context.Context, id string) {
	if l.peers == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), peerTime)
	defer cancel()
	var wg sync.WaitGroup
	for name, ip := range l.peers.known() {
		if asked := l.peers.notifySilent(name, ip, id); asked != nil {
			wg.Go(func() {
				select {
				case <-asked:
				case <-time.After(silentTime):
				}
			})
			continue
		}
		wg.Go(func() {
			if err := l.peers.notify(ctx, peerAddress(ip), id); err != nil {
				l.log.Info("a replica could not be notified of a kernel; this is tried again", logkey.Replica, name,
					logkey.Kernel, id, logkey.Err, err)
				l.peers.missed(name, id)
			}
		})
	}
	wg.Wait()
}

// notify makes the peer at an address read a kernel.
func (p *peers) notify(ctx context.Context, address, id string) error {
	var body []byte
	if end := p.l.endingForPeers(id); end != nil {
		var err error
		if body, err = json.Marshal(end); err != nil {
			// it was parsed, or comes from this machine's clock
			panic("kube: the time of an ending cannot be encoded: " + err.Error())
		}
	}
	resp, err := p.do(ctx, http.MethodPost, address, "/kernels/"+id, body)
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

// missed records that a peer has not answered a notification.
func (p *peers) missed(name, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.silent[name] == nil {
		p.silent[name] = &silentPeer{missed: map[string]bool{}}
	}
	p.silent[name].addMissed(id)
}

func (s *silentPeer) addMissed(id string) {
	if len(s.missed) < maxMissed {
		s.missed[id] = true
	}
}

// notifySilent notifies a silent peer in the background, of this kernel and of all that it has missed. The result is
// closed when the peer has answered or fails again. It is nil if the peer is not silent.
func (p *peers) notifySilent(name, ip, id string) (asked <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.silent[name]
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
	if !p.l.goroutines.Go(func() {
		defer close(done)
		p.catchUp(name, ip, s)
	}) {
		close(done) // this gateway is ending
	}
	return done
}

// catchUp notifies a silent peer of all that it has missed, until it fails again.
func (p *peers) catchUp(name, ip string, s *silentPeer) {
	for {
		p.mu.Lock()
		ids := slices.Collect(maps.Keys(s.missed))
		if len(ids) == 0 {
			delete(p.silent, name)
			p.mu.Unlock()
			p.l.log.Info("a replica answers again", logkey.Replica, name)
			return
		}
		p.mu.Unlock()
		for _, id := range ids {
			ctx, cancel := context.WithTimeout(p.l.ctx, peerTime)
			err := p.notify(ctx, peerAddress(ip), id)
			cancel()
			p.mu.Lock()
			if err != nil {
				s.asked = nil
				p.mu.Unlock()
				p.l.log.Debug("a replica does not answer yet", logkey.Replica, name, logkey.Err, err)
				return
			}
			delete(s.missed, id)
			p.mu.Unlock()
		}
	}
}

// notifyAllSilent tries every silent peer again. It forgets those that are no replicas any more.
func (p *peers) notifyAllSilent() {
	known := p.known()
	p.mu.Lock()
	var again []string
	for name := range p.silent {
		if known[name] == "" {
			delete(p.silent, name)
		} else {
			again = append(again, name)
		}
	}
	p.mu.Unlock()
	for _, name := range again {
		p.notifySilent(name, known[name], "")
	}
}
