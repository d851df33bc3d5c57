package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// eventReader is a client of GET /api/events. It keeps what the stream told it.
type eventReader struct {
	t       *testing.T
	resp    *http.Response
	lines   *bufio.Reader
	kernels map[string]json.RawMessage
	totals  string
	seen    []string // events of the last update, besides complete
	alive   int      // comments
}

func (g *testGateway) events(t *testing.T, change ...func(*http.Request)) *eventReader {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, "GET", g.http.URL+"/api/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "token "+testToken)
	for _, f := range change {
		f(r)
	}
	resp, err := g.http.Client().Transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("got %d %v", resp.StatusCode, resp.Header)
	}
	return &eventReader{t: t, resp: resp, lines: bufio.NewReader(resp.Body), kernels: map[string]json.RawMessage{}}
}

// event reads one event, or fails.
func (r *eventReader) event() (name, data string) {
	r.t.Helper()
	name, data, err := r.tryEvent()
	if err != nil {
		r.t.Fatal(err)
	}
	return name, data
}

func (r *eventReader) tryEvent() (name, data string, err error) {
	for {
		line, err := r.lines.ReadString('\n')
		line = strings.TrimSuffix(line, "\n")
		switch {
		case err != nil:
			return "", "", err
		case line == "" && name != "":
			return name, data, nil
		case strings.HasPrefix(line, ":"):
			r.alive++
		case strings.HasPrefix(line, "event: "):
			name = line[len("event: "):]
		case strings.HasPrefix(line, "data: "):
			data = line[len("data: "):]
		}
	}
}

// update reads until an update is complete.
func (r *eventReader) update() *eventReader {
	r.t.Helper()
	r.seen = nil
	for {
		name, data := r.event()
		switch name {
		case eventReset:
			clear(r.kernels)
		case eventKernels:
			var e struct {
				Kernels []json.RawMessage `json:"kernels"`
				Removed []string          `json:"removed"`
			}
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				r.t.Fatalf("%v: %s", err, data)
			}
			if n := len(e.Kernels) + len(e.Removed); n == 0 || n > eventsKernels {
				r.t.Errorf("an event has %d kernels", n)
			}
			for _, text := range e.Kernels {
				var k struct{ ID string }
				if err := json.Unmarshal(text, &k); err != nil {
					r.t.Fatal(err)
				}
				r.kernels[k.ID] = text
			}
			for _, id := range e.Removed {
				if r.kernels[id] == nil {
					r.t.Errorf("%s is removed, and was never told", id)
				}
				delete(r.kernels, id)
			}
		case eventTotals:
			r.totals = data
		case eventComplete:
			return r
		}
		r.seen = append(r.seen, name)
	}
}

// until reads updates until the kernels are those that the list shows with the same credential.
func (r *eventReader) until(g *testGateway, change ...func(*http.Request)) {
	r.t.Helper()
	for {
		var list []json.RawMessage
		if err := json.Unmarshal([]byte(g.do("GET", "/api/kernels", "", change...).body), &list); err != nil {
			r.t.Fatal(err)
		}
		want := map[string]bool{}
		for _, k := range list {
			want[string(k)] = true
		}
		same := len(want) == len(r.kernels)
		for _, k := range r.kernels {
			same = same && want[string(k)]
		}
		if same {
			return
		}
		r.update()
	}
}

func (r *eventReader) ids() []string { return slices.Sorted(maps.Keys(r.kernels)) }

func fastEvents(g *testGateway) {
	g.eventsEvery, g.eventsAlive = 10*time.Millisecond, 20*time.Millisecond
}

func TestEvents_Changes(t *testing.T) {
	g := startGateway(t, nil)
	fastEvents(g)
	g.fake.add(idA, "python3", api.Idle)
	hostile := "</script>\n\nevent: reset\r\ndata: \u2028 \"x\""
	r := g.events(t).update()
	if want := []string{eventReset, eventKernels, eventTotals}; !slices.Equal(r.seen, want) {
		t.Errorf("the first update is %v, want %v", r.seen, want)
	}
	if r.totals != `{"kernels":1,"states":{"idle":1}}` {
		t.Errorf("totals are %s", r.totals)
	}
	r.until(g)
	g.fake.set(idA, api.Dead, hostile)
	r.update().until(g)
	if !slices.Contains(r.seen, eventKernels) || slices.Contains(r.seen, eventReset) {
		t.Errorf("a change is %v", r.seen)
	}
	var k struct{ Reason string }
	if err := json.Unmarshal(r.kernels[idA], &k); err != nil || k.Reason != hostile {
		t.Errorf("the reason is %q: %v", k.Reason, err)
	}
	g.fake.add(idB, "r", api.Busy)
	r.update().until(g)
	g.do("DELETE", "/api/kernels/"+idA, "").want(t, 204, "")
	r.update().until(g)
	if got := r.ids(); !slices.Equal(got, []string{idB}) {
		t.Errorf("left are %v", got)
	}
	before := r.alive
	for r.alive < before+2 { // nothing changes, so only comments come
		line, err := r.lines.ReadString('\n')
		if err != nil || line != "\n" && line != ": alive\n" {
			t.Fatalf("got %q, %v", line, err)
		}
		r.alive += strings.Count(line, "alive")
	}
}

func TestEvents_Unavailable(t *testing.T) {
	g := startGateway(t, nil)
	fastEvents(g)
	g.fake.add(idA, "python3", api.Idle)
	broken := make(chan bool, 1)
	broken <- false
	g.fake.list = func() ([]launcher.Kernel, error) {
		b := <-broken
		broken <- b
		if b {
			return nil, fmt.Errorf("secret: %w", launcher.ErrUnavailable)
		}
		return g.fake.listForReal()
	}
	r := g.events(t).update()
	<-broken
	broken <- true
	name, data := r.event()
	if name != eventUnavailable || !strings.Contains(data, "not known at the moment") || strings.Contains(data, "secret") {
		t.Errorf("got %s %s", name, data)
	}
	g.do("GET", "/api/events", "").want(t, 503, "") // a new stream has an answer instead
	<-broken
	broken <- false
	if r.update(); len(r.seen) != 0 || len(r.kernels) != 1 { // nothing has changed, but the client must know that it ends
		t.Errorf("after it: %v", r.seen)
	}
}

// Each user reads what the list shows to the user, also when that changes.
func TestEvents_Users(t *testing.T) {
	g := startUserGateway(t, nil)
	fastEvents(g.testGateway)
	g.addShared()
	readers := map[string]*eventReader{}
	for user, sees := range map[string]bool{"ann": true, "rita": true, "uma": true, "root": true, "bob": false} {
		readers[user] = g.events(t, as(user)).update()
		readers[user].until(g.testGateway, as(user))
		if _, ok := readers[user].kernels[idA]; ok != sees {
			t.Errorf("%s: is told of ann's kernel: %v", user, ok)
		}
	}
	g.fake.change(func() {
		g.fake.kernels[idA].SharedWith = []launcher.Grant{{User: "bob", Right: launcher.Read}}
	})
	for _, user := range []string{"rita", "uma", "ann", "root", "bob"} {
		readers[user].update().until(g.testGateway, as(user))
	}
	if len(readers["bob"].kernels) != 1 || len(readers["rita"].kernels) != 0 {
		t.Error("a change of the users it is shared with is not told")
	}
	if bob := string(readers["bob"].kernels[idA]); strings.Contains(bob, "shared_with") {
		t.Errorf("bob reads %s", bob)
	}
}

// The stream of a user ends when the user's rights change, so that it never tells what the user may no longer see.
func TestEvents_RightsChange(t *testing.T) {
	g := startUserGateway(t, nil)
	fastEvents(g.testGateway)
	g.watchEvery = 10 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); g.Watch(ctx) }()
	defer func() { cancel(); <-done }()
	readers := []*eventReader{g.events(t, as("root")).update(), g.events(t, as("uma")).update(),
		g.events(t, as("bob")).update()}
	writeUsers(t, g.file, func(text string) string {
		text = strings.ReplaceAll(text, ", admin: true", "")
		text = strings.ReplaceAll(text, "groups: [team]", "groups: [other]")
		return strings.ReplaceAll(text, "name: bob", "name: bill")
	})
	for i, r := range readers {
		for {
			if _, _, err := r.tryEvent(); err != nil {
				if r.resp.Request.Context().Err() != nil {
					t.Errorf("stream %d stays", i)
				}
				break
			}
		}
	}
}

func TestEvents_BoundsAndEnds(t *testing.T) {
	g := startUserGateway(t, func(o *Options) { o.ConnectionsPerUser = 1 })
	fastEvents(g.testGateway)
	r := g.events(t, as("ann")).update()
	g.do("GET", "/api/events", "", as("ann")).want(t, 429, "1 connections")
	g.do("HEAD", "/api/events", "", as("bob")).want(t, 200, "")
	g.EndLogs()
	if _, err := io.ReadAll(r.lines); err != nil {
		t.Errorf("the stream did not end properly: %v", err)
	}
	g.do("GET", "/api/events", "", as("ann")).want(t, 503, "")
}

// A client that reads slowly gets fewer updates, and the last one leads to what is. Nothing is kept for it meanwhile.
func TestEvents_SlowClient(t *testing.T) {
	g := startGateway(t, nil)
	fastEvents(g)
	listed := manyKernels(3000)
	g.fake.list = func() ([]launcher.Kernel, error) { return slices.Clone(listed), nil }
	take, sent := make(chan struct{}), make(chan string)
	s := &eventStream{g: g.Gateway, who: kernels.SoleOwner(), known: map[string]uint64{}, send: func(b []byte) error {
		sent <- string(b)
		<-take
		return nil
	}}
	next := func(before string) (all string) {
		done := make(chan error, 1)
		go func() { _, err := s.next(t.Context()); done <- err }()
		for {
			select {
			case text := <-sent:
				all += text
				take <- struct{}{}
			case err := <-done:
				if err != nil {
					t.Errorf("%s: %v", before, err)
				}
				return all
			}
		}
	}
	first := next("first")
	if n := strings.Count(first, `{"id":`); n != 3000 || strings.Count(first, "event: kernels\n") != 3000/eventsKernels {
		t.Errorf("the first update has %d kernels", n)
	}
	for i := range 50 { // states between updates are never sent
		listed[7].Reason = fmt.Sprint("state ", i)
	}
	listed = listed[:2999]
	g.feed.at = time.Time{}
	second := next("second")
	if strings.Count(second, `{"id":`) != 1 || !strings.Contains(second, "state 49") ||
		!strings.Contains(second, `"removed":["00000000-0000-4000-8000-000000002999"]`) {
		t.Errorf("the second update is %s", second)
	}
	g.feed.at = time.Time{}
	if third := next("third"); third != "" {
		t.Errorf("without a change: %s", third)
	}
}

func manyKernels(n int) []launcher.Kernel {
	at := time.Date(2026, 11, 21, 5, 53, 26, 0, time.UTC)
	kernels := make([]launcher.Kernel, n)
	for i := range kernels {
		kernels[i] = launcher.Kernel{ID: fmt.Sprintf("00000000-0000-4000-8000-%012d", i), SpecName: "python3",
			Owner: fmt.Sprint("user", i%200), Created: at, LastActivity: at, State: api.Idle, CullAt: at.Add(time.Hour)}
	}
	return kernels
}

// BenchmarkEvents_Update measures one update of a stream of 5,000 kernels of which 50 have changed: for an admin, for
// whom all streams share the encoded list, and for a user with 25 kernels.
func BenchmarkEvents_Update(b *testing.B) {
	g := startGateway(b, nil)
	old, changed := manyKernels(5000), manyKernels(5000)
	for i := range 50 {
		changed[i*100].State = api.Busy
	}
	users := map[string]kernels.Caller{"sole": kernels.SoleOwner(), "user": {Has: ownKernel}}
	for name, who := range users {
		who.Name = "user7"
		b.Run(name, func(b *testing.B) {
			bytes := 0
			s := &eventStream{g: g.Gateway, who: who, known: map[string]uint64{},
				send: func(p []byte) error { bytes += len(p); return nil }}
			lists := []*listing{newListing(old), newListing(changed)}
			if _, err := s.update(lists[0], true); err != nil {
				b.Fatal(err)
			}
			bytes = 0
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				if _, err := s.update(lists[i%2], false); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(bytes)/float64(i), "sent-B/op")
		})
	}
	b.Run("list", func(b *testing.B) { // once a second for all streams together
		b.ReportAllocs()
		for b.Loop() {
			if _, err := newListing(old).modelsFor(g.Gateway, kernels.SoleOwner()); err != nil {
				b.Fatal(err)
			}
		}
	})
}
