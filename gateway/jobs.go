package gateway

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/gateway/gpus"
	"github.com/elastic-kernel-gateway/ekg/gateway/jobs"
	"github.com/elastic-kernel-gateway/ekg/gateway/jobs/folder"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// newJobs returns the manager of jobs. A folder or the launcher keeps them.
func (g *Gateway) newJobs() (*jobs.Manager, error) {
	var keeper launcher.RecordKeeper = g.opts.Launcher
	if dir := g.opts.Jobs.Dir; dir != "" {
		records, err := folder.Open(dir)
		if err != nil {
			return nil, kernels.WrongOption("Jobs", "the folder of jobs: %v", err)
		}
		keeper = records
	}
	m := jobs.New(keeper, jobs.KernelsOf(g.kernels, g.dialJob), g.opts.Jobs, g.opts.Log)
	m.Observe(g.metrics)
	if g.opts.Users != nil {
		m.Ask(g.opts.Users)
	}
	return m, nil
}

// dialJob connects to the channels of a job's kernel.
func (g *Gateway) dialJob(ctx context.Context, a *kernels.Act, id string, query url.Values) (*websocket.Conn, error) {
	out, err := g.outgoing(ctx, a, id, http.MethodGet, "channels", query)
	if err != nil {
		return nil, err
	}
	out.URL.Scheme = "ws"
	dialer := websocket.Dialer{
		NetDialContext:   func(ctx context.Context, _, _ string) (net.Conn, error) { return g.kernels.Dial(ctx, id) },
		HandshakeTimeout: upgradeTime,
		Subprotocols:     []string{jupyter.SubprotocolRelay},
	}
	ws, resp, err := dialer.DialContext(ctx, out.URL.String(), out.Header)
	if err != nil && resp != nil {
		_ = resp.Body.Close() // the dialer has read what there is
	}
	return ws, err
}

// addGPUSeconds adds to jobs that have not ended what their present kernels have held of GPUs by now. If that cannot be
// read, they have that of earlier attempts.
func (js *jobRoutes) addGPUSeconds(ctx context.Context, list []jobs.Job) {
	has := func(j jobs.Job) bool { return !j.State.Final() && j.Kernel != "" && !j.Started.IsZero() }
	if !slices.ContainsFunc(list, has) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, kernels.ReadTime)
	defer cancel()
	owner := list[0].Owner
	if slices.ContainsFunc(list, func(j jobs.Job) bool { return j.Owner != owner || j.Then != "" }) {
		owner = "" // an admin's job may run in another owner's kernel
	}
	all, err := js.launcher.Usage(ctx, owner)
	if err != nil {
		js.log.Debug("the GPU time of running jobs lacks their present attempt", logkey.Err, err)
		return
	}
	now := time.Now()
	for i := range list {
		if j := &list[i]; has(*j) {
			j.GPUSeconds = gpus.Seconds(j.GPUSeconds + kernels.GPUSecondsOf(all, j.Kernel, j.GPUsSince(), now))
		}
	}
}

// jobStates returns how many jobs are in each state, or nil if that is not known.
func (g *Gateway) jobStates() map[string]int {
	known, ok := g.jobs.manager.States()
	if !ok {
		return nil
	}
	states := make(map[string]int, len(known))
	for state, n := range known {
		states[string(state)] = n
	}
	return states
}

// RunJobs runs jobs until ctx ends, and returns when its goroutines have ended. The running cells go on. Another
// gateway, or this one after its next start, takes the jobs.
func (g *Gateway) RunJobs(ctx context.Context) { g.jobs.manager.Run(ctx) }

// jobRoutes are the routes of jobs and of their definitions. Its fields are fixed.
type jobRoutes struct {
	manager  *jobs.Manager
	kernels  *kernels.Service
	launcher launcher.Launcher
	specs    kernels.Specs
	bodies   *bodies
	waits    *connections // clients that wait for a job
	base     string
	log      *slog.Logger
}

const noJob = "The job does not exist."

// jobProblem turns an error of package jobs into the answer for the client.
func jobProblem(err error) error {
	var invalid *jobs.InvalidError
	var many *jobs.TooManyError
	switch {
	case errors.As(err, &invalid):
		return refuse(http.StatusBadRequest, "%s.", upperFirst(invalid.Error()))
	case errors.As(err, &many):
		return refuse(http.StatusForbidden, "%s", many.Error()).by(kernels.LimitCheck)
	case errors.Is(err, launcher.ErrNoRecord):
		return refuse(http.StatusNotFound, noJob)
	case errors.Is(err, jobs.ErrOccupied):
		return refuse(http.StatusConflict, "Another job runs in this kernel.")
	case errors.Is(err, jobs.ErrRuns):
		return refuse(http.StatusConflict, "The job has not ended. Stop it first.")
	case errors.Is(err, launcher.ErrRecordDamaged):
		return &problem{status: http.StatusConflict, reason: "Damaged record", err: err, message: "The record is " +
			"damaged, or encrypted with another master key. An administrator of the gateway can remove it."}
	case errors.Is(err, launcher.ErrRecordTooLarge):
		return refuse(http.StatusRequestEntityTooLarge, "The notebook is larger than what can be stored here.")
	case launcher.DiskFull(err):
		return err
	case errors.Is(err, launcher.ErrUnavailable):
		return &problem{status: http.StatusServiceUnavailable, err: err,
			message: "Jobs cannot be read or stored at the moment. Try again."}
	}
	return err
}

func upperFirst(text string) string {
	if text == "" {
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// submitJob answers POST /api/jobs.
func (js *jobRoutes) submitJob(w http.ResponseWriter, r *call) error {
	body, err := js.bodies.object(w, r)
	if err != nil {
		return err
	}
	sub, err := js.submission(r, body)
	if err != nil {
		return err
	}
	job, created, err := js.manager.Submit(r.Context(), sub)
	if err != nil {
		return jobProblem(err)
	}
	return js.answerMade(w, created, "/api/jobs/"+job.ID, job)
}

// answerMade answers a POST with what it has made, or with what an earlier one with the same token had made.
func (js *jobRoutes) answerMade(w http.ResponseWriter, created bool, path string, made any) error {
	status := http.StatusOK
	if created {
		status = http.StatusCreated
		w.Header().Set("Location", js.base+path)
	}
	return writeJSON(w, status, made)
}

// submission reads the body of a POST. It checks the kernel's start as that of any kernel, so that a mistake is
// reported now. Limits count when the job starts.
func (js *jobRoutes) submission(r *call, body object) (sub jobs.Submission, err error) {
	if sub.Notebook = body["notebook"]; len(sub.Notebook) == 0 || sub.Notebook[0] != '{' {
		return sub, refuse(http.StatusBadRequest, "notebook is missing, or not an object.")
	}
	sub.Author, sub.Owner = jobs.AuthorOf(r.Who), r.Who.Owner()
	spec := ""
	for _, text := range []struct {
		member string
		to     *string
	}{
		{"name", &sub.Name}, {"kernelspec", &spec}, {"flavor", &sub.Flavor}, {"input_path", &sub.InputPath},
		{"output_path", &sub.OutputPath}, {"token", &sub.Token},
	} {
		if *text.to, _, err = body.text(text.member); err != nil {
			return sub, err
		}
	}
	if parameters, err := body.object("parameters"); err != nil {
		return sub, err
	} else if len(parameters) > 0 {
		sub.Parameters = body["parameters"]
	}
	for _, value := range []struct {
		member, is string
		to         any
	}{
		{"tags", "a list of strings", &sub.Tags}, {"priority", "a whole number", &sub.Priority},
		{"timeout", "a whole number of seconds", &sub.Timeout}, {"retries", "a whole number", &sub.Retries},
		{"allow_errors", "true or false", &sub.AllowErrors},
	} {
		if raw, there := body[value.member]; there && json.Unmarshal(raw, value.to) != nil {
			return sub, refuse(http.StatusBadRequest, "%s is not %s.", value.member, value.is)
		}
	}
	if sub.RestartFrom, err = cellName("restart_from", body); err != nil {
		return sub, err
	}
	if _, there := body["kernel"]; there {
		return sub, js.jobInKernel(r, body, &sub)
	}
	return sub, js.jobStart(r, body, spec, &sub)
}

// jobStart sets the start of a job's kernel, and what the job shows of it. Without a kernelspec the notebook's is used.
func (js *jobRoutes) jobStart(r *call, body object, spec string, sub *jobs.Submission) error {
	env, err := variables(js.kernels, body)
	if err != nil {
		return err
	}
	delete(env, "KERNEL_ID") // the job chooses it
	var named struct {
		Metadata struct {
			Kernelspec   struct{ Name, Language string }
			LanguageInfo struct{ Name string } `json:"language_info"`
		}
	}
	if spec == "" {
		_ = json.Unmarshal(sub.Notebook, &named) // a member of another type does not hide the others
		if _, ok := js.specs.Get(named.Metadata.Kernelspec.Name); ok {
			spec = named.Metadata.Kernelspec.Name
		}
	}
	sub.Start = kernels.Wish{Name: spec, Flavor: sub.Flavor, Env: env}
	req, err := js.kernels.Check(&r.Act, sub.Start)
	r.Kernel = "" // it gets another id
	if err != nil {
		return err
	}
	if spec == "" { // the default may be another one when the job starts
		sub.Start.Name = req.Spec.Name
		asked, has := cmp.Or(named.Metadata.LanguageInfo.Name, named.Metadata.Kernelspec.Language), req.Spec.Language
		if asked != "" && has != "" && !strings.EqualFold(asked, has) &&
			!strings.EqualFold(named.Metadata.Kernelspec.Language, has) {
			return refuse(http.StatusBadRequest, "The notebook is in %.80q, and its kernelspec %.80q is not here. "+
				"The default kernelspec %s is for %q. Name the kernelspec that shall run it.", asked,
				named.Metadata.Kernelspec.Name, req.Spec.Name, has)
		}
	}
	if env[launcher.FolderIDVariable] != "" {
		if sub.WorkingDir = req.WorkingDir; sub.WorkingDir == "" {
			delete(env, launcher.WorkingDirVariable)
			delete(env, launcher.FolderIDVariable)
		}
	}
	sub.Kernelspec, sub.Language = req.Spec.Name, req.Spec.Language
	if req.Flavor != nil {
		sub.Flavor = req.Flavor.Name
	}
	return nil
}

// listJobs answers with the caller's jobs, or all for an admin, the oldest first.
func (js *jobRoutes) listJobs(w http.ResponseWriter, r *call) error {
	states, name, definition := r.URL.Query()["state"], r.URL.Query().Get("name"), r.URL.Query().Get("definition")
	for _, state := range states {
		switch jobs.State(state) {
		case jobs.Queued, jobs.Starting, jobs.Running, jobs.Succeeded, jobs.Failed, jobs.Stopped:
		default:
			return refuse(http.StatusBadRequest, "The parameter state is not queued, starting, running, succeeded, failed "+
				"or stopped.")
		}
	}
	list, err := js.manager.List(r.Context(), func(j *jobs.Job) bool {
		return r.Who.Owns(j.Owner) && strings.HasPrefix(j.Name, name) && (definition == "" || j.Definition == definition) &&
			(len(states) == 0 || slices.Contains(states, string(j.State)))
	})
	if err != nil {
		return jobProblem(err)
	}
	js.addGPUSeconds(r.Context(), list)
	return writeJSON(w, http.StatusOK, list)
}

// jobOf returns the job of the path, if the caller owns it. Another user's job does not exist for the caller.
func (js *jobRoutes) jobOf(r *call) (jobs.Job, error) {
	job, err := js.manager.Get(r.Context(), r.PathValue("job"))
	switch {
	case err != nil:
		return job, jobProblem(err)
	case !r.Who.Owns(job.Owner):
		return job, refuse(http.StatusNotFound, noJob).by(kernels.AccessCheck)
	}
	r.Spec = job.Kernelspec
	return job, nil
}

func (js *jobRoutes) getJob(w http.ResponseWriter, r *call) error {
	job, err := js.jobOf(r)
	if err != nil {
		return err
	}
	wait, err := jobWait(r.URL.Query().Get("wait"))
	if err != nil {
		return err
	}
	version, err := jobVersion(&job)
	if err != nil {
		return err
	}
	if wait > 0 && version == r.URL.Query().Get("after") && !job.State.Final() {
		if job, err = js.awaitJob(w, r, job.ID, version, wait); err != nil {
			return err
		}
		if version, err = jobVersion(&job); err != nil {
			return err
		}
	}
	one := []jobs.Job{job}
	js.addGPUSeconds(r.Context(), one)
	return writeJSON(w, http.StatusOK, struct {
		jobs.Job
		Version string `json:"version"`
	}{one[0], version})
}

// jobWaitMost bounds for how long an answer waits for a change of a job. Many proxies end a request after a minute.
const jobWaitMost = 50 * time.Second

// jobWait reads the parameter wait.
func jobWait(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > int(jobWaitMost.Seconds()) {
		return 0, refuse(http.StatusBadRequest, "The parameter wait is not a number of seconds between 0 and %d.",
			int(jobWaitMost.Seconds()))
	}
	return time.Duration(n) * time.Second, nil
}

// jobVersion returns a text that differs when a job has changed. All gateways return the same.
func jobVersion(job *jobs.Job) (string, error) {
	b, err := json.Marshal(job)
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8]), err
}

// awaitJob returns a job when it has another version than the client knows, or after a time. A client that waits counts
// as a connection of its user.
func (js *jobRoutes) awaitJob(
	w http.ResponseWriter, r *call, id, known string, wait time.Duration,
) (jobs.Job, error) {
	// net/http notices that a client has left only after the request's body was read.
	if _, err := js.bodies.read(w, r); err != nil {
		return jobs.Job{}, err
	}
	c, err := js.waits.open(r, "")
	if err != nil {
		return jobs.Job{}, err
	}
	defer js.waits.Remove(c)
	r.waited = true
	ctx, cancel := context.WithTimeout(c.Context(), wait)
	defer cancel()
	job, err := js.manager.Await(ctx, id, func(j *jobs.Job) bool {
		version, err := jobVersion(j)
		return err == nil && version == known
	})
	switch {
	case err != nil:
		return job, jobProblem(err)
	case errors.Is(context.Cause(c.Context()), errRevoked):
		return job, refuse(http.StatusNotFound, noJob).by(kernels.AccessCheck)
	}
	return job, r.Context().Err()
}

// getJobNotebook answers with the notebook as it is now, or with ?source=1 as it was submitted.
func (js *jobRoutes) getJobNotebook(w http.ResponseWriter, r *call) error {
	job, err := js.jobOf(r)
	if err != nil {
		return err
	}
	source := false
	switch r.URL.Query().Get("source") {
	case "", "0":
	case "1":
		source = true
	default:
		return refuse(http.StatusBadRequest, "The parameter source is not 1 or 0.")
	}
	body := &lateBody{w: w}
	err = js.manager.WriteNotebook(r.Context(), body, job.ID, source)
	switch {
	case err == nil:
		return endBody(w)
	case !body.begun:
		return jobProblem(err)
	case r.Context().Err() != nil:
		return r.Context().Err()
	}
	js.log.Warn("a job's notebook was cut off", logkey.Job, job.ID, logkey.Err, err)
	panic(http.ErrAbortHandler)
}

// lateBody is a body in JSON whose length is not known. The answer begins with its first bytes, so an error before them
// has an answer of its own.
type lateBody struct {
	w     http.ResponseWriter
	begun bool
}

func (b *lateBody) Write(p []byte) (int, error) {
	if !b.begun {
		b.begun = true
		h := b.w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Cache-Control", "no-store")
		b.w.WriteHeader(http.StatusOK)
	}
	return b.w.Write(p)
}

// stopJob asks for the end of a job and does not wait for it.
func (js *jobRoutes) stopJob(w http.ResponseWriter, r *call) error {
	job, err := js.jobOf(r)
	if err != nil {
		return err
	}
	if job, err = js.manager.Stop(r.Context(), job.ID); err != nil {
		return jobProblem(err)
	}
	return writeJSON(w, http.StatusAccepted, job)
}

// deleteJob removes a job that has ended.
func (js *jobRoutes) deleteJob(w http.ResponseWriter, r *call) error {
	job, err := js.jobOf(r)
	switch {
	case errors.Is(err, launcher.ErrRecordDamaged) && r.Who.SeesAll():
		err = js.manager.RemoveDamaged(r.Context(), r.PathValue("job"))
	case err != nil:
		return err
	default:
		err = js.manager.Remove(r.Context(), job.ID)
	}
	return noContent(w, jobProblem(err))
}
