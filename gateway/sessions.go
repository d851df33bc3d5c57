package gateway

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"

	"github.com/google/uuid"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// Bounds of what a session may hold: it is stored with its kernel.
const (
	maxSessionText = 4 << 10
	maxSessions    = 64 // of one kernel
)

// sessionModel is Jupyter's model of a session.
type sessionModel struct {
	ID       string         `json:"id"`
	Path     string         `json:"path"`
	Name     string         `json:"name"`
	Type     string         `json:"type"`
	Kernel   kernelModel    `json:"kernel"`
	Notebook *notebookModel `json:"notebook,omitempty"` // only of type notebook
}

type notebookModel struct {
	Path string `json:"path"`
	Name string `json:"name"`
}

// found is a session with the kernel it is stored with.
type found struct {
	session launcher.Session
	kernel  launcher.Kernel
}

func (f found) model(ctx context.Context) sessionModel {
	m := sessionModel{ID: f.session.ID, Path: f.session.Path, Name: f.session.Name, Type: f.session.Type,
		Kernel: modelFor(ctx, f.kernel)}
	if m.Type == "notebook" {
		m.Notebook = &notebookModel{Path: m.Path, Name: m.Name}
	}
	return m
}

// sessions returns all sessions of kernels that the request's user may see, and all kernels.
func (g *Gateway) sessions(ctx context.Context) ([]found, []launcher.Kernel, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	kernels, err := g.opts.Launcher.Kernels(ctx)
	if err != nil {
		return nil, nil, err
	}
	return sessionsOf(visible(ctx, kernels)), kernels, nil
}

// sessionsOf returns the sessions of kernels. One that is being moved from a kernel to another may be stored with both for a
// moment; the younger kernel counts.
func sessionsOf(kernels []launcher.Kernel) []found {
	var all []found
	at := map[string]int{}
	for _, k := range kernels {
		for _, s := range k.Sessions {
			if i, twice := at[s.ID]; twice {
				all[i] = found{s, k}
				continue
			}
			at[s.ID] = len(all)
			all = append(all, found{s, k})
		}
	}
	return all
}

// sessionOf returns the session of the request's path.
func (g *Gateway) sessionOf(r *http.Request) (found, error) {
	all, kernels, err := g.sessions(r.Context())
	if err != nil {
		return found{}, err
	}
	is := func(f found) bool { return f.session.ID == r.PathValue("session") }
	i := slices.IndexFunc(all, is)
	if i < 0 {
		p := refuse(http.StatusNotFound, "Session not found: session_id=%q", shorten(r.PathValue("session"), maxRepeated))
		if slices.ContainsFunc(sessionsOf(kernels), is) {
			return found{}, p.by(accessCheck) // it is somebody else's
		}
		return found{}, p
	}
	accountOf(r.Context()).kernel = all[i].kernel.ID
	return all[i], nil
}

func (g *Gateway) listSessions(w http.ResponseWriter, r *http.Request) error {
	all, _, err := g.sessions(r.Context())
	if err != nil {
		return err
	}
	models := make([]sessionModel, 0, len(all))
	for _, f := range all {
		models = append(models, f.model(r.Context()))
	}
	return writeJSON(w, http.StatusOK, models)
}

func (g *Gateway) getSession(w http.ResponseWriter, r *http.Request) error {
	f, err := g.sessionOf(r)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, f.model(r.Context()))
}

// deleteSession ends the session's kernel, and with it the session.
func (g *Gateway) deleteSession(w http.ResponseWriter, r *http.Request) error {
	f, err := g.sessionOf(r)
	if err != nil {
		return err
	}
	err = g.stop(r.Context(), f.kernel.ID, "its session was shut down on request")
	if errors.Is(err, launcher.ErrNotFound) {
		return refuse(http.StatusGone, "Kernel deleted before session")
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// sessionRequest is the body of a POST or PATCH. Members that are not there are nil or "".
type sessionRequest struct {
	path, name, kind     *string
	kernelID, kernelName string
}

// readSession reads the body; the old form of Jupyter, {"notebook": {"path", "name"}}, is understood too.
func (g *Gateway) readSession(w http.ResponseWriter, r *http.Request) (sessionRequest, error) {
	var req sessionRequest
	body, err := g.readObject(w, r)
	if err != nil {
		return req, err
	}
	if body == nil {
		return req, refuse(http.StatusBadRequest, "No JSON data provided")
	}
	take := func(o object, key string, into **string) {
		value, there, textErr := o.text(key)
		switch {
		case textErr != nil:
			err = textErr
		case len(value) > maxSessionText:
			err = refuse(http.StatusBadRequest, "%s is longer than %d bytes.", key, maxSessionText)
		case there:
			*into = &value
		}
	}
	notebook, notebookErr := body.object("notebook")
	kernel, kernelErr := body.object("kernel")
	if err := errors.Join(notebookErr, kernelErr); err != nil {
		return req, err
	}
	if notebook != nil {
		take(notebook, "path", &req.path)
		take(notebook, "name", &req.name)
		if kind := "notebook"; r.Method == http.MethodPost {
			req.kind = &kind
		}
	}
	take(body, "path", &req.path)
	take(body, "name", &req.name)
	take(body, "type", &req.kind)
	var id, name *string
	take(kernel, "id", &id)
	take(kernel, "name", &name)
	req.kernelID, req.kernelName = valueOf(id), valueOf(name)
	return req, err
}

func valueOf(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// createSession makes a session and its kernel. The same path is the same session; requests for one path wait for each
// other, so that a double click does not start two kernels (of one gateway; another one's is not known here).
func (g *Gateway) createSession(w http.ResponseWriter, r *http.Request) error {
	req, err := g.readSession(w, r)
	switch {
	case err != nil:
		return err
	case req.path == nil:
		return refuse(http.StatusBadRequest, "Missing field in JSON data: path")
	case req.kind == nil:
		return refuse(http.StatusBadRequest, "Missing field in JSON data: type")
	}
	who := callerOf(r.Context())
	unlock, err := g.paths.lock(r.Context(), who.Name+"\x00"+*req.path)
	if err != nil {
		return err
	}
	defer unlock()
	all, _, err := g.sessions(r.Context())
	if err != nil {
		return err
	}
	same := func(f found) bool {
		// Somebody else's notebook may have the same path, unless it is the very kernel that is asked for.
		return f.session.Path == *req.path && (f.kernel.Owner == who.owner() || who.one || f.kernel.ID == req.kernelID && who.to(f.kernel) >= useKernel)
	}
	if i := slices.IndexFunc(all, same); i >= 0 {
		accountOf(r.Context()).kernel = all[i].kernel.ID
		return g.answerSession(w, r, http.StatusCreated, all[i])
	}
	s := launcher.Session{ID: uuid.NewString(), Path: *req.path, Name: valueOf(req.name), Type: *req.kind}
	if req.kernelID != "" {
		// Of a kernel that runs already the session is only noted down. An unknown id is passed over, as in Jupyter
		// Server: front ends send the id of the kernel they had last.
		k, err := g.sessionKernel(r.Context(), req.kernelID)
		if err == nil {
			return g.storeSession(w, r, http.StatusCreated, s, k)
		}
		if !errors.Is(err, launcher.ErrNotFound) {
			return err
		}
	}
	return g.startForSession(r, req.kernelName, func(k launcher.Kernel) error {
		return g.storeSession(w, r, http.StatusCreated, s, k)
	})
}

// sessionKernel returns a kernel by an id that a client has sent in a body, if the client may use it.
func (g *Gateway) sessionKernel(ctx context.Context, id string) (launcher.Kernel, error) {
	if !launcher.ValidID(id) {
		return launcher.Kernel{}, launcher.ErrNotFound
	}
	c := callerOf(ctx)
	k, err := g.kernelOf(ctx, c, id)
	if err != nil {
		return k, err
	}
	if err := c.to(k).suffices(useKernel); err != nil {
		return k, err
	}
	g.opts.Launcher.Claim(id)
	return k, nil
}

// startForSession starts a kernel. An unknown name is 501 here, as in Jupyter Server.
func (g *Gateway) startForSession(r *http.Request, name string, answer func(launcher.Kernel) error) error {
	spec, err := g.spec(name)
	if err != nil {
		p := problemOf(r, err)
		return &problem{status: http.StatusNotImplemented, message: p.message, short: true}
	}
	return g.start(r, launcher.Request{ID: uuid.NewString(), Spec: spec, Env: map[string]string{}}, answer)
}

// storeSession notes a session down with its kernel, in place of one of the same id, and answers with it.
func (g *Gateway) storeSession(
	w http.ResponseWriter, r *http.Request, status int, s launcher.Session, k launcher.Kernel,
) error {
	accountOf(r.Context()).kernel = k.ID
	stored, err := g.updateSessions(r.Context(), k.ID, func(all []launcher.Session) ([]launcher.Session, error) {
		all = append(without(all, s.ID), s)
		if len(all) > maxSessions {
			return nil, refuse(http.StatusConflict, "The kernel has %d sessions already.", maxSessions)
		}
		return all, nil
	})
	if err != nil {
		return err
	}
	k.Sessions = stored
	return g.answerSession(w, r, status, found{s, k})
}

func (g *Gateway) updateSessions(
	ctx context.Context, id string, change func([]launcher.Session) ([]launcher.Session, error),
) ([]launcher.Session, error) {
	notes, err := g.updateNotes(ctx, id, func(n launcher.Notes) (launcher.Notes, error) {
		var err error
		n.Sessions, err = change(n.Sessions)
		return n, err
	})
	return notes.Sessions, err
}

// updateNotes changes what is stored with a kernel, within readTime.
func (g *Gateway) updateNotes(
	ctx context.Context, id string, change func(launcher.Notes) (launcher.Notes, error),
) (launcher.Notes, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	return g.opts.Launcher.UpdateNotes(ctx, id, change)
}

// without returns the sessions but the one of an id, in a slice of its own.
func without(all []launcher.Session, id string) []launcher.Session {
	return slices.DeleteFunc(slices.Clone(all), func(s launcher.Session) bool { return s.ID == id })
}

func (g *Gateway) answerSession(w http.ResponseWriter, r *http.Request, status int, f found) error {
	if status == http.StatusCreated {
		w.Header().Set("Location", g.base+"/api/sessions/"+f.session.ID)
	}
	return writeJSON(w, status, f.model(r.Context()))
}

// patchSession renames a session or gives it another kernel: a running one by id, or a new one by name; the id wins.
// The kernel it had is shut down then, as in Jupyter Server.
func (g *Gateway) patchSession(w http.ResponseWriter, r *http.Request) error {
	req, err := g.readSession(w, r)
	if err != nil {
		return err
	}
	f, err := g.sessionOf(r)
	if err != nil {
		return err
	}
	s := f.session
	for _, member := range []struct {
		to   *string
		from *string
	}{{&s.Path, req.path}, {&s.Name, req.name}, {&s.Type, req.kind}} {
		if member.from != nil {
			*member.to = *member.from
		}
	}
	switch {
	case req.kernelID == f.kernel.ID, req.kernelID == "" && req.kernelName == "":
		return g.storeSession(w, r, http.StatusOK, s, f.kernel)
	case req.kernelID != "":
		k, err := g.sessionKernel(r.Context(), req.kernelID)
		switch p := refuse(http.StatusBadRequest, "No such kernel: %s", shorten(req.kernelID, maxRepeated)); {
		case errors.Is(err, errHidden):
			return p.by(accessCheck)
		case errors.Is(err, launcher.ErrNotFound):
			return p
		}
		if err != nil {
			return err
		}
		return g.moveSession(w, r, s, f.kernel.ID, k)
	}
	return g.startForSession(r, req.kernelName, func(k launcher.Kernel) error {
		return g.moveSession(w, r, s, f.kernel.ID, k)
	})
}

// moveSession stores a session with another kernel and ends the one it had. In this order it is never without one.
func (g *Gateway) moveSession(
	w http.ResponseWriter, r *http.Request, s launcher.Session, from string, to launcher.Kernel,
) error {
	add := func(all []launcher.Session) ([]launcher.Session, error) { return append(without(all, s.ID), s), nil }
	if _, err := g.updateSessions(r.Context(), to.ID, add); err != nil {
		return err
	}
	remove := func(all []launcher.Session) ([]launcher.Session, error) { return without(all, s.ID), nil }
	if _, err := g.updateSessions(r.Context(), from, remove); err != nil && !errors.Is(err, launcher.ErrNotFound) {
		return err
	}
	err := g.stop(r.Context(), from, "its session was given another kernel")
	if err != nil && !errors.Is(err, launcher.ErrNotFound) {
		// The session has moved all the same. To fail now would end the new kernel and lose the session with it.
		g.log.Error("the kernel a session has left could not be stopped", "kernel", from, "session", s.ID, "err", err)
	}
	return g.answerSession(w, r, http.StatusOK, found{s, to})
}

// pathLocks makes requests for one path wait for each other. A path's entry lives as long as somebody waits.
type pathLocks struct {
	mu     sync.Mutex
	byPath map[string]*pathLock // guarded by mu
}

type pathLock struct {
	users int           // guarded by pathLocks.mu
	held  chan struct{} // holds one value while locked
}

// lock waits for the path and returns what unlocks it again.
func (l *pathLocks) lock(ctx context.Context, path string) (func(), error) {
	l.mu.Lock()
	if l.byPath == nil {
		l.byPath = map[string]*pathLock{}
	}
	p := l.byPath[path]
	if p == nil {
		p = &pathLock{held: make(chan struct{}, 1)}
		l.byPath[path] = p
	}
	p.users++
	l.mu.Unlock()

	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if p.users--; p.users == 0 {
			delete(l.byPath, path)
		}
	}
	select {
	case p.held <- struct{}{}:
		return func() { <-p.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
