package notebook

import (
	"context"
	"strings"
	"time"
)

// raised are the errors in a cell's outputs.
type raised struct {
	// The first error that is no exit of the program. "": none.
	Ename  string `json:"ename,omitempty"`
	Evalue string `json:"evalue,omitempty"`
}

// noteRaised notes an error in a cell's outputs. papermill looks for them when all cells have run.
func (r *run) noteRaised(at int, c *content) {
	e := r.state.Raised[at]
	if e == nil {
		e = &raised{}
		r.state.Raised[at] = e
	}
	if e.Ename == "" && !isExit(c.Ename, c.Evalue) {
		e.Ename, e.Evalue = c.Ename, short(c.Evalue, maxSentence)
	}
}

// isExit reports whether an error is a program's end without a failure.
func isExit(ename, evalue string) bool {
	return ename == "SystemExit" && (evalue == "" || evalue == "0")
}

func sentence(ename, evalue string) string { return strings.TrimSuffix(ename+": "+evalue, ": ") }

// allows reports whether the run goes on after an error in the cell.
func (r *run) allows(c *cell) bool { return r.AllowErrors || c.tagged(tagRaises) }

// late returns the result of a run whose cells have all ended well, if the outputs of one have an error. A kernel
// answers ok although the display of a value has failed. Without such an error the result is nil.
func (r *run) late() *Result {
	for at := len(r.doc.cells) - 1; at >= 0; at-- { // papermill names the last one
		if e := r.state.Raised[at]; e != nil && e.Ename != "" && !r.allows(r.doc.cells[at]) {
			return &Result{Status: Failed, Cell: at + 1, Reason: sentence(e.Ename, e.Evalue)}
		}
	}
	return nil
}

// kernelDied is the error of requests whose kernel has ended. The supervisor makes it.
const kernelDied = "KernelDied"

// judge returns the result of the run if the cell's reply ends it.
func (r *run) judge(c *cell) *Result {
	reply := r.state.Reply
	switch {
	case r.stopped, reply != nil && reply.Status != "ok" && r.isStopped(): // an earlier gateway may have interrupted it
		return &Result{Status: Stopped, Reason: "it was stopped"}
	case r.state.Broken != "":
		return &Result{Status: Failed, Reason: r.state.Broken, Lost: true}
	case r.state.Refused:
		return &Result{Status: Failed, Reason: noInput}
	case reply == nil || reply.Status == "ok":
		return nil
	case reply.Status == "error" && r.allows(c) && reply.Ename != kernelDied:
		return nil
	case isExit(reply.Ename, reply.Evalue):
		return &Result{Status: Completed}
	}
	reason := sentence(reply.Ename, reply.Evalue)
	if shown := r.state.Raised[r.state.Cell]; shown != nil && reply.Ename == "NoneType" {
		// ipykernel 7 replies so after an error in the display of a result
		if shown.Ename == "" {
			return &Result{Status: Completed}
		}
		reason = sentence(shown.Ename, shown.Evalue)
	}
	if reason == "" { // as after a cell of another client that has failed
		reason = "the kernel has not run the cell"
	}
	return &Result{Status: Failed, Reason: reason, Lost: reply.Status != "error" || reply.Ename == kernelDied}
}

// ended finishes the notebook of a run that has a result.
func (r *run) ended(ctx context.Context, res *Result, err error) (Result, error) {
	if err != nil {
		return Result{}, err
	}
	if err := r.tellLast(ctx); err != nil {
		return Result{}, err
	}
	r.doc.end(time.Now(), res.Cell > 0)
	if res.Status == Completed {
		res.Cell = 0
		if late := r.late(); late != nil {
			res = late
			if err := r.tail(ctx, res.Cell-1); err != nil { // it reads the cell's count
				return Result{}, err
			}
		}
	}
	if res.Status == Failed && res.Cell > 0 {
		r.state.Mark = r.doc.marked(res.Cell - 1)
	}
	r.state.Result, r.state.Displays, r.state.Takers, r.state.Raised = res, nil, nil, nil // no message follows
	return *res, r.save(ctx)
}
