package kernelspecs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// knownKeys are the keys of kernel.json that Jupyter uses, and two that other tools write.
var knownKeys = []string{"argv", "display_name", "language", "interrupt_mode", "env", "metadata",
	"kernel_protocol_version", "mimetype", "name", "codemirror_mode", "help_links"}

// knownPlaceholders are the names in braces that ekg replaces in argv.
var knownPlaceholders = []string{"connection_file", "resource_dir", "prefix", "kernel_id"}

// Check checks a kernelspec, or all kernelspecs of a directory, more strictly than a Finder does: it also reports what
// Jupyter accepts but ignores or misunderstands, and warnings. Without problems it returns nil. The arguments prefix
// and more are Options.Prefix and Options.Check.
func Check(dir, prefix string, more func(Spec) []Problem) []Problem {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return []Problem{{File: dir, Message: err.Error()}}
	}
	if _, err := os.Lstat(filepath.Join(abs, "kernel.json")); err == nil {
		return checkSpec(abs, prefix, more)
	}
	var problems []Problem
	found := false
	for _, folder := range []string{abs, filepath.Join(abs, "kernels")} {
		entries, err := os.ReadDir(folder)
		if err != nil {
			if folder == abs || !errors.Is(err, fs.ErrNotExist) {
				problems = append(problems, Problem{File: folder, Message: "cannot be read: " + plainError(err).Error()})
			}
			continue
		}
		readDir(folder, entries, func(name, sub, hidden string) {
			found = true
			if hidden != "" {
				problems = append(problems, Problem{Spec: name, File: sub, Message: fmt.Sprintf(hiddenText, hidden)})
			}
			problems = append(problems, checkSpec(sub, prefix, more)...)
		})
	}
	if !found && len(problems) == 0 {
		problems = append(problems, Problem{File: abs,
			Message: "holds no kernelspec: it has neither a kernel.json nor a directory with one"})
	}
	return problems
}

// checkSpec checks the spec of one directory.
func checkSpec(dir, prefix string, more func(Spec) []Problem) []Problem {
	name := strings.ToLower(filepath.Base(dir))
	var problems []Problem
	if !validName().MatchString(name) {
		problems = append(problems, badName(name, dir))
	}
	spec, root, found := readSpec(name, dir, prefix)
	r := reader{spec: name, file: filepath.Join(dir, "kernel.json"), problems: append(problems, found...)}
	if root == nil || root.kind != "object" {
		return r.problems
	}
	r.keys(root)
	for _, key := range []string{"display_name", "language"} {
		if root.member(key) == nil {
			r.report(root, key, "is missing")
		} else if n := root.member(key); n.kind == "string" && n.text == "" {
			r.report(n, key, "is empty")
		}
	}
	if argv := root.member("argv"); argv != nil && argv.kind == "array" && len(argv.items) > 0 && spec.Launcher == nil {
		r.placeholders(argv)
		if len(found) == 0 && !describesPod(root) {
			r.program(argv.items[0], spec)
		}
	}
	r.problems = append(r.problems, spec.Warnings...)
	if len(found) == 0 && more != nil {
		r.problems = append(r.problems, more(spec)...)
	}
	return r.problems
}

// keys reports unknown and repeated keys. In both cases a line of the file has no effect.
func (r *reader) keys(root *node) {
	seen := map[string]bool{}
	for _, m := range root.members {
		switch {
		case seen[m.key]:
			r.problems = append(r.problems, Problem{Spec: r.spec, File: r.file, Line: m.line, Key: m.key,
				Message: "is given twice"})
		case !slices.Contains(knownKeys, m.key):
			r.problems = append(r.problems, Problem{Spec: r.spec, File: r.file, Line: m.line, Key: m.key,
				Message: "is not a key of kernel.json"})
		}
		seen[m.key] = true
	}
}

// placeholders reports unknown placeholders, and a missing {connection_file}.
func (r *reader) placeholders(argv *node) {
	connection := false
	for i, item := range argv.items {
		for _, match := range placeholder().FindAllStringSubmatch(item.text, -1) {
			connection = connection || match[1] == "connection_file"
			if !slices.Contains(knownPlaceholders, match[1]) {
				r.report(item, elementKey(i), "%s is not a known placeholder", match[0])
			}
		}
	}
	if !connection {
		r.report(argv, "argv", "has no {connection_file}: the kernel would not know where to listen")
	}
}

// program reports a kernel's program that cannot be run.
func (r *reader) program(n *node, spec Spec) {
	program := spec.Command(nil)[0]
	if placeholder().MatchString(program) {
		return
	}
	if !filepath.IsAbs(program) && strings.Contains(program, "/") {
		r.report(n, elementKey(0), "%[1]q depends on the working directory of the kernel; write {resource_dir}/%[1]s",
			program)
		return
	}
	// The kernel's program is also looked up in a PATH that the spec sets.
	if searchPath, ok := spec.ExpandEnv(map[string]string{"PATH": os.Getenv("PATH")})["PATH"]; ok &&
		!filepath.IsAbs(program) {
		if lookPath(program, searchPath) != "" {
			return
		}
	}
	if _, err := exec.LookPath(program); err != nil {
		r.report(n, elementKey(0), "%q cannot be run: %v", program, errors.Unwrap(err))
	}
}
