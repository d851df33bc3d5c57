package gateway

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
)

// route is one line of the table: a method, a path and their handler.
type route struct {
	method  string
	pattern string // below the base URL; {name} is one segment, {name...} all following ones
	serve   func(http.ResponseWriter, *call) error
	access  kernels.Access // that its caller needs
	audit   string         // action in the audit log; "" for routes that change nothing
	lasting bool           // its answers last as long as their clients want
	root    bool           // answered outside the base URL too
}

// routes returns all routes of the gateway. Besides, HEAD is answered wherever GET is, and OPTIONS everywhere.
func (g *Gateway) routes() []route {
	return []route{
		{method: "GET", pattern: "/", serve: g.getPage, access: public},
		{method: "GET", pattern: "/page/{file}", serve: g.getPageFile, access: public},
		{method: "GET", pattern: "/healthz", serve: getHealth, access: public, root: true},
		{method: "GET", pattern: "/readyz", serve: g.getReady, access: public, root: true},
		{method: "GET", pattern: "/api", serve: g.getVersion, access: public},

		{method: "GET", pattern: "/api/status", serve: g.getStatus, access: anyUser},
		{method: "GET", pattern: "/api/me", serve: g.getIdentity, access: anyUser},
		{method: "GET", pattern: "/api/spec.yaml", serve: getSpec, access: anyUser},
		{method: "POST", pattern: reportPath, serve: takeReport, access: public},

		{method: "GET", pattern: "/api/kernelspecs", serve: g.listKernelspecs, access: anyUser},
		{method: "GET", pattern: "/api/kernelspecs/{name}", serve: g.getKernelspec, access: anyUser},
		{method: "GET", pattern: "/kernelspecs/{name}/{file...}", serve: g.getKernelspecFile, access: anyUser},

		{method: "GET", pattern: "/api/flavors", serve: g.listFlavors, access: anyUser},
		{method: "GET", pattern: "/api/gpus", serve: g.getGPUs, access: anyUser},
		{method: "GET", pattern: "/api/gateways", serve: g.listReplicas, access: anyUser},
		{method: "GET", pattern: "/api/limits", serve: g.listLimits, access: anyUser},
		{method: "GET", pattern: "/api/usage", serve: g.getUsage, access: anyUser},

		{method: "GET", pattern: "/api/events", serve: g.getEvents, access: anyUser, lasting: true},
		{method: "GET", pattern: "/api/kernels", serve: g.listKernels, access: anyUser},
		{method: "POST", pattern: "/api/kernels", serve: g.createKernel, access: anyUser, audit: "start"},
		{method: "GET", pattern: "/api/kernels/{id}", serve: g.getKernel, access: readKernel},
		{method: "PATCH", pattern: "/api/kernels/{id}", serve: g.patchKernel, access: ownKernel, audit: "change"},
		{method: "DELETE", pattern: "/api/kernels/{id}", serve: g.deleteKernel, access: ownKernel, audit: "stop"},
		{method: "POST", pattern: "/api/kernels/{id}/interrupt", serve: g.interruptKernel, access: useKernel,
			audit: "interrupt"},
		{method: "POST", pattern: "/api/kernels/{id}/wake", serve: g.wakeKernel, access: useKernel},
		{method: "POST", pattern: "/api/kernels/{id}/restart", serve: g.restartKernel, access: useKernel, audit: "restart"},
		{method: "GET", pattern: "/api/kernels/{id}/channels", serve: g.getChannels, access: readKernel, audit: "connect",
			lasting: true},
		{method: "GET", pattern: "/api/kernels/{id}/timeline", serve: g.getTimeline, access: readKernel},
		{method: "GET", pattern: "/api/kernels/{id}/log", serve: g.getLog, access: useKernel, audit: "read log",
			lasting: true},

		{method: "GET", pattern: "/api/jobs", serve: g.jobs.listJobs, access: anyUser},
		{method: "POST", pattern: "/api/jobs", serve: g.jobs.submitJob, access: anyUser, audit: "submit job"},
		// In front of the jobs: their patterns match these paths, too.
		{method: "GET", pattern: "/api/jobs/definitions", serve: g.jobs.listDefinitions, access: anyUser},
		{method: "POST", pattern: "/api/jobs/definitions", serve: g.jobs.createDefinition, access: anyUser,
			audit: "define job"},
		{method: "GET", pattern: "/api/jobs/definitions/{definition}", serve: g.jobs.getDefinition, access: anyUser},
		{method: "PATCH", pattern: "/api/jobs/definitions/{definition}", serve: g.jobs.patchDefinition, access: anyUser,
			audit: "change job definition"},
		{method: "DELETE", pattern: "/api/jobs/definitions/{definition}", serve: g.jobs.deleteDefinition, access: anyUser,
			audit: "remove job definition"},
		{method: "POST", pattern: "/api/jobs/definitions/{definition}/jobs", serve: g.jobs.runDefinition, access: anyUser,
			audit: "submit job"},
		{method: "GET", pattern: "/api/jobs/{job}", serve: g.jobs.getJob, access: anyUser},
		{method: "DELETE", pattern: "/api/jobs/{job}", serve: g.jobs.deleteJob, access: anyUser, audit: "remove job"},
		{method: "POST", pattern: "/api/jobs/{job}/stop", serve: g.jobs.stopJob, access: anyUser, audit: "stop job"},
		{method: "GET", pattern: "/api/jobs/{job}/notebook", serve: g.jobs.getJobNotebook, access: anyUser},

		{method: "GET", pattern: "/api/sessions", serve: g.sessions.listSessions, access: anyUser},
		{method: "POST", pattern: "/api/sessions", serve: g.sessions.createSession, access: anyUser, audit: "open session"},
		{method: "GET", pattern: "/api/sessions/{session}", serve: g.sessions.getSession, access: readKernel},
		{method: "PATCH", pattern: "/api/sessions/{session}", serve: g.sessions.patchSession, access: ownKernel,
			audit: "change session"},
		{method: "DELETE", pattern: "/api/sessions/{session}", serve: g.sessions.deleteSession, access: ownKernel,
			audit: "close session"},
	}
}

// resource is one pattern of the table with all its methods.
type resource struct {
	pattern  string
	segments []string
	methods  map[string]*route
	allow    string // the Allow header of a 405
	open     bool
	root     bool
	lasting  bool // answers last as long as their client wants
}

// compile groups the table by pattern. A pattern needs a credential unless all its routes are public. A route without
// an access is an error.
func compile(table []route) ([]*resource, error) {
	var all []*resource
	for i := range table {
		rt := &table[i]
		if err := rt.check(); err != nil {
			return nil, err
		}
		at := slices.IndexFunc(all, func(r *resource) bool { return r.pattern == rt.pattern })
		if at < 0 {
			at = len(all)
			all = append(all, &resource{
				pattern: rt.pattern, segments: strings.Split(rt.pattern[1:], "/"),
				methods: map[string]*route{}, open: true, root: true,
			})
		}
		r := all[at]
		r.methods[rt.method] = rt
		if rt.method == http.MethodGet {
			r.methods[http.MethodHead] = rt
		}
		r.open = r.open && rt.access == public
		r.root = r.root && rt.root
		r.lasting = r.lasting || rt.lasting
	}
	for _, r := range all {
		methods := []string{http.MethodOptions}
		for m := range r.methods {
			methods = append(methods, m)
		}
		slices.Sort(methods)
		r.allow = strings.Join(methods, ", ")
	}
	return all, nil
}

// find returns the resource of an escaped path, or nil, and sets the request's path values. Paths are matched as they
// are: an escaped slash does not separate segments.
func (g *Gateway) find(r *http.Request, path string) *resource {
	under, inside := g.below(path)
	if inside && under == "" {
		under = "/"
	}
	for _, res := range g.resources {
		if inside && res.match(r, under) || res.root && res.match(r, path) {
			return res
		}
	}
	return nil
}

// below removes the base URL from a path. It ignores the case of the base, because Jupyter Server lower-cases its
// gateway's URL before it opens a websocket.
func (g *Gateway) below(path string) (string, bool) {
	if len(path) < len(g.base) || !strings.EqualFold(path[:len(g.base)], g.base) {
		return "", false
	}
	return path[len(g.base):], true
}

// match reports whether the escaped path matches the pattern. If so, it sets the request's path values.
func (res *resource) match(r *http.Request, path string) bool {
	if !strings.HasPrefix(path, "/") {
		return false
	}
	parts := strings.Split(path[1:], "/")
	values := make([]string, 0, 4)
	for i, seg := range res.segments {
		if i >= len(parts) {
			return false
		}
		name, isValue := strings.CutPrefix(seg, "{")
		rest := strings.HasSuffix(name, "...}")
		part := parts[i]
		if rest {
			part = strings.Join(parts[i:], "/")
		}
		text, err := url.PathUnescape(part)
		switch {
		case seg == "" && part == "": // of the pattern "/"
		case err != nil || text == "":
			return false
		case !isValue && text != seg:
			return false
		case isValue:
			values = append(values, strings.TrimRight(name, ".}"), text)
		}
		if rest {
			parts = parts[:i+1]
		}
	}
	if len(parts) != len(res.segments) {
		return false
	}
	for i := 0; i < len(values); i += 2 {
		r.SetPathValue(values[i], values[i+1])
	}
	return true
}
