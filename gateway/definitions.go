package gateway

import (
	"encoding/json"
	"errors"
	"maps"
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
	change, err := definitionChange(body)
	if err != nil {
		return err
	}
	sub, err := js.submission(r, body)
	if err != nil {
		return err
	}
	d, created, err := js.manager.Define(r.Context(), sub, change)
	if err != nil {
		return definitionProblem(err)
	}
	return js.answerMade(w, created, "/api/jobs/definitions/"+d.ID, d)
}

// listDefinitions answers with the caller's definitions, or all for an admin, the oldest first.
func (js *jobRoutes) listDefinitions(w http.ResponseWriter, r *call) error {
	name := r.URL.Query().Get("name")
	list, err := js.manager.Definitions(r.Context(), func(d *jobs.Definition) bool {
		return r.Who.Owns(d.Owner) && strings.HasPrefix(d.Name, name)
	})
	if err != nil {
		return definitionProblem(err)
	}
	return writeJSON(w, http.StatusOK, list)
}

// definitionOf returns the definition of the path, if the caller owns it. Another user's does not exist for the caller.
func (js *jobRoutes) definitionOf(r *call) (jobs.Definition, error) {
	d, err := js.manager.Definition(r.Context(), r.PathValue("definition"))
	switch {
	case err != nil:
		return d, definitionProblem(err)
	case !r.Who.Owns(d.Owner):
		return d, refuse(http.StatusNotFound, noDefinition).by(kernels.AccessCheck)
	}
	r.Spec = d.Kernelspec
	return d, nil
}

func (js *jobRoutes) getDefinition(w http.ResponseWriter, r *call) error {
	d, err := js.definitionOf(r)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, d)
}

// patchDefinition pauses, resumes or changes a definition. Members that the body does not have stay.
func (js *jobRoutes) patchDefinition(w http.ResponseWriter, r *call) error {
	d, err := js.definitionOf(r)
	if err != nil {
		return err
	}
	body, err := js.bodies.object(w, r)
	if err != nil {
		return err
	}
	change, err := definitionChange(body)
	if err != nil {
		return err
	}
	for _, member := range []string{"schedule", "timezone", "active", "token"} {
		delete(body, member)
	}
	if len(body) > 0 { // else it can be paused after its kernelspec is gone
		sub, err := js.changedSubmission(r, d.ID, body)
		if err != nil {
			return err
		}
		change.Submission = &sub
	}
	if d, err = js.manager.ChangeDefinition(r.Context(), d.ID, change); err != nil {
		return definitionProblem(err)
	}
	return writeJSON(w, http.StatusOK, d)
}

// changedSubmission returns what a definition submits, with the members of a body in place of its own.
func (js *jobRoutes) changedSubmission(r *call, id string, body object) (jobs.Submission, error) {
	sub, err := js.manager.DefinitionSubmission(r.Context(), id)
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
	maps.Copy(merged, body)
	return js.submission(r, merged)
}

// deleteDefinition removes a definition. Its jobs stay.
func (js *jobRoutes) deleteDefinition(w http.ResponseWriter, r *call) error {
	d, err := js.definitionOf(r)
	switch {
	case errors.Is(err, launcher.ErrRecordDamaged) && r.Who.SeesAll():
		err = js.manager.RemoveDamagedDefinition(r.Context(), r.PathValue("definition"))
	case err != nil:
		return err
	default:
		err = js.manager.RemoveDefinition(r.Context(), d.ID)
	}
	return noContent(w, definitionProblem(err))
}

// runDefinition makes a job of a definition now. The body may have other parameters and a token.
func (js *jobRoutes) runDefinition(w http.ResponseWriter, r *call) error {
	d, err := js.definitionOf(r)
	if err != nil {
		return err
	}
	body, err := js.bodies.object(w, r)
	if err != nil {
		return err
	}
	token, _, err := body.text("token")
	if err != nil {
		return err
	}
	var parameters json.RawMessage
	if given, err := body.object("parameters"); err != nil {
		return err
	} else if given != nil {
		parameters = body["parameters"]
	}
	job, created, err := js.manager.RunDefinition(r.Context(), d.ID, parameters, token)
	if err != nil {
		return definitionProblem(err)
	}
	return js.answerMade(w, created, "/api/jobs/"+job.ID, job)
}
