package enterprise

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// Finding is a line of a template, or of a kernel.json, that has no counterpart in the converted kernelspec.
type Finding struct {
	File    string
	Line    int // 0 if it concerns the whole file
	Message string
}

// String returns file:line: message.
func (f Finding) String() string {
	if f.Line == 0 {
		return f.File + ": " + f.Message
	}
	return fmt.Sprintf("%s:%d: %s", f.File, f.Line, f.Message)
}

// runtimeVariables are known only when a kernel starts, and always set.
var runtimeVariables = []string{"kernel_id", "kernel_pod_name", "kernel_namespace", "kernel_service_account_name",
	"kernel_image", "kernel_executor_image", "kernel_username", "response_address", "public_key", "port_range",
	"eg_response_address", "eg_public_key", "eg_port_range"}

// protocolVariables are those with which Enterprise Gateway and its launchers find each other.
var protocolVariables = []string{"response_address", "public_key", "port_range", "eg_response_address", "eg_public_key",
	"eg_port_range", "kernel_executor_image"}

// Defaults of Enterprise Gateway for variables that are always set.
var defaultVariables = map[string]string{"kernel_uid": "1000", "kernel_gid": "100", "kernel_gateway": "1",
	"kernel_spark_context_init_mode": "none"}

// ownValues are the places where ekg itself puts what a variable says: path of a unit, and the variable.
var ownValues = map[string][]string{
	"metadata.name":             {"kernel_pod_name"},
	"metadata.namespace":        {"kernel_namespace"},
	"metadata.labels.kernel_id": {"kernel_id"},
	"spec.serviceAccountName":   {"kernel_service_account_name"},
	"spec.serviceAccount":       {"kernel_service_account_name"},
	"spec.volumes[]":            {"kernel_volumes"},

	"spec.securityContext.runAsUser":  {"kernel_uid"},
	"spec.securityContext.runAsGroup": {"kernel_gid"},

	containerPath + ".name":                              {"kernel_pod_name"},
	containerPath + ".image":                             {"kernel_image"},
	containerPath + ".workingDir":                        {"kernel_working_dir"},
	containerPath + ".volumeMounts[]":                    {"kernel_volume_mounts"},
	containerPath + ".securityContext.runAsUser":         {"kernel_uid"},
	containerPath + ".securityContext.runAsGroup":        {"kernel_gid"},
	containerPath + ".resources.requests.cpu":            {"kernel_cpus"},
	containerPath + ".resources.requests.memory":         {"kernel_memory"},
	containerPath + ".resources.requests.nvidia.com/gpu": {"kernel_gpus", "kernel_gpus_limit"},
	containerPath + ".resources.limits.cpu":              {"kernel_cpus_limit"},
	containerPath + ".resources.limits.memory":           {"kernel_memory_limit"},
	containerPath + ".resources.limits.nvidia.com/gpu":   {"kernel_gpus", "kernel_gpus_limit"},
}

// ownConstants are values that every pod of ekg has, or that mean the same as what ekg does.
var ownConstants = map[string][]any{
	"apiVersion":                        {"v1"},
	"kind":                              {"Pod"},
	"metadata.labels.app":               {"enterprise-gateway"},
	"metadata.labels.component":         {"kernel"},
	"spec.restartPolicy":                {"Never"},
	"spec.enableServiceLinks":           {false},
	"spec.automountServiceAccountToken": {false},
	"metadata.annotations." + podspec.AnnotationSafeToEvict: {"false"},
	"metadata.annotations.sidecar.istio.io/inject":          {"false"},
	"metadata.labels.sidecar.istio.io/inject":               {"false"},
}

// fieldPaths are the fields of a pod that have the value of a variable, for env.
var fieldPaths = map[string]string{
	"kernel_id":                   "metadata.labels['kernel_id']",
	"kernel_pod_name":             "metadata.name",
	"kernel_namespace":            "metadata.namespace",
	"kernel_service_account_name": "spec.serviceAccountName",
	"kernel_username":             "metadata.annotations['" + podspec.AnnotationOwner + "']",
}

// changingVariables are those with which clients of ekg change a pod without a policy.
var changingVariables = []string{"KERNEL_CPUS", "KERNEL_CPUS_LIMIT", "KERNEL_GID", "KERNEL_GPUS", "KERNEL_GPUS_LIMIT",
	"KERNEL_MEMORY", "KERNEL_MEMORY_LIMIT", "KERNEL_UID"}

// podTemplate is one template while it is converted.
type podTemplate struct {
	file     string
	nodes    []*jnode
	marks    marks
	mark     *regexp.Regexp    // matches what stands for a value
	fixed    map[string]tval   // the variables of every rendering
	owned    map[string]string // client variables that ekg applies itself, by the place of the unit
	findings []Finding
}

// note records a line that has no counterpart, once.
func (p *podTemplate) note(line int, format string, args ...any) {
	f := Finding{p.file, line, p.readable(fmt.Sprintf(format, args...))}
	if !slices.Contains(p.findings, f) {
		p.findings = append(p.findings, f)
	}
}

// readPodTemplate reads a template. The variables are those that the kernelspec itself sets, in lower case.
func readPodTemplate(file, text string, variables map[string]string) (*podTemplate, error) {
	nodes, err := parseTemplate(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	p := &podTemplate{file: file, nodes: nodes, fixed: map[string]tval{}, owned: map[string]string{}}
	p.marks.prefix = "zqx"
	for strings.Contains(text, p.marks.prefix) {
		p.marks.prefix += "x"
	}
	p.mark = regexp.MustCompile(regexp.QuoteMeta(p.marks.prefix) + `([0-9]+)q`)
	for _, name := range runtimeVariables {
		p.fixed[name] = tval{kind: tRuntime, name: name}
	}
	for name, v := range defaultVariables {
		p.fixed[name] = constant(v)
	}
	for name, v := range variables {
		p.fixed[name] = constant(v)
		if name == "kernel_volumes" || name == "kernel_volume_mounts" {
			var list []any
			if err := yaml.Unmarshal([]byte(v), &list); err != nil {
				return nil, fmt.Errorf("env.%s is not a list in YAML", strings.ToUpper(name))
			}
			p.fixed[name] = constant(list)
		}
	}
	return p, nil
}

// pod renders the template with further variables, and returns the pod and what is beside it.
func (p *podTemplate) pod(more map[string]tval) (pod *tree, others []*tree, err error) {
	r := rendering{vars: map[string]tval{}, marks: &p.marks, note: p.note}
	for _, vars := range []map[string]tval{p.fixed, more} {
		for name, v := range vars {
			r.vars[name] = v
		}
	}
	r.render(p.nodes)
	if r.count > maxIterations {
		return nil, nil, fmt.Errorf("%s: it has loops over too many elements", p.file)
	}
	docs, err := readTrees(r.text.String(), r.lines)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", p.file, err)
	}
	for _, doc := range docs {
		if kind := doc.field("kind"); kind != nil && kind.value == "Pod" && pod == nil {
			pod = doc
		} else {
			others = append(others, doc)
		}
	}
	if pod == nil {
		return nil, nil, fmt.Errorf("%s: it gives no object of the kind Pod", p.file)
	}
	return pod, others, nil
}

// clientVariables returns the template's variables that a client may set, in lower case.
func (p *podTemplate) clientVariables() []string {
	var list []string
	for _, name := range names(p.nodes) {
		if strings.HasPrefix(name, "kernel_") && !slices.Contains(runtimeVariables, name) &&
			!slices.Contains([]string{"kernel_gateway", "kernel_name", "kernel_language", "kernel_class_name",
				"kernel_spark_context_init_mode"}, name) {
			list = append(list, name)
		}
	}
	return list
}

// units returns the parts of the pod that holds whatever clients send, and of the objects beside it. It notes what
// depends on their variables, unless ekg applies the variable there.
func (p *podTemplate) units() ([]unit, error) {
	pod, others, err := p.pod(nil)
	if err != nil {
		return nil, err
	}
	variants := map[string][]string{} // the other objects for each variable
	base := unitsOf(pod)
	empty := map[string]bool{} // units by unit.same
	for _, name := range p.clientVariables() {
		v := tval{kind: tRuntime, name: name, list: name == "kernel_volumes" || name == "kernel_volume_mounts"}
		changed, beside, err := p.pod(map[string]tval{name: v})
		if err != nil {
			return nil, err
		}
		variants[name] = []string{}
		for _, doc := range beside {
			variants[name] = append(variants[name], flowText(doc.plain()))
		}
		p.compare(base, unitsOf(changed), name, empty)
	}
	each(p.nodes, func(n *jnode) {
		if n.kind != "text" || n.seen {
			return
		}
		for i, line := range strings.Split(n.text, "\n") {
			if isContent(line) {
				p.note(n.line+i, "%s: needs several variables of the client at once", strings.TrimSpace(line))
			}
		}
	})
	base = slices.DeleteFunc(base, func(u unit) bool { return empty[u.same()] })
	return p.withBeside(base, p.readBeside(others, variants, base)), nil
}

// compare notes what a variable of a client changes. It adds units to empty that say nothing without the variable.
func (p *podTemplate) compare(base, changed []unit, name string, empty map[string]bool) {
	variable := strings.ToUpper(name)
	replaced := map[string]bool{}
	inBase, inChanged := map[string]bool{}, map[string]bool{} // units by unit.same
	for i := range base {
		inBase[base[i].same()] = true
	}
	for i := range changed {
		inChanged[changed[i].same()] = true
	}
	for i := range changed {
		u := &changed[i]
		if inBase[u.same()] {
			continue
		}
		own := p.ownVariable(u) == name
		replaced[u.place()] = own
		if own {
			p.owned[u.at] = variable
			continue
		}
		p.note(u.line, "%s: depends on %s of the client, which ekg does not apply here", u.label(), variable)
	}
	for i := range base {
		u := &base[i]
		own, there := replaced[u.place()]
		variableOf := u.at == containerPath+".env[]"
		switch {
		case inChanged[u.same()]:
		case there && (variableOf || !strings.HasSuffix(u.at, "[]")):
			if u.isEmpty() && (own || !variableOf) {
				empty[u.same()] = true
			}
		default:
			p.note(u.line, "%s: does not hold if the client sends %s; here it always holds", u.label(), variable)
		}
	}
}

// place identifies what a unit sets: two with the same place replace each other.
func (u *unit) place() string {
	if name, ok := u.value.field("name").scalarText(); ok && u.at == containerPath+".env[]" {
		return u.at + name
	}
	return u.at
}

// isEmpty reports whether a unit says nothing until the client sends a variable.
func (u *unit) isEmpty() bool {
	value := u.value
	if u.at == containerPath+".env[]" {
		value = value.field("value")
	}
	text, ok := value.scalarText()
	return ok && text == "" || value.isNull()
}

// label names a unit in a sentence.
func (u *unit) label() string {
	at := strings.TrimSuffix(u.at, "[]")
	if u.at == objectsPlace {
		return fmt.Sprintf("an object %v", u.value.field("kind").value)
	}
	for _, key := range []string{"name", "mountPath", "key"} {
		if f := u.value.field(key); f != nil && f.kind == yaml.ScalarNode {
			return fmt.Sprintf("%s %v", at, f.value)
		}
	}
	return at
}

// ownVariable returns the variable whose value ekg puts there by itself, or "".
func (p *podTemplate) ownVariable(u *unit) string {
	if u.at == containerPath+".env[]" {
		name, _ := u.value.field("name").scalarText()
		if v, exact := p.exactly(u.value.field("value")); exact && v.kind == tRuntime && strings.ToUpper(v.name) == name {
			return v.name // clients' variables are part of a kernel's environment
		}
		return ""
	}
	if v, exact := p.exactly(u.value); exact && v.kind == tRuntime && slices.Contains(ownValues[u.at], v.name) {
		return v.name
	}
	return ""
}

// scalarText returns a text.
func (t *tree) scalarText() (string, bool) {
	if t == nil {
		return "", false
	}
	text, ok := t.value.(string)
	return text, ok
}

// readable returns a text with the template's own words in place of marks.
func (p *podTemplate) readable(text string) string {
	return p.mark.ReplaceAllStringFunc(text, func(m string) string {
		v := p.marked(m)
		if v.name == "" {
			return "{{ ... }}"
		}
		return "{{ " + v.name + " }}"
	})
}

// marked returns the value for which a mark stands.
func (p *podTemplate) marked(mark string) tval {
	i, err := strconv.Atoi(p.mark.FindStringSubmatch(mark)[1])
	if err != nil || i >= len(p.marks.values) {
		return tval{kind: tOpaque}
	}
	return p.marks.values[i]
}

// exactly returns the value for which a text stands, if it is nothing else.
func (p *podTemplate) exactly(t *tree) (tval, bool) {
	text, ok := t.scalarText()
	if !ok {
		return tval{}, false
	}
	m := p.mark.FindStringSubmatch(text)
	if m == nil || m[0] != text {
		return tval{}, false
	}
	return p.marked(text), true
}
