package kernelspecs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// maxFileSize bounds a kernel.json. A real one has some hundred bytes, one with a pod template some thousand.
const maxFileSize = 1 << 20

// validName matches the names of specs that Jupyter's URLs accept, in lower case.
var validName = lazily(`^[a-z0-9._-]+$`)

// reader decodes the kernel.json of one directory into a Spec and collects its problems.
type reader struct {
	spec     string
	file     string
	problems []Problem
	warnings []Problem
}

// readSpec reads dir/kernel.json. The spec is complete if it returns no problems, and must not be used otherwise,
// except its lists of users; see knowsUsers. The root of the document is returned for stricter checks; it is nil if the
// file could not be parsed.
func readSpec(name, dir, defaultPrefix string) (Spec, *node, []Problem) {
	r := reader{spec: name, file: filepath.Join(dir, "kernel.json")}
	data, err := readRegular(r.file)
	if err != nil {
		r.report(nil, "", "%v", err)
		return Spec{}, nil, r.problems
	}
	root, err := parse(data)
	if err != nil {
		var syn *syntaxError
		if errors.As(err, &syn) {
			r.problems = append(r.problems, Problem{Spec: name, File: r.file, Line: syn.line, Message: syn.msg})
		} else {
			r.report(nil, "", "%v", err)
		}
		return Spec{}, nil, r.problems
	}
	if root.kind != "object" {
		r.report(root, "", "is %s, not an object", article(root.kind))
		return Spec{}, nil, r.problems
	}
	s := Spec{
		Name:          name,
		Dir:           dir,
		Argv:          r.argv(root),
		Env:           r.env(root),
		DisplayName:   r.text(root, "display_name", name),
		Language:      r.text(root, "language", ""),
		InterruptMode: r.interruptMode(root),
		Metadata:      r.metadata(root),
		Prefix:        prefixOf(dir, defaultPrefix),
		resources:     findResources(dir),
	}
	r.processProxy(root, &s)
	r.enterpriseLauncher(root, &s)
	s.Warnings = r.warnings
	if n := root.member("metadata"); n != nil {
		s.metadataLine = n.line
	}
	return s, root, r.problems
}

// readRegular reads a regular file of at most maxFileSize bytes. Other files are rejected: reading a FIFO would block.
func readRegular(file string) ([]byte, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, plainError(err)
	}
	defer func() { _ = f.Close() }() // only read from
	info, err := f.Stat()
	if err != nil {
		return nil, plainError(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil {
		return nil, plainError(err)
	}
	if len(data) > maxFileSize {
		return nil, fmt.Errorf("larger than %d bytes", maxFileSize)
	}
	return data, nil
}

// plainError drops the path of a file error: a Problem names it already.
func plainError(err error) error {
	var pathErr *os.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}

// report adds a problem. Without a node it concerns the whole file.
func (r *reader) report(n *node, key, format string, args ...any) {
	p := Problem{Spec: r.spec, File: r.file, Key: key, Message: fmt.Sprintf(format, args...)}
	if n != nil {
		p.Line = n.line
	}
	r.problems = append(r.problems, p)
}

// warn adds a warning about a value.
func (r *reader) warn(n *node, key, format string, args ...any) {
	r.warnings = append(r.warnings, Problem{Spec: r.spec, File: r.file, Line: n.line, Key: key, Warning: true,
		Message: fmt.Sprintf(format, args...)})
}

// article puts the indefinite article before a JSON kind.
func article(kind string) string {
	switch kind {
	case "object", "array":
		return "an " + kind
	case "null":
		return kind
	}
	return "a " + kind
}

// want returns the value of key if it has the kind. It reports a value of another kind.
func (r *reader) want(root *node, key, kind string) *node {
	n := root.member(key)
	if n != nil && n.kind != kind {
		r.report(n, key, "is %s, not %s", article(n.kind), article(kind))
		return nil
	}
	return n
}

func (r *reader) text(root *node, key, absent string) string {
	if n := r.want(root, key, "string"); n != nil {
		return n.text
	}
	return absent
}

// argv reads the kernel's command line, which may be missing only beside metadata.ekg.imageKernelspec.
func (r *reader) argv(root *node) []string {
	if root.member("argv") == nil {
		if root.member("metadata").member("ekg").member("imageKernelspec") != nil {
			return nil
		}
		r.report(root, "argv", "is missing")
		return nil
	}
	n := r.want(root, "argv", "array")
	if n == nil {
		return nil
	}
	if len(n.items) == 0 {
		r.report(n, "argv", "is empty")
	}
	var argv []string
	for i, item := range n.items {
		key := elementKey(i)
		switch {
		case item.kind != "string":
			r.report(item, key, "is %s, not a string", article(item.kind))
		case i == 0 && item.text == "":
			r.report(item, key, "is empty: it names the program")
		case strings.ContainsRune(item.text, 0):
			r.report(item, key, "contains a NUL, which no argument can hold")
		}
		argv = append(argv, item.text)
	}
	return argv
}

func (r *reader) env(root *node) map[string]string {
	env := map[string]string{}
	n := r.want(root, "env", "object")
	if n == nil {
		return env
	}
	for _, m := range n.members {
		key := "env." + m.key
		switch {
		case m.key == "" || strings.ContainsAny(m.key, "=\x00"):
			r.report(m.value, "env", "%q cannot be the name of an environment variable", m.key)
		case m.value.kind != "string":
			r.report(m.value, key, "is %s, not a string", article(m.value.kind))
		case strings.ContainsRune(m.value.text, 0):
			r.report(m.value, key, "contains a NUL, which no variable can hold")
		}
		env[m.key] = m.value.text
	}
	return env
}

func (r *reader) interruptMode(root *node) string {
	n := r.want(root, "interrupt_mode", "string")
	if n == nil {
		return "signal"
	}
	// jupyter_client ignores case here.
	mode := strings.ToLower(n.text)
	if mode != "signal" && mode != "message" {
		r.report(n, "interrupt_mode", `is %q, not "signal" or "message"`, n.text)
	}
	return mode
}

func (r *reader) metadata(root *node) json.RawMessage {
	n := r.want(root, "metadata", "object")
	if n == nil {
		return json.RawMessage("{}")
	}
	r.extension(n.member("ekg"))
	return slices.Clone(n.raw)
}

// prefixOf returns the prefix that a spec in dir belongs to: PREFIX of PREFIX/share/jupyter/kernels/NAME if it has a
// python, as Jupyter's clients of that prefix do; otherwise defaultPrefix.
func prefixOf(dir, defaultPrefix string) string {
	kernels := filepath.Dir(dir)
	if strings.HasSuffix(kernels, "/share/jupyter/kernels") {
		prefix := path.Clean(strings.TrimSuffix(kernels, "/share/jupyter/kernels") + "/")
		if interpreter(prefix, "python3") != "" {
			return prefix
		}
	}
	return defaultPrefix
}

// elementKey names an element of argv in a Problem.
func elementKey(i int) string { return fmt.Sprintf("argv[%d]", i) }
