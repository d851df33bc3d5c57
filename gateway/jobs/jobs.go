// Package jobs runs notebooks without their authors. A Job is a notebook with a kernelspec and parameters. It waits in
// a queue until its kernel may start. Then its cells run one after the other, and the notebook with the outputs is
// kept. Package gateway has the routes of jobs, and calls a Manager. Begin with Manager.Submit and Manager.Run, then
// with hold.steps in hold.go, which runs one job.
//
// A job is a record (launcher.RecordKeeper) that all gateways read. One gateway holds it at a time. The holder starts
// the job's kernel, and runs the notebook (package notebook) over the kernel's own channels. If the holder ends or is
// killed, another gateway takes the job. The kernel and the running cell do not notice that.
//
// A job's record is an entry, see store.go. It has all that another gateway needs to go on: the job's state, and with
// notebook.State the cursor, the newest output of the running cell, and the names of the pieces of its notebook. The
// record is replaced in one step before a cell is sent, and every RecordPace while the cell has new output.
//
// A piece is a record of its own, JOB-NAME. It is created before the job's record names it, and never replaced. The
// holder removes a piece when the record no longer names it. What a killed holder leaves is removed an hour later, see
// sweep.go. A download is assembled while it is sent.
//
// A step is stored before it is done, so a gateway can be killed at any moment. For example, the id of a kernel is
// stored before the kernel is started. A cell's request has the same id whichever gateway sends it, and the kernel's
// supervisor accepts an id only once.
//
// A gateway with jobs shows that it lives by its lease: a small record that it renews, one for all its jobs. Another
// gateway takes a job if the holder's lease has stayed the same for timing.lease by its own clock; clocks of gateways
// are never compared. A holder that was frozen meanwhile cannot store anything, because a job's record is replaced only
// if no other gateway has changed it. It also sees at its next look at all jobs that it has lost the job.
//
// A Definition makes jobs by a schedule (package schedule), or on request. Each gateway makes what is due. The id of
// such a job follows from the definition and the time, so all gateways together make one job for each time.
//
// Goroutines: the caller runs Manager.Run. It starts one for the schedules, one that renews the lease, and one for each
// job that it holds, and waits for all. Those for jobs have those of package notebook.
package jobs

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs/notebook"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
)

// State says how far a job is.
type State string

// The states of a job. The last three are final.
const (
	Queued    State = "queued"   // its kernel is not started: it waits for its turn, or for a limit
	Starting  State = "starting" // its kernel is being started
	Running   State = "running"
	Succeeded State = "succeeded" // all cells have run
	Failed    State = "failed"
	Stopped   State = "stopped" // on request
)

// Final reports whether a job of the state has ended.
func (s State) Final() bool { return s == Succeeded || s == Failed || s == Stopped }

// Then is what happens to the kernel of a job that has ended.
type Then string

// What may happen to the author's kernel.
const (
	ThenKeep Then = "keep" // it lives on, as if the author had run the cells
	ThenEnd  Then = "end"
)

// Template is what a client sets of a job: what runs, and how. A definition has one for all its jobs.
type Template struct {
	Name       string          `json:"name"`
	Owner      string          `json:"owner,omitempty"` // "" if there is only one owner
	Kernelspec string          `json:"kernelspec"`
	Flavor     string          `json:"flavor,omitempty"`
	Parameters json.RawMessage `json:"parameters,omitempty"` // an object
	Tags       []string        `json:"tags,omitempty"`
	Priority   int             `json:"priority,omitempty"` // jobs with a higher one start first
	Timeout    int64           `json:"timeout,omitempty"`  // seconds that one attempt may run; 0: any
	Retries    int             `json:"retries,omitempty"`  // how often it begins again when its kernel is lost
	// The cell with which it begins again, if its lost kernel had reached that cell: its number or id; see notebook.Plan.
	// "" is the first.
	RestartFrom string `json:"restart_from,omitempty"`
	AllowErrors bool   `json:"allow_errors,omitempty"`
	InputPath   string `json:"input_path,omitempty"` // for the notebook's metadata, and for its author
	OutputPath  string `json:"output_path,omitempty"`
	WorkingDir  string `json:"working_dir,omitempty"` // of its kernel, if it is the client's own folder
}

// Job is a job as its owner sees it. Times are in UTC.
type Job struct {
	ID string `json:"id"`
	Template

	Definition string    `json:"definition,omitempty"` // that has made it
	Due        time.Time `json:"due,omitzero"`         // the time of the definition's schedule for which it was made
	// Then says what happens to the kernel after a job that goes on in its author's kernel. "" is a kernel of its own.
	Then     Then `json:"then,omitempty"`
	FromCell int  `json:"from_cell,omitempty"` // number of the cell that it begins with, from 1, in such a kernel

	State    State     `json:"state"`
	Reason   string    `json:"reason,omitempty"` // one sentence: what it waits for, or why it has failed
	Attempt  int       `json:"attempt"`          // from 1; 0 before the first
	Kernel   string    `json:"kernel_id,omitempty"`
	Cell     int       `json:"cell"`  // which cell with code runs, from 1; 0 before the first
	Cells    int       `json:"cells"` // how many cells have code
	Created  time.Time `json:"created"`
	Started  time.Time `json:"started,omitzero"` // when its kernel was up, in the present attempt
	Ended    time.Time `json:"ended,omitzero"`
	Stopping bool      `json:"stopping,omitempty"` // its end was requested

	// GPUSeconds are the GPUs that its kernels held, times the seconds for which they held them. Only attempts that have
	// ended count.
	GPUSeconds float64 `json:"gpu_seconds,omitempty"`
}

// GPUsSince returns from when on the GPUs of the job's present kernel count for the job. Those of an author's kernel
// count while the job runs.
func (j *Job) GPUsSince() time.Time {
	if !j.inKernel() {
		return time.Time{}
	}
	return j.Started
}

// inKernel reports whether the job goes on in its author's kernel.
func (j *Job) inKernel() bool { return j.Then != "" }

// Author is on whose behalf a job's kernel is started: the user who has submitted it, as the user was at that time.
type Author struct {
	Name   string   `json:"name,omitempty"`
	Groups []string `json:"groups,omitempty"`
	Admin  bool     `json:"admin,omitempty"`
	Sole   bool     `json:"sole,omitempty"` // the gateway has no users
}

// Submission is a job, or a definition of jobs, that a client wants.
type Submission struct {
	Template
	Notebook []byte
	Author   Author
	Start    kernels.Wish // what its kernel is; without an id
	Language string       // of the kernelspec
	Token    string       // the same submission again returns the same job; "" for none

	// Of a job that goes on in its author's kernel; "" for others.
	Kernel string
	Then   Then
	From   string // the cell that it begins with; see notebook.Plan
}

// Bounds of a submission.
const (
	maxName    = 300      // bytes, also of paths and of a tag
	maxValues  = 64 << 10 // bytes of all parameters: they are a part of the job's record
	maxTags    = 50
	maxRetries = 100
	maxTimeout = 10 * 365 * 24 * 3600 // seconds
)

// InvalidError is a submission that is wrong. Its text is for the client.
type InvalidError struct{ text string }

func (e *InvalidError) Error() string { return e.text }

// name returns the name that was chosen, or the notebook's.
func (s *Submission) name() string {
	return cmp.Or(s.Name, strings.TrimSuffix(s.InputPath, ".ipynb"), "notebook")
}

// check checks what a client has set, and returns the notebook.
func (s *Submission) check() (*notebook.Document, error) {
	wrong := func(format string, args ...any) error { return &InvalidError{fmt.Sprintf(format, args...)} }
	for _, text := range append([]string{s.Name, s.InputPath, s.OutputPath, s.Token}, s.Tags...) {
		if len(text) > maxName {
			return nil, wrong("a name, a path, a tag or the token is longer than %d bytes", maxName)
		}
	}
	switch {
	case len(s.Parameters) > maxValues:
		return nil, wrong("the parameters are larger than %d bytes", maxValues)
	case len(s.Tags) > maxTags:
		return nil, wrong("there are more than %d tags", maxTags)
	case s.Retries < 0 || s.Retries > maxRetries:
		return nil, wrong("retries is not between 0 and %d", maxRetries)
	case s.Timeout < 0 || s.Timeout > maxTimeout:
		return nil, wrong("timeout is not a number of seconds between 0 and %d", maxTimeout)
	case s.Then != "" && s.Retries > 0:
		return nil, wrong("a job in a running kernel has no retries: its variables are lost with the kernel")
	case s.RestartFrom != "" && s.Retries == 0:
		return nil, wrong("restart_from needs retries: without them the job does not begin again")
	case s.Then != "" && len(s.Parameters) > 0:
		return nil, wrong("a job in a running kernel has no parameters: they are set already")
	case s.Then != "" && s.Then != ThenKeep && s.Then != ThenEnd:
		return nil, wrong("then is not %s or %s", ThenKeep, ThenEnd)
	}
	// Everything that could fail later for the notebook alone fails here, so that its author sees it.
	doc, err := s.prepared(s.Notebook, s.Language, s.From)
	var invalid *notebook.InvalidError
	if errors.As(err, &invalid) {
		return nil, wrong("%s", invalid.Error())
	}
	return doc, err
}

// prepared reads the notebook and prepares it for a run.
func (j *Template) prepared(source []byte, language, from string) (*notebook.Document, error) {
	doc, err := notebook.Read(source)
	if err != nil {
		return nil, err
	}
	plan := notebook.Plan{KernelName: j.Kernelspec, Language: language, InputPath: j.InputPath, OutputPath: j.OutputPath,
		From: from, Restart: j.RestartFrom}
	if len(j.Parameters) > 0 {
		if plan.Parameters, err = notebook.ParseParameters(j.Parameters); err != nil {
			return nil, err
		}
	}
	return doc, doc.Prepare(plan)
}
