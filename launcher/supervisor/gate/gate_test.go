package gate

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
)

func numbered(n, size int) jupyter.Message {
	content := map[string]string{"n": strconv.Itoa(n), "pad": strings.Repeat("x", size)}
	return jupyter.New(jupyter.IOPub, "stream", "s", nil, content)
}

func number(t interface{ Fatalf(string, ...any) }, m *jupyter.Message) int {
	n, err := strconv.Atoi(jupyter.StringField(m.Content, "n"))
	if err != nil {
		t.Fatalf("%v in %s", err, m.Content)
	}
	return n
}

func TestGate_KeepsOrderAndBounds(t *testing.T) {
	g := New(NotReady)
	ctx, cancel := context.WithCancel(context.Background())
	for n := range 3 {
		if err := g.Push(numbered(n, 1), nil); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if m, err := g.Take(ctx); err == nil {
		t.Fatalf("a shut gate let %s through", m.Msg.Content)
	}
	g.Release(NotReady)
	for n := range 3 {
		m, err := g.Take(context.Background())
		if err != nil || number(t, &m.Msg) != n {
			t.Fatalf("took %s, %v", m.Msg.Content, err)
		}
	}
	if err := g.Push(numbered(0, limitBytes+1), nil); err != nil {
		t.Errorf("a large message does not fit an empty gate: %v", err)
	}
	if err := g.Push(numbered(1, 1), nil); !errors.Is(err, ErrFull) {
		t.Errorf("a full gate says %v", err)
	}
	g.Discard()
	for range LimitMessages {
		if err := g.Push(jupyter.Message{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Push(jupyter.Message{}, nil); !errors.Is(err, ErrFull) {
		t.Errorf("too many messages: %v", err)
	}
}

// TestGate_Holders: a gate opens when its last Holder releases it, in whatever order the holders came.
func TestGate_Holders(t *testing.T) {
	const parked = Parked
	open := func(g *Gate) bool {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := g.Take(ctx)
		return err == nil
	}
	type step struct {
		act  func(*Gate, Holder)
		by   Holder
		open bool
	}
	hold, release := (*Gate).Hold, (*Gate).Release
	for name, steps := range map[string][]step{
		"one does not open what another shut": {{hold, parked, false}, {release, NotReady, false},
			{release, parked, true}},
		"the first may stay longer":       {{hold, parked, false}, {release, parked, false}, {release, NotReady, true}},
		"holding twice is holding once":   {{hold, NotReady, false}, {release, NotReady, true}},
		"an unknown Holder opens nothing": {{release, parked, false}, {release, NotReady, true}},
		"an open gate can be shut again":  {{release, NotReady, true}, {hold, parked, false}, {release, parked, true}},
	} {
		t.Run(name, func(t *testing.T) {
			g := New(NotReady)
			for i, s := range steps {
				if err := g.Push(numbered(i, 1), nil); err != nil {
					t.Fatal(err)
				}
				s.act(g, s.by)
				if got := open(g); got != s.open {
					t.Fatalf("step %d: open is %v, want %v", i, got, s.open)
				}
			}
		})
	}
}

// What is dropped leaves room, and the rest keeps its order.
func TestGate_Drop(t *testing.T) {
	g := New()
	for n := range 4 {
		if err := g.Push(numbered(n, limitBytes/5), nil); err != nil {
			t.Fatal(err)
		}
	}
	odd := func(m *Message) bool { return number(t, &m.Msg)%2 == 1 }
	if !g.Any(odd) || len(g.Drop(odd)) != 2 || g.Any(odd) {
		t.Error("the odd messages are not dropped")
	}
	for _, n := range []int{4, 6} {
		if err := g.Push(numbered(n, limitBytes/5), nil); err != nil {
			t.Errorf("dropped messages leave no room: %v", err)
		}
	}
	for _, want := range []int{0, 2, 4, 6} {
		m, err := g.Take(context.Background())
		if err != nil || number(t, &m.Msg) != want {
			t.Errorf("got %s, %v; want %d", m.Msg.Content, err, want)
		}
	}
}

// TestGate_PushBehind: a message waits for the end of a failed cell, in order, and others overtake it. It waits no
// longer than until the cell Opens.
func TestGate_PushBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New()
		began := time.Now()
		failed := &requests.Request{Opens: began.Add(time.Minute)}
		late := &requests.Request{Opens: began.Add(2 * time.Second)}
		for n, behind := range []*requests.Request{failed, nil, late, failed, nil} {
			if err := g.PushBehind(numbered(n, 1), nil, behind); err != nil {
				t.Fatal(err)
			}
		}
		take := func(want int) {
			t.Helper()
			m, err := g.Take(t.Context())
			if err != nil || number(t, &m.Msg) != want {
				t.Fatalf("took %s, %v, want %d", m.Msg.Content, err, want)
			}
		}
		take(1)
		take(4)
		go func() {
			<-time.After(time.Second)
			failed.Over.Store(true)
			g.Wake()
		}()
		take(0)
		take(3)
		if took := time.Since(began); took != time.Second {
			t.Errorf("it was taken after %v", took)
		}
		take(2)
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("a message waits for %v", took)
		}
		if g.bytes != 0 || len(g.queue) != 0 {
			t.Errorf("%d bytes and %d messages are left", g.bytes, len(g.queue))
		}
	})
}
