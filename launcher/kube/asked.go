package kube

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// asked counts what is asked of the API server: it stands in the way of every request.
type asked struct {
	observer atomic.Pointer[launcher.Observer]
}

// watch has all requests made with a configuration counted.
func (a *asked) watch(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &counting{next, a} })
}

// tell names who is told of them from now on.
func (a *asked) tell(o launcher.Observer) { a.observer.Store(&o) }

type counting struct {
	next  http.RoundTripper
	asked *asked
}

// RoundTrip makes a request. Of a watch, which lasts, the time to its first word is counted, as of all others.
func (c *counting) RoundTrip(r *http.Request) (*http.Response, error) {
	began := time.Now()
	resp, err := c.next.RoundTrip(r)
	if o := c.asked.observer.Load(); o != nil {
		code := 0
		if err == nil {
			code = resp.StatusCode
		}
		verb, resource := whatIsAsked(r)
		(*o).ClusterAsked(verb, resource, code, time.Since(began))
	}
	return resp, err
}

// WrappedRoundTripper lets the Kubernetes client look below.
func (c *counting) WrappedRoundTripper() http.RoundTripper { return c.next }

// askedFor are the resources that are told apart; there are no others that we ask for.
var askedFor = []string{"pods", "pods/portforward", "secrets", "events", "configmaps", "leases", "namespaces", "nodes"}

// whatIsAsked returns Kubernetes' verb and resource of a request. Of resources that are not known it is "other".
func whatIsAsked(r *http.Request) (verb, resource string) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	// A server's own path may stand in front: /k8s/clusters/c-1/api/v1/...
	at := slices.IndexFunc(parts, func(p string) bool { return p == "api" || p == "apis" })
	if at < 0 {
		return methodVerb(r.Method, false), "other"
	}
	skip := map[string]int{"api": 2, "apis": 3}[parts[at]] // api/VERSION, apis/GROUP/VERSION
	parts = parts[min(len(parts), at+skip):]
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	if len(parts) == 0 {
		return methodVerb(r.Method, false), "other"
	}
	resource = parts[0]
	if len(parts) > 2 {
		resource += "/" + parts[2]
	}
	if !slices.Contains(askedFor, resource) {
		resource = "other"
	}
	verb = methodVerb(r.Method, len(parts) == 1)
	if verb == "list" && r.URL.Query().Get("watch") != "" && r.URL.Query().Get("watch") != "false" {
		verb = "watch"
	}
	return verb, resource
}

// methodVerb is the verb of a method on one object, or on all of a resource.
func methodVerb(method string, all bool) string {
	switch method {
	case http.MethodGet:
		if all {
			return "list"
		}
		return "get"
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		if all {
			return "deletecollection"
		}
		return "delete"
	}
	return "other"
}
