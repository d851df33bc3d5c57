package gateway

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// jobInKernel reads the part of a submission that is about a job in its author's running kernel. Only the kernel's
// owner may submit such a job. The job may end the kernel. It goes on when the kernel is no longer shared.
func (js *jobRoutes) jobInKernel(r *call, body object, sub *jobs.Submission) error {
	for _, member := range []string{"kernelspec", "flavor", "env"} {
		if raw := body[member]; len(raw) > 0 && string(raw) != `""` && string(raw) != "{}" && string(raw) != "null" {
			return refuse(http.StatusBadRequest, "%s cannot be chosen for a kernel that runs.", member)
		}
	}
	id, _, err := body.text("kernel")
	if err != nil {
		return err
	}
	then, given, err := body.text("then")
	if err != nil {
		return err
	}
	if sub.Then = jobs.ThenKeep; given && then != "" {
		sub.Then = jobs.Then(then)
	}
	if sub.From, err = cellName("from_cell", body); err != nil {
		return err
	}
	k, err := js.kernels.KernelOf(r.Context(), r.Who, id)
	if err != nil {
		return err
	}
	if err := r.Who.AccessTo(k).Suffices(ownKernel); err != nil {
		return err
	}
	if k.State == api.Dead {
		return kernels.Dead(r.Who, &k)
	}
	sub.Kernel, sub.Kernelspec, sub.Flavor = k.ID, js.kernels.SpecNames().Of(&k), k.Flavor
	r.Kernel, r.Spec, r.Flavor = k.ID, sub.Kernelspec, k.Flavor
	if spec, ok := js.specs.Get(sub.Kernelspec); ok {
		sub.Language = spec.Language
	}
	return nil
}

// cellName reads a member that names a cell: by its number, from 1, or its id. "" is the first cell.
func cellName(member string, body object) (string, error) {
	raw := body[member]
	var number int
	var id string
	switch {
	case len(raw) == 0, string(raw) == "null", string(raw) == `""`:
		return "", nil
	case json.Unmarshal(raw, &number) == nil && number > 0:
		return strconv.Itoa(number), nil
	case json.Unmarshal(raw, &id) == nil && id != "" && len(id) <= 64: // as long as nbformat allows
		return id, nil
	}
	return "", refuse(http.StatusBadRequest, "%s is neither the number of a cell, from 1, nor the id of one.", member)
}

// kernelJob returns the job of a kernel for its model, as this gateway knows it, or nil. It reads no records. Only the
// kernel's owner and the job's see it.
func (js *jobRoutes) kernelJob(who kernels.Caller, k *launcher.Kernel) *kernelJob {
	j, there := js.manager.KernelJob(k.ID)
	if !there || !who.Owns(k.Owner) && !who.Owns(j.Owner) {
		return nil
	}
	return &kernelJob{ID: j.ID, Name: j.Name, Cell: j.Cell, Cells: j.Cells}
}

// jobIn reports whether a job runs in a kernel.
func (js *jobRoutes) jobIn(r *call, kernel string) (bool, error) {
	_, there, err := js.manager.In(r.Context(), kernel)
	if err != nil {
		return false, jobProblem(err)
	}
	return there, nil
}
