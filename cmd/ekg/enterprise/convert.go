package enterprise

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// templateFile is where Enterprise Gateway has the pod template of a kernelspec.
const templateFile = "scripts/kernel-pod.yaml.j2"

// ErrNothingToConvert says that a kernelspec does not start Enterprise Gateway's launcher.
var ErrNothingToConvert = errors.New("starts no launcher of Enterprise Gateway, so ekg needs no other kernelspec")

// SpecOptions say how a kernelspec is converted.
type SpecOptions struct {
	Template string   // file of the pod template; "": the kernelspec's own
	Argv     []string // of the kernel in its image; nil: that of the kernels of Enterprise Gateway's images
	Launcher bool     // the image's launcher stays; Argv is nil
}

// Converted is a kernelspec for ekg.
type Converted struct {
	KernelJSON []byte    // the new kernel.json
	LeftOut    []Finding // what has no counterpart, by file and line
	Notes      []string  // what an operator should know
}

// kernelFile is a kernel.json of Enterprise Gateway.
type kernelFile struct {
	path   string
	text   []byte
	keys   []string // in the file's order
	values map[string]json.RawMessage

	argv     []string
	env      map[string]string
	language string
	metadata map[string]json.RawMessage
}

// ConvertSpec translates the kernelspec in a folder of Enterprise Gateway. The pod template is parsed and never
// executed.
func ConvertSpec(dir string, o SpecOptions) (*Converted, error) {
	k, err := readKernelFile(filepath.Join(dir, "kernel.json"))
	if err != nil {
		return nil, err
	}
	if err := k.checkClass(); err != nil {
		return nil, err
	}
	if o.Template == "" {
		o.Template = filepath.Join(dir, filepath.FromSlash(templateFile))
	}
	text, err := readSmall(o.Template)
	if err != nil {
		return nil, fmt.Errorf("the pod template: %w", err)
	}
	done := &Converted{}
	argv, err := k.command(o.Argv, o.Launcher, done)
	if err != nil {
		return nil, err
	}
	p, err := readPodTemplate(o.Template, string(text), k.variables(filepath.Base(dir)))
	if err != nil {
		return nil, err
	}
	units, err := p.units()
	if err != nil {
		return nil, err
	}
	ekg := p.convertPod(units, kernelspecs.Spec{Name: "converted", Argv: argv})
	done.LeftOut = append(done.LeftOut, p.findings...)
	slices.SortStableFunc(done.LeftOut, func(a, b Finding) int {
		if a.File != b.File {
			return strings.Compare(a.File, b.File)
		}
		return a.Line - b.Line
	})
	done.notes(p, k.proxy().Config.Image != "" || ekg["image"] != nil)
	done.KernelJSON, err = k.write(argv, ekg)
	return done, err
}

// notes records variables that have an effect in ekg and none in the template.
func (c *Converted) notes(p *podTemplate, hasImage bool) {
	var unused []string
	used := p.clientVariables()
	for _, v := range changingVariables {
		if !slices.Contains(used, strings.ToLower(v)) {
			unused = append(unused, v)
		}
	}
	if len(unused) > 0 {
		c.Notes = append(c.Notes, "the template does not use "+strings.Join(unused, ", ")+" of clients, and ekg does; "+
			"clients.allow of the policy can leave them out")
	}
	if !hasImage {
		c.Notes = append(c.Notes, "neither metadata.process_proxy.config.image_name nor the template names an image; "+
			"--kernel-image does")
	}
}

// readSmall reads a regular file of at most maxFileSize.
func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s is not a regular file", path), err)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err == nil && len(text) > maxFileSize {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxFileSize)
	}
	return text, err
}

func readKernelFile(path string) (*kernelFile, error) {
	text, err := readSmall(path)
	if err != nil {
		return nil, err
	}
	k := &kernelFile{path: path, text: text}
	wrong := func(err error) (*kernelFile, error) { return nil, fmt.Errorf("%s: %w", path, err) }
	if err := json.Unmarshal(text, &k.values); err != nil {
		return wrong(err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if _, err := d.Token(); err != nil {
		return wrong(err)
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return wrong(err)
		}
		name, isText := key.(string)
		var skipped json.RawMessage
		if err := d.Decode(&skipped); err != nil || !isText {
			return wrong(fmt.Errorf("a key cannot be read: %w", err))
		}
		if !slices.Contains(k.keys, name) {
			k.keys = append(k.keys, name)
		}
	}
	for key, to := range map[string]any{"argv": &k.argv, "env": &k.env, "language": &k.language,
		"metadata": &k.metadata} {
		if raw, ok := k.values[key]; ok {
			if err := json.Unmarshal(raw, to); err != nil {
				return wrong(fmt.Errorf("%s: %w", key, err))
			}
		}
	}
	if _, ok := k.metadata["ekg"]; ok {
		return wrong(errors.New("it has metadata.ekg already"))
	}
	return k, nil
}

// proxy is metadata.process_proxy.
type proxy struct {
	Class  string `json:"class_name"`
	Config struct {
		Image string `json:"image_name"`
	} `json:"config"`
}

func (k *kernelFile) proxy() (p proxy) {
	if json.Unmarshal(k.metadata["process_proxy"], &p) != nil {
		return proxy{} // a check of the result says what is wrong
	}
	return p
}

// checkClass rejects a kernelspec that no pod template belongs to.
func (k *kernelFile) checkClass() error {
	launcher := slices.ContainsFunc(k.argv, func(arg string) bool {
		return strings.Contains(arg, "{response_address}")
	})
	spark := slices.ContainsFunc(k.argv, func(arg string) bool { return strings.HasSuffix(arg, "/bin/run.sh") })
	switch class := k.proxy().Class; {
	case strings.HasSuffix(class, "KubernetesProcessProxy") && spark:
		return fmt.Errorf("%s: it submits a Spark application, which ekg does not do", k.path)
	case strings.HasSuffix(class, "KubernetesProcessProxy") && launcher:
		return nil
	case launcher:
		return fmt.Errorf("%s: %q starts no pod from a template; ekg kernelspec check says what ekg does with it",
			k.path, class)
	}
	return fmt.Errorf("%s: it %w", k.path, ErrNothingToConvert)
}

// command returns the command that starts the kernel in its image. With keep, that is Enterprise Gateway's own.
func (k *kernelFile) command(given []string, keep bool, done *Converted) ([]string, error) {
	if keep {
		return k.argv, nil
	}
	mode, class := k.option("spark-context-initialization-mode"), k.option("kernel-class-name")
	if mode != "" && mode != "none" {
		done.LeftOut = append(done.LeftOut, Finding{k.path, k.lineOf(mode),
			"spark-context-initialization-mode " + mode + ": ekg creates no Spark context"})
	}
	if len(given) > 0 {
		return given, nil
	}
	switch strings.ToLower(k.language) {
	case "python":
		argv := []string{"python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"}
		if class != "" {
			argv = append(argv, "--IPKernelApp.kernel_class="+class)
		}
		return argv, nil
	case "r":
		return []string{"R", "--slave", "-e", "IRkernel::main()", "--args", "{connection_file}"}, nil
	}
	return nil, fmt.Errorf("%s: ekg does not know the command of a kernel for %q; give it with --command, or use "+
		"--keep-launcher", k.path, k.language)
}

// option returns the value of an option of Enterprise Gateway's launcher.
func (k *kernelFile) option(name string) string {
	for i, arg := range k.argv {
		for _, prefix := range []string{"--", "--RemoteProcessProxy."} {
			switch {
			case arg == prefix+name && i+1 < len(k.argv):
				return k.argv[i+1]
			case strings.HasPrefix(arg, prefix+name+"="):
				return arg[len(prefix+name)+1:]
			}
		}
	}
	return ""
}

// lineOf returns the line of a text in the file; 0 if it is not there.
func (k *kernelFile) lineOf(text string) int {
	at := bytes.Index(k.text, []byte(text))
	if at < 0 {
		return 0
	}
	return 1 + bytes.Count(k.text[:at], []byte("\n"))
}

// variables returns the variables of the template that the kernelspec itself sets.
func (k *kernelFile) variables(name string) map[string]string {
	vars := map[string]string{"kernel_name": name, "kernel_language": strings.ToLower(k.language)}
	for variable, value := range k.env {
		if strings.HasPrefix(variable, "KERNEL_") && value != "" {
			vars[strings.ToLower(variable)] = value
		}
	}
	if mode := k.option("spark-context-initialization-mode"); mode != "" {
		vars["kernel_spark_context_init_mode"] = mode
	}
	if class := k.option("kernel-class-name"); class != "" {
		vars["kernel_class_name"] = class
	}
	return vars
}

// write returns the new kernel.json. Keys keep their order; metadata.ekg comes last.
func (k *kernelFile) write(argv []string, ekg map[string]any) ([]byte, error) {
	metadata := map[string]any{}
	for key, raw := range k.metadata {
		metadata[key] = raw
	}
	metadata["ekg"] = ekg
	keys := slices.Clone(k.keys)
	for _, key := range []string{"argv", "metadata"} {
		if !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	var out bytes.Buffer
	out.WriteByte('{')
	for i, key := range keys {
		value := string(k.values[key])
		switch key {
		case "argv":
			value = flowText(argv)
		case "metadata":
			value = flowText(metadata)
		}
		if i > 0 {
			out.WriteByte(',')
		}
		out.WriteString(flowText(key) + ":" + value)
	}
	out.WriteByte('}')
	var indented bytes.Buffer
	if err := json.Indent(&indented, out.Bytes(), "", "  "); err != nil {
		return nil, fmt.Errorf("%s: %w", k.path, err)
	}
	indented.WriteByte('\n')
	return indented.Bytes(), nil
}
