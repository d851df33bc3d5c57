package kernelspecs

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// extensionPath is how metadata.ekg is called in a Problem.
const extensionPath = "metadata.ekg"

// PodKeys are the keys of metadata.ekg that say how a kernel's pod looks. What their values mean is for the launcher to know
// that makes pods, which decodes them with DecodeExtension; elsewhere they have no effect.
var PodKeys = []string{"affinity", "annotations", "entrypoint", "env", "image", "imageKernelspec", "imagePullPolicy", "imagePullSecrets",
	"labels", "nodeSelector", "pod", "priorityClassName", "resourceClaims", "resources", "runtimeClassName", "schedulerName",
	"securityContext", "serviceAccountName", "shmSize", "terminationGracePeriodSeconds", "tolerations", "volumeMounts", "volumes",
	"workingDir"}

// Extension is what metadata.ekg of a kernel.json says to every launcher. Unlike the rest of kernel.json metadata.ekg is
// ekg's alone: what is not understood is refused, as a misspelt key would otherwise be ignored in silence.
type Extension struct {
	Transport string `json:"transport"` // TransportIPC, TransportTCP, or "" to have it chosen
	Cull      Cull   `json:"cull"`
	Limits    Limits `json:"limits"`
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
		case m.key == "cull":
			decodeMember(r, m.value, key, &ext.Cull)
		case m.key == "limits":
			decodeMember(r, m.value, key, &ext.Limits)
		case !slices.Contains(PodKeys, m.key):
			known := append([]string{"cull", "limits", "transport"}, PodKeys...)
			slices.Sort(known)
			r.report(at, key, "is not known; there is: %s", strings.Join(known, ", "))
		}
		seen[m.key] = true
	}
	return ext
}

// describesPod reports whether metadata.ekg says anything of a pod: then the kernel's program is that of an image.
func describesPod(root *node) bool {
	ekg := root.member("metadata").member("ekg")
	return slices.ContainsFunc(PodKeys, func(key string) bool { return ekg.member(key) != nil })
}

// DecodeExtension decodes metadata.ekg into the struct that v points to, as DecodeStrict does. Without metadata.ekg it does
// nothing. The places are those in the spec's kernel.json.
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

// DecodeStrict decodes one JSON document into what v points to, with the tags of encoding/json, and reports with its place
// whatever encoding/json would pass over: unknown and repeated keys, keys in another case, null. The document is called
// name in the paths of its problems. It never panics, whatever the document is.
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

// Places knows in which line of a file each value of a document stands.
type Places struct {
	spec, file string
	lines      map[string]int // by path
}

// Problem makes a problem of the value with the path (metadata.ekg.volumes[0].name), with its line or, where it is not in the
// file, that of the nearest value around it.
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

// decoder fills Go values from nodes. It goes on after a problem, so that all are told at once.
type decoder struct {
	places   Places
	before   int // lines of the file before the document
	problems []Problem
}

func (d *decoder) report(path, format string, args ...any) {
	d.problems = append(d.problems, d.places.Problem(path, fmt.Sprintf(format, args...)))
}

// decode fills v, which can be set, from n.
func (d *decoder) decode(n *node, v reflect.Value, path string) {
	if _, ok := d.places.lines[path]; !ok { // of an object's member it is the line of its key
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
	if _, ok := v.Addr().Interface().(json.Unmarshaler); ok {
		d.scalar(n, v, path, "is not possible here")
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
			d.scalar(n, v, path, "is not possible here")
		}
	default:
		if d.want(n, "number", path) {
			d.scalar(n, v, path, "is not a number that fits")
		}
	}
}

// want reports whether a value is of the kind, and tells where it is not.
func (d *decoder) want(n *node, kind, path string) bool {
	if n.kind != kind {
		d.report(path, "is %s, not %s", article(n.kind), article(kind))
	}
	return n.kind == kind
}

// hugeExponent is the end of a number whose digits would take all memory there is: some types write them out.
var hugeExponent = regexp.MustCompile(`[0-9.][eE][+-]?[0-9]{3,}"?$`)

// scalar leaves a value to encoding/json, or to the type's own reading.
func (d *decoder) scalar(n *node, v reflect.Value, path, problem string) {
	raw := n.raw
	if n.kind == "string" {
		raw, _ = json.Marshal(n.text) //nolint:errcheck // every string can be marshalled
	}
	if hugeExponent.Match(raw) {
		d.report(path, "has an exponent that nobody means")
		return
	}
	if err := json.Unmarshal(raw, v.Addr().Interface()); err != nil {
		if told := (valueError{}); errors.As(err, &told) {
			problem = told.Error()
		}
		const most = 60
		shown := string(raw)
		if len(shown) > most {
			shown = strings.ToValidUTF8(shown[:most], "") + "..."
		}
		d.report(path, "%s %s", shown, problem)
	}
}

// each calls member for every key of an object that has not been there before.
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
			d.report(at, "cannot be set; there is: %s", strings.Join(names, ", "))
			return
		}
		d.decode(m.value, field, at)
	})
}

// fieldsOf collects the fields of a struct, those of embedded structs included, by the names that JSON has for them.
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
