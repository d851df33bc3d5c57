package seats

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// annotationLine is on the Lease of a GPU, and has its Line in JSON.
const annotationLine = "elastic-kernel-gateway.github.io/gpu-line"

// maxWaiting bounds the kernels in line for one GPU. The annotations of an object have at most 256 KiB, and a Place has
// less than 500 bytes.
const maxWaiting = 500

// Place names a kernel that has a GPU, or waits for it, by its pod.
type Place struct {
	Kernel    string    `json:"kernel"`
	Namespace string    `json:"namespace"` // of its pod
	Pod       string    `json:"pod"`       // name of its pod
	UID       string    `json:"uid"`       // of its pod
	Since     time.Time `json:"since"`     // UTC; since when it has waited, by the clock of the GPU's node
	Last      bool      `json:"last,omitempty"`
}

// Member is a kernel that takes its turn, as one gateway knows it. Place.Since and Place.Last are not set.
type Member struct {
	Place
	Seat api.Seat // as its supervisor has said; it may be old
}

// Line is who has a GPU, and who waits for it. The zero value is a GPU that nobody has.
type Line struct {
	Grant   int64     `json:"grant,omitempty"` // number of the last grant
	Holder  *Place    `json:"holder,omitempty"`
	Until   time.Time `json:"until,omitzero"`    // UTC; until when the holder keeps it, as it has said; zero: it does not
	Waiting []Place   `json:"waiting,omitempty"` // the first in line first
}

// inOrder compares two that wait: the first that asked goes first, and jobs go last.
func inOrder(a, b Place) int {
	last := 0
	if a.Last != b.Last {
		last = 1
		if b.Last {
			last = -1
		}
	}
	return cmp.Or(last, a.Since.Compare(b.Since), cmp.Compare(a.Kernel, b.Kernel), cmp.Compare(a.UID, b.UID))
}

// Next returns the line as it becomes by what the members say. gone reports whether a pod has no processes any more; it
// is asked only about kernels that are not members. What members say may be old: then a kernel is put in line that
// waits no more. Its supervisor gives back at once what it did not ask for. No GPU is taken from its holder by what is
// old, since a grant that was given back is not given again.
func (l Line) Next(members []Member, gone func(Place) bool, now time.Time) Line {
	heard := map[string]*Member{}
	for i := range members {
		heard[members[i].UID] = &members[i]
	}
	next := Line{Grant: l.Grant, Holder: l.Holder, Until: l.Until}
	if h := l.Holder; h != nil {
		switch m := heard[h.UID]; {
		case m != nil && m.Seat.Returned >= l.Grant, m == nil && gone(*h):
			next.Holder, next.Until = nil, time.Time{}
		case m != nil && m.Seat.Holds == l.Grant:
			next.Until = m.Seat.Until
		}
	}
	for _, p := range l.Waiting {
		// One that is not heard keeps its place: another gateway may hear it.
		if heard[p.UID] == nil && !gone(p) {
			next.Waiting = append(next.Waiting, p)
		}
	}
	for _, m := range members {
		if next.Holder == nil && m.Seat.Holds > next.Grant { // somebody has removed the Lease
			next.Grant, next.Holder = m.Seat.Holds, &Place{m.Kernel, m.Namespace, m.Pod, m.UID, now.UTC(), m.Seat.Last}
		}
	}
	for _, m := range members {
		if !m.waits() || next.Holder != nil && next.Holder.UID == m.UID || len(next.Waiting) >= maxWaiting {
			continue
		}
		p := m.Place
		p.Since, p.Last = m.Seat.Since.UTC(), m.Seat.Last
		next.Waiting = append(next.Waiting, p)
	}
	slices.SortFunc(next.Waiting, inOrder)
	if next.Holder != nil {
		return next
	}
	// A kernel that is not heard would not learn that it has the GPU.
	first := slices.IndexFunc(next.Waiting, func(p Place) bool { return heard[p.UID] != nil })
	if first >= 0 {
		p := next.Waiting[first]
		next.Holder, next.Waiting = &p, slices.Delete(next.Waiting, first, first+1)
		next.Grant = max(next.Grant+1, now.UnixMicro()) // it grows also if somebody has removed the Lease
	}
	return next
}

// waits reports whether a kernel is in line, as far as it has said.
func (m *Member) waits() bool { return !m.Seat.Since.IsZero() && m.Seat.Holds == 0 }

// news returns what a member is to be told. It is false if nothing concerns the member.
func (l *Line) news(m *Member) (api.SeatNews, bool) {
	if l.Holder != nil && l.Holder.UID == m.UID {
		return api.SeatNews{Grant: l.Grant, Wanted: len(l.Waiting) > 0}, true
	}
	i := slices.IndexFunc(l.Waiting, func(p Place) bool { return p.UID == m.UID })
	return api.SeatNews{Before: max(0, i), Kept: l.Until}, i >= 0
}

// equal reports whether two lines are the same.
func (l *Line) equal(o *Line) bool {
	same := func(a, b Place) bool {
		since := a.Since.Equal(b.Since)
		a.Since, b.Since = time.Time{}, time.Time{}
		return since && a == b
	}
	if l.Grant != o.Grant || !l.Until.Equal(o.Until) || (l.Holder == nil) != (o.Holder == nil) ||
		l.Holder != nil && !same(*l.Holder, *o.Holder) {
		return false
	}
	return slices.EqualFunc(l.Waiting, o.Waiting, same)
}

// read returns the line of a Lease.
func read(lease *coordinationv1.Lease) (l Line, err error) {
	if text := lease.Annotations[annotationLine]; text != "" {
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			return Line{}, fmt.Errorf("annotation %s of the Lease %s: %w", annotationLine, lease.Name, err)
		}
	}
	return l, nil
}

// write sets the line of a Lease. Its holder and its times are for people.
func (l *Line) write(lease *coordinationv1.Lease, now time.Time) error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, annotationLine, string(text))
	holder := ""
	if l.Holder != nil {
		holder = l.Holder.Kernel
	}
	if s := &lease.Spec; ptr.Deref(s.HolderIdentity, "") != holder {
		s.HolderIdentity, s.AcquireTime = nil, nil
		if holder != "" {
			s.HolderIdentity, s.AcquireTime = &holder, new(metav1.NewMicroTime(now))
			s.LeaseTransitions = new(ptr.Deref(s.LeaseTransitions, 0) + 1)
		}
	}
	return nil
}
