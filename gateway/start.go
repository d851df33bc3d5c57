package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Bounds, in bytes, of the variables that one request may set. Linux allows 128 KiB for one.
const (
	maxEnvValue = 32 << 10
	maxEnvTotal = 512 << 10
)

// startTime bounds Launcher.Start, which returns before the kernel runs. Jupyter Server waits 42 s for a POST.
const startTime = 30 * time.Second

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// createKernel answers POST /api/kernels.
func (g *Gateway) createKernel(w http.ResponseWriter, r *call) error {
	body, err := g.readObject(w, r)
	if err != nil {
		return err
	}
	req, err := g.kernelRequest(r.who, body)
	if err != nil {
		return err
	}
	return g.start(r, req, func(k launcher.Kernel) error {
		w.Header().Set("Location", g.base+"/api/kernels/"+k.ID)
		return writeJSON(w, http.StatusCreated, g.modelFor(r.who, &k))
	})
}

// kernelRequest reads the body of a POST: {"name"?, "path"?, "env"?, "kernel_id"?, "flavor"?}. It ignores other members
// and path, which is relative to a root that only Jupyter Server has.
func (g *Gateway) kernelRequest(who caller, body object) (launcher.Request, error) {
	var req launcher.Request
	name, _, err := body.text("name")
	if err != nil {
		return req, err
	}
	if _, _, err := body.text("path"); err != nil {
		return req, err
	}
	if req.Env, err = g.clientVariables(body); err != nil {
		return req, err
	}
	if req.ID, req.AnyID, err = wantedID(body, req.Env); err != nil {
		return req, err
	}
	if err := req.ParseEnv(); err != nil {
		return req, refuse(http.StatusBadRequest, "env: %v.", err)
	}
	if err := bodyFlavor(body, req.Env); err != nil {
		return req, err
	}
	if err := g.chooseSpec(who, &req, name); err != nil {
		return req, err
	}
	return req, chooseProfile(&req)
}

// wantedID returns the kernel id that the client asks for, or a new one. With a new one, any other will do.
func wantedID(body object, env map[string]string) (id string, any bool, err error) {
	inBody, there, err := body.text("kernel_id")
	if err != nil {
		return "", false, err
	}
	inEnv, thereToo := env["KERNEL_ID"]
	switch {
	case !there && !thereToo:
		return uuid.NewString(), true, nil
	case there && thereToo && inBody != inEnv:
		return "", false, refuse(http.StatusBadRequest, "kernel_id and KERNEL_ID name different kernels.")
	case !there:
		inBody = inEnv
	}
	if !launcher.ValidID(inBody) {
		return "", false, refuse(http.StatusBadRequest, "The kernel id is not a UUID in lower case with hyphens.")
	}
	return inBody, false, nil
}

// clientVariables returns the variables of "env" that a client may set: KERNEL_* and Options.ClientEnv. It ignores all
// others, because Jupyter Server 1.x sends its complete environment.
func (g *Gateway) clientVariables(body object) (map[string]string, error) {
	members, err := body.object("env")
	if err != nil {
		return nil, err
	}
	env, total := map[string]string{}, 0
	for name, raw := range members {
		if !strings.HasPrefix(name, "KERNEL_") && !g.clientEnv[name] {
			continue
		}
		if !envName.MatchString(name) {
			return nil, refuse(http.StatusBadRequest, "env: a name has characters that are not letters, digits or _.")
		}
		var text string
		// Other values are not decoded: a list of numbers would take ten times the memory that it takes in the body.
		if raw[0] != '"' || json.Unmarshal(raw, &text) != nil {
			return nil, refuse(http.StatusBadRequest, "env: the value of %s is not a string.", shorten(name, maxRepeated))
		}
		total += len(name) + len(text)
		switch {
		case strings.ContainsRune(text, 0):
			return nil, refuse(http.StatusBadRequest, "env: the value of %s contains a NUL.", shorten(name, maxRepeated))
		case len(text) > maxEnvValue || total > maxEnvTotal:
			return nil, refuse(http.StatusBadRequest, "env: the value of %s is too long.", shorten(name, maxRepeated))
		}
		env[name] = text
	}
	return env, nil
}

// chooseSpec sets the kernelspec of a start. If its name includes a profile or a flavor, it sets that too. Then the
// variable for it is ignored, because a Jupyter server sets the variable for all its kernels.
func (g *Gateway) chooseSpec(who caller, req *launcher.Request, name string) (err error) {
	if name == "" {
		name = g.defaultSpec(who)
	}
	if _, whole := g.opts.Specs.Get(name); whole {
		req.Spec, err = g.spec(name)
		return err
	}
	if spec, ok := g.splitProfiled(name); ok {
		req.Spec = spec
		return nil
	}
	if spec, f, ok := g.splitFlavored(name); ok {
		req.Spec = spec
		req.Env[flavorVariable] = f.Name
		return nil
	}
	req.Spec, err = g.spec(name)
	return err
}

// spec returns the kernelspec of a name.
func (g *Gateway) spec(name string) (kernelspecs.Spec, error) {
	if name == "" {
		return kernelspecs.Spec{}, refuse(http.StatusNotFound, "The gateway has no kernelspec.")
	}
	spec, ok := g.opts.Specs.Get(name)
	if !ok && name == "python" {
		spec, ok = g.opts.Specs.Get("python3") // its name in jupyter_client's old API, which Jupyter Server still accepts
	}
	if !ok {
		return spec, refuse(http.StatusNotFound, "Kernel spec %s not found", shorten(name, maxRepeated))
	}
	return spec, nil
}

// mayRestart rejects a user whom the kernel's kernelspec does not allow. The lists of a hidden kernelspec hold, too. If
// the kernelspec is gone, the gateway's own lists hold.
func (g *Gateway) mayRestart(who caller, k launcher.Kernel) error {
	spec, ok := g.opts.Specs.Get(k.SpecName)
	if !ok {
		spec = kernelspecs.Spec{Name: k.SpecName, Users: g.opts.Specs.Users(k.SpecName)}
	}
	return mayStart(who, spec)
}

// mayStart rejects a user whom the kernelspec does not allow. Only a verified name counts, so a gateway without users
// cannot hold such a limit, and starts none of these kernels. Admins may start all.
func mayStart(who caller, spec kernelspecs.Spec) error {
	switch {
	case !spec.Users.Limited() || who.Admin:
		return nil
	case who.sole:
		return refuse(http.StatusForbidden, "Kernel spec %s names the users who may start it, and this gateway has no "+
			"users. See docs/users.md.", spec.Name).by(accessCheck)
	case !spec.Users.May(who.Name):
		return refuse(http.StatusForbidden, "Kernel spec %s may not be started by user %s.", spec.Name,
			who.Name).by(accessCheck)
	}
	return nil
}

// defaultSpec returns the name of a user's default kernelspec: the operator's, python3, or the first one that the user
// may start. It is "" if there is none. An operator's kernelspec that does not exist is returned: requests then say so.
func (g *Gateway) defaultSpec(who caller) string {
	if name := g.opts.DefaultKernel; name != "" {
		if spec, ok := g.shownSpec(who, name); !ok || mayStart(who, spec) == nil {
			return name
		}
	}
	if spec, ok := g.opts.Specs.Get("python3"); ok && mayStart(who, spec) == nil {
		return spec.Name
	}
	for _, spec := range g.opts.Specs.List() {
		if mayStart(who, spec) == nil {
			return spec.Name
		}
	}
	return ""
}

// start starts a kernel and calls answer with it when it runs or when StartWait is over. It removes the kernel again if
// the kernel fails meanwhile, or if the client is gone before it knows the kernel's id: no client could end the kernel
// then.
func (g *Gateway) start(r *call, req launcher.Request, answer func(launcher.Kernel) error) error {
	if err := g.allowStart(r, &req); err != nil {
		return err
	}
	attempt := g.pending.enter(req.Owner + "\x00" + req.ID) // another user's kernel with this id is another kernel
	k, created, err := g.startAndWait(r.Context(), req)
	if k.ID != "" {
		r.kernel = k.ID // a warm kernel has another id
	}
	if err == nil {
		err = answer(k)
	}
	if err == nil {
		g.opts.Launcher.Claim(k.ID)
	}
	if attempt.leave(created, err == nil) {
		reason := "no client waited for its start"
		if failed := (*launcher.FailedError)(nil); errors.As(err, &failed) {
			reason = failed.Reason
		} else if limit := (*launcher.LimitError)(nil); errors.As(err, &limit) {
			reason = limit.Reason
		}
		e := r.entry("remove", "")
		e.Outcome = auditDone
		g.audit.write(e)
		if stopErr := g.stop(r, r.kernel, reason); stopErr != nil && !errors.Is(stopErr, launcher.ErrNotFound) {
			g.log.Error("a kernel whose start failed could not be removed", logkey.Kernel, r.kernel, logkey.Err, stopErr)
		}
	} else if created {
		g.log.Info("kernel started", logkey.Kernel, k.ID, logkey.Spec, k.SpecName, logkey.Request, r.id)
	}
	return err
}

// allowStart makes the checks of every start, and sets what the launcher needs to know of the caller.
func (g *Gateway) allowStart(r *call, req *launcher.Request) error {
	r.starts(*req) // also for the audit log of a refused start
	who := r.who
	if err := mayStart(who, req.Spec); err != nil {
		return err
	}
	if err := g.chooseFlavor(who, req); err != nil {
		return err
	}
	if req.Flavor != nil {
		r.flavor = req.Flavor.Name
	}
	if err := g.countStart(who); err != nil {
		return err
	}
	if !who.sole {
		req.Owner = who.owner()
		req.Groups, req.OwnerGroups = g.opts.Limits.Groups(who.Groups), who.Groups
		req.Cull = g.opts.Limits.Cull(who.Groups)
		req.Env["KERNEL_USERNAME"] = who.Name // overrides the client's value
	}
	return nil
}

// countStart counts a start, or the restart of a dead kernel, which costs as much. It fails if the caller has started
// too many kernels in the last minute.
func (g *Gateway) countStart(who caller) error {
	wait := g.starts.Take(who.Name)
	if wait == 0 {
		return nil
	}
	p := refuse(http.StatusTooManyRequests, "You may start %d kernels in a minute. Try again in %v.",
		g.opts.StartsPerMinute, roundUp(wait)).by(limitCheck)
	p.retry = wait
	return p
}

// launch starts a kernel that allowStart has allowed. It does not wait until the kernel runs.
func (g *Gateway) launch(ctx context.Context, req launcher.Request) (launcher.Kernel, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	k, created, err := g.opts.Launcher.Start(ctx, req)
	if err == nil {
		return k, created, nil
	}
	if why := failureOf(err); why != "" {
		g.metrics.KernelFailed(req.Spec.Name, why)
	}
	return k, false, err
}

// startAndWait starts a kernel and waits until it runs. A kernel that dies meanwhile is a *launcher.FailedError.
func (g *Gateway) startAndWait(ctx context.Context, req launcher.Request) (launcher.Kernel, bool, error) {
	k, created, err := g.launch(ctx, req)
	if err != nil {
		return k, false, err
	}
	if !created && k.State == api.Dead {
		return k, false, refuse(http.StatusConflict,
			"A kernel with this id exists and is dead: %s Restart it or delete it.", sentence(k.Reason))
	}
	wait := g.opts.StartWait
	// Jupyter Server always sends a launch timeout: 40 s unless it is configured otherwise, and it gives the request up 2
	// s after that. It bounds this request and not the start itself, or no client could wait for a GPU from JupyterLab.
	if timeout := req.Timeout(); timeout > 0 {
		wait = min(wait, timeout)
	}
	if wait > 0 {
		waitCtx, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		now, err := g.opts.Launcher.Wait(waitCtx, k.ID, isUp)
		var gone *launcher.GoneError
		switch {
		case ctx.Err() != nil:
			return k, created, ctx.Err()
		case err == nil, errors.Is(err, context.DeadlineExceeded) && now.ID != "":
			k = now
		case errors.As(err, &gone):
			return k, created, &launcher.FailedError{Reason: gone.Reason}
		case errors.Is(err, launcher.ErrNotFound):
			return k, created, &launcher.FailedError{Reason: "the kernel was removed while it started"}
		case !errors.Is(err, launcher.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded):
			return k, created, err
		}
	}
	return k, created, startError(k)
}

// startError returns the error of a kernel whose start has failed, else nil.
func startError(k launcher.Kernel) error {
	switch {
	case k.State != api.Dead:
		return nil
	case k.Limit != "":
		return &launcher.LimitError{Limit: k.Limit, Reason: k.Reason}
	}
	return &launcher.FailedError{Reason: k.Reason}
}

// failureOf classifies the error of a launcher's Start for metrics. It returns "" for what is not a failure: the id
// belongs to another kernel, or the client is gone.
func failureOf(err error) launcher.Failure {
	var failed *launcher.FailedError
	var refused *launcher.RefusedError
	var limit *launcher.LimitError
	switch {
	case errors.As(err, &refused):
		return launcher.FailedRefused
	case errors.As(err, &limit):
		return launcher.FailedLimit
	case errors.As(err, &failed) && failed.Class != "":
		return failed.Class
	case errors.Is(err, launcher.ErrConflict), errors.Is(err, context.Canceled):
		return ""
	case errors.Is(err, launcher.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return launcher.FailedUnavailable
	}
	return launcher.FailedInternal
}

// isUp reports whether a kernel's start has succeeded or failed. A restarting kernel has done neither: its first start
// failed and is tried again.
func isUp(k launcher.Kernel) bool {
	return k.State != api.Starting && k.State != api.Restarting
}

// sentence ends a text with a full stop.
func sentence(text string) string { return strings.TrimRight(text, ". ") + "." }

// pendingStarts counts the requests that wait for the same kernel. A client that chooses the kernel's id can repeat its
// request. A kernel is abandoned only when the last request has ended and none was answered.
type pendingStarts struct {
	mu   sync.Mutex
	byID map[string]*attempts // guarded by mu
}

// attempts is the requests for one kernel.
type attempts struct {
	of *pendingStarts
	id string

	// Guarded by of.mu.
	waiting  int
	created  bool
	answered bool
}

// enter begins one request. Its caller must call leave.
func (s *pendingStarts) enter(id string) *attempts {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID == nil {
		s.byID = map[string]*attempts{}
	}
	a := s.byID[id]
	if a == nil {
		a = &attempts{of: s, id: id}
		s.byID[id] = a
	}
	a.waiting++
	return a
}

// leave ends one request, and reports whether its caller has to remove the kernel.
func (a *attempts) leave(created, answered bool) bool {
	a.of.mu.Lock()
	defer a.of.mu.Unlock()
	a.waiting--
	a.created = a.created || created
	a.answered = a.answered || answered
	if a.waiting > 0 {
		return false
	}
	delete(a.of.byID, a.id)
	return a.created && !a.answered
}
