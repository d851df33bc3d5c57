package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// Deadlines of what is asked of launcher and supervisor: a frozen one must not hold a client for ever.
const (
	readTime    = 10 * time.Second // looking at kernels
	modelTime   = 3 * time.Second  // a supervisor's model, for which there is a substitute
	actionTime  = 20 * time.Second // an interrupt
	restartTime = 90 * time.Second // a restart: the old process gets its grace twice
	stopTime    = 90 * time.Second
	settleTime  = time.Second      // until the launcher has heard that a kernel has died, or that a dead one was restarted
	endTime     = 30 * time.Second // for a supervisor that is about to end to do so
	reviveTime  = 500 * time.Millisecond
)

// timeFormat always has six digits and a Z: Jupyter Server's gateway client fails on anything else.
const timeFormat = "2006-01-02T15:04:05.000000Z"

func timestamp(t time.Time) string { return t.UTC().Format(timeFormat) }

// kernelModel is Jupyter's model of a kernel.
type kernelModel struct {
	ID             string `json:"id"`
	Name           string `json:"name"`
	LastActivity   string `json:"last_activity"`
	ExecutionState string `json:"execution_state"`
	Connections    int    `json:"connections"`
	Reason         string `json:"reason,omitempty"`
	CullAt         string `json:"cull_at,omitempty"`
	KeepUntil      string `json:"keep_until,omitempty"`

	// Where there are users.
	Owner      string           `json:"owner,omitempty"`
	SharedWith []launcher.Grant `json:"shared_with,omitzero"` // only for who owns it
}

// modelFor is a kernel's model with what concerns the request's user.
func modelFor(ctx context.Context, k launcher.Kernel) kernelModel {
	m := modelOf(k)
	m.addOwner(ctx, k)
	return m
}

// addOwner says whose kernel it is, and to its owner with whom it is shared.
func (m *kernelModel) addOwner(ctx context.Context, k launcher.Kernel) {
	m.Owner, m.SharedWith = "", nil
	c := callerOf(ctx)
	if c.one {
		return
	}
	m.Owner = k.Owner
	if c.to(k) == ownKernel {
		m.SharedWith = append([]launcher.Grant{}, k.SharedWith...)
	}
}

func modelOf(k launcher.Kernel) kernelModel {
	last := k.LastActivity
	if last.IsZero() {
		last = k.Created
	}
	m := kernelModel{
		ID: k.ID, Name: k.SpecName, LastActivity: timestamp(last),
		ExecutionState: string(k.State), Connections: k.Connections, Reason: k.Reason,
	}
	if !k.CullAt.IsZero() {
		m.CullAt = timestamp(k.CullAt)
	}
	if k.KeepUntil.After(time.Now()) {
		m.KeepUntil = timestamp(k.KeepUntil)
	}
	return m
}

// kernelID returns the kernel id of the path, which its client knows then. What cannot be an id names no kernel, as in
// Jupyter Server.
func (g *Gateway) kernelID(r *http.Request) (string, error) {
	id := r.PathValue("id")
	if !launcher.ValidID(id) {
		return "", refuse(http.StatusNotFound, "Kernel does not exist: %s", shorten(id, maxRepeated))
	}
	g.opts.Launcher.Claim(id)
	return id, nil
}

func (g *Gateway) listKernels(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), readTime)
	defer cancel()
	switch v := r.URL.Query().Get("culled"); v {
	case "", "0", "false":
	case "1", "true":
		return g.listCulled(ctx, w)
	default:
		return refuse(http.StatusBadRequest, "culled is not 1 or 0.")
	}
	kernels, err := g.opts.Launcher.Kernels(ctx)
	if err != nil {
		// Never a shorter list: front ends drop every kernel that is missing from it.
		return err
	}
	models := make([]kernelModel, 0, len(kernels))
	for _, k := range visible(ctx, kernels) {
		models = append(models, modelFor(ctx, k))
	}
	return writeJSON(w, http.StatusOK, models)
}

// getKernel answers with what the supervisor says, which is newer than what it has told the launcher; where it cannot
// be asked, with what the launcher knows, since front ends drop a kernel for any error here.
func (g *Gateway) getKernel(w http.ResponseWriter, r *http.Request) error {
	id, err := g.kernelID(r)
	if err != nil {
		return err
	}
	k, err := g.kernel(r.Context(), id)
	if err != nil {
		return err
	}
	if k.State != launcher.Dead {
		answer, err := g.ask(r, id, http.MethodGet, "", modelTime)
		if err == nil {
			model, ok := answer.model(id)
			switch {
			case ok && model.ExecutionState != string(launcher.Dead):
				model.addOwner(r.Context(), k)
				return writeJSON(w, http.StatusOK, model)
			case ok:
				g.isDead(r.Context(), id) // why it died the launcher may know better: who has deleted its pod, for one
			}
		}
		if k, err = g.kernel(r.Context(), id); err != nil {
			return err
		}
	}
	return writeJSON(w, http.StatusOK, modelFor(r.Context(), k))
}

// culledModel is a kernel that was culled.
type culledModel struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	Reason   string `json:"reason"`
	CulledAt string `json:"culled_at"`

	// What it has held from when it was started; absent where that is not known.
	StartedAt  string `json:"started_at,omitempty"`
	Seconds    int64  `json:"seconds,omitempty"`
	GPUs       int64  `json:"gpus,omitempty"`
	GPUSeconds int64  `json:"gpu_seconds,omitempty"`
}

// listCulled lists the kernels that were culled in the last days: a user's own ones.
func (g *Gateway) listCulled(ctx context.Context, w http.ResponseWriter) error {
	all, err := g.opts.Launcher.Culled(ctx)
	if err != nil {
		return err
	}
	who, models := callerOf(ctx), make([]culledModel, 0, len(all))
	for _, c := range all {
		if !who.owns(c.Owner) {
			continue
		}
		m := culledModel{ID: c.ID, Name: c.SpecName, Reason: c.Reason, CulledAt: timestamp(c.At), Seconds: c.Seconds, GPUs: c.GPUs, GPUSeconds: c.GPUs * c.Seconds}
		if !c.Started.IsZero() {
			m.StartedAt = timestamp(c.Started)
		}
		models = append(models, m)
	}
	return writeJSON(w, http.StatusOK, models)
}

// kernel asks the launcher for one kernel, within readTime.
func (g *Gateway) kernel(ctx context.Context, id string) (launcher.Kernel, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	return g.opts.Launcher.Kernel(ctx, id)
}

func (g *Gateway) deleteKernel(w http.ResponseWriter, r *http.Request) error {
	id, err := g.kernelID(r)
	if err != nil {
		return err
	}
	if err := g.stop(r.Context(), id, "it was shut down on request"); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// stop ends a kernel and then the websockets that still lead to it. Once asked for it is done, whether or not the
// client waits for it.
func (g *Gateway) stop(ctx context.Context, id, reason string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	if err := g.opts.Launcher.Stop(launcher.WithRequestID(ctx, requestID(ctx)), id, reason); err != nil {
		return err
	}
	g.conns.revoke(id, errKernelStopped)
	g.streams.revoke(id, errKernelStopped)
	g.log.Info("kernel stopped", "kernel", id, "request", requestID(ctx))
	return nil
}

func (g *Gateway) interruptKernel(w http.ResponseWriter, r *http.Request) error {
	id, err := g.kernelID(r)
	if err != nil {
		return err
	}
	if _, err := g.kernel(r.Context(), id); err != nil {
		return err
	}
	if _, err := g.ask(r, id, http.MethodPost, "interrupt", actionTime); err != nil {
		return notYet(g.explain(r.Context(), id, err))
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// restartKernel has the supervisor restart its kernel. Where the supervisor has ended with its kernel, the launcher
// starts both again.
func (g *Gateway) restartKernel(w http.ResponseWriter, r *http.Request) error {
	id, err := g.kernelID(r)
	if err != nil {
		return err
	}
	before, err := g.kernel(r.Context(), id)
	if err != nil {
		return err
	}
	done, err := g.opts.Launcher.Restarting(r.Context(), id)
	if err != nil {
		return err
	}
	answer, err := g.ask(r, id, http.MethodPost, "restart", restartTime)
	done()
	var never *dialError
	var undelivered *undeliveredError
	switch {
	case err == nil:
	case errors.As(err, &never):
		now, kernelErr := g.kernel(r.Context(), id)
		if kernelErr == nil && now.State == launcher.Dead {
			return g.reviveKernel(w, r, id)
		}
		return notYet(g.explain(r.Context(), id, err))
	case errors.As(err, &undelivered) && g.isDead(r.Context(), id):
		// Most likely its supervisor has ended over it, or is about to. If it lives nothing is done, and what became of the
		// request is not known.
		ctx, cancel := context.WithTimeout(r.Context(), endTime)
		defer cancel()
		reviveErr := g.reviveKernel(w, r.WithContext(ctx), id)
		if failed := (*launcher.FailedError)(nil); errors.As(reviveErr, &failed) {
			return g.explain(r.Context(), id, err)
		}
		return reviveErr
	default:
		return g.explain(r.Context(), id, err)
	}
	model, ok := answer.model(id)
	if !ok {
		return errNoModel
	}
	if before.State == launcher.Dead {
		// Until the launcher has heard of the restart its list says dead, and front ends would believe it.
		ctx, cancel := context.WithTimeout(r.Context(), settleTime)
		defer cancel()
		_, err := g.opts.Launcher.Wait(ctx, id, func(k launcher.Kernel) bool { return k.State != launcher.Dead })
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
	model.addOwner(r.Context(), before)
	return writeJSON(w, http.StatusOK, model)
}

// isDead reports whether a kernel is dead, or is heard to be within settleTime.
func (g *Gateway) isDead(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	_, err := g.opts.Launcher.Wait(ctx, id, func(k launcher.Kernel) bool { return k.State == launcher.Dead })
	return err == nil
}

// reviveKernel starts a kernel again whose supervisor has ended. It waits only as long as a program takes that fails at
// once, so that the reason can be in the answer.
func (g *Gateway) reviveKernel(w http.ResponseWriter, r *http.Request, id string) error {
	ctx, cancel := context.WithTimeout(r.Context(), restartTime)
	defer cancel()
	k, err := g.opts.Launcher.Revive(ctx, id)
	if err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(r.Context(), reviveTime)
	defer cancel()
	now, err := g.opts.Launcher.Wait(wait, id, func(k launcher.Kernel) bool { return k.State != launcher.Starting })
	switch {
	case err == nil:
		k = now
	case errors.Is(err, launcher.ErrNotFound), r.Context().Err() != nil:
		return err
	}
	if err := startError(k); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, modelFor(r.Context(), k))
}

// explain adds to a request that could not be delivered why the kernel is dead, if it is, or what its start waits for.
func (g *Gateway) explain(ctx context.Context, id string, err error) error {
	var undelivered *undeliveredError
	if !errors.As(err, &undelivered) {
		return err
	}
	k, kernelErr := g.kernel(ctx, id)
	switch {
	case errors.Is(kernelErr, launcher.ErrNotFound):
		return kernelErr
	case kernelErr == nil && k.State == launcher.Dead:
		return &problem{status: http.StatusServiceUnavailable, reason: "Kernel is dead", err: err,
			message: "The kernel is dead: " + k.Reason}
	case kernelErr == nil && errors.Is(err, launcher.ErrNoSupervisor):
		return &problem{status: http.StatusServiceUnavailable, reason: "Kernel is starting", err: err, message: startingText(k.Reason)}
	}
	return err
}

// startingText says that a kernel is starting, and what it waits for where that is known.
func startingText(reason string) string {
	if reason == "" {
		return "The kernel is starting."
	}
	return "The kernel is starting: " + sentence(reason)
}

// notYet makes the answer to what a starting kernel cannot do yet a final one: a client that repeated an interrupt until
// the kernel is up would end what it meant to run.
func notYet(err error) error {
	var p *problem
	if !errors.As(err, &p) || !errors.Is(err, launcher.ErrNoSupervisor) {
		return err
	}
	return &problem{status: http.StatusConflict, reason: p.reason, message: p.message, err: p.err}
}

var errNoModel = &problem{status: http.StatusServiceUnavailable,
	message: "The kernel's supervisor gave an answer that is no kernel model."}

// model reads a kernel model. It is written again rather than passed on: the supervisor stands beside user code, and
// front ends refuse a whole list for one bad member.
func (a *answer) model(id string) (kernelModel, bool) {
	var m kernelModel
	if err := json.Unmarshal(a.body, &m); err != nil || m.ID != id || m.Name == "" || m.ExecutionState == "" {
		return kernelModel{}, false
	}
	at, err := time.Parse(time.RFC3339Nano, m.LastActivity)
	if err != nil {
		return kernelModel{}, false
	}
	m.LastActivity = timestamp(at)
	for _, text := range []*string{&m.CullAt, &m.KeepUntil} {
		if *text == "" {
			continue
		}
		if at, err = time.Parse(time.RFC3339Nano, *text); err != nil {
			return kernelModel{}, false
		}
		*text = timestamp(at)
	}
	return m, true
}
