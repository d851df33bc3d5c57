package enterprise

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// ownerMark stands for the kernel's owner in a kernelspec.
const ownerMark = "{owner}"

// renamed begins the name of a volume whose own name is one of ekg's volumes.
const renamed = "eg-"

// ekgRoot is the key of what is converted.
const ekgRoot = "metadata.ekg"

// targets are the keys of metadata.ekg for those of a pod. Parts that are lists or divided maps keep their entries.
var targets = map[string]string{
	"metadata.labels":                      "labels",
	"metadata.annotations":                 "annotations",
	"spec.affinity":                        "affinity",
	"spec.imagePullSecrets":                "imagePullSecrets",
	"spec.nodeSelector":                    "nodeSelector",
	"spec.priorityClassName":               "priorityClassName",
	"spec.resourceClaims":                  "resourceClaims",
	"spec.runtimeClassName":                "runtimeClassName",
	"spec.schedulerName":                   "schedulerName",
	"spec.serviceAccountName":              "serviceAccountName",
	"spec.serviceAccount":                  "serviceAccountName",
	"spec.terminationGracePeriodSeconds":   "terminationGracePeriodSeconds",
	"spec.tolerations":                     "tolerations",
	"spec.volumes":                         "volumes",
	"spec.activeDeadlineSeconds":           "pod.spec.activeDeadlineSeconds",
	"spec.dnsConfig":                       "pod.spec.dnsConfig",
	"spec.dnsPolicy":                       "pod.spec.dnsPolicy",
	"spec.hostAliases":                     "pod.spec.hostAliases",
	"spec.hostUsers":                       "pod.spec.hostUsers",
	"spec.preemptionPolicy":                "pod.spec.preemptionPolicy",
	"spec.topologySpreadConstraints":       "pod.spec.topologySpreadConstraints",
	containerPath + ".image":               "image",
	containerPath + ".imagePullPolicy":     "imagePullPolicy",
	containerPath + ".env":                 "env",
	containerPath + ".envFrom":             "pod.spec.containers[0].envFrom",
	containerPath + ".lifecycle":           "lifecycle",
	containerPath + ".resources.requests":  "resources.requests",
	containerPath + ".resources.limits":    "resources.limits",
	containerPath + ".resources.claims":    "resources.claims",
	containerPath + ".securityContext":     "securityContext",
	containerPath + ".volumeDevices":       "pod.spec.containers[0].volumeDevices",
	containerPath + ".volumeMounts":        "volumeMounts",
	containerPath + ".workingDir":          "workingDir",
	"spec.securityContext.runAsUser":       "securityContext.runAsUser",
	"spec.securityContext.runAsGroup":      "securityContext.runAsGroup",
	"spec.securityContext.runAsNonRoot":    "securityContext.runAsNonRoot",
	"spec.securityContext.seccompProfile":  "securityContext.seccompProfile",
	"spec.securityContext.appArmorProfile": "securityContext.appArmorProfile",
	"spec.securityContext":                 "pod.spec.securityContext",
}

// refusals say why keys have no counterpart. Other keys have the text of an unknown key.
var refusals = map[string]string{
	"metadata.name":            "ekg names pods by the kernel's id",
	"metadata.namespace":       "--kube-namespace says where kernels are",
	"spec.initContainers":      "is not a list of containers",
	"spec.restartPolicy":       "ekg restarts kernels itself",
	"spec.hostNetwork":         "kernels have no namespaces of the node",
	"spec.hostPID":             "kernels have no namespaces of the node",
	"spec.hostIPC":             "kernels have no namespaces of the node",
	containerPath + ".name":    "the kernel's container is named kernel",
	containerPath + ".command": "argv of the kernelspec is the command",
	containerPath + ".args":    "argv of the kernelspec is the command",
	containerPath + ".ports":   "write metadata.ekg.ports if other pods connect to the kernel",

	"spec.automountServiceAccountToken": "write metadata.ekg.serviceAccountToken if the kernel needs the token",
	"spec.enableServiceLinks":           "kernels get no variables of services; name them in env",
}

// placed is a unit at its place in metadata.ekg.
type placed struct {
	unit
	key  string // resources.limits.cpu, volumes[]
	path string // the same with the number of a list's element, below ekgRoot
}

// convertPod returns metadata.ekg for the units of a pod. It notes what it leaves out.
func (p *podTemplate) convertPod(units []unit, spec kernelspecs.Spec) map[string]any {
	var list []placed
	for _, u := range units {
		if key, value := p.place(&u, units); key != "" {
			u.value = value
			list = append(list, placed{unit: u, key: key})
		}
	}
	list = p.sharedMemory(list)
	p.renameVolumes(list)
	check := podspec.Options{Namespace: "default", SupervisorImage: "ekg", KernelImage: "kernel",
		Policy: permissive(list)}.Check()
	for {
		ekg := assemble(list)
		spec.Metadata = []byte(flowText(map[string]any{"ekg": ekg}))
		i := p.firstRefused(list, check(spec))
		if i < 0 {
			return ekg
		}
		refused := list[i]
		list = slices.Delete(list, i, i+1)
		if refused.key == objectsPlace {
			list = p.withoutObject(list, &refused)
		}
	}
}

// permissive returns a policy that refuses only what no policy can allow.
func permissive(list []placed) *podspec.Policy {
	policy := podspec.DefaultPolicy()
	policy.Kernelspecs.Secrets = podspec.Patterns{"*"}
	policy.Kernelspecs.Objects = slices.Collect(maps.Keys(shortNames))
	policy.Kernelspecs.ServiceTypes = []string{"ClusterIP", "NodePort", "LoadBalancer"}
	policy.Kernelspecs.Ports = podspec.Ranges{{First: 1, Last: 65535}}
	policy.Kernelspecs.Volumes = append(slices.Clone(policy.Kernelspecs.Volumes), "csi")
	for _, u := range list {
		capabilities := u.value.field("securityContext").field("capabilities") // of a container beside the kernel's
		if u.key == "securityContext.capabilities" {
			capabilities = u.value
		}
		if capabilities != nil {
			for _, name := range capabilities.field("add").all() {
				if text, ok := name.scalarText(); ok {
					policy.Kernelspecs.Capabilities = append(policy.Kernelspecs.Capabilities, text)
				}
			}
		}
	}
	return policy
}

// all returns a list's elements.
func (t *tree) all() []*tree {
	if t == nil {
		return nil
	}
	return t.items
}

// firstRefused notes the first problem of a kernelspec, and returns the unit that has it. It returns -1 without one.
func (p *podTemplate) firstRefused(list []placed, problems []kernelspecs.Problem) int {
	for _, problem := range problems {
		found := -1
		for i, u := range list {
			at := ekgRoot + "." + u.path
			within := problem.Key == at || strings.HasPrefix(problem.Key, at+".") || strings.HasPrefix(problem.Key, at+"[")
			if within && (found < 0 || len(u.path) > len(list[found].path)) {
				found = i
			}
		}
		if found < 0 { // the problem is that of a whole, as of resources
			found = slices.IndexFunc(list, func(u placed) bool {
				return strings.HasPrefix(ekgRoot+"."+u.path, problem.Key)
			})
		}
		if found >= 0 {
			u := &list[found]
			inside := strings.Trim(strings.TrimPrefix(problem.Key, ekgRoot+"."+u.path), ".")
			if inside != "" {
				inside += ": "
			}
			p.note(u.line, "%s: %s%s", u.label(), inside, problem.Message)
			return found
		}
	}
	return -1
}

// place returns the key of a unit in metadata.ekg, and its value there. It returns "" for a unit that ekg needs not be
// told, and for one that it notes.
func (p *podTemplate) place(u *unit, units []unit) (key string, value *tree) {
	if p.ownVariable(u) != "" || slices.Contains(ownConstants[u.at], u.value.value) {
		return "", nil
	}
	if u.at == objectsPlace || u.at == portsPlace {
		return u.at, u.value
	}
	if key := besideLists[u.at]; key != "" {
		return p.beside(u, key, units)
	}
	list := strings.HasSuffix(u.at, "[]")
	at := strings.TrimSuffix(u.at, "[]")
	if at == containerPath+".ports" && servesAll(u.value, units) {
		return "", nil // the ports of Services
	}
	if why, ok := refusals[at]; ok {
		p.note(u.line, "%s: %s", u.label(), why)
		return "", nil
	}
	key, entry := targets[at], ""
	if key == "" {
		for _, divided := range dividedMaps {
			if strings.HasPrefix(at, divided+".") && targets[divided] != "" {
				key, entry = targets[divided], at[len(divided):]
			}
		}
	}
	if key == "" {
		p.note(u.line, "%s: has no counterpart in metadata.ekg", u.label())
		return "", nil
	}
	key += entry
	if strings.HasPrefix(at, "spec.securityContext.") && slices.ContainsFunc(units, func(other unit) bool {
		return other.at == containerPath+at[len("spec"):]
	}) {
		return "", nil // the container's own value counts
	}
	if list {
		key += "[]"
	}
	switch {
	case at == containerPath+".env":
		return p.variable(u, key)
	case !p.fillOwner(u, at):
		return "", nil
	}
	return key, u.value
}

// variable places an element of env.
func (p *podTemplate) variable(u *unit, key string) (string, *tree) {
	v, exact := p.exactly(u.value.field("value"))
	name, _ := u.value.field("name").scalarText()
	switch {
	case exact && slices.Contains(protocolVariables, v.name):
		return "", nil
	case exact && v.name == "kernel_username" && name == "KERNEL_USERNAME": // the gateway sets it
		return "", nil
	case exact && fieldPaths[v.name] != "":
		return key, fieldVariable(u.line, name, fieldPaths[v.name])
	case !p.fillOwner(u, containerPath+".env"):
		return "", nil
	}
	return key, u.value
}

// mountPaths are the paths from a place to its mounts of volumes.
var mountPaths = map[string]string{containerPath + ".volumeMounts": "", "initContainers[]": ".volumeMounts",
	"containers[]": ".volumeMounts"}

// fillOwner replaces the user's name by its pattern where a kernelspec may have it. It notes a unit with another value
// that is not known before a kernel starts, and returns false.
func (p *podTemplate) fillOwner(u *unit, at string) bool {
	mounts, mounted := mountPaths[at]
	owned := at == "spec.volumes" || at == "spec.serviceAccountName" || at == "spec.serviceAccount"
	why := p.fillMarks(u.value, func(inner, variable string) string {
		key, within := strings.CutPrefix(inner, mounts)
		here := owned || mounted && within && slices.Contains([]string{".mountPath", ".subPath", ".subPathExpr"}, key)
		if here && variable == "kernel_username" {
			return ownerMark
		}
		return ""
	})
	if why != "" {
		p.note(u.line, "%s: %s", u.label(), why)
	}
	return why == ""
}

// fillMarks replaces the marks in the texts of a value by what stands for their variables there. It returns why that is
// impossible, or "".
func (p *podTemplate) fillMarks(value *tree, stands func(inner, variable string) string) (why string) {
	value.scalars("", func(inner, text string) string {
		return p.mark.ReplaceAllStringFunc(text, func(m string) string {
			v := p.marked(m)
			if mark := stands(inner, v.name); mark != "" {
				return mark
			}
			if why = v.why; v.kind != tOpaque {
				why = fmt.Sprintf("has {{ %s }}, which a kernelspec cannot have there", v.name)
			}
			return m
		})
	})
	return why
}

// sharedMemory takes a volume in memory that is mounted at /dev/shm for the size of it.
func (p *podTemplate) sharedMemory(list []placed) []placed {
	text := func(t *tree, key string) string {
		s, _ := t.field(key).scalarText()
		return s
	}
	i := slices.IndexFunc(list, func(u placed) bool {
		return u.key == "volumeMounts[]" && path.Clean(text(u.value, "mountPath")) == "/dev/shm"
	})
	if i < 0 {
		return list
	}
	name := text(list[i].value, "name")
	j := slices.IndexFunc(list, func(u placed) bool { return u.key == "volumes[]" && text(u.value, "name") == name })
	if j < 0 {
		return list
	}
	size := list[j].value.field("emptyDir").field("sizeLimit")
	if text(list[j].value.field("emptyDir"), "medium") != "Memory" || size.isNull() {
		return list // the check says what is wrong
	}
	list[j].key, list[j].value = "shmSize", size
	return slices.Delete(list, i, i+1)
}

// renameVolumes gives volumes other names whose own names are those of ekg's volumes.
func (p *podTemplate) renameVolumes(list []placed) {
	rename := func(t *tree) {
		if text, ok := t.field("name").scalarText(); ok && podspec.ReservedVolume(text) {
			t.set("name", &tree{line: t.line, kind: yaml.ScalarNode, value: renamed + text})
		}
	}
	for _, u := range list {
		switch u.key {
		case "volumes[]", "volumeMounts[]", "pod.spec.containers[0].volumeDevices[]":
			rename(u.value)
		case "initContainers[]", "containers[]":
			for _, mount := range u.value.field("volumeMounts").all() {
				rename(mount)
			}
		}
	}
}

// assemble builds metadata.ekg, and sets the paths of the units.
func assemble(list []placed) map[string]any {
	root := map[string]any{}
	for i := range list {
		u := &list[i]
		key, isList := strings.CutSuffix(u.key, "[]")
		steps := splitKey(key)
		at := root
		for _, step := range steps[:len(steps)-1] {
			at = descend(at, step)
		}
		last := steps[len(steps)-1]
		u.path = key
		if isList {
			items, _ := at[last].([]any)
			u.path = fmt.Sprintf("%s[%d]", key, len(items))
			at[last] = append(items, u.value.plain())
		} else {
			at[last] = u.value.plain()
		}
	}
	return root
}

// descend returns the object below a key, which it creates. The only list is that of containers.
func descend(at map[string]any, step string) map[string]any {
	name, isList := strings.CutSuffix(step, "[0]")
	if isList {
		if list, ok := at[name].([]any); ok {
			return list[0].(map[string]any)
		}
		first := map[string]any{"name": podspec.ContainerKernel}
		at[name] = []any{first}
		return first
	}
	if next, ok := at[name].(map[string]any); ok {
		return next
	}
	next := map[string]any{}
	at[name] = next
	return next
}

// splitKey splits a key. Entries of the maps of labels and the like may have dots themselves.
func splitKey(key string) []string {
	for _, prefix := range []string{"labels", "annotations", "nodeSelector", "resources.requests", "resources.limits",
		"pod.spec.securityContext", "securityContext"} {
		if entry, ok := strings.CutPrefix(key, prefix+"."); ok {
			return append(strings.Split(prefix, "."), entry)
		}
	}
	return strings.Split(key, ".")
}
