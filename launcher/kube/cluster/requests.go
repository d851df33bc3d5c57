package cluster

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// requestCounter reports every request to the API server to an observer, and learns the API server's time from the
// answers. It wraps the client's transport.
type requestCounter struct {
	observer atomic.Pointer[launcher.Observer]
	answered atomic.Pointer[func()]
	clock    clusterClock
}

// countRequests makes the clients of a configuration report their requests.
func (a *requestCounter) countRequests(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &countingTransport{next, a} })
}

// limit bounds the rate of a configuration's clients, and makes them report how long requests wait for it.
func (a *requestCounter) limit(config *rest.Config, client string, r rate) {
	config.QPS, config.Burst = float32(r.qps), r.burst
	config.RateLimiter = &timedLimiter{flowcontrol.NewTokenBucketRateLimiter(config.QPS, r.burst), client, a}
}

// timedLimiter reports how long requests wait for their turn.
type timedLimiter struct {
	flowcontrol.RateLimiter
	client  string
	counter *requestCounter
}

// Wait waits for a request's turn.
func (t *timedLimiter) Wait(ctx context.Context) error {
	began := time.Now()
	err := t.RateLimiter.Wait(ctx)
	if o := t.counter.observer.Load(); o != nil {
		(*o).ClusterWait(t.client, time.Since(began))
	}
	return err
}

// Report makes the cluster report later requests to an observer, and call a function at each answer of the API server.
// The function returns at once.
func (c *Cluster) Report(o launcher.Observer, onAnswer func()) {
	c.requests.observer.Store(&o)
	c.requests.answered.Store(&onAnswer)
}

type countingTransport struct {
	next    http.RoundTripper
	counter *requestCounter
}

// RoundTrip makes a request and reports it. The reported time ends with the header of the answer, also for a watch.
func (c *countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	began := time.Now()
	resp, err := c.next.RoundTrip(r)
	if err == nil {
		c.counter.clock.answered(resp.Header.Get("Date"), began, time.Now())
	}
	if f := c.counter.answered.Load(); f != nil && err == nil && resp.StatusCode < http.StatusInternalServerError {
		(*f)()
	}
	if o := c.counter.observer.Load(); o != nil {
		code := 0
		if err == nil {
			code = resp.StatusCode
		}
		verb, resource := verbAndResource(r)
		(*o).ClusterRequest(verb, resource, code, time.Since(began))
	}
	return resp, err
}

// WrappedRoundTripper lets the Kubernetes client see the wrapped transport.
func (c *countingTransport) WrappedRoundTripper() http.RoundTripper { return c.next }

// knownResources are the resources that are reported by name. ekg requests no others.
var knownResources = []string{
	"pods",
	"pods/portforward",
	"secrets",
	"events",
	"configmaps",
	"leases",
	"namespaces",
	"nodes",
	"persistentvolumeclaims",
}

// verbAndResource returns Kubernetes' verb and resource of a request. Unknown resources are "other".
func verbAndResource(r *http.Request) (verb, resource string) {
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
	if !slices.Contains(knownResources, resource) {
		resource = "other"
	}
	verb = methodVerb(r.Method, len(parts) == 1)
	if verb == "list" && r.URL.Query().Get("watch") != "" && r.URL.Query().Get("watch") != "false" {
		verb = "watch"
	}
	return verb, resource
}

// methodVerb is the verb of a method on one object, or on all objects of a resource.
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
