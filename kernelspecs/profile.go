package kernelspecs

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ProfileVariable is the client's variable that names a profile.
const ProfileVariable = "KERNEL_PROFILE"

const (
	profilesKey = extensionPath + ".profiles"
	maxProfiles = 32
)

// Profile is one of metadata.ekg.profiles: a named choice among the settings of a kernelspec. What it leaves out is as
// in the kernelspec itself.
type Profile struct {
	Name        string            `json:"name"`        // small letters, digits, '.', '_' and single '-'
	DisplayName string            `json:"displayName"` // "": Name
	Image       string            `json:"image"`       // metadata.ekg.image
	Flavor      string            `json:"flavor"`      // metadata.ekg.flavor
	CPU         string            `json:"cpu"`         // a quantity: the request, and the limit if the kernelspec has one
	Memory      string            `json:"memory"`      // a quantity: request and limit
	Env         map[string]string `json:"env"`         // added to the kernelspec's env
}

// Title returns the profile's name for people.
func (p *Profile) Title() string {
	if p.DisplayName != "" {
		return p.DisplayName
	}
	return p.Name
}

// profileName matches names of profiles. A name is part of a URL and of kernelspecs' names, where "--" separates it.
var profileName = lazily(`^[a-z0-9]([._]?[a-z0-9]|-[a-z0-9]){0,62}$`)

// amountText matches the quantities that a profile can have: 2, 0.5, 500m, 16Gi.
var amountText = lazily(`^[0-9]{1,15}(\.[0-9]{1,9})?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$`)

// checkProfiles reports what is wrong with the profiles.
func (r *reader) checkProfiles(n *node, profiles []Profile) {
	if len(profiles) > maxProfiles {
		r.report(n, profilesKey, "has %d profiles; at most %d are allowed", len(profiles), maxProfiles)
	}
	seen := map[string]bool{}
	for i, p := range profiles {
		at, where := n.items[i], fmt.Sprintf("%s[%d]", profilesKey, i)
		switch {
		case !profileName().MatchString(p.Name):
			r.report(at, where+".name", "%q is not a name of small letters, digits, and single '.', '_' and '-' between them",
				p.Name)
		case seen[p.Name]:
			r.report(at, where+".name", "%q is given twice", p.Name)
		}
		seen[p.Name] = true
		for key, value := range map[string]string{"cpu": p.CPU, "memory": p.Memory} {
			if value != "" && !amountText().MatchString(value) {
				r.report(at, where+"."+key, "%q is not an amount like 2, 500m or 16Gi", value)
			}
		}
		for name, value := range p.Env {
			if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
				r.report(at, where+".env", "%q cannot be a variable, or its value has a NUL", name)
			}
		}
	}
}

// Profiles returns the spec's profiles in their order.
func (s Spec) Profiles() []Profile {
	if !s.mayHaveProfiles() {
		return nil
	}
	ext, err := s.Extension()
	if err != nil {
		return nil // such a spec is not served
	}
	return ext.Profiles
}

// mayHaveProfiles saves most specs the parsing of their metadata. Without the word, only an escaped key can be it.
func (s Spec) mayHaveProfiles() bool {
	text := string(s.Metadata)
	return strings.Contains(text, "profiles") || strings.Contains(text, `\u`)
}

// WithProfile returns the spec with the settings of a profile, as if they were its own. Its name stays, and Profile
// names the profile. ok is false if the spec has no such profile.
func (s Spec) WithProfile(name string) (with Spec, ok bool, err error) {
	profiles := s.Profiles()
	i := slices.IndexFunc(profiles, func(p Profile) bool { return p.Name == name })
	if i < 0 {
		return s, false, nil
	}
	p := &profiles[i]
	var metadata, ekg map[string]json.RawMessage
	if err := json.Unmarshal(s.Metadata, &metadata); err != nil {
		return s, false, fmt.Errorf("kernelspec %s: metadata: %w", s.Name, err)
	}
	if err := json.Unmarshal(metadata["ekg"], &ekg); err != nil {
		return s, false, fmt.Errorf("kernelspec %s: %s: %w", s.Name, extensionPath, err)
	}
	delete(ekg, "profiles")
	set := func(in map[string]json.RawMessage, key string, value any) {
		if err == nil {
			in[key], err = json.Marshal(value)
		}
	}
	for key, value := range map[string]string{"image": p.Image, "flavor": p.Flavor} {
		if value != "" {
			set(ekg, key, value)
		}
	}
	if p.CPU != "" || p.Memory != "" {
		resources, rerr := p.resources(ekg["resources"])
		if rerr != nil {
			return s, false, fmt.Errorf("kernelspec %s: %s.resources: %w", s.Name, extensionPath, rerr)
		}
		set(ekg, "resources", resources)
	}
	if len(p.Env) > 0 && len(ekg["env"]) > 0 {
		kept, kerr := p.otherEnv(ekg["env"])
		if kerr != nil {
			return s, false, fmt.Errorf("kernelspec %s: %s.env: %w", s.Name, extensionPath, kerr)
		}
		set(ekg, "env", kept)
	}
	set(metadata, "ekg", ekg)
	text, merr := json.Marshal(metadata)
	if err != nil || merr != nil {
		return s, false, fmt.Errorf("kernelspec %s: profile %s cannot be applied", s.Name, name)
	}
	s.Env = maps.Clone(s.Env)
	if s.Env == nil {
		s.Env = map[string]string{}
	}
	maps.Copy(s.Env, p.Env)
	s.Profile, s.ProfileTitle, s.Metadata = name, p.Title(), text
	return s, true, nil
}

// resources returns metadata.ekg.resources with the profile's amounts.
func (p *Profile) resources(text json.RawMessage) (map[string]json.RawMessage, error) {
	all := map[string]json.RawMessage{}
	parts := map[string]map[string]any{"requests": {}, "limits": {}}
	if len(text) > 0 {
		if err := json.Unmarshal(text, &all); err != nil {
			return nil, err
		}
	}
	for part, amounts := range parts {
		if len(all[part]) == 0 {
			continue
		}
		if err := json.Unmarshal(all[part], &amounts); err != nil {
			return nil, err
		}
	}
	if p.CPU != "" {
		parts["requests"]["cpu"] = p.CPU
		if _, limited := parts["limits"]["cpu"]; limited {
			parts["limits"]["cpu"] = p.CPU
		}
	}
	if p.Memory != "" {
		parts["requests"]["memory"], parts["limits"]["memory"] = p.Memory, p.Memory
	}
	for part, amounts := range parts {
		if len(amounts) == 0 {
			continue
		}
		encoded, err := json.Marshal(amounts)
		if err != nil {
			return nil, err
		}
		all[part] = encoded
	}
	return all, nil
}

// otherEnv returns the entries of metadata.ekg.env that the profile does not replace.
func (p *Profile) otherEnv(text json.RawMessage) ([]json.RawMessage, error) {
	var all []json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, err
	}
	kept := []json.RawMessage{}
	for _, entry := range all {
		var variable struct {
			Name string `json:"name"`
		}
		if err := json.Unmarshal(entry, &variable); err != nil {
			return nil, err
		}
		if _, replaced := p.Env[variable.Name]; !replaced {
			kept = append(kept, entry)
		}
	}
	return kept, nil
}
