package enterprise

import (
	"slices"

	"go.yaml.in/yaml/v3"
)

// containerPath is the place of the kernel's container in a pod.
const containerPath = "spec.containers[0]"

// unit is the smallest part of a pod that is converted or left out as a whole: an entry of a map such as the labels,
// an element of a list such as the volumes, or the value of another key.
type unit struct {
	at    string // spec.nodeSelector.disk, spec.volumes[], spec.affinity
	line  int
	value *tree
}

// same identifies a unit in two renderings.
func (u *unit) same() string { return u.at + "\x00" + flowText(u.value.plain()) }

// Keys whose values are divided.
var (
	dividedMaps = []string{"metadata.labels", "metadata.annotations", "spec.nodeSelector", "spec.securityContext",
		containerPath + ".securityContext", containerPath + ".resources.requests", containerPath + ".resources.limits"}
	dividedLists = []string{"spec.volumes", "spec.tolerations", "spec.imagePullSecrets", "spec.hostAliases",
		"spec.resourceClaims", "spec.topologySpreadConstraints", containerPath + ".env", containerPath + ".envFrom",
		containerPath + ".volumeMounts", containerPath + ".volumeDevices", "spec.initContainers"}
	enclosing = []string{"", "metadata", "spec", "spec.containers", containerPath, containerPath + ".resources"}
)

// unitsOf divides a pod. Keys without a value are left out.
func unitsOf(pod *tree) []unit {
	var units []unit
	var walk func(at string, line int, t *tree)
	children := func(at string, t *tree) {
		for _, f := range t.fields {
			path := f.key
			if at != "" {
				path = at + "." + f.key
			}
			walk(path, f.line, f.value)
		}
	}
	walk = func(at string, line int, t *tree) {
		switch {
		case t.isNull():
		case t.kind == yaml.MappingNode && (slices.Contains(enclosing, at) || slices.Contains(dividedMaps, at)):
			children(at, t)
		case at == "spec.containers" && t.kind == yaml.SequenceNode && len(t.items) > 0:
			for i, item := range t.items {
				if i == 0 {
					walk(containerPath, item.line, item)
				} else {
					units = append(units, unit{"spec.containers", item.line, item})
				}
			}
		case t.kind == yaml.SequenceNode && slices.Contains(dividedLists, at):
			for _, item := range t.items {
				units = append(units, unit{at + "[]", item.line, item})
			}
		default:
			units = append(units, unit{at, line, t})
		}
	}
	walk("", pod.line, pod)
	return units
}
