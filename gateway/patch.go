package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// maxGrants bounds what is stored with a kernel.
const maxGrants = 64

// change is one thing that a PATCH of a kernel does, once its whole body was found to be good.
type change func(ctx context.Context, id string) error

// changes reads the members that a PATCH of a kernel may have.
var changes = map[string]func(*Gateway, *caller, json.RawMessage) (change, error){
	"shared_with": (*Gateway).changeSharedWith,
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
	if len(body) == 0 {
		return refuse(http.StatusBadRequest, "The body has nothing that is to be changed.")
	}
	var todo []change
	for name, raw := range body {
		read, known := changes[name]
		if !known {
			return refuse(http.StatusBadRequest, "A kernel has no member of that name that can be changed.")
		}
		do, err := read(g, callerOf(r.Context()), raw)
		if err != nil {
			return err
		}
		todo = append(todo, do)
	}
	for _, do := range todo {
		if err := do(r.Context(), id); err != nil {
			return err
		}
	}
	k, err := g.kernel(r.Context(), id)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, modelFor(r.Context(), k))
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
	return func(ctx context.Context, id string) error {
		_, err := g.updateNotes(ctx, id, func(n launcher.Notes) (launcher.Notes, error) {
			n.SharedWith = grants
			return n, nil
		})
		return err
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
