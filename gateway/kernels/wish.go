package kernels

import (
	"maps"
	"strings"

	"github.com/google/uuid"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// Bounds, in bytes, of the variables that one wish may set. Linux allows 128 KiB for one.
const (
	maxEnvValue = 32 << 10
	maxEnvTotal = 512 << 10
)

// Wish is the kernel that a user asks for. Its JSON is what a job's record has. All of it is checked again at each
// start, since kernelspecs, flavors and the user's rights may have changed.
type Wish struct {
	ID     string            `json:"-"`                // that the kernel is to have; "": any
	Name   string            `json:"name,omitempty"`   // of the kernelspec, maybe with profile or flavor; "": the default
	Flavor string            `json:"flavor,omitempty"` // overrides KERNEL_FLAVOR, which overrides the kernelspec's
	Env    map[string]string `json:"env,omitempty"`    // see Service.MaySet
}

// SessionVariable names the file of the kernel's session. ipykernel's variable __session__ has it.
const SessionVariable = "JPY_SESSION_NAME"

// MaySet reports whether a client may set a variable: KERNEL_*, SessionVariable and Options.ClientEnv. A start ignores
// all others, because Jupyter Server 1.x sends its complete environment.
func (s *Service) MaySet(variable string) bool {
	return strings.HasPrefix(variable, "KERNEL_") || variable == SessionVariable || s.clientEnv[variable]
}

// request looks up what a wish names.
func (s *Service) request(who Caller, wish Wish) (req launcher.Request, err error) {
	if req.Env, err = s.variables(wish.Env); err != nil {
		return req, err
	}
	if req.ID, req.AnyID, err = wish.wantedID(); err != nil {
		return req, err
	}
	if err := req.ParseEnv(); err != nil {
		return req, refuse(Invalid, "env: %v.", err)
	}
	if wish.Flavor != "" {
		req.Env[flavorVariable] = wish.Flavor
	}
	if err := s.chooseSpec(who, &req, wish.Name); err != nil {
		return req, err
	}
	return req, chooseProfile(&req)
}

// wantedID returns the kernel id that the wish names, or a new one. With a new one, any other will do.
func (w *Wish) wantedID() (id string, any bool, err error) {
	inEnv, there := w.Env["KERNEL_ID"]
	switch {
	case w.ID == "" && !there:
		return uuid.NewString(), true, nil
	case w.ID != "" && there && w.ID != inEnv:
		return "", false, refuse(Invalid, "kernel_id and KERNEL_ID name different kernels.")
	case w.ID != "":
		inEnv = w.ID
	}
	if !launcher.ValidID(inEnv) {
		return "", false, refuse(Invalid, "The kernel id is not a UUID in lower case with hyphens.")
	}
	return inEnv, false, nil
}

// variables returns a copy of the variables that the caller may set.
func (s *Service) variables(all map[string]string) (map[string]string, error) {
	env, total := maps.Clone(all), 0
	maps.DeleteFunc(env, func(name, _ string) bool { return !s.MaySet(name) })
	for name, text := range env {
		total += len(name) + len(text)
		switch {
		case !envName.MatchString(name):
			return nil, refuse(Invalid, "env: a name has characters that are not letters, digits or _.")
		case strings.ContainsRune(text, 0):
			return nil, refuse(Invalid, "env: the value of %s contains a NUL.", Shorten(name))
		case len(text) > maxEnvValue || total > maxEnvTotal:
			return nil, refuse(Invalid, "env: the value of %s is too long.", Shorten(name))
		}
	}
	if env == nil {
		env = map[string]string{}
	}
	return env, nil
}
