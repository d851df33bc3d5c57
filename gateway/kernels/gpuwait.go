package kernels

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const (
	roomsTime     = time.Second // for which an answer about rooms is used again: lists may have many kernels that wait
	maxShownNames = 5           // users, or flavors, that a reason names
)

// holders are the kernels that have a GPU, by flavor and owner.
type holders map[string]map[string]map[string]bool

// heldFlavor says who has the GPUs of a flavor.
type heldFlavor struct {
	kernels, users int
	names          string // of the users with most kernels, like "ann 2, bob 1"
}

// rooms remembers which GPUs are held, and for how many kernels of each flavor there is room.
type rooms struct {
	mu   sync.Mutex
	at   time.Time                   // when the launcher was asked
	room map[string]launcher.GPURoom // by flavor
	held map[string]heldFlavor       // by flavor
}

// read returns rooms that are at most roomsTime old. Both are nil if the launcher cannot tell them at present.
func (r *rooms) read(s *Service) (map[string]launcher.GPURoom, map[string]heldFlavor) {
	if s.opts.Flavors == nil {
		return nil, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.at.IsZero() && time.Since(r.at) < roomsTime {
		return r.room, r.held
	}
	ctx, cancel := context.WithTimeout(context.Background(), ReadTime) // for all requests that read it
	defer cancel()
	room, view, err := s.launcher.FlavorRoom(ctx, s.opts.Flavors.List())
	r.at, r.room, r.held = time.Now(), nil, nil
	if err != nil {
		s.log.Warn("it is not known which GPUs are free", logkey.Err, err)
		return nil, nil // the reason stays as the launcher gives it
	}
	held := holders{}
	for _, n := range view.Nodes {
		for _, p := range n.Pools {
			for _, h := range p.Holders {
				held.add(h)
			}
		}
	}
	r.room, r.held = room, map[string]heldFlavor{}
	for flavor, byOwner := range held {
		r.held[flavor] = sumHolders(byOwner)
	}
	return r.room, r.held
}

// RoomFor returns for how many kernels of each flavor there is room, by its name. It has no flavors if that is not
// known.
func (s *Service) RoomFor() map[string]launcher.GPURoom {
	room, _ := s.rooms.read(s)
	return room
}

func (all holders) add(h launcher.GPUHolder) {
	if h.Flavor == "" || h.Kernel == "" {
		return
	}
	if all[h.Flavor] == nil {
		all[h.Flavor] = map[string]map[string]bool{}
	}
	if all[h.Flavor][h.Owner] == nil {
		all[h.Flavor][h.Owner] = map[string]bool{}
	}
	all[h.Flavor][h.Owner][h.Kernel] = true
}

// ExplainWait returns what a kernel's reason adds while the kernel waits for a GPU of its flavor: how many kernels have
// one, of whom, how long it usually takes, and which other flavors are free. Users read numbers, and admins names.
func (s *Service) ExplainWait(who Caller, k *launcher.Kernel) string {
	if k.State != api.Starting || k.Flavor == "" || k.Reason == "" {
		return ""
	}
	room, held := s.rooms.read(s)
	own, known := room[k.Flavor]
	if !known || own.Free > 0 {
		return "" // it waits for something else
	}
	text := "; " + holdersText(k.Flavor, own, held[k.Flavor], who)
	if usual, ok := s.metrics.UsualGPUWait(k.Flavor); ok {
		text += "; a start with it usually waits " + shortTime(usual)
	}
	var free []string
	for _, f := range s.FlavorsOf(who) {
		if r := room[f.Name]; r.Free > 0 && f.Name != k.Flavor && len(free) < maxShownNames {
			free = append(free, f.Name)
		}
	}
	if len(free) > 0 {
		text += "; at once it would get " + strings.Join(free, " or ")
	}
	return text
}

// holdersText is like "3 of at most 8 kernels with t4 run, of 2 users".
func holdersText(flavor string, room launcher.GPURoom, held heldFlavor, who Caller) string {
	text := fmt.Sprintf("%d of at most %d kernels with the flavor %s run", held.kernels, room.Total, flavor)
	switch {
	case held.kernels == 0 || who.Sole:
		return text
	case !who.Admin:
		return text + fmt.Sprintf(", of %d %s", held.users, plural(held.users, "user"))
	}
	return text + ": " + held.names
}

// sumHolders sums the kernels of one flavor.
func sumHolders(byOwner map[string]map[string]bool) heldFlavor {
	sum := heldFlavor{users: len(byOwner)}
	for _, ids := range byOwner {
		sum.kernels += len(ids)
	}
	owners := slices.SortedFunc(maps.Keys(byOwner), func(a, b string) int {
		if d := len(byOwner[b]) - len(byOwner[a]); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	var names []string
	for _, owner := range owners[:min(len(owners), maxShownNames)] {
		names = append(names, fmt.Sprintf("%s %d", Shorten(owner), len(byOwner[owner])))
	}
	if more := len(owners) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	sum.names = strings.Join(names, ", ")
	return sum
}

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

// shortTime rounds a duration to seconds, or to minutes if it is long.
func shortTime(d time.Duration) string {
	if d < 2*time.Minute {
		n := max(1, int(d.Round(time.Second)/time.Second))
		return fmt.Sprintf("%d %s", n, plural(n, "second"))
	}
	return fmt.Sprintf("%d minutes", int(d.Round(time.Minute)/time.Minute))
}
