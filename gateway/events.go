package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"hash/maphash"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/channels"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const (
	eventsEvery   = time.Second      // between two updates of one stream
	eventsAlive   = 15 * time.Second // of silence, after which a comment shows that the stream lives
	eventsRetry   = 2 * time.Second  // after which a browser's EventSource connects again
	eventsKernels = 250              // most kernels in one event
)

// Names of events.
const (
	eventReset       = "reset"       // what the client knows is void; a complete list follows
	eventKernels     = "kernels"     // kernels that are new or have changed, and ids of those that are gone
	eventComplete    = "complete"    // the events since the last one make a whole list
	eventTotals      = "totals"      // numbers of all kernels, by state
	eventUnavailable = "unavailable" // the kernels cannot be listed at present
)

// eventSeed is for hashes of models, which never leave the process.
var eventSeed = maphash.MakeSeed()

// getEvents tells the caller's kernels as they change, as server-sent events. The first update is the whole list. So a
// client that connects again, to this gateway or another, needs no memory of what it missed.
func (g *Gateway) getEvents(w http.ResponseWriter, r *call) error {
	// net/http notices that a client has left only after the request's body was read.
	if _, err := g.bodies.read(w, r); err != nil {
		return err
	}
	first, err := g.feed.read(r.Context(), g)
	if err != nil {
		return err
	}
	c, err := g.eventReaders.open(r, "")
	if err != nil {
		return err
	}
	defer g.eventReaders.Remove(c)
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // or nginx would hold events back
	h.Set("Connection", "close")     // its deadlines would apply to the next request
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	rc := http.NewResponseController(w)
	ended := make(chan struct{})
	stop := context.AfterFunc(c.Context(), func() {
		defer close(ended)
		_ = rc.SetWriteDeadline(time.Now().Add(channels.FlushTime)) // fails only where no write can block
	})
	defer func() {
		if !stop() {
			<-ended // so that it no longer touches the connection
		}
	}()
	s := &eventStream{g: g, who: r.Who, known: map[string]uint64{},
		send: func(b []byte) error { return pass(c.Context(), rc, w, b) }}
	if err := s.run(c.Context(), first); err != nil && r.Context().Err() == nil {
		return err
	}
	return r.Context().Err()
}

// feed lists the kernels for all streams of events and unknown sessions, at most once in most of g.eventsEvery.
type feed struct {
	turn chan struct{} // has one element while nobody lists

	// Owned by who has the turn.
	at   time.Time
	last *listing
	err  error
}

func newFeed() *feed {
	f := &feed{turn: make(chan struct{}, 1)}
	f.turn <- struct{}{}
	return f
}

// read returns a listing that is a little younger than g.eventsEvery. An error is remembered as long.
func (f *feed) read(ctx context.Context, g *Gateway) (*listing, error) {
	ctx, cancel := context.WithTimeout(ctx, kernels.ReadTime)
	defer cancel()
	select {
	case <-f.turn:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { f.turn <- struct{}{} }()
	if !f.at.IsZero() && time.Since(f.at) < g.eventsEvery*9/10 {
		return f.last, f.err
	}
	kernels, err := g.opts.Launcher.Kernels(ctx)
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return nil, err // only this reader has left
	}
	f.at, f.last, f.err = time.Now(), nil, err
	if err == nil {
		f.last = newListing(kernels)
	}
	return f.last, f.err
}

// listing is all kernels at one time. It may be used concurrently.
type listing struct {
	kernels []launcher.Kernel
	totals  []byte

	once sync.Once // guards the making of all
	all  []*modelText
	err  error
}

func newListing(kernels []launcher.Kernel) *listing {
	l := &listing{kernels: kernels}
	states := map[api.State]int{}
	for i := range kernels {
		states[kernels[i].State]++
	}
	l.totals, _ = json.Marshal(map[string]any{"kernels": len(kernels), "states": states}) // it has no error
	return l
}

// modelsFor returns the models of the kernels that the caller sees. Callers who see everything read the same texts.
func (l *listing) modelsFor(g *Gateway, who kernels.Caller) ([]*modelText, error) {
	if !who.SeesAll() {
		return g.models.textsFor(who, l.kernels)
	}
	l.once.Do(func() { l.all, l.err = g.models.textsFor(who, l.kernels) })
	return l.all, l.err
}

// eventStream is one client's stream. It is owned by the request's handler.
type eventStream struct {
	g    *Gateway
	who  kernels.Caller
	send func([]byte) error // returns when the client's connection has taken the bytes

	known  map[string]uint64 // what the client knows: the hash of each model, by id
	totals string
	broken bool // the client was told that the kernels cannot be listed
	buf    []byte
}

// run sends updates until ctx ends or the client does not take them, which is the error.
func (s *eventStream) run(ctx context.Context, first *listing) error {
	hello := "retry: " + strconv.FormatInt(eventsRetry.Milliseconds(), 10) + "\n\nevent: " + eventReset + "\ndata: {}\n\n"
	if err := s.send([]byte(hello)); err != nil {
		return err
	}
	if _, err := s.update(first, true); err != nil {
		return err
	}
	tick := time.NewTicker(s.g.eventsEvery)
	defer tick.Stop()
	quiet := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		sent, err := s.next(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case sent:
			quiet = time.Now()
		case time.Since(quiet) >= s.g.eventsAlive:
			if err := s.send([]byte(": alive\n\n")); err != nil {
				return err
			}
			quiet = time.Now()
		}
	}
}

// next sends what has changed since the last update. It decides what a slow client gets: no update waits for it. While
// it takes one, the others are left out, and the next update leads from what it knows to what is. So a stream holds one
// hash for each kernel and at most one event, however slow its client is. After logPatience without progress it ends.
func (s *eventStream) next(ctx context.Context) (sent bool, err error) {
	now, err := s.g.feed.read(ctx, s.g)
	if err == nil {
		return s.update(now, s.broken)
	}
	if s.broken || ctx.Err() != nil {
		return false, nil
	}
	s.broken = true
	p := problemOf(&call{Request: (&http.Request{}).WithContext(ctx), Act: kernels.Act{Who: s.who}}, err)
	text, err := json.Marshal(errorBody{Reason: http.StatusText(p.status), Message: p.message})
	if err != nil {
		return false, err
	}
	return true, s.event(eventUnavailable, text)
}

// update sends the difference between what the client knows and a listing. Nothing is sent if there is none, unless
// always is set.
func (s *eventStream) update(l *listing, always bool) (sent bool, err error) {
	texts, err := l.modelsFor(s.g, s.who)
	if err != nil {
		return false, err
	}
	s.broken = false
	p := eventPart{s: s}
	for _, t := range texts {
		if sum, ok := s.known[t.model.ID]; ok && sum == t.sum {
			continue
		}
		s.known[t.model.ID] = t.sum
		if err := p.changed(t.text); err != nil {
			return false, err
		}
	}
	if len(s.known) > len(texts) {
		for _, id := range s.gone(texts) {
			delete(s.known, id)
			if err := p.removed(id); err != nil {
				return false, err
			}
		}
	}
	if err := p.flush(); err != nil {
		return false, err
	}
	if totals := string(l.totals); totals != s.totals {
		s.totals = totals
		if err := s.event(eventTotals, l.totals); err != nil {
			return false, err
		}
		p.sent = true
	}
	if !p.sent && !always {
		return false, nil
	}
	return true, s.event(eventComplete, []byte("{}"))
}

// gone returns the ids that the client knows and that are not among those that are there, in order.
func (s *eventStream) gone(there []*modelText) []string {
	left := make(map[string]bool, len(there))
	for _, t := range there {
		left[t.model.ID] = true
	}
	var gone []string
	for id := range s.known {
		if !left[id] {
			gone = append(gone, id)
		}
	}
	slices.Sort(gone)
	return gone
}

// event sends an event. Its data is JSON, which has no line break.
func (s *eventStream) event(name string, data []byte) error {
	s.buf = append(s.buf[:0], "event: "...)
	s.buf = append(append(append(s.buf, name...), "\ndata: "...), data...)
	s.buf = append(s.buf, "\n\n"...)
	return s.send(s.buf)
}

// eventPart collects an event of at most eventsKernels kernels.
type eventPart struct {
	s       *eventStream
	kernels []byte
	gone    []byte
	count   int
	sent    bool // at least one event
}

// changed adds the model of a kernel.
func (p *eventPart) changed(model []byte) error {
	if len(p.kernels) > 0 {
		p.kernels = append(p.kernels, ',')
	}
	p.kernels = append(p.kernels, model...)
	return p.added()
}

// removed adds the id of a kernel that the client no longer sees.
func (p *eventPart) removed(id string) error {
	if len(p.gone) > 0 {
		p.gone = append(p.gone, ',')
	}
	p.gone = strconv.AppendQuote(p.gone, id) // a UUID
	return p.added()
}

func (p *eventPart) added() error {
	if p.count++; p.count < eventsKernels {
		return nil
	}
	return p.flush()
}

// flush sends what was collected.
func (p *eventPart) flush() error {
	if p.count == 0 {
		return nil
	}
	data := append([]byte(`{"kernels":[`), p.kernels...)
	data = append(append(append(data, `],"removed":[`...), p.gone...), "]}"...)
	p.kernels, p.gone, p.count, p.sent = p.kernels[:0], p.gone[:0], 0, true
	return p.s.event(eventKernels, data)
}
