package kernelspecs

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// extensionPath is the key of the extension in a Problem.
const extensionPath = "metadata.ekg"

// maxWarm bounds the warm kernels of one kernelspec.
const maxWarm = 100

// PodKeys are the keys of metadata.ekg that describe a kernel's pod. The builder of pods decodes them with
// DecodeExtension. Kernels without a pod ignore them.
var PodKeys = []string{
	"affinity",
	"annotations",
	"containers",
	"entrypoint",
	"env",
	"image",
	"imageKernelspec",
	"imagePullPolicy",
	"imagePullSecrets",
	"initContainers",
	"labels",
	"lifecycle",
	"nodeSelector",
	"objects",
	"pod",
	"ports",
	"priorityClassName",
	"resourceClaims",
	"resources",
	"runtimeClassName",
	"schedulerName",
	"securityContext",
	"serviceAccountName",
	"serviceAccountToken",
	"shmSize",
	"terminationGracePeriodSeconds",
	"tolerations",
	"volumeMounts",
	"volumes",
	"workingDir",
}

// ownKeys are the keys of metadata.ekg that Extension has.
var ownKeys = []string{"cull", "flavor", "launcher", "limits", "park", "profiles", "transport", "warm"}

// Extension is the part of metadata.ekg that concerns all launchers. Only ekg defines metadata.ekg, so unknown keys in
// it are problems: a misspelt key would otherwise be ignored silently.
type Extension struct {
	Transport string    `json:"transport"` // TransportIPC, TransportTCP, or "" for Spec.Transport to choose
	Flavor    string    `json:"flavor"`    // name of the operator's flavor that its kernels get; "" for none
	Launcher  string    `json:"launcher"`  // LauncherEnterprise, or "" for a kernel that reads {connection_file}
	Cull      CullTimes `json:"cull"`
	Limits    Limits    `json:"limits"`

	// Warm is how many kernels are kept started that wait for an owner.
	Warm int `json:"warm"`

	// Park says whether its kernels may give their GPUs back while they are idle; nil: they may.
	Park *bool `json:"park"`

	Profiles []Profile `json:"profiles"`
}

// extension reads metadata.ekg.
func (r *reader) extension(n *node) Extension {
	var ext Extension
	if n == nil {
		return ext
	}
	if n.kind != "object" {
		r.report(n, extensionPath, "is %s, not an object", article(n.kind))
		return ext
	}
	seen := map[string]bool{}
	for _, m := range n.members {
		key := extensionPath + "." + m.key
		at := &node{line: m.line}
		switch {
		case seen[m.key]:
			r.report(at, key, "is given twice")
		case m.key == "transport":
			if m.value.text != TransportIPC && m.value.text != TransportTCP {
				r.report(m.value, key, `is not "ipc" or "tcp"`)
			}
			ext.Transport = m.value.text
		case m.key == "launcher":
			if m.value.text != LauncherEnterprise {
				r.report(m.value, key, "is not %q", LauncherEnterprise)
			}
			ext.Launcher = m.value.text
		case m.key == "flavor":
			if m.value.kind != "string" || m.value.text == "" {
				r.report(m.value, key, "is not the name of a flavor")
			}
			ext.Flavor = m.value.text
		case m.key == "cull":
			decodeMember(r, m.value, key, &ext.Cull)
			if ext.Cull.CPU < 0 {
				r.report(m.value.member("cpu"), key+".cpu", "is not a number from 0 on")
			}
		case m.key == "limits":
			decodeMember(r, m.value, key, &ext.Limits)
		case m.key == "warm":
			decodeMember(r, m.value, key, &ext.Warm)
			if ext.Warm < 0 || ext.Warm > maxWarm {
				r.report(m.value, key, "is not a number from 0 to %d", maxWarm)
			}
		case m.key == "park":
			decodeMember(r, m.value, key, &ext.Park)
		case m.key == "placeholders":
			r.report(at, key, "was removed; use the component placeholders of deploy/kubernetes, or the chart's placeholders")
		case m.key == "profiles":
			before := len(r.problems)
			decodeMember(r, m.value, key, &ext.Profiles)
			if len(r.problems) == before {
				r.checkProfiles(m.value, ext.Profiles)
			}
		case !slices.Contains(PodKeys, m.key):
			known := slices.Concat(ownKeys, PodKeys)
			slices.Sort(known)
			r.report(at, key, "is not a known key; valid keys: %s", strings.Join(known, ", "))
		}
		seen[m.key] = true
	}
	return ext
}

// describesPod reports whether metadata.ekg has keys for a pod. The kernel's program is then in an image.
func describesPod(root *node) bool {
	ekg := root.member("metadata").member("ekg")
	return slices.ContainsFunc(PodKeys, func(key string) bool { return ekg.member(key) != nil })
}

// DecodeExtension decodes metadata.ekg into the struct that v points to, as DecodeStrict does. Without metadata.ekg it
// does nothing. The returned places have the lines of the spec's kernel.json.
func (s Spec) DecodeExtension(v any) (Places, []Problem) {
	places := Places{spec: s.Name, file: s.file(), lines: map[string]int{}}
	if len(s.Metadata) == 0 {
		return places, nil
	}
	root, err := parse(s.Metadata)
	if err != nil {
		return places, []Problem{places.Problem("metadata", err.Error())}
	}
	d := decoder{places: places, before: max(s.metadataLine-1, 0)}
	if ekg := root.member("ekg"); ekg != nil {
		d.decode(ekg, reflect.ValueOf(v).Elem(), extensionPath)
	}
	return places, d.problems
}

// DecodeStrict decodes one JSON document into the value that v points to, with the tags of encoding/json. It reports
// what encoding/json ignores: unknown and repeated keys, keys in another case, null. The paths of its problems begin
// with name. No document makes it panic.
func DecodeStrict(data []byte, name string, v any) (Places, []Problem) {
	places := Places{lines: map[string]int{}}
	root, err := parse(data)
	if err != nil {
		return places, []Problem{places.Problem(name, err.Error())}
	}
	d := decoder{places: places}
	d.decode(root, reflect.ValueOf(v).Elem(), name)
	return places, d.problems
}

// Places has the line of each value of a document.
type Places struct {
	spec, file string
	lines      map[string]int // by path
}

// Problem returns a problem of the value at a path such as metadata.ekg.volumes[0].name. Its line is the value's, or
// that of the nearest enclosing value in the file.
func (p Places) Problem(path, message string) Problem {
	problem := Problem{Spec: p.spec, File: p.file, Key: path, Message: message}
	for near := path; near != ""; near = near[:max(strings.LastIndexAny(near, ".["), 0)] {
		if line, ok := p.lines[near]; ok {
			problem.Line = line
			break
		}
	}
	return problem
}

// decoder fills Go values from nodes. It continues after a problem, so that all problems are reported at once.
type decoder struct {
	places   Places
	before   int // lines of the file before the document
	problems []Problem
}

func (d *decoder) report(path, format string, args ...any) {
	d.problems = append(d.problems, d.places.Problem(path, fmt.Sprintf(format, args...)))
}

// decode sets v, which must be settable, from n.
func (d *decoder) decode(n *node, v reflect.Value, path string) {
	if _, ok := d.places.lines[path]; !ok { // the line of an object's member is that of its key
		d.places.lines[path] = d.before + n.line
	}
	if n.kind == "null" {
		d.report(path, "is null; leave the key out instead")
		return
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		d.decode(n, v.Elem(), path)
		return
	}
	switch value := v.Addr().Interface().(type) {
	case json.Unmarshaler:
		d.scalar(n, v, path, "is not a valid value")
		return
	case Chooser:
		d.choose(n, value, path)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		if d.want(n, "object", path) {
			d.object(n, v, path)
		}
	case reflect.Map:
		if d.want(n, "object", path) {
			d.mapping(n, v, path)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			d.scalar(n, v, path, "is not base64")
		} else if d.want(n, "array", path) {
			v.Set(reflect.MakeSlice(v.Type(), len(n.items), len(n.items)))
			for i, item := range n.items {
				d.decode(item, v.Index(i), path+"["+strconv.Itoa(i)+"]")
			}
		}
	case reflect.String:
		if d.want(n, "string", path) {
			v.SetString(n.text)
		}
	case reflect.Bool:
		if d.want(n, "boolean", path) {
			d.scalar(n, v, path, "is not a valid value")
		}
	default:
		if d.want(n, "number", path) {
			d.scalar(n, v, path, "is not a valid number here")
		}
	}
}

// Chooser is a value whose type depends on its own keys, such as an object of Kubernetes. It is decoded into what
// Choose returns: a pointer to a struct. text returns the text of a key, "" without one. An error is reported for the
// key kind.
type Chooser interface {
	Choose(text func(key string) string) (any, error)
}

// choose decodes an object whose type depends on its keys.
func (d *decoder) choose(n *node, c Chooser, path string) {
	if !d.want(n, "object", path) {
		return
	}
	into, err := c.Choose(func(key string) string {
		if m := n.member(key); m != nil {
			return m.text
		}
		return ""
	})
	if err == nil {
		d.decode(n, reflect.ValueOf(into).Elem(), path)
		return
	}
	if kind := n.member("kind"); kind != nil {
		d.places.lines[path+".kind"] = d.before + kind.line
	}
	d.report(path+".kind", "%s", err)
}

// want reports whether a value has a kind. If not, it adds a problem.
func (d *decoder) want(n *node, kind, path string) bool {
	if n.kind != kind {
		d.report(path, "is %s, not %s", article(n.kind), article(kind))
	}
	return n.kind == kind
}

// hugeExponent matches numbers whose digits would use all memory: some types write them out.
var hugeExponent = lazily(`[0-9.][eE][+-]?[0-9]{3,}"?$`)

// scalar decodes a value with encoding/json, or with the type's own UnmarshalJSON.
func (d *decoder) scalar(n *node, v reflect.Value, path, problem string) {
	raw := n.raw
	if n.kind == "string" {
		raw, _ = json.Marshal(n.text) // every string can be encoded
	}
	if hugeExponent().Match(raw) {
		d.report(path, "has too large an exponent")
		return
	}
	if err := json.Unmarshal(raw, v.Addr().Interface()); err != nil {
		if own := (valueError{}); errors.As(err, &own) {
			problem = own.Error()
		}
		const most = 60
		shown := string(raw)
		if len(shown) > most {
			shown = strings.ToValidUTF8(shown[:most], "") + "..."
		}
		d.report(path, "%s %s", shown, problem)
	}
}

// each calls member for every key of an object, and reports repeated keys.
func (d *decoder) each(n *node, path string, member func(m member, path string)) {
	seen := map[string]bool{}
	for _, m := range n.members {
		at := path + "." + m.key
		if seen[m.key] {
			d.report(at, "is given twice")
			continue
		}
		seen[m.key] = true
		d.places.lines[at] = d.before + m.line
		member(m, at)
	}
}

func (d *decoder) mapping(n *node, v reflect.Value, path string) {
	v.Set(reflect.MakeMapWithSize(v.Type(), len(n.members)))
	d.each(n, path, func(m member, at string) {
		value := reflect.New(v.Type().Elem()).Elem()
		d.decode(m.value, value, at)
		v.SetMapIndex(reflect.ValueOf(m.key).Convert(v.Type().Key()), value)
	})
}

func (d *decoder) object(n *node, v reflect.Value, path string) {
	fields := map[string]reflect.Value{}
	fieldsOf(v, fields)
	d.each(n, path, func(m member, at string) {
		field, ok := fields[m.key]
		if !ok {
			names := make([]string, 0, len(fields))
			for name := range fields {
				names = append(names, name)
			}
			slices.Sort(names)
			d.report(at, "cannot be set; valid keys: %s", strings.Join(names, ", "))
			return
		}
		d.decode(m.value, field, at)
	})
}

// fieldsOf collects the fields of a struct and of its embedded structs by their names in JSON.
func fieldsOf(v reflect.Value, fields map[string]reflect.Value) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "" && f.Anonymous && f.Type.Kind() == reflect.Struct:
			fieldsOf(v.Field(i), fields)
		case name != "" && name != "-" && f.IsExported():
			fields[name] = v.Field(i)
		}
	}
}
