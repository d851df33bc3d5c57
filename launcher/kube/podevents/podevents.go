// Package podevents keeps the newest events of kernels' pods. Events of other pods, and of pods that are not known yet,
// are kept as well, but few of them. The package starts no goroutine. Begin with New.
package podevents

import (
	"slices"
	"sync"

	lru "github.com/hashicorp/golang-lru/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

const (
	maxEvents = 16   // newest ones that are kept of a pod
	maxOthers = 4096 // other pods whose events are kept; one of them may become known as a kernel's
)

// Store has the events of pods, by the pods' uids. All methods may be called concurrently.
type Store struct {
	mayHaveKernels func(namespace string) bool // fixed

	mu      sync.Mutex                            // the last that is locked
	kernels map[types.UID][]corev1.Event          // oldest first; replaced, never changed
	others  *lru.Cache[types.UID, []corev1.Event] // as kernels, of other pods
}

// New returns a Store without events. mayHaveKernels chooses the namespaces whose events are kept.
func New(mayHaveKernels func(namespace string) bool) *Store {
	others, err := lru.New[types.UID, []corev1.Event](maxOthers)
	if err != nil {
		panic("podevents: " + err.Error()) // the size is a constant
	}
	return &Store{mayHaveKernels: mayHaveKernels, kernels: map[types.UID][]corev1.Event{}, others: others}
}

// KernelOf returns the id of the kernel whose pod an event is about, "" for other pods. The pod's name tells it. Pods
// may have such names outside the namespaces of kernels, too.
func (s *Store) KernelOf(e *corev1.Event) string {
	name := e.InvolvedObject.Name
	if len(name) < 36 || !launcher.ValidID(name[:36]) || !s.mayHaveKernels(e.Namespace) {
		return ""
	}
	return name[:36]
}

// Trim drops the parts of an event that gateways do not read. An event of another pod keeps only its name. Trim is a
// transform of an informer.
func (s *Store) Trim(o any) (any, error) {
	e, ok := o.(*corev1.Event)
	if !ok {
		return o, nil // it is a cache.DeletedFinalStateUnknown
	}
	if s.KernelOf(e) == "" {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name, UID: e.UID,
			ResourceVersion: e.ResourceVersion}}, nil
	}
	e.SetManagedFields(nil)
	return e, nil
}

// Add keeps an event. known says that its pod is that of a known kernel.
func (s *Store) Add(e *corev1.Event, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	uid := e.InvolvedObject.UID
	newest := slices.DeleteFunc(slices.Clone(s.ofLocked(uid)), func(x corev1.Event) bool { return x.UID == e.UID })
	newest = append(newest, *e) // a new list: others may be reading the old one
	newest = newest[max(0, len(newest)-maxEvents):]
	if known {
		s.kernels[uid] = newest
	} else {
		s.others.Add(uid, newest)
	}
}

// Of returns the newest events of a pod, oldest first. Callers do not change them.
func (s *Store) Of(uid types.UID) []corev1.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ofLocked(uid)
}

func (s *Store) ofLocked(uid types.UID) []corev1.Event {
	if known, ok := s.kernels[uid]; ok {
		return known
	}
	others, _ := s.others.Peek(uid)
	return others
}

// Claim keeps the events of a pod that has become a kernel's until Forget.
func (s *Store) Claim(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if others, ok := s.others.Peek(uid); ok {
		s.kernels[uid] = others
		s.others.Remove(uid)
	}
}

// Forget drops the events of a pod that was removed.
func (s *Store) Forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.kernels, uid)
	s.others.Remove(uid)
}
