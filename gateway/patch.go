package gateway

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// maxGrants bounds the grants that are stored with a kernel.
const maxGrants = 64

// change is one change of a PATCH of a kernel, after the whole body was checked. The model is the supervisor's, or nil
// if the supervisor got no request.
type change func(r *call, id string) (*kernelModel, error)

// changes lists the members that a PATCH of a kernel may have, in the order of execution. A supervisor may reject those
// before the last.
var changes = []struct {
	member string
	read   func(g *Gateway, who kernels.Caller, member string, value json.RawMessage) (change, error)
}{
	{"keep_until", (*Gateway).changeKept},
	{"keep_gpu_until", (*Gateway).changeKept},
	{"shared_with", (*Gateway).changeSharedWith},
}

// patchKernel changes a kernel for its owner, and answers with the kernel's model.
func (g *Gateway) patchKernel(w http.ResponseWriter, r *call) error {
	id, err := g.kernelID(r)
	if err != nil {
		return err
	}
	body, err := g.bodies.object(w, r)
	if err != nil {
		return err
	}
	todo, err := g.readChanges(r.Who, body)
	if err != nil {
		return err
	}
	var model *kernelModel
	for _, do := range todo {
		newer, err := do(r, id)
		if err != nil {
			return err
		}
		if newer != nil {
			model = newer
		}
	}
	k, err := g.kernels.Kernel(r.Context(), id)
	if err != nil {
		return err
	}
	if model == nil {
		return writeJSON(w, http.StatusOK, g.models.modelFor(r.Who, &k))
	}
	g.models.complete(model, r.Who, &k)
	return writeJSON(w, http.StatusOK, model)
}

// readChanges reads the body of a PATCH of a kernel.
func (g *Gateway) readChanges(who kernels.Caller, body object) ([]change, error) {
	if len(body) == 0 {
		return nil, refuse(http.StatusBadRequest, "The body names nothing to change.")
	}
	var todo []change
	for _, known := range changes {
		raw, there := body[known.member]
		if !there {
			continue
		}
		do, err := known.read(g, who, known.member, raw)
		if err != nil {
			return nil, err
		}
		todo = append(todo, do)
	}
	if len(todo) != len(body) { // the message does not repeat the name, which could be a secret
		return nil, refuse(http.StatusBadRequest, "The body names a member that cannot be changed.")
	}
	return todo, nil
}

// changeKept changes the time until which a kernel or its GPU is kept. The kernel's supervisor knows the latest
// possible time.
func (g *Gateway) changeKept(_ kernels.Caller, member string, raw json.RawMessage) (change, error) {
	text, given, err := object{member: raw}.text(member)
	if err != nil {
		return nil, err
	}
	if _, err := time.Parse(time.RFC3339, text); given && err != nil {
		return nil, refuse(http.StatusBadRequest,
			"%s is neither null nor a time like 2006-01-02T15:04:05Z (RFC 3339).", member)
	}
	sent, err := json.Marshal(object{member: raw})
	if err != nil {
		return nil, err
	}
	return func(r *call, id string) (*kernelModel, error) {
		k, err := g.kernels.Kernel(r.Context(), id)
		if err != nil {
			return nil, err
		}
		if k.State == api.Dead {
			return nil, kernels.Dead(r.Who, &k)
		}
		answer, err := g.Ask(r.Context(), &r.Act, id,
			kernels.Question{Verb: http.MethodPatch, Body: sent, Limit: modelTime})
		if err != nil {
			return nil, kernels.NotYet(g.kernels.Explain(r.Context(), r.Who, id, err))
		}
		model, ok := readModel(answer, id)
		if !ok {
			return nil, kernels.ErrNoModel
		}
		g.log.Info("kernel is kept", logkey.Kernel, id, logkey.Member, member, logkey.Until, text, logkey.Request, r.ID)
		return &model, nil
	}, nil
}

// changeSharedWith replaces a kernel's grants.
func (g *Gateway) changeSharedWith(who kernels.Caller, _ string, raw json.RawMessage) (change, error) {
	if who.Sole {
		return nil, refuse(http.StatusBadRequest, "shared_with: this gateway has no users, so a kernel cannot be shared.")
	}
	grants, err := readGrants(raw)
	if err != nil {
		return nil, err
	}
	return func(r *call, id string) (*kernelModel, error) {
		_, err := updateNotes(r.Context(), g.opts.Launcher, id, func(n launcher.Notes) (launcher.Notes, error) {
			n.Share(grants)
			return n, nil
		})
		return nil, err
	}, nil
}

// readGrants reads shared_with: [{"user" or "group": name, "right": "read" or "use"}, ...].
func readGrants(raw json.RawMessage) ([]launcher.Grant, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	var grants []launcher.Grant
	if err := dec.Decode(&grants); err != nil || !strings.HasPrefix(string(raw), "[") {
		return nil, refuse(http.StatusBadRequest,
			`shared_with is not a list of {"user" or "group": "NAME", "right": "read" or "use"}.`)
	}
	if len(grants) > maxGrants {
		return nil, refuse(http.StatusBadRequest, "shared_with has more than %d entries.", maxGrants)
	}
	for i, grant := range grants {
		switch {
		case (grant.User == "") == (grant.Group == ""):
			return nil, refuse(http.StatusBadRequest, "shared_with[%d] does not name either a user or a group.", i)
		case identity.CheckName(grant.User+grant.Group) != nil:
			return nil, refuse(http.StatusBadRequest, "shared_with[%d]: the name %v.", i,
				identity.CheckName(grant.User+grant.Group))
		case grant.Right != launcher.Read && grant.Right != launcher.Use:
			return nil, refuse(http.StatusBadRequest, "shared_with[%d]: right is neither read nor use.", i)
		case slices.ContainsFunc(grants[:i],
			func(g launcher.Grant) bool { return g.User == grant.User && g.Group == grant.Group }):
			return nil, refuse(http.StatusBadRequest, "shared_with[%d] names the same user or group as an entry before.", i)
		}
	}
	return grants, nil
}
