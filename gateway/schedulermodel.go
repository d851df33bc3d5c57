package gateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs"
)

// Statuses of jupyter-scheduler.
const (
	schedulerQueued   = "QUEUED"
	schedulerRuns     = "IN_PROGRESS"
	schedulerFailed   = "FAILED"
	schedulerStopping = "STOPPING"
	schedulerStopped  = "STOPPED"
)

// schedulerStatuses are the statuses that a client may ask for. No job here is CREATED.
var schedulerStatuses = []string{
	"CREATED", schedulerQueued, schedulerRuns, "COMPLETED", schedulerFailed, schedulerStopping, schedulerStopped,
}

// schedulerFormat is the only output format.
const schedulerFormat, schedulerFormatLabel = "ipynb", "Notebook"

// schedulerModel is what jupyter-scheduler's models of jobs and definitions have in common. Times are milliseconds
// since 1970.
type schedulerModel struct {
	Name                  string          `json:"name"`
	InputFilename         string          `json:"input_filename"`
	Environment           string          `json:"runtime_environment_name"`
	EnvironmentParameters struct{}        `json:"runtime_environment_parameters"`
	OutputFormats         []string        `json:"output_formats"`
	OutputTemplate        string          `json:"output_filename_template"`
	Parameters            json.RawMessage `json:"parameters"` // all values are texts
	Tags                  []string        `json:"tags"`
	ComputeType           string          `json:"compute_type,omitempty"`
	Created               int64           `json:"create_time"`
	Updated               int64           `json:"update_time"`
	PackagedFiles         []string        `json:"packaged_files"`
}

// schedulerJob is jupyter-scheduler's DescribeJob.
type schedulerJob struct {
	schedulerModel
	ID            string          `json:"job_id"`
	Definition    string          `json:"job_definition_id,omitempty"`
	URL           string          `json:"url"`
	Started       int64           `json:"start_time,omitempty"`
	Ended         int64           `json:"end_time,omitempty"`
	Status        string          `json:"status"`
	StatusMessage string          `json:"status_message,omitempty"`
	Files         []schedulerFile `json:"job_files"`
	Downloaded    bool            `json:"downloaded"`
}

// schedulerFile is jupyter-scheduler's JobFile. It has no path, since the gateway writes no files.
type schedulerFile struct {
	Label  string `json:"display_name"`
	Format string `json:"file_format"`
}

// schedulerDefinition is jupyter-scheduler's DescribeJobDefinition.
type schedulerDefinition struct {
	schedulerModel
	ID       string `json:"job_definition_id"`
	Schedule string `json:"schedule,omitempty"`
	Timezone string `json:"timezone,omitempty"`
	Active   bool   `json:"active"`
}

// describeForScheduler returns what jobs and definitions have in common. A sentence stands behind the name, because
// jupyter-scheduler's front end shows a status_message as an error.
func describeForScheduler(t *jobs.Template, sentence string, created, updated time.Time) (schedulerModel, error) {
	m := schedulerModel{
		Name: t.Name, InputFilename: path.Base(path.Clean("/" + strings.ReplaceAll(t.InputPath, "\x00", ""))),
		Environment: t.Kernelspec, OutputFormats: []string{schedulerFormat},
		OutputTemplate: "{{input_filename}}-{{create_time}}", Tags: append([]string{}, t.Tags...), ComputeType: t.Flavor,
		Created: created.UnixMilli(), Updated: created.UnixMilli(), PackagedFiles: []string{},
	}
	if sentence != "" {
		m.Name += " (" + sentence + ")"
	}
	if m.InputFilename == "/" {
		m.InputFilename = "notebook.ipynb"
	}
	if !updated.IsZero() {
		m.Updated = updated.UnixMilli()
	}
	var err error
	m.Parameters, err = eachValue(t.Parameters, valueAsText)
	return m, err
}

func describeJobForScheduler(j *jobs.Job) (schedulerJob, error) {
	status, waits := schedulerStatus(j), ""
	if status == schedulerQueued {
		waits = j.Reason
	}
	model, err := describeForScheduler(&j.Template, waits, j.Created, time.Time{})
	shown := schedulerJob{schedulerModel: model, ID: j.ID, Definition: j.Definition, URL: "/jobs/" + j.ID, Status: status,
		Started: millisecondsOf(j.Started), Ended: millisecondsOf(j.Ended),
		Files: []schedulerFile{{Label: schedulerFormatLabel, Format: schedulerFormat}}}
	if status == schedulerFailed {
		shown.StatusMessage = j.Reason
	}
	return shown, err
}

func describeDefinitionForScheduler(d *jobs.Definition) (schedulerDefinition, error) {
	model, err := describeForScheduler(&d.Template, d.Reason, d.Created, d.Updated)
	shown := schedulerDefinition{schedulerModel: model, ID: d.ID, Schedule: d.Schedule, Active: d.Active}
	if d.Schedule != "" {
		shown.Timezone = cmp.Or(d.Timezone, "UTC")
	}
	return shown, err
}

// millisecondsOf returns the milliseconds since 1970, and 0 for no time.
func millisecondsOf(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func schedulerStatus(j *jobs.Job) string {
	status := schedulerQueued
	switch j.State {
	case jobs.Queued, jobs.Starting:
	case jobs.Running:
		status = schedulerRuns
	case jobs.Succeeded:
		return "COMPLETED"
	case jobs.Failed:
		return schedulerFailed
	case jobs.Stopped:
		return schedulerStopped
	}
	if j.Stopping {
		return schedulerStopping
	}
	return status
}

// eachValue returns an object with other values, in the same order.
func eachValue(raw json.RawMessage, change func(json.RawMessage) (json.RawMessage, error)) (json.RawMessage, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return json.RawMessage("{}"), nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if first, err := d.Token(); err != nil || first != json.Delim('{') {
		return nil, refuse(http.StatusBadRequest, "parameters is not an object.")
	}
	changed := bytes.NewBufferString("{")
	for d.More() {
		if changed.Len() > 1 {
			changed.WriteByte(',')
		}
		name, err := d.Token()
		if err != nil {
			return nil, err
		}
		key, err := json.Marshal(name)
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		if value, err = change(value); err != nil {
			return nil, err
		}
		changed.Write(append(append(key, ':'), value...))
	}
	changed.WriteByte('}')
	return changed.Bytes(), nil
}

// maxParameter is the length in bytes from which a parameter is not decoded: a job with such a one is refused.
const maxParameter = 64 << 10

// textAsValue returns the value of a parameter. Clients send texts; those that are JSON mean what JSON says. A number
// that is too large for one is a text.
func textAsValue(raw json.RawMessage) (json.RawMessage, error) {
	var text string
	if raw[0] != '"' || len(raw) > maxParameter {
		return raw, nil // a client that sends a value means it
	}
	if err := json.Unmarshal(raw, &text); err != nil {
		return nil, err
	}
	var value any
	if json.Unmarshal([]byte(text), &value) != nil {
		return raw, nil
	}
	return json.RawMessage(text), nil
}

// valueAsText returns a parameter as clients show it.
func valueAsText(raw json.RawMessage) (json.RawMessage, error) {
	if raw[0] == '"' {
		return raw, nil
	}
	return json.Marshal(string(raw))
}
