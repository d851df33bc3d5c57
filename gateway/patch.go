package gateway

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// maxGrants bounds what is stored with a kernel.
const maxGrants = 64

// change is one thing that a PATCH of a kernel does, once its whole body was found to be good. The model is nil where the
// supervisor has given none.
type change func(r *http.Request, id string) (*kernelModel, error)

// changes are the members that a PATCH of a kernel may have, in the order in which they are carried out: first what a supervisor
// may refuse.
var changes = []struct {
	member string
	read   func(*Gateway, *caller, json.RawMessage) (change, error)
}{
	{"keep_until", (*Gateway).changeKeepUntil},
	{"shared_with", (*Gateway).changeSharedWith},
}

// patchKernel changes what its owner may change of a kernel, and answers with its model.
func (g *Gateway) patchKernel(w http.ResponseWriter, r *http.Request) error {
	id, err := g.kernelID(r)
	if err != nil {
		return err
	}
	body, err := g.readObject(w, r)
	if err != nil {
		return err
	}
	todo, err := g.readChanges(callerOf(r.Context()), body)
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
	k, err := g.kernel(r.Context(), id)
	if err != nil {
		return err
	}
	if model == nil {
		return writeJSON(w, http.StatusOK, modelFor(r.Context(), k))
	}
	model.addOwner(r.Context(), k)
	return writeJSON(w, http.StatusOK, model)
}

// readChanges reads the body of a PATCH of a kernel.
func (g *Gateway) readChanges(c *caller, body object) ([]change, error) {
	if len(body) == 0 {
		return nil, refuse(http.StatusBadRequest, "The body has nothing that is to be changed.")
	}
	var todo []change
	for _, known := range changes {
		raw, there := body[known.member]
		if !there {
			continue
		}
		do, err := known.read(g, c, raw)
		if err != nil {
			return nil, err
		}
		todo = append(todo, do)
	}
	if len(todo) != len(body) { // the name is not repeated: it could be a secret
		return nil, refuse(http.StatusBadRequest, "A kernel has no member of that name that can be changed.")
	}
	return todo, nil
}

// changeKeepUntil changes until when a kernel is kept. Its supervisor knows how long that can be.
func (g *Gateway) changeKeepUntil(_ *caller, raw json.RawMessage) (change, error) {
	text, given, err := object{"keep_until": raw}.text("keep_until")
	if err != nil {
		return nil, err
	}
	if _, err := time.Parse(time.RFC3339, text); given && err != nil {
		return nil, refuse(http.StatusBadRequest, "keep_until is neither null nor a time like 2006-01-02T15:04:05Z (RFC 3339).")
	}
	sent, err := json.Marshal(object{"keep_until": raw})
	if err != nil {
		return nil, err
	}
	return func(r *http.Request, id string) (*kernelModel, error) {
		k, err := g.kernel(r.Context(), id)
		if err != nil {
			return nil, err
		}
		if k.State == launcher.Dead {
			return nil, &problem{status: http.StatusConflict, reason: "Kernel is dead", message: "The kernel is dead: " + sentence(k.Reason)}
		}
		answer, err := g.askWith(r, id, http.MethodPatch, "", sent, modelTime)
		if err != nil {
			return nil, notYet(g.explain(r.Context(), id, err))
		}
		model, ok := answer.model(id)
		if !ok {
			return nil, errNoModel
		}
		g.log.Info("kernel is kept", "kernel", id, "until", model.KeepUntil, "request", requestID(r.Context()))
		return &model, nil
	}, nil
}

// changeSharedWith replaces a kernel's grants.
func (g *Gateway) changeSharedWith(c *caller, raw json.RawMessage) (change, error) {
	if c.one {
		return nil, refuse(http.StatusBadRequest, "shared_with: this gateway knows no users with whom a kernel could be shared.")
	}
	grants, err := readGrants(raw)
	if err != nil {
		return nil, err
	}
	return func(r *http.Request, id string) (*kernelModel, error) {
		_, err := g.updateNotes(r.Context(), id, func(n launcher.Notes) (launcher.Notes, error) {
			n.SharedWith = grants
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
		return nil, refuse(http.StatusBadRequest, `shared_with is not a list of {"user" or "group": "NAME", "right": "read" or "use"}.`)
	}
	if len(grants) > maxGrants {
		return nil, refuse(http.StatusBadRequest, "shared_with has more than %d entries.", maxGrants)
	}
	for i, grant := range grants {
		switch {
		case (grant.User == "") == (grant.Group == ""):
			return nil, refuse(http.StatusBadRequest, "shared_with[%d] does not name either a user or a group.", i)
		case identity.CheckName(grant.User+grant.Group) != nil:
			return nil, refuse(http.StatusBadRequest, "shared_with[%d]: the name %v.", i, identity.CheckName(grant.User+grant.Group))
		case grant.Right != launcher.Read && grant.Right != launcher.Use:
			return nil, refuse(http.StatusBadRequest, "shared_with[%d]: right is neither read nor use.", i)
		case slices.ContainsFunc(grants[:i], func(g launcher.Grant) bool { return g.User == grant.User && g.Group == grant.Group }):
			return nil, refuse(http.StatusBadRequest, "shared_with[%d] names whom an entry before names already.", i)
		}
	}
	return grants, nil
}
