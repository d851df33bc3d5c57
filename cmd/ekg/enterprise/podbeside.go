package enterprise

import (
	"slices"

	"go.yaml.in/yaml/v3"
)

// besideLists are the keys of metadata.ekg for containers beside the kernel's, by the place of a unit.
var besideLists = map[string]string{"spec.initContainers[]": "initContainers[]", "spec.containers": "containers[]"}

// besideDropped says why fields of a container beside the kernel's are left out alone. Another field without a
// counterpart leaves out the container.
var besideDropped = map[string]string{
	"ports":                    "no other pod connects to this container",
	"readinessProbe":           "the pod's readiness is the kernel's",
	"terminationMessagePath":   "ekg sets it",
	"terminationMessagePolicy": "ekg sets it",
}

// inheritedSecurity are the keys of a pod's security context that hold for containers that lack them. In a kernelspec
// they are set for each container.
var inheritedSecurity = []string{"runAsUser", "runAsGroup", "runAsNonRoot", "seccompProfile", "appArmorProfile"}

// beside places a container beside the kernel's.
func (p *podTemplate) beside(u *unit, key string, units []unit) (string, *tree) {
	if u.value.kind != yaml.MappingNode {
		p.note(u.line, "%s: is not a container", u.label())
		return "", nil
	}
	c := *u.value
	c.fields = nil
	for _, f := range u.value.fields {
		if why := besideDropped[f.key]; why != "" {
			p.note(f.line, "%s: %s: %s", u.label(), f.key, why)
			continue
		}
		if f.key == "env" {
			f.value = p.besideEnv(u, f.value)
		}
		c.fields = append(c.fields, f)
	}
	u.value = &c
	if !p.fillOwner(u, key) {
		return "", nil
	}
	p.inheritSecurity(u, units)
	return key, u.value
}

// besideEnv converts the variables of a container beside the kernel's.
func (p *podTemplate) besideEnv(container *unit, env *tree) *tree {
	list := *env
	list.items = nil
	for _, item := range env.items {
		name, _ := item.field("name").scalarText()
		v, exact := p.exactly(item.field("value"))
		one := unit{container.label() + ".env[]", item.line, item}
		switch {
		case exact && slices.Contains(protocolVariables, v.name):
		case exact && fieldPaths[v.name] != "":
			list.items = append(list.items, fieldVariable(item.line, name, fieldPaths[v.name]))
		case p.fillOwner(&one, containerPath+".env"):
			list.items = append(list.items, item)
		}
	}
	return &list
}

// inheritSecurity gives a container what the pod's security context says for containers that say nothing.
func (p *podTemplate) inheritSecurity(u *unit, units []unit) {
	for _, key := range inheritedSecurity {
		at := "spec.securityContext." + key
		i := slices.IndexFunc(units, func(other unit) bool { return other.at == at })
		own := u.value.field("securityContext")
		if i < 0 || !own.field(key).isNull() {
			continue
		}
		if variable := p.owned[at]; variable != "" {
			p.note(u.line, "%s: has the pod's %s, %v: %s of the client does not change it here", u.label(), key,
				units[i].value.value, variable)
		}
		next := tree{line: u.line, kind: yaml.MappingNode}
		if own != nil {
			next.fields = slices.Clone(own.fields)
		}
		next.fields = append(next.fields, field{key, u.line, units[i].value})
		u.value.set("securityContext", &next)
	}
}

// set replaces the value of a key, or adds it.
func (t *tree) set(key string, value *tree) {
	for i := range t.fields {
		if t.fields[i].key == key {
			t.fields[i].value = value
			return
		}
	}
	t.fields = append(t.fields, field{key, value.line, value})
}

// fieldVariable is a variable of a container whose value is a field of the pod.
func fieldVariable(line int, name, fieldPath string) *tree {
	text := func(s string) *tree { return &tree{line: line, kind: yaml.ScalarNode, value: s} }
	object := func(key string, value *tree) *tree {
		return &tree{line: line, kind: yaml.MappingNode, fields: []field{{key, line, value}}}
	}
	whole := object("name", text(name))
	whole.set("valueFrom", object("fieldRef", object("fieldPath", text(fieldPath))))
	return whole
}
