// Package endings remembers how kernels have ended, and writes it to config maps, which outlive the kernels' pods. A
// Store is filled by the launcher that sees an ending, and knows what earlier gateways and other replicas have written.
//
// Write is its only loop, and belongs to the caller. Store.mu is taken last, and is not held during a request.
package endings

import (
	"log/slog"
	"maps"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// A finished pod says how its kernel ended, but the pod vanishes when it is deleted, and with its node. So every
// gateway that sees an ending stores it in the kernel's namespace. There is one config map for each hour in which
// kernels ended, and more of them if it is full, see store:
//
//	ekg-endings-2026112123
//	  data:
//	    KERNEL ID: {"reason": "it was shut down on request", "at": "2026-11-21T23:04:05Z", "stopped": true,
//	      "owner": "ann", "kernelspec": "python3", "started": "2026-11-21T21:04:05Z", "seconds": 7200, "gpus": 1}
//
// Several gateways may write the same entry. The last write wins, and changes no other kernel's entry.
const (
	// Kept is how long the cluster keeps the reasons of kernels' ends, in whole hours.
	Kept = 7 * 24 * time.Hour

	maxReason = 4 << 10 // characters of an ending's reason; supervisors bound it, too

	endingsPrefix = "ekg-endings-"
	endingsHour   = "2006010215"

	componentEndings = "endings" // the config maps' labelComponent

	// selectEndings selects the config maps of endings.
	selectEndings = podspec.SelectManaged + "," + podspec.LabelComponent + "=" + componentEndings

	endingsKept  = 1 << 14 // endings that are kept in memory
	maxUnwritten = 1 << 12 // endings that wait to be written; further ones are never written
	// characters of a reason that are written: so a config map, at most 1 MiB, holds 1,600 kernels or more
	maxNotedReason = 400
	firstRetry     = time.Second     // pause after a failed write
	lastRetry      = time.Minute     // longest pause
	lastWrite      = 2 * time.Second // for the last write of a gateway that ends
	endingsPage    = 16              // config maps in one answer of the API server: 16 MiB at most
)

// Ending is how a kernel ended, as JSON in a config map and between replicas.
type Ending struct {
	Reason    string    `json:"reason"`
	At        time.Time `json:"at"`
	Stopped   bool      `json:"stopped,omitempty"`    // on request: the kernel exists no longer
	Culled    bool      `json:"culled,omitempty"`     // by its supervisor; if Stopped too, the kernel was removed later
	CulledFor string    `json:"culled_for,omitempty"` // api.Ending.CulledFor
	Failed    bool      `json:"failed,omitempty"`     // api.Ending.Failed
	Refused   bool      `json:"refused,omitempty"`    // a limit prevented its start, so it was never shown
	Owner     string    `json:"owner,omitempty"`
	Spec      string    `json:"kernelspec,omitempty"`
	Flavor    string    `json:"flavor,omitempty"`
	launcher.Usage
	GPUUse api.GPUUse `json:"gpu_use,omitzero"`

	Limit string    `json:"-"` // name of the limit that prevented its start, or ""
	Pod   types.UID `json:"-"` // the kernel's last pod, if known: later events about it are ignored
}

// FromSupervisor returns the ending that a supervisor has left.
func FromSupervisor(e api.Ending) *Ending {
	return &Ending{
		Reason:    OneLine(e.Reason),
		At:        e.At.UTC(),
		Stopped:   e.Stopped,
		Culled:    e.Culled,
		CulledFor: e.CulledFor,
		Failed:    e.Failed,
		GPUUse:    e.GPUUse,
	}
}

// OneLine returns a reason as a Store keeps it.
func OneLine(reason string) string { return podstatus.OneLine(reason, maxReason) }

// Cause returns what the ending says about its cause.
func (e *Ending) Cause() api.Ending {
	return api.Ending{Stopped: e.Stopped, Culled: e.Culled, Failed: e.Failed}
}

// precedes reports whether an ending is an earlier state of another one of the same kernel.
func (e *Ending) precedes(other *Ending) bool {
	return e.At.Before(other.At) || e.At.Equal(other.At) && other.Stopped && !e.Stopped
}

// Options configures a Store.
type Options struct {
	ConfigMaps func(namespace string) corev1client.ConfigMapInterface
	Timeout    time.Duration    // of one request to the API server
	Now        func() time.Time // by the API server's clock
	Opened     func() time.Time // when this gateway was opened, by that clock
	Gather     time.Duration    // how long endings are collected
	Log        *slog.Logger
}

// Store knows how kernels have ended. All methods may be called concurrently. Endings that it returns are not changed.
type Store struct {
	opts    Options
	known   *lru.Cache[string, *Ending]
	changed chan struct{} // capacity 1: unwritten has grown

	// Guarded by mu.
	mu        sync.Mutex
	unwritten map[string]unwrittenEnding // by kernel
	full      map[place]bool             // config maps of hours that took no more endings
	culls     map[launcher.CullLabels]int64
}

type unwrittenEnding struct {
	namespace string
	end       *Ending
}

// New returns a Store that knows no ending yet.
func New(o Options) (*Store, error) {
	known, err := lru.New[string, *Ending](endingsKept)
	return &Store{
		opts:      o,
		known:     known,
		changed:   make(chan struct{}, 1),
		unwritten: map[string]unwrittenEnding{},
		full:      map[place]bool{},
		culls:     map[launcher.CullLabels]int64{},
	}, err
}

// Get returns how a kernel has ended, as far as that is known.
func (s *Store) Get(id string) (end *Ending, ok bool) { return s.known.Get(id) }

// Each calls do for all kernels whose endings are kept.
func (s *Store) Each(do func(id string, end *Ending)) {
	oldest := s.opts.Now().Add(-Kept)
	for _, id := range s.known.Keys() {
		if end, ok := s.known.Peek(id); ok && !end.At.Before(oldest) {
			do(id, end)
		}
	}
}

// Gone returns the error for a kernel that does not exist, with its ending if that is known.
func (s *Store) Gone(id string) error {
	if end, ok := s.Get(id); ok {
		return &launcher.GoneError{ID: id, Owner: end.Owner, Reason: end.Reason, At: end.At}
	}
	return launcher.ErrNotFound
}

// Culls counts the kernels that were culled since this gateway was opened.
func (s *Store) Culls() map[launcher.CullLabels]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.culls)
}

// Remember keeps an ending in memory that others have written.
func (s *Store) Remember(id string, end *Ending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rememberLocked(id, end)
}

// rememberLocked keeps an ending in memory, and reports whether it is new.
func (s *Store) rememberLocked(id string, end *Ending) bool {
	before, ok := s.known.Get(id)
	s.known.Add(id, end)
	same := ok && before.At.Equal(end.At)
	if end.Culled && !(same && before.Culled) && !end.At.Before(s.opts.Opened()) {
		s.culls[launcher.CullLabels{SpecName: end.Spec, Limit: end.CulledFor}]++
	}
	return !same || before.Stopped != end.Stopped
}

// Record keeps how the kernel of end.Pod has ended, and has it written to a namespace if it is new. unclaimed says that
// a limit prevented its start before a client knew of it: then it is not written.
func (s *Store) Record(id, namespace string, end Ending, unclaimed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, ok := s.known.Get(id)
	if ok && end.GPUUse == (api.GPUUse{}) && before.Started.Equal(end.Started) { // the same pod: a removal later
		end.GPUUse = before.GPUUse
	}
	if pod := end.Pod; ok && end.Limit != "" { // a restart was refused: the earlier ending stays
		end = *before
		end.Pod = pod
	} else {
		end.Refused = unclaimed
	}
	if !s.rememberLocked(id, &end) || unclaimed {
		return
	}
	if _, waits := s.unwritten[id]; !waits && len(s.unwritten) >= maxUnwritten {
		s.opts.Log.Warn("the ending of a kernel is not stored: too many others wait to be written", logkey.Kernel, id,
			logkey.Reason, end.Reason)
		return
	}
	s.unwritten[id] = unwrittenEnding{namespace, &end}
	goroutines.Wake(s.changed)
}
