package gateway

import (
	"encoding/json"
	"net/http"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
)

// wishOf reads the body of a POST: {"name"?, "path"?, "env"?, "kernel_id"?, "flavor"?}. It ignores other members and
// path, which is relative to a root that only Jupyter Server has.
func wishOf(s *kernels.Service, body object) (wish kernels.Wish, err error) {
	path, named := "", false
	for _, text := range []struct {
		member string
		to     *string
	}{{"name", &wish.Name}, {"path", &path}, {"flavor", &wish.Flavor}, {"kernel_id", &wish.ID}} {
		if *text.to, named, err = body.text(text.member); err != nil {
			return wish, err
		}
	}
	if named && wish.ID == "" {
		return wish, refuse(http.StatusBadRequest, "The kernel id is not a UUID in lower case with hyphens.")
	}
	wish.Env, err = variables(s, body)
	return wish, err
}

// variables returns the variables of "env" that a client may set.
func variables(s *kernels.Service, body object) (map[string]string, error) {
	members, err := body.object("env")
	if err != nil {
		return nil, err
	}
	env := map[string]string{}
	for name, raw := range members {
		if !s.MaySet(name) {
			continue
		}
		var text string
		// Other values are not decoded: a list of numbers would take ten times the memory that it takes in the body.
		if raw[0] != '"' || json.Unmarshal(raw, &text) != nil {
			return nil, refuse(http.StatusBadRequest, "env: the value of %s is not a string.", kernels.Shorten(name))
		}
		env[name] = text
	}
	return env, nil
}
