package gateway

import (
	"cmp"
	"maps"
	"net/http"
	"slices"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs"
)

// The routes below /scheduler are those of jupyter-scheduler, for its clients. They translate only: a job is submitted,
// listed and removed as by /api/jobs. A client sends the notebook with the request, since the gateway reads no files.

// schedulerFeatures says which fields a front end may offer.
var schedulerFeatures = map[string]bool{
	"job_name": true, "parameters": true, "output_formats": true, "job_definition": true, "idempotency_token": true,
	"tags": true, "stop_job": true, "delete_job": true,

	"email_notifications": false, "timeout_seconds": false, "retry_on_timeout": false, "max_retries": false,
	"min_retry_interval_millis": false, "output_filename_template": false,
}

// schedulerMembers are the members of a body that have other names here. A member that is null is absent.
var schedulerMembers = map[string]string{
	"name": "name", "input_uri": "input_path", "runtime_environment_name": "kernelspec", "compute_type": "flavor",
	"idempotency_token": "token", "schedule": "schedule", "timezone": "timezone",
}

// readForScheduler reads the body of jupyter-scheduler's CreateJob, CreateJobDefinition or UpdateJobDefinition, and
// returns a body of /api/jobs. It leaves out what has no meaning here, as the template of output files.
func (g *Gateway) readForScheduler(w http.ResponseWriter, r *call) (object, error) {
	body, err := g.readObject(w, r)
	if err != nil {
		return nil, err
	}
	translated := object{}
	for member, to := range schedulerMembers {
		if _, there, err := body.text(member); err != nil {
			return nil, err
		} else if there {
			translated[to] = body[member]
		}
	}
	for _, member := range []string{"notebook", "parameters", "tags", "active"} {
		if raw, there := body[member]; there && string(raw) != "null" {
			translated[member] = raw
		}
	}
	if folder, there := body["package_input_folder"]; there && string(folder) != "false" && string(folder) != "null" {
		return nil, refuse(http.StatusBadRequest, "package_input_folder: the gateway takes the notebook alone, and not its "+
			"folder.")
	}
	if raw, there := translated["parameters"]; there {
		if translated["parameters"], err = eachValue(raw, textAsValue); err != nil {
			return nil, err
		}
	}
	return translated, nil
}

// readSubmission reads what makes a job or a definition.
func (g *Gateway) readSubmission(w http.ResponseWriter, r *call) (object, error) {
	body, err := g.readForScheduler(w, r)
	if err != nil {
		return nil, err
	}
	for _, member := range []string{"name", "input_uri", "runtime_environment_name"} {
		if _, there := body[schedulerMembers[member]]; !there {
			return nil, refuse(http.StatusBadRequest, "%s is missing.", member)
		}
	}
	if _, there := body["notebook"]; !there {
		return nil, noNotebook()
	}
	return body, nil
}

// noNotebook is the error of a request that names a file only.
func noNotebook() error {
	return refuse(http.StatusBadRequest, "notebook is missing. The gateway reads no files: send the notebook's JSON in "+
		"the member notebook. input_uri is its name only.")
}

// createSchedulerJob answers POST /scheduler/jobs.
func (g *Gateway) createSchedulerJob(w http.ResponseWriter, r *call) error {
	body, err := g.readSubmission(w, r)
	if err != nil {
		return err
	}
	for _, member := range []string{"schedule", "timezone", "active"} {
		delete(body, member)
	}
	job, _, err := g.submit(r, body)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, map[string]string{"job_id": job.ID})
}

// listSchedulerJobs answers GET /scheduler/jobs, with the caller's jobs or all for an admin.
func (g *Gateway) listSchedulerJobs(w http.ResponseWriter, r *call) error {
	manager, query, err := g.needList(r)
	if err != nil {
		return err
	}
	query.created = 0 // of definitions
	list, err := manager.List(r.Context(), func(j *jobs.Job) bool { return r.who.owns(j.Owner) })
	if err != nil {
		return jobProblem(err)
	}
	return answerList(w, query, "jobs", list, func(j *jobs.Job) schedulerKeys {
		return schedulerKeys{name: j.Name, state: string(j.State), status: schedulerStatus(j), definition: j.Definition,
			tags: j.Tags, created: j.Created, started: j.Started, ended: j.Ended}
	}, describeJobForScheduler)
}

// countSchedulerJobs answers GET /scheduler/jobs/count. Without a status it counts those that run.
func (g *Gateway) countSchedulerJobs(w http.ResponseWriter, r *call) error {
	manager, err := g.needJobs()
	if err != nil {
		return err
	}
	status, err := statusOf(cmp.Or(r.URL.Query().Get("status"), schedulerRuns))
	if err != nil {
		return err
	}
	list, err := manager.List(r.Context(), func(j *jobs.Job) bool {
		return r.who.owns(j.Owner) && schedulerStatus(j) == status
	})
	if err != nil {
		return jobProblem(err)
	}
	return writeJSON(w, http.StatusOK, map[string]int{"count": len(list)})
}

func (g *Gateway) getSchedulerJob(w http.ResponseWriter, r *call) error {
	_, job, err := g.jobOf(r)
	if err != nil {
		return err
	}
	return answerOne(w, &job, describeJobForScheduler)
}

// patchSchedulerJob stops a job. Nothing else of a job can be changed.
func (g *Gateway) patchSchedulerJob(w http.ResponseWriter, r *call) error {
	if _, _, err := g.jobOf(r); err != nil {
		return err
	}
	body, err := g.readObject(w, r)
	if err != nil {
		return err
	}
	if status, _, err := body.text("status"); err != nil || status != schedulerStopped {
		return cmp.Or(err, error(refuse(http.StatusBadRequest, "A job can only be stopped: status is not %s.",
			schedulerStopped)))
	}
	if _, err := g.requestStop(r); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// schedulerBatch bounds the jobs that one request removes.
const schedulerBatch = 1000

// deleteSchedulerJobs removes the jobs of the query, one after the other. The first that cannot be removed ends it.
// Each job that was removed has an entry in the audit log.
func (g *Gateway) deleteSchedulerJobs(w http.ResponseWriter, r *call) error {
	ids := r.URL.Query()["job_id"]
	if len(ids) == 0 || len(ids) > schedulerBatch {
		return refuse(http.StatusBadRequest, "The parameter job_id is missing, or there are more than %d.", schedulerBatch)
	}
	for i, id := range ids {
		r.SetPathValue("job", id)
		r.spec = ""
		if err := g.removeJob(r); err != nil {
			return err
		}
		if i < len(ids)-1 { // the last one's is that of the request
			e := r.entry("remove job", schedulerBatchPath)
			e.Outcome, e.Status = auditDone, http.StatusNoContent
			g.audit.write(e)
		}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// schedulerBatchPath is the pattern of deleteSchedulerJobs.
const schedulerBatchPath = "/scheduler/batch/jobs"

// downloadSchedulerFiles refuses to write a job's files, and says where the notebook is.
func (g *Gateway) downloadSchedulerFiles(_ http.ResponseWriter, r *call) error {
	_, job, err := g.jobOf(r)
	if err != nil {
		return err
	}
	return refuse(http.StatusBadRequest, "The gateway writes no files. GET %s/api/jobs/%s/notebook returns the notebook.",
		g.base, job.ID)
}

// createSchedulerDefinition answers POST /scheduler/job_definitions.
func (g *Gateway) createSchedulerDefinition(w http.ResponseWriter, r *call) error {
	body, err := g.readSubmission(w, r)
	if err != nil {
		return err
	}
	if schedule, _, err := body.text("schedule"); err != nil {
		return err
	} else if schedule == "" {
		delete(body, "timezone") // front ends send one without a schedule, too
	}
	delete(body, "token") // jupyter-scheduler has none for definitions
	delete(body, "active")
	definition, _, err := g.define(r, body)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, map[string]string{"job_definition_id": definition.ID})
}

// listSchedulerDefinitions answers GET /scheduler/job_definitions.
func (g *Gateway) listSchedulerDefinitions(w http.ResponseWriter, r *call) error {
	manager, query, err := g.needList(r)
	if err != nil {
		return err
	}
	query.status, query.definition, query.started = "", "", 0 // of jobs
	list, err := manager.Definitions(r.Context(), func(d *jobs.Definition) bool { return r.who.owns(d.Owner) })
	if err != nil {
		return definitionProblem(err)
	}
	return answerList(w, query, "job_definitions", list, func(d *jobs.Definition) schedulerKeys {
		return schedulerKeys{name: d.Name, tags: d.Tags, created: d.Created}
	}, describeDefinitionForScheduler)
}

func (g *Gateway) getSchedulerDefinition(w http.ResponseWriter, r *call) error {
	_, d, err := g.definitionOf(r)
	if err != nil {
		return err
	}
	return answerOne(w, &d, describeDefinitionForScheduler)
}

// patchSchedulerDefinition pauses, resumes or changes a definition. A front end's form always sends input_uri, which
// means nothing if it is the name of the definition's own notebook.
func (g *Gateway) patchSchedulerDefinition(w http.ResponseWriter, r *call) error {
	manager, d, err := g.definitionOf(r)
	if err != nil {
		return err
	}
	body, err := g.readForScheduler(w, r)
	if err != nil {
		return err
	}
	delete(body, "token")
	uri, _, err := body.text("input_path")
	if err != nil {
		return err
	}
	if _, sent := body["notebook"]; !sent {
		if shown, err := describeDefinitionForScheduler(&d); err != nil {
			return err
		} else if uri != "" && uri != d.InputPath && uri != shown.InputFilename {
			return noNotebook()
		}
		uri = ""
	}
	if uri == "" {
		delete(body, "input_path")
	}
	if raw, there := body["schedule"]; there && string(raw) == `""` {
		body["timezone"] = raw
	}
	if _, err := g.redefine(r, manager, d.ID, body); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// runSchedulerDefinition makes a job of a definition now. The body may have other parameters.
func (g *Gateway) runSchedulerDefinition(w http.ResponseWriter, r *call) error {
	manager, d, err := g.definitionOf(r)
	if err != nil {
		return err
	}
	body, err := g.readForScheduler(w, r)
	if err != nil {
		return err
	}
	delete(body, "token")
	job, _, err := makeJob(r, manager, d.ID, body)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, map[string]string{"job_id": job.ID})
}

// schedulerEnvironment is jupyter-scheduler's RuntimeEnvironment. Its output formats have labels.
type schedulerEnvironment struct {
	Name               string              `json:"name"`
	Label              string              `json:"label"` // the front end takes the chosen label for the name
	Description        string              `json:"description"`
	FileExtensions     []string            `json:"file_extensions"`
	OutputFormats      []map[string]string `json:"output_formats"`
	Metadata           struct{}            `json:"metadata"`
	ComputeTypes       []string            `json:"compute_types"` // null if there are none: an empty list is an empty menu
	DefaultComputeType *string             `json:"default_compute_type"`
	UTCOnly            bool                `json:"utc_only"`
}

// listSchedulerEnvironments answers with the kernelspecs that the caller may start, the default one first. Their
// compute types are the flavors that the caller may choose.
func (g *Gateway) listSchedulerEnvironments(w http.ResponseWriter, r *call) error {
	var flavors []string
	for _, f := range g.flavorsOf(r.who) {
		flavors = append(flavors, f.Name)
	}
	specs := g.startableSpecs(r.who)
	names := slices.Sorted(maps.Keys(specs))
	if at := slices.Index(names, g.defaultSpec(r.who)); at > 0 {
		first := names[at]
		names = slices.Insert(slices.Delete(names, at, at+1), 0, first)
	}
	list := []schedulerEnvironment{}
	for _, name := range names {
		e := schedulerEnvironment{Name: name, Label: name, Description: cmp.Or(specs[name].DisplayName, name),
			FileExtensions: []string{schedulerFormat}, ComputeTypes: flavors,
			OutputFormats: []map[string]string{{"name": schedulerFormat, "label": schedulerFormatLabel}}}
		if len(flavors) > 0 {
			e.DefaultComputeType = &flavors[0]
		}
		list = append(list, e)
	}
	return writeJSON(w, http.StatusOK, list)
}

func (g *Gateway) getSchedulerConfig(w http.ResponseWriter, _ *call) error {
	return writeJSON(w, http.StatusOK, map[string]any{
		"supported_features": schedulerFeatures, "manage_environments_command": "",
	})
}
