// Package namespaces knows in which namespaces of a cluster kernels run, and which of these this gateway may not list.
// Package kube watches them, and asks here whether a pod is one of its own.
//
// It asks no cluster and starts no goroutines. Set.mu is taken last.
package namespaces

import (
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

// Set is the namespaces of kernels. A namespace whose pods this gateway may not list keeps it from no other one. The
// informers try again, so a namespace is used once it is allowed.
type Set struct {
	// Fixed.
	pods   podbuild.Options
	common []string

	mu     sync.Mutex
	listed map[string]func() bool // by namespace: whether its first lists have been read
	denied map[string]string      // by namespace: why it is denied
}

// New returns the namespaces in which pods are built with these options.
func New(o podbuild.Options) *Set {
	s := &Set{pods: o, common: []string{o.Namespace}, listed: map[string]func() bool{}, denied: map[string]string{}}
	policy := o.Policy
	if policy == nil {
		policy = wish.DefaultPolicy()
	}
	for _, ns := range policy.Namespaces() {
		if !slices.Contains(s.common, ns) {
			s.common = append(s.common, ns)
		}
	}
	return s
}

// Common returns the namespaces of kernels whose owners have none of their own.
func (s *Set) Common() []string { return s.common }

// Watched returns the namespaces to watch: Common, or all of the cluster as metav1.NamespaceAll. Owners may have
// thousands of namespaces: two watches of the whole cluster are cheaper than two for each.
func (s *Set) Watched() []string {
	if s.pods.NamespacePerOwner() {
		return []string{metav1.NamespaceAll}
	}
	return s.common
}

// Readable returns the entries of Watched that are not denied.
func (s *Set) Readable() []string {
	return slices.DeleteFunc(slices.Clone(s.Watched()), func(ns string) bool { return s.Denial(ns) != "" })
}

// WatchOf returns the entry of Watched that covers a namespace.
func (s *Set) WatchOf(ns string) string {
	if s.pods.NamespacePerOwner() {
		return metav1.NamespaceAll
	}
	return ns
}

// Serves reports whether a pod lies where this gateway's kernels do.
func (s *Set) Serves(pod *corev1.Pod) bool {
	return slices.Contains(s.common, pod.Namespace) || s.pods.InNamespaceOfOwner(pod)
}

// MayHave reports whether a namespace may have kernels of any owner.
func (s *Set) MayHave(ns string) bool {
	return !s.pods.NamespacePerOwner() || slices.Contains(s.common, ns) || s.pods.MayBeOwners(ns)
}

// OfEnding returns the namespace that keeps the ending of a pod's kernel. An owner's own namespace keeps none: its
// quota and its users must not touch it.
func (s *Set) OfEnding(pod *corev1.Pod) string {
	if slices.Contains(s.common, pod.Namespace) {
		return pod.Namespace
	}
	return s.pods.Namespace
}

// Track stores the functions that report whether a namespace's first lists of pods and events have been read. The
// result reports whether they have been read, or are forbidden.
func (s *Set) Track(ns string, synced []cache.InformerSynced) cache.InformerSynced {
	seen := func() bool {
		return !slices.ContainsFunc(synced, func(has cache.InformerSynced) bool { return !has() })
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed[ns] = seen
	return func() bool { return seen() || s.Denial(ns) != "" }
}

// Deny records the error of a list if the error says that the list is forbidden. It reports whether this is the first
// such error for the namespace.
func (s *Set) Deny(ns string, err error) (first bool) {
	if !apierrors.IsForbidden(err) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, again := s.denied[ns]
	s.denied[ns] = podstatus.ExplainError(err).Text
	return !again
}

// Denial says in a sentence why the namespace cannot have kernels; "" if it can. A namespace that was listed once
// counts as allowed: it may have kernels, and a list without them would be wrong.
func (s *Set) Denial(ns string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ns = s.WatchOf(ns)
	why, denied := s.denied[ns]
	if !denied {
		return ""
	}
	if s.listed[ns]() {
		delete(s.denied, ns)
		return ""
	}
	return why
}
