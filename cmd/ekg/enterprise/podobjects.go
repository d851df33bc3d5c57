package enterprise

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Places of units that are not in the template's pod: its other objects, and the ports to which Services lead.
const (
	objectsPlace = "objects[]"
	portsPlace   = "ports[]"
)

// shortNames are the names of objects whose names in the template say only which kernel they belong to, by their kinds.
// A kernelspec has no objects of other kinds.
var shortNames = map[string]string{"ConfigMap": "config", "PersistentVolumeClaim": "claim", "Secret": "secret",
	"Service": "service"}

const maxShortName = 20 // 22 in a kernelspec, of which a number may need two

// besidePod is an object that a template has beside the pod.
type besidePod struct {
	kind  string
	name  string // in the template, with marks
	short string // in the kernelspec
	doc   *tree
	gone  bool // left out, and noted
}

// notWord matches what a short name cannot have.
var notWord = regexp.MustCompile(`[^a-z0-9]+`)

// readBeside reads the objects beside the pod. It notes those that no kernelspec can have. Those to which the pod may
// refer are gone then. variants are the same objects as texts, for each variable that a client may send. units are
// those of the pod.
func (p *podTemplate) readBeside(docs []*tree, variants map[string][]string, units []unit) []besidePod {
	var all []besidePod
	existing := existingNames(docs, units)
	for _, doc := range docs {
		kind, _ := doc.field("kind").scalarText()
		version, _ := doc.field("apiVersion").scalarText()
		name, named := doc.field("metadata").field("name").scalarText()
		variable := ""
		for v, texts := range variants {
			if !slices.Contains(texts, flowText(doc.plain())) && (variable == "" || v < variable) {
				variable = v
			}
		}
		switch {
		case kind == "":
			p.note(doc.line, "an object without a kind")
		case shortNames[kind] == "" || version != "v1":
			p.note(doc.line, "an object %s: ekg creates none with a kernel; create it once, or for each user beforehand", kind)
		case !named:
			p.note(doc.line, "an object %s: has no name", kind)
		default:
			o := besidePod{kind: kind, name: name, doc: doc, gone: variable != ""}
			if o.gone {
				p.note(doc.line, "an object %s: depends on %s of the client, which ekg does not apply here", kind,
					strings.ToUpper(variable))
			}
			o.short = p.shortName(name, kind, all, existing)
			all = append(all, o)
		}
	}
	return all
}

// objectName is the kind and the name of an object.
type objectName struct{ kind, name string }

// existingNames returns the objects that the pod refers to and that are not in the template. A kernelspec refers to its
// own objects and to others by name alone. So none of its own may have the name of another.
func existingNames(docs []*tree, units []unit) map[objectName]bool {
	existing := map[objectName]bool{}
	for i := range units {
		units[i].value.scalars("", func(path, text string) string {
			if kind := referredKind(&units[i], path); kind != "" {
				existing[objectName{kind, text}] = true
			}
			return text
		})
	}
	for _, doc := range docs {
		kind, _ := doc.field("kind").scalarText()
		name, _ := doc.field("metadata").field("name").scalarText()
		delete(existing, objectName{kind, name})
	}
	return existing
}

// shortName returns the name of an object in the kernelspec: what its name has besides the kernel's.
func (p *podTemplate) shortName(name, kind string, taken []besidePod, existing map[objectName]bool) string {
	short := strings.Trim(notWord.ReplaceAllString(strings.ToLower(p.mark.ReplaceAllString(name, "-")), "-"), "-")
	short = strings.TrimRight(short[:min(len(short), maxShortName)], "-")
	if short == "" || short[0] < 'a' {
		short = shortNames[kind]
	}
	free := func(short string) bool {
		return !existing[objectName{kind, short}] &&
			!slices.ContainsFunc(taken, func(o besidePod) bool { return o.kind == kind && o.short == short })
	}
	if free(short) {
		return short
	}
	for n := 2; ; n++ {
		if next := fmt.Sprintf("%s%d", short, n); free(next) {
			return next
		}
	}
}

// referenceKinds are the ends of paths to names of objects, and the kinds of these objects.
var referenceKinds = []struct{ end, kind string }{
	{".claimName", "PersistentVolumeClaim"},
	{".secretName", "Secret"},
	{".secret.name", "Secret"},
	{".secretRef.name", "Secret"},
	{".secretKeyRef.name", "Secret"},
	{".configMap.name", "ConfigMap"},
	{".configMapRef.name", "ConfigMap"},
	{".configMapKeyRef.name", "ConfigMap"},
}

// referredKind returns the kind of the object that the text at a path within a unit names, or "".
func referredKind(u *unit, path string) string {
	for _, r := range referenceKinds {
		if strings.HasSuffix(path, r.end) {
			return r.kind
		}
	}
	if u.at == "spec.imagePullSecrets[]" && path == ".name" {
		return "Secret"
	}
	return ""
}

// hostName matches a whole name in a text, marks included, and what follows it if it is a host's.
var hostName = regexp.MustCompile(`([\w-]+)(\.|:\d+\b)?`)

// serviceMarks returns a function that replaces the names of Services in a text. Only whole names are replaced: that of
// one Service can begin with that of another. A name may be one mark alone, as the kernel's id. It means the Service
// only as a host, before a domain or a port. Elsewhere it is the variable's value.
func (p *podTemplate) serviceMarks(all []besidePod) func(text string) string {
	marks := map[string]string{}
	for _, o := range all {
		if o.kind == "Service" && p.mark.MatchString(o.name) && marks[o.name] == "" {
			marks[o.name] = o.serviceMark()
		}
	}
	return func(text string) string {
		return hostName.ReplaceAllStringFunc(text, func(found string) string {
			m := hostName.FindStringSubmatch(found)
			name, after := m[1], m[2]
			if marks[name] == "" || after == "" && p.mark.FindString(name) == name {
				return found
			}
			return marks[name] + after
		})
	}
}

// serviceMark is what stands for the name of a Service in texts of a kernelspec.
func (o *besidePod) serviceMark() string { return "{service." + o.short + "}" }

// withBeside returns the units of the pod and of the objects beside it. The pod refers to them by their short names.
// A reference to an object that is left out is left out, too.
func (p *podTemplate) withBeside(units []unit, all []besidePod) []unit {
	services := p.serviceMarks(all)
	for i := range all {
		o := &all[i]
		o.gone = o.gone || !p.fillObject(o, services)
	}
	for p.leaveOutNaming(all) { // until no other object names one that is gone
	}
	units = slices.DeleteFunc(units, func(u unit) bool {
		needs := refer(&u, all, services)
		if needs != nil {
			p.note(u.line, needsGone, u.label(), needs.kind, needs.name)
		}
		return needs != nil
	})
	var ports []string
	for _, o := range all {
		if o.gone {
			continue
		}
		if o.kind == "Service" {
			for _, u := range p.servicePorts(o.doc, units) {
				if text := flowText(u.value.plain()); !slices.Contains(ports, text) {
					ports = append(ports, text)
					units = append(units, u)
				}
			}
		}
		units = append(units, unit{objectsPlace, o.doc.line, o.doc})
	}
	return units
}

// needsGone says why something is left out with an object: what, and the kind and the name of the object.
const needsGone = "%s: needs the %s %s, which is left out"

// goneService returns the Service that a text names although it is gone, or nil.
func goneService(all []besidePod, text string) *besidePod {
	i := slices.IndexFunc(all, func(o besidePod) bool {
		return o.gone && o.kind == "Service" && strings.Contains(text, o.serviceMark())
	})
	if i < 0 {
		return nil
	}
	return &all[i]
}

// leaveOutNaming leaves out objects in whose texts are Services that are gone. It reports whether there were some.
func (p *podTemplate) leaveOutNaming(all []besidePod) (some bool) {
	for i := range all {
		o := &all[i]
		if o.gone {
			continue
		}
		if needs := goneService(all, flowText(o.doc.plain())); needs != nil {
			p.note(o.doc.line, needsGone, "an object "+o.kind, needs.kind, needs.name)
			o.gone, some = true, true
		}
	}
	return some
}

// refer writes the short names of objects into a unit. It returns an object that the unit needs and that is gone, or
// nil.
func refer(u *unit, all []besidePod, services func(text string) string) (needs *besidePod) {
	env := u.at == containerPath+".env[]" || besideLists[u.at] != ""
	u.value.scalars("", func(path, text string) string {
		kind := referredKind(u, path)
		for i := range all {
			if o := &all[i]; o.kind == kind && o.name == text {
				if o.gone {
					needs = o
				}
				return o.short
			}
		}
		if env && strings.HasSuffix(path, ".value") {
			text = services(text)
			needs = cmp.Or(needs, goneService(all, text))
		}
		return text
	})
	return needs
}

// objectMarks are what stands in an object for the values of variables.
var objectMarks = map[string]string{"kernel_username": ownerMark, "kernel_id": "{kernel_id}",
	"kernel_namespace": "{namespace}"}

// fillObject makes an object of the template one of a kernelspec. It notes an object with another value that is not
// known before a kernel starts, and returns false.
func (p *podTemplate) fillObject(o *besidePod, services func(string) string) bool {
	meta := *o.doc.field("metadata")
	meta.fields = nil
	for _, f := range o.doc.field("metadata").fields {
		switch f.key {
		case "name":
			f.value = &tree{line: f.line, kind: yaml.ScalarNode, value: o.short}
		case "namespace":
			if v, exact := p.exactly(f.value); exact && v.name == "kernel_namespace" {
				continue
			}
		case "labels":
			labels := *f.value
			labels.fields = slices.DeleteFunc(slices.Clone(labels.fields), func(l field) bool {
				text, ok := l.value.scalarText()
				return ok && p.mark.MatchString(text) // ekg labels objects as the kernel's pod
			})
			f.value = &labels
		}
		meta.fields = append(meta.fields, f)
	}
	o.doc.set("metadata", &meta)
	if spec := o.doc.field("spec"); o.kind == "Service" && spec != nil {
		own := *spec
		own.fields = slices.DeleteFunc(slices.Clone(spec.fields), func(f field) bool {
			return f.key == "selector" // a kernel's Service selects the kernel's pod
		})
		o.doc.set("spec", &own)
	}
	o.doc.scalars("", func(_, text string) string { return services(text) })
	why := p.fillMarks(o.doc, func(_, variable string) string { return objectMarks[variable] })
	if why != "" {
		p.note(o.doc.line, "an object %s: %s", o.kind, why)
	}
	return why == ""
}

// servicePorts returns the ports of the kernel to which a Service leads.
func (p *podTemplate) servicePorts(service *tree, units []unit) (ports []unit) {
	for _, port := range service.field("spec").field("ports").all() {
		target := port.field("targetPort")
		if target.isNull() {
			target = port.field("port")
		}
		if target.isNull() {
			continue
		}
		open := &tree{line: port.line, kind: yaml.MappingNode}
		if name, named := target.scalarText(); named {
			open.set("name", target)
			target = nil
			for _, u := range units {
				if u.at != containerPath+".ports" {
					continue
				}
				for _, declared := range u.value.all() {
					if text, _ := declared.field("name").scalarText(); text == name {
						target = declared.field("containerPort")
					}
				}
			}
			if target.isNull() {
				continue // the check says what is wrong
			}
		}
		open.set("containerPort", target)
		if protocol := port.field("protocol"); !protocol.isNull() {
			open.set("protocol", protocol)
		}
		ports = append(ports, unit{portsPlace, port.line, open})
	}
	return ports
}

// servesAll reports whether Services lead to all ports of a container.
func servesAll(declared *tree, units []unit) bool {
	return !slices.ContainsFunc(declared.all(), func(port *tree) bool {
		return !slices.ContainsFunc(units, func(u unit) bool {
			number, open := port.field("containerPort"), u.value.field("containerPort")
			return u.at == portsPlace && number != nil && open != nil && number.value == open.value
		})
	})
}

// withoutObject leaves out what refers to an object that was left out, and notes it. That may be other objects, to
// which the same applies.
func (p *podTemplate) withoutObject(list []placed, gone *placed) []placed {
	kind, _ := gone.value.field("kind").scalarText()
	short, _ := gone.value.field("metadata").field("name").scalarText()
	var objects []placed
	list = slices.DeleteFunc(list, func(u placed) bool {
		refers := false
		u.value.scalars("", func(path, text string) string {
			refers = refers || u.key != objectsPlace && referredKind(&u.unit, path) == kind && text == short ||
				kind == "Service" && strings.Contains(text, "{service."+short+"}")
			return text
		})
		if refers {
			p.note(u.line, needsGone, u.label(), kind, short)
		}
		if refers && u.key == objectsPlace {
			objects = append(objects, u)
		}
		return refers
	})
	for i := range objects {
		list = p.withoutObject(list, &objects[i])
	}
	return list
}
