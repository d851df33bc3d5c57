package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// Bounds of the variables one request may set. The kernel of Linux takes 128 KiB for one.
const (
	maxEnvValue = 32 << 10
	maxEnvTotal = 512 << 10
)

// startTime bounds Launcher.Start, which returns before the kernel is up. Jupyter Server waits 42 s for a POST.
const startTime = 30 * time.Second

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// reservedEnv reports whether a variable belongs to ekg or to Enterprise Gateway, or would tie the kernel's life to
// some process.
func reservedEnv(name string) bool {
	return strings.HasPrefix(name, "EKG_") || strings.HasPrefix(name, "EG_") || name == "JPY_PARENT_PID"
}

// createKernel answers POST /api/kernels.
func (g *Gateway) createKernel(w http.ResponseWriter, r *http.Request) error {
	body, err := g.readObject(w, r)
	if err != nil {
		return err
	}
	req, err := g.kernelRequest(body)
	if err != nil {
		return err
	}
	return g.start(r, req, func(k launcher.Kernel) error {
		w.Header().Set("Location", g.base+"/api/kernels/"+k.ID)
		return writeJSON(w, http.StatusCreated, modelFor(r.Context(), k))
	})
}

// kernelRequest reads the body of a POST: {"name"?, "path"?, "env"?, "kernel_id"?}. Other members are ignored, path
// too: it is relative to a root that only Jupyter Server has.
func (g *Gateway) kernelRequest(body object) (launcher.Request, error) {
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
	if req.ID, err = wantedID(body, req.Env); err != nil {
		return req, err
	}
	if dir := req.Env["KERNEL_WORKING_DIR"]; filepath.IsAbs(dir) {
		req.WorkingDir = dir
	}
	if _, _, err := launchTimeout(req.Env); err != nil {
		return req, err
	}
	req.Spec, err = g.spec(name)
	return req, err
}

// wantedID returns the id a client wants for its kernel, a new one if it wants none.
func wantedID(body object, env map[string]string) (string, error) {
	inBody, there, err := body.text("kernel_id")
	if err != nil {
		return "", err
	}
	inEnv, thereToo := env["KERNEL_ID"]
	switch {
	case !there && !thereToo:
		return uuid.NewString(), nil
	case there && thereToo && inBody != inEnv:
		return "", refuse(http.StatusBadRequest, "kernel_id and KERNEL_ID name different kernels.")
	case !there:
		inBody = inEnv
	}
	if !launcher.ValidID(inBody) {
		return "", refuse(http.StatusBadRequest, "The kernel id is not a UUID in lower case with hyphens.")
	}
	return inBody, nil
}

// clientVariables returns the variables of "env" that a client may set: KERNEL_* and Options.ClientEnv. Others are
// dropped without a word, because Jupyter Server 1.x sends its complete environment.
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
		// Nothing else is decoded: a list of numbers takes ten times the memory that it takes in the body.
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

// launchTimeout returns how long the client waits for its POST to be answered. Jupyter Server always tells: 40 s unless it is
// configured otherwise, and it gives the request up 2 s after that. It is no limit of the start itself, or nobody could
// wait for a GPU from JupyterLab.
func launchTimeout(env map[string]string) (limit time.Duration, told bool, err error) {
	text := env["KERNEL_LAUNCH_TIMEOUT"]
	if text == "" {
		return 0, false, nil
	}
	limit, ok := launcher.LaunchTimeout(text)
	if !ok {
		return 0, false, refuse(http.StatusBadRequest, "env: KERNEL_LAUNCH_TIMEOUT is not a number of seconds up to %.0f.", launcher.MaxLaunchTimeout.Seconds())
	}
	return limit, true, nil
}

// spec returns the kernelspec to start: the named one, or the default.
func (g *Gateway) spec(name string) (kernelspecs.Spec, error) {
	if name == "" {
		name = g.defaultSpec()
	}
	if name == "" {
		return kernelspecs.Spec{}, refuse(http.StatusNotFound, "There is no kernelspec on the gateway's machine.")
	}
	spec, ok := g.opts.Specs.Get(name)
	if !ok {
		return spec, refuse(http.StatusNotFound, "Kernel spec %s not found", shorten(name, maxRepeated))
	}
	return spec, nil
}

// defaultSpec names the kernelspec for requests that name none; "" if there is no spec at all.
func (g *Gateway) defaultSpec() string {
	if g.opts.DefaultKernel != "" {
		return g.opts.DefaultKernel
	}
	if spec, ok := g.opts.Specs.Get("python3"); ok {
		return spec.Name
	}
	if all := g.opts.Specs.List(); len(all) > 0 {
		return all[0].Name
	}
	return ""
}

// start starts a kernel and calls answer with it when it is up, or when StartWait is over. The kernel is removed again
// if it fails meanwhile, or if its client is gone before it was told the kernel's id: nobody would ever end it.
func (g *Gateway) start(r *http.Request, req launcher.Request, answer func(launcher.Kernel) error) error {
	a := accountOf(r.Context())
	a.starts(req) // also of a start that is refused
	who := callerOf(r.Context())
	if err := g.limits.take(who.Name); err != nil {
		return err
	}
	if !who.one {
		req.Owner = who.owner()
		req.Groups = g.countedGroups(who.Groups)
		req.Cull = g.cullOf(who.Groups)
		req.Env["KERNEL_USERNAME"] = who.Name // whatever the client says
	}
	attempt := g.starts.enter(req.Owner + "\x00" + req.ID) // somebody else's with the same id is another
	k, created, err := g.startAndWait(r.Context(), req)
	if err == nil {
		err = answer(k)
	}
	if err == nil {
		g.opts.Launcher.Claim(k.ID)
	}
	if attempt.leave(created, err == nil) {
		reason := "nobody waited for its start"
		if failed := (*launcher.FailedError)(nil); errors.As(err, &failed) {
			reason = failed.Reason
		} else if limit := (*launcher.LimitError)(nil); errors.As(err, &limit) {
			reason = limit.Reason
		}
		e := a.entry(r, "remove", "")
		e.Outcome = auditDone
		g.audit.write(e)
		if stopErr := g.stop(r.Context(), req.ID, reason); stopErr != nil && !errors.Is(stopErr, launcher.ErrNotFound) {
			g.log.Error("a kernel whose start failed could not be removed", "kernel", req.ID, "err", stopErr)
		}
	} else if created {
		g.log.Info("kernel started", "kernel", k.ID, "spec", k.SpecName, "request", a.id)
	}
	return err
}

// startAndWait starts a kernel and waits for it to come up. A kernel that dies meanwhile is a *launcher.FailedError.
func (g *Gateway) startAndWait(ctx context.Context, req launcher.Request) (launcher.Kernel, bool, error) {
	startCtx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	k, created, err := g.opts.Launcher.Start(startCtx, req)
	if err != nil {
		if why := failureOf(err); why != "" {
			g.metrics.KernelFailed(req.Spec.Name, why)
		}
		return k, false, err
	}
	if !created && k.State == launcher.Dead {
		return k, false, refuse(http.StatusConflict,
			"A kernel with this id exists and is dead: %s Restart it or delete it.", sentence(k.Reason))
	}
	wait := g.opts.StartWait
	if limit, told, err := launchTimeout(req.Env); err == nil && told {
		wait = min(wait, limit)
	}
	if wait > 0 {
		waitCtx, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		now, err := g.opts.Launcher.Wait(waitCtx, req.ID, isUp)
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

// startError is the error of a kernel whose start has failed, nil if it has not.
func startError(k launcher.Kernel) error {
	switch {
	case k.State != launcher.Dead:
		return nil
	case k.Limit != "":
		return &launcher.LimitError{Limit: k.Limit, Reason: k.Reason}
	}
	return &launcher.FailedError{Reason: k.Reason}
}

// failureOf says in a word why a launcher did not start a kernel; "" where that is no failure: the id belongs to another, or
// nobody waits any more.
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

// isUp reports whether a kernel's start is decided. Restarting is not: a first start that failed is tried again.
func isUp(k launcher.Kernel) bool {
	return k.State != launcher.Starting && k.State != launcher.Restarting
}

// sentence ends a text with a full stop.
func sentence(text string) string { return strings.TrimRight(text, ". ") + "." }

// starts counts the requests of one owner that wait for one kernel id, which a client chooses so that it can repeat a request. A
// kernel is abandoned only when the last of them has gone and none was answered.
type starts struct {
	mu   sync.Mutex
	byID map[string]*attempts // guarded by mu
}

type attempts struct {
	of *starts
	id string

	// Guarded by of.mu.
	waiting  int
	created  bool
	answered bool
}

func (s *starts) enter(id string) *attempts {
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

// leave tells how one request ended, and reports whether the caller has to remove the kernel.
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
