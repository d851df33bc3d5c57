package gateway

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

const noDefinition = "The job definition does not exist."

// definitionProblem turns an error of package jobs about a definition into the answer for the client.
func definitionProblem(err error) error {
	if errors.Is(err, launcher.ErrNoRecord) {
		return refuse(http.StatusNotFound, noDefinition)
	}
	return jobProblem(err)
}

// definitionChange reads those members of a body that are a definition's own. A member that is null is empty.
func definitionChange(body object) (c jobs.Change, err error) {
	if _, there := body["kernel"]; there {
		return c, refuse(http.StatusBadRequest, "kernel: the jobs of a definition have kernels of their own.")
	}
	for member, to := range map[string]**string{"schedule": &c.Schedule, "timezone": &c.Timezone} {
		if _, there := body[member]; there {
			text, _, err := body.text(member)
			if err != nil {
				return c, err
			}
			*to = &text
		}
	}
	if raw, there := body["active"]; there {
		c.Active = new(bool)
		if string(raw) == "null" || json.Unmarshal(raw, c.Active) != nil {
			return c, refuse(http.StatusBadRequest, "active is not true or false.")
		}
	}
	return c, nil
}

// createDefinition answers POST /api/jobs/definitions.
func (js *jobRoutes) createDefinition(w http.ResponseWriter, r *call) error {
	body, err := js.bodies.object(w, r)
	if err != nil {
		return err
	}
	definition, created, err := js.define(r, body)
	if err != nil {
		return err
	}
	return js.answerMade(w, created, "/api/jobs/definitions/"+definition.ID, definition)
}

// define stores a definition. created is false if an earlier request with the body's token has stored it.
func (js *jobRoutes) define(r *call, body object) (d jobs.Definition, created bool, err error) {
	manager, err := js.needJobs()
	if err != nil {
		return d, false, err
	}
	change, err := definitionChange(body)
	if err != nil {
		return d, false, err
	}
	sub, err := js.submission(r, body)
	if err != nil {
		return d, false, err
	}
	if d, created, err = manager.Define(r.Context(), sub, change); err != nil {
		return d, false, definitionProblem(err)
	}
	return d, created, nil
}

// listDefinitions answers with the caller's definitions, or all for an admin, the oldest first.
func (js *jobRoutes) listDefinitions(w http.ResponseWriter, r *call) error {
	manager, err := js.needJobs()
	if err != nil {
		return err
	}
	name := r.URL.Query().Get("name")
	list, err := manager.Definitions(r.Context(), func(d *jobs.Definition) bool {
		return r.Who.Owns(d.Owner) && strings.HasPrefix(d.Name, name)
	})
	if err != nil {
		return definitionProblem(err)
	}
	return writeJSON(w, http.StatusOK, list)
}

// definitionOf returns the definition of the path, if the caller owns it. Another user's does not exist for the caller.
func (js *jobRoutes) definitionOf(r *call) (*jobs.Manager, jobs.Definition, error) {
	manager, err := js.needJobs()
	if err != nil {
		return nil, jobs.Definition{}, err
	}
	d, err := manager.Definition(r.Context(), r.PathValue("definition"))
	switch {
	case err != nil:
		return nil, jobs.Definition{}, definitionProblem(err)
	case !r.Who.Owns(d.Owner):
		return nil, jobs.Definition{}, refuse(http.StatusNotFound, noDefinition).by(kernels.AccessCheck)
	}
	r.Spec = d.Kernelspec
	return manager, d, nil
}

func (js *jobRoutes) getDefinition(w http.ResponseWriter, r *call) error {
	_, d, err := js.definitionOf(r)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, d)
}

// patchDefinition pauses, resumes or changes a definition. Members that the body does not have stay.
func (js *jobRoutes) patchDefinition(w http.ResponseWriter, r *call) error {
	manager, d, err := js.definitionOf(r)
	if err != nil {
		return err
	}
	body, err := js.bodies.object(w, r)
	if err != nil {
		return err
	}
	if d, err = js.redefine(r, manager, d.ID, body); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, d)
}

// redefine changes a definition to what a body says. Members that the body does not have stay.
func (js *jobRoutes) redefine(r *call, manager *jobs.Manager, id string, body object) (d jobs.Definition, err error) {
	change, err := definitionChange(body)
	if err != nil {
		return d, err
	}
	for _, member := range []string{"schedule", "timezone", "active", "token"} {
		delete(body, member)
	}
	if len(body) > 0 { // else it can be paused after its kernelspec is gone
		sub, err := js.changedSubmission(r, manager, id, body)
		if err != nil {
			return d, err
		}
		change.Submission = &sub
	}
	if d, err = manager.ChangeDefinition(r.Context(), id, change); err != nil {
		return d, definitionProblem(err)
	}
	return d, nil
}

// changedSubmission returns what a definition submits, with the members of a body in place of its own.
func (js *jobRoutes) changedSubmission(
	r *call, manager *jobs.Manager, id string, body object,
) (jobs.Submission, error) {
	sub, err := manager.DefinitionSubmission(r.Context(), id)
	if err != nil {
		return sub, definitionProblem(err)
	}
	template, err := json.Marshal(sub.Template)
	if err != nil {
		return sub, err
	}
	start, err := json.Marshal(sub.Start)
	if err != nil {
		return sub, err
	}
	var merged, wish object
	if err := errors.Join(json.Unmarshal(template, &merged), json.Unmarshal(start, &wish)); err != nil {
		return sub, err
	}
	merged["notebook"] = sub.Notebook
	delete(merged, "flavor") // the default flavor may have changed
	for _, member := range []string{"flavor", "env"} {
		if raw, there := wish[member]; there {
			merged[member] = raw
		}
	}
	for member, raw := range body {
		merged[member] = raw
	}
	return js.submission(r, merged)
}

// deleteDefinition removes a definition. Its jobs stay.
func (js *jobRoutes) deleteDefinition(w http.ResponseWriter, r *call) error {
	manager, d, err := js.definitionOf(r)
	switch {
	case errors.Is(err, launcher.ErrRecordDamaged) && r.Who.SeesAll():
		err = js.manager.RemoveDamagedDefinition(r.Context(), r.PathValue("definition"))
	case err != nil:
		return err
	default:
		err = manager.RemoveDefinition(r.Context(), d.ID)
	}
	if err != nil {
		return definitionProblem(err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// runDefinition makes a job of a definition now. The body may have other parameters and a token.
func (js *jobRoutes) runDefinition(w http.ResponseWriter, r *call) error {
	manager, d, err := js.definitionOf(r)
	if err != nil {
		return err
	}
	body, err := js.bodies.object(w, r)
	if err != nil {
		return err
	}
	job, created, err := makeJob(r, manager, d.ID, body)
	if err != nil {
		return err
	}
	return js.answerMade(w, created, "/api/jobs/"+job.ID, job)
}

// makeJob makes a job of a definition, with the parameters and the token of a body.
func makeJob(r *call, manager *jobs.Manager, id string, body object) (job jobs.Job, created bool, err error) {
	token, _, err := body.text("token")
	if err != nil {
		return job, false, err
	}
	var parameters json.RawMessage
	if given, err := body.object("parameters"); err != nil {
		return job, false, err
	} else if given != nil {
		parameters = body["parameters"]
	}
	if job, created, err = manager.RunDefinition(r.Context(), id, parameters, token); err != nil {
		return job, false, definitionProblem(err)
	}
	return job, created, nil
}
