package kube

import (
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
)

// rights is in which namespaces this gateway may not see kernels. What is forbidden in one namespace of the policy does not keep
// kernels in others from being served; it is asked for again and again, and a namespace that is allowed later is used.
type rights struct {
	mu     sync.Mutex
	seen   map[string]func() bool // by namespace: whether all there has been entered once
	denied map[string]string      // why not, by namespace
}

// expect notes what says that a namespace's pods and events have been entered. It returns what is true once they have been, or
// are known to be forbidden.
func (r *rights) expect(ns string, synced []cache.InformerSynced) cache.InformerSynced {
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
	if r.seen == nil {
		r.seen, r.denied = map[string]func() bool{}, map[string]string{}
	}
	r.seen[ns] = seen
	return func() bool { return seen() || r.refusal(ns) != "" }
}

// forbidden enters what was answered to a list. It reports whether this is the first refusal for the namespace.
func (r *rights) forbidden(ns string, err error) (first bool) {
	if !apierrors.IsForbidden(err) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, again := r.denied[ns]
	r.denied[ns] = errorReason(err).text
	return !again
}

// refusal says why no kernel can be in a namespace, in a sentence; "" if one can. What was seen once counts as allowed: kernels
// may be there, and a list without them would be wrong.
func (r *rights) refusal(ns string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	why, denied := r.denied[ns]
	if !denied {
		return ""
	}
	if r.seen[ns]() {
		delete(r.denied, ns)
		return ""
	}
	return why
}
