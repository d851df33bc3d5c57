package gateway

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"path"
	"slices"

	"github.com/google/uuid"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// sessionModel is Jupyter's model of a session.
type sessionModel struct {
	ID       string         `json:"id"`
	Path     string         `json:"path"`
	Name     string         `json:"name"`
	Type     string         `json:"type"`
	Kernel   kernelModel    `json:"kernel"`
	Notebook *notebookModel `json:"notebook,omitempty"` // only if Type is notebook
}

type notebookModel struct {
	Path string `json:"path"`
	Name string `json:"name"`
}

// found is a session with its kernel.
type found struct {
	session launcher.Session
	kernel  launcher.Kernel
}

// sessions are the sessions of notebooks, which are stored with their kernels.
type sessions struct {
	// Fixed.
	kernels  *kernels.Service
	launcher launcher.Launcher
	jobs     *jobRoutes
	models   *models
	bodies   *bodies
	base     string
	log      *slog.Logger
	listed   func(context.Context) (*listing, error) // all kernels, as of the last second

	locks keyLocks // of a user's paths, and of kernels
}

func (ss *sessions) sessionModel(f found, who kernels.Caller) sessionModel {
	m := sessionModel{ID: f.session.ID, Path: f.session.Path, Name: f.session.Name, Type: f.session.Type,
		Kernel: ss.models.modelFor(who, &f.kernel)}
	if m.Type == "notebook" {
		m.Notebook = &notebookModel{Path: m.Path, Name: m.Name}
	}
	return m
}

// all returns the sessions that the caller may see.
func (ss *sessions) all(ctx context.Context, who kernels.Caller) ([]found, error) {
	ctx, cancel := context.WithTimeout(ctx, kernels.ReadTime)
	defer cancel()
	list, err := ss.kernels.List(ctx, who)
	if err != nil {
		return nil, err
	}
	hidden := func(f found) bool { return !f.shows(who) }
	return slices.DeleteFunc(sessionsOf(list), hidden), nil
}

// sessionsOf returns the sessions of kernels. A session that is being moved may be stored with two kernels for a
// moment; the younger kernel counts.
func sessionsOf(list []launcher.Kernel) []found {
	var all []found
	at := map[string]int{}
	for _, k := range list {
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

// of returns the session of the request's path.
func (ss *sessions) of(r *call) (found, error) {
	is := func(s launcher.Session) bool { return s.ID == r.PathValue("session") }
	f, there, err := ss.find(r, func(f found) bool { return is(f.session) })
	if err != nil {
		return found{}, err
	}
	if !there {
		// All requests share one list a second. It may be a second late: only the audit log says what was refused.
		list, err := ss.listed(r.Context())
		if err != nil {
			return found{}, err
		}
		p := refuse(http.StatusNotFound, "Session not found: session_id=%q", kernels.Shorten(r.PathValue("session")))
		if slices.ContainsFunc(list.kernels, func(k launcher.Kernel) bool { return slices.ContainsFunc(k.Sessions, is) }) {
			return found{}, p.by(kernels.AccessCheck) // it belongs to another user
		}
		return found{}, p
	}
	r.Kernel = f.kernel.ID
	return f, nil
}

func (ss *sessions) listSessions(w http.ResponseWriter, r *call) error {
	all, err := ss.all(r.Context(), r.Who)
	if err != nil {
		return err
	}
	models := make([]sessionModel, 0, len(all))
	for _, f := range all {
		models = append(models, ss.sessionModel(f, r.Who))
	}
	return writeJSON(w, http.StatusOK, models)
}

func (ss *sessions) getSession(w http.ResponseWriter, r *call) error {
	f, err := ss.of(r)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, ss.sessionModel(f, r.Who))
}

// deleteSession ends a session. The kernel ends with its last one, unless a job runs in it.
func (ss *sessions) deleteSession(w http.ResponseWriter, r *call) error {
	f, err := ss.of(r)
	if err != nil {
		return err
	}
	job, err := ss.jobs.jobIn(r, f.kernel.ID)
	if err != nil {
		return err
	}
	unlock, err := ss.locks.lock(r.Context(), f.kernel.ID)
	if err != nil {
		return err
	}
	defer unlock() // from now on no session is stored with a kernel that ends
	needed := job
	// The last session goes with its kernel: if the kernel cannot be stopped, it is still listed.
	_, err = ss.updateSessions(r.Context(), f.kernel.ID, func(all []launcher.Session) ([]launcher.Session, error) {
		rest := without(all, f.session.ID)
		if needed = job || f.needed(r.Who, rest); needed {
			return rest, nil
		}
		return all, nil
	})
	if err == nil && !needed {
		err = ss.kernels.Stop(r.Context(), &r.Act, f.kernel.ID, "its session was shut down on request")
	}
	if errors.Is(err, launcher.ErrNotFound) {
		return refuse(http.StatusGone, "Kernel deleted before session")
	}
	return noContent(w, err)
}

// sessionRequest is the body of a POST or PATCH. Missing members are nil or "".
type sessionRequest struct {
	path, name, kind     *string
	kernelID, kernelName string
}

// readSession reads the body, also in Jupyter's old form {"notebook": {"path", "name"}}.
func (ss *sessions) readSession(w http.ResponseWriter, r *call) (sessionRequest, error) {
	var req sessionRequest
	body, err := ss.bodies.object(w, r)
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
		if kind := "notebook"; r.Method == http.MethodPost || req.path != nil {
			req.kind = &kind
		}
		if r.Method == http.MethodPost && req.path == nil {
			req.path = req.name
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

// valueOf returns what s points to, or "" for nil.
func valueOf(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// createSession makes a session and its kernel. The same path is the same session. Requests for one path wait for each
// other, so that a double click does not start two kernels. A request also waits while the kernel of its session may be
// ending. Requests through another gateway do not wait.
func (ss *sessions) createSession(w http.ResponseWriter, r *call) error {
	req, err := ss.readSession(w, r)
	switch {
	case err != nil:
		return err
	case req.path == nil:
		return refuse(http.StatusBadRequest, "Missing field in JSON data: path")
	case req.kind == nil:
		return refuse(http.StatusBadRequest, "Missing field in JSON data: type")
	}
	unlock, err := ss.locks.lock(r.Context(), r.Who.Name+"\x00"+*req.path)
	if err != nil {
		return err
	}
	defer unlock()
	same := func(f found) bool {
		// Another user's notebook may have the same path. Its session counts only if the request names its kernel.
		return f.session.Path == *req.path && f.offers(r.Who) &&
			(f.kernel.Owner == r.Who.Owner() || r.Who.Sole || f.kernel.ID == req.kernelID &&
				r.Who.AccessTo(f.kernel) >= useKernel)
	}
	f, there, err := ss.find(r, same)
	if err == nil && there {
		var unlock func()
		if unlock, err = ss.locks.lock(r.Context(), f.kernel.ID); err == nil {
			unlock()
			f, there, err = ss.find(r, same)
		}
	}
	switch {
	case err != nil:
		return err
	case there:
		r.Kernel = f.kernel.ID
		return ss.answerSession(w, r, http.StatusCreated, f)
	}
	s := launcher.Session{ID: uuid.NewString(), Path: *req.path, Name: valueOf(req.name), Type: *req.kind,
		User: r.Who.Owner()}
	id := ""
	if req.kernelID != "" {
		// The session of a running kernel is only stored.
		k, err := ss.sessionKernel(r.Context(), r.Who, req.kernelID)
		runs := err == nil
		if runs {
			err = ss.storeSession(w, r, http.StatusCreated, s, k)
		}
		if !errors.Is(err, launcher.ErrNotFound) {
			return err
		}
		if !runs && unused(req.kernelID, err) { // otherwise it has just ended
			id = req.kernelID
		}
	}
	return ss.startForSession(r, s, id, req.kernelName, func(k launcher.Kernel) error {
		return ss.storeSession(w, r, http.StatusCreated, s, k)
	})
}

// find returns the first session that the caller may see and that is the one.
func (ss *sessions) find(r *call, is func(found) bool) (f found, there bool, err error) {
	all, err := ss.all(r.Context(), r.Who)
	if i := slices.IndexFunc(all, is); i >= 0 {
		return all[i], true, nil
	}
	return found{}, false, err
}

// unused reports whether a new kernel may get an id that a client has chosen. notFound is the error of looking for a
// kernel with that id. The id of a kernel that has ended is not used again: clients that still ask for the old kernel
// would get the new one. Front ends send such an id when they open a notebook again.
func unused(id string, notFound error) bool {
	var gone *launcher.GoneError
	return launcher.ValidID(id) && !errors.As(notFound, &gone) && !errors.Is(notFound, kernels.ErrHidden)
}

// sessionKernel returns the kernel of an id in a request's body, if the caller may use it.
func (ss *sessions) sessionKernel(ctx context.Context, who kernels.Caller, id string) (launcher.Kernel, error) {
	if !launcher.ValidID(id) {
		return launcher.Kernel{}, launcher.ErrNotFound
	}
	k, err := ss.kernels.KernelOf(ctx, who, id)
	if err != nil {
		return k, err
	}
	if err := who.AccessTo(k).Suffices(useKernel); err != nil {
		return k, err
	}
	ss.launcher.Claim(id)
	return k, nil
}

// startForSession starts a session's kernel, with an id if the client has chosen one. An unknown name is 501 here, as
// in Jupyter Server.
func (ss *sessions) startForSession(
	r *call, s launcher.Session, id, name string, answer func(launcher.Kernel) error,
) error {
	wish := kernels.Wish{ID: id, Name: name, Env: map[string]string{kernels.SessionVariable: fileOf(s)}}
	err := ss.kernels.Start(r.Context(), &r.Act, wish, answer)
	if errors.Is(err, kernels.ErrNoSpec) {
		return &problem{status: http.StatusNotImplemented, message: problemOf(r, err).message, short: true}
	}
	return err
}

// fileOf returns what Jupyter Server tells a kernel of its session: the name beside the path, where both are given.
func fileOf(s launcher.Session) string {
	if s.Name == "" || path.IsAbs(s.Name) {
		return cmp.Or(s.Name, s.Path)
	}
	return path.Join(path.Dir(s.Path), s.Name)
}

// storeSession stores a session with its kernel, replacing one of the same id, and answers with it.
func (ss *sessions) storeSession(
	w http.ResponseWriter, r *call, status int, s launcher.Session, k launcher.Kernel,
) error {
	r.Kernel = k.ID
	stored, err := ss.addSession(r.Context(), s, k)
	if err != nil {
		return err
	}
	k.Sessions = stored
	return ss.answerSession(w, r, status, found{s, k})
}

// addSession stores a session with a kernel. It waits while the kernel may be ending. The error is launcher.ErrNotFound
// if the kernel has ended.
func (ss *sessions) addSession(ctx context.Context, s launcher.Session, k launcher.Kernel) ([]launcher.Session, error) {
	unlock, err := ss.locks.lock(ctx, k.ID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return ss.updateSessions(ctx, k.ID, func(all []launcher.Session) ([]launcher.Session, error) {
		return withSession(all, s, k.Owner)
	})
}

func (ss *sessions) updateSessions(
	ctx context.Context, id string, change func([]launcher.Session) ([]launcher.Session, error),
) ([]launcher.Session, error) {
	notes, err := updateNotes(ctx, ss.launcher, id, func(n launcher.Notes) (launcher.Notes, error) {
		var err error
		n.Sessions, err = change(n.Sessions)
		return n, err
	})
	return notes.Sessions, err
}

// updateNotes changes what is stored with a kernel, within kernels.ReadTime.
func updateNotes(
	ctx context.Context, l launcher.Launcher, id string, change func(launcher.Notes) (launcher.Notes, error),
) (launcher.Notes, error) {
	ctx, cancel := context.WithTimeout(ctx, kernels.ReadTime)
	defer cancel()
	return l.UpdateNotes(ctx, id, change)
}

// without returns a copy of the sessions without the one of an id.
func without(all []launcher.Session, id string) []launcher.Session {
	return slices.DeleteFunc(slices.Clone(all), func(s launcher.Session) bool { return s.ID == id })
}

func (ss *sessions) answerSession(w http.ResponseWriter, r *call, status int, f found) error {
	if status == http.StatusCreated {
		w.Header().Set("Location", ss.base+"/api/sessions/"+f.session.ID)
	}
	return writeJSON(w, status, ss.sessionModel(f, r.Who))
}

// patchSession renames a session or gives it another kernel: a running one by id, or a new one by name; the id wins.
// The session's old kernel is then shut down, as in Jupyter Server, unless other sessions have it.
func (ss *sessions) patchSession(w http.ResponseWriter, r *call) error {
	req, err := ss.readSession(w, r)
	if err != nil {
		return err
	}
	f, err := ss.of(r)
	if err != nil {
		return err
	}
	s := f.session
	if !r.Who.Sole {
		s.User = creator(s, f.kernel.Owner) // the other kernel may have another owner
	}
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
		return ss.storeSession(w, r, http.StatusOK, s, f.kernel)
	case req.kernelID != "":
		k, err := ss.sessionKernel(r.Context(), r.Who, req.kernelID)
		switch p := refuse(http.StatusBadRequest, "No such kernel: %s", kernels.Shorten(req.kernelID)); {
		case errors.Is(err, kernels.ErrHidden):
			return p.by(kernels.AccessCheck)
		case errors.Is(err, launcher.ErrNotFound):
			return p
		}
		if err != nil {
			return err
		}
		return ss.moveSession(w, r, s, f, k)
	}
	return ss.startForSession(r, s, "", req.kernelName, func(k launcher.Kernel) error {
		return ss.moveSession(w, r, s, f, k)
	})
}

// moveSession stores a session with another kernel and then ends the old one, so that the session always has a kernel.
// f is the session as it was. The old kernel lives on if it has other sessions, or a job runs in it.
func (ss *sessions) moveSession(
	w http.ResponseWriter, r *call, s launcher.Session, f found, to launcher.Kernel,
) error {
	from := f.kernel.ID
	if _, err := ss.addSession(r.Context(), s, to); err != nil {
		return err
	}
	unlock, err := ss.locks.lock(r.Context(), from)
	if err != nil {
		return err
	}
	defer unlock()
	remove := func(all []launcher.Session) ([]launcher.Session, error) { return without(all, s.ID), nil }
	rest, err := ss.updateSessions(r.Context(), from, remove)
	if err != nil && !errors.Is(err, launcher.ErrNotFound) {
		return err
	}
	there, err := ss.jobs.jobIn(r, from)
	if err == nil && !there && !f.needed(r.Who, rest) {
		err = ss.kernels.Stop(r.Context(), &r.Act, from, "its session was given another kernel")
	}
	if err != nil && !errors.Is(err, launcher.ErrNotFound) {
		// The session has moved. An error would end the new kernel and lose the session with it.
		ss.log.Error("the previous kernel of a session could not be stopped", logkey.Kernel, from, logkey.Session, s.ID,
			logkey.Err, err)
	}
	return ss.answerSession(w, r, http.StatusOK, found{s, to})
}
