package kube

import (
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
)

// namespaceAccess holds the namespaces whose pods this gateway may not list. Kernels in other namespaces are served.
// The informers try again, so a namespace is used once it is allowed.
type namespaceAccess struct {
	mu     sync.Mutex
	listed map[string]func() bool // by namespace: whether its first lists have been read
	denied map[string]string      // by namespace: why it is denied
}

// track stores the functions that report whether a namespace's first lists of pods and events have been read. The
// result reports whether they have been read, or are forbidden.
func (r *namespaceAccess) track(ns string, synced []cache.InformerSynced) cache.InformerSynced {
	seen := func() bool {
		for _, s := range synced {
			if !s() {
				return false
			}
		}
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.listed == nil {
		r.listed, r.denied = map[string]func() bool{}, map[string]string{}
	}
	r.listed[ns] = seen
	return func() bool { return seen() || r.denial(ns) != "" }
}

// deny records the error of a list if the error says that the list is forbidden. It reports whether this is the first
// such error for the namespace.
func (r *namespaceAccess) deny(ns string, err error) (first bool) {
	if !apierrors.IsForbidden(err) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, again := r.denied[ns]
	r.denied[ns] = podstatus.ExplainError(err).Text
	return !again
}

// denial says in a sentence why the namespace cannot have kernels; "" if it can. A namespace that was listed once
// counts as allowed: it may have kernels, and a list without them would be wrong.
func (r *namespaceAccess) denial(ns string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	why, denied := r.denied[ns]
	if !denied {
		return ""
	}
	if r.listed[ns]() {
		delete(r.denied, ns)
		return ""
	}
	return why
}
