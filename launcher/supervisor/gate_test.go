package supervisor

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
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
	g := newGate(heldNotReady)
	ctx, cancel := context.WithCancel(context.Background())
	for n := range 3 {
		if err := g.push(numbered(n, 1), nil); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if m, err := g.take(ctx); err == nil {
		t.Fatalf("a shut gate let %s through", m.msg.Content)
	}
	g.release(heldNotReady)
	for n := range 3 {
		m, err := g.take(context.Background())
		if err != nil || number(t, &m.msg) != n {
			t.Fatalf("took %s, %v", m.msg.Content, err)
		}
	}
	if err := g.push(numbered(0, gateLimitBytes+1), nil); err != nil {
		t.Errorf("a large message does not fit an empty gate: %v", err)
	}
	if err := g.push(numbered(1, 1), nil); !errors.Is(err, errGateFull) {
		t.Errorf("a full gate says %v", err)
	}
	g.discard()
	for range gateLimitMessages {
		if err := g.push(jupyter.Message{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.push(jupyter.Message{}, nil); !errors.Is(err, errGateFull) {
		t.Errorf("too many messages: %v", err)
	}
}

// TestGate_Holders: a gate opens when its last holder releases it, in whatever order the holders came.
func TestGate_Holders(t *testing.T) {
	const parked holder = "parked"
	open := func(g *gate) bool {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := g.take(ctx)
		return err == nil
	}
	type step struct {
		act  func(*gate, holder)
		by   holder
		open bool
	}
	hold, release := (*gate).hold, (*gate).release
	for name, steps := range map[string][]step{
		"one does not open what another shut": {{hold, parked, false}, {release, heldNotReady, false},
			{release, parked, true}},
		"the first may stay longer":       {{hold, parked, false}, {release, parked, false}, {release, heldNotReady, true}},
		"holding twice is holding once":   {{hold, heldNotReady, false}, {release, heldNotReady, true}},
		"an unknown holder opens nothing": {{release, parked, false}, {release, heldNotReady, true}},
		"an open gate can be shut again":  {{release, heldNotReady, true}, {hold, parked, false}, {release, parked, true}},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGate(heldNotReady)
			for i, s := range steps {
				if err := g.push(numbered(i, 1), nil); err != nil {
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
