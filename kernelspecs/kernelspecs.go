// Package kernelspecs finds, reads, checks and watches Jupyter kernelspecs: directories with a kernel.json that says
// how a kernel is started. It knows what a spec means to Jupyter's own clients (placeholders in argv, variables in env,
// the interpreter behind a bare "python3"); it starts no kernel.
//
// A Finder keeps the specs of some directories in memory and follows changes there, so that a request never reads the
// disk. Open starts its one goroutine (plus the one that fsnotify needs to read the kernel's events); Close ends both
// and waits for them.
package kernelspecs

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Spec is one kernelspec that can be started. Its slices and maps are shared by everyone who got it from one Finder:
// they must not be modified.
type Spec struct {
	Name          string            // lower-case directory name
	Dir           string            // absolute resource directory
	Argv          []string          // as in kernel.json, placeholders unsubstituted; nil where an image's kernelspec has it
	Env           map[string]string // as in kernel.json, ${VAR} unsubstituted
	DisplayName   string
	Language      string
	InterruptMode string          // "signal" or "message"
	Metadata      json.RawMessage // an object; {} if absent
	Prefix        string          // what {prefix} stands for and whose python "python3" is; "" if there is none

	resources    map[string]string // see Resources; read with the spec
	metadataLine int               // of kernel.json on which Metadata begins; 0 if it is not there
}

// file is the spec's kernel.json.
func (s Spec) file() string { return filepath.Join(s.Dir, "kernel.json") }

// The values of metadata.ekg.transport.
const (
	TransportIPC = "ipc"
	TransportTCP = "tcp"
)

// placeholder is what jupyter_client takes for a key to replace. Other braces, as in R code, are left alone.
var placeholder = regexp.MustCompile(`\{([A-Za-z0-9_]+)\}`)

// bareInterpreter is an argv[0] that means the interpreter of Jupyter itself (sys.executable), not one found on PATH.
var bareInterpreter = regexp.MustCompile(`^python(3(\.[0-9]+)?)?$`)

// Command returns the argv to run, as jupyter_client makes it: {name} is replaced where vars or the spec itself knows
// the name (resource_dir, prefix) and left as it is otherwise, and a bare python is the interpreter of the spec's
// prefix if that has one. A caller that does not give connection_file gets it back in place, for someone else to fill.
func (s Spec) Command(vars map[string]string) []string {
	argv := make([]string, len(s.Argv))
	for i, arg := range s.Argv {
		argv[i] = placeholder.ReplaceAllStringFunc(arg, func(match string) string {
			name := match[1 : len(match)-1]
			if v, ok := vars[name]; ok {
				return v
			}
			switch {
			case name == "resource_dir":
				return s.Dir
			case name == "prefix" && s.Prefix != "":
				return s.Prefix
			}
			return match
		})
	}
	if len(argv) > 0 {
		if path := interpreter(s.Prefix, argv[0]); path != "" {
			argv[0] = path
		}
	}
	return argv
}

// interpreter returns the program of prefix that the bare name stands for, "" if name is none or prefix has none.
// Symlinks are not resolved: the path by which a virtual environment's python is called is how it knows itself.
func interpreter(prefix, name string) string {
	if prefix == "" || !bareInterpreter.MatchString(name) {
		return ""
	}
	candidates := []string{name}
	// "python" and "python3" are the same to jupyter_client; a prefix like Debian's /usr has only one of the two.
	// A minor version is exact: another one would not have the modules.
	switch name {
	case "python":
		candidates = append(candidates, "python3")
	case "python3":
		candidates = append(candidates, "python")
	}
	for _, c := range candidates {
		path := filepath.Join(prefix, "bin", c)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}

// variable is Python's string.Template pattern: $$, $name, ${name}.
var variable = regexp.MustCompile(`\$(\$|[_A-Za-z][_A-Za-z0-9]*|\{[_A-Za-z][_A-Za-z0-9]*\})`)

// ExpandEnv returns the spec's env with $NAME and ${NAME} replaced from vars, as jupyter_client does it: once, $$ for
// one dollar sign, and unknown names left as they are (they may be meant for a shell).
func (s Spec) ExpandEnv(vars map[string]string) map[string]string {
	env := make(map[string]string, len(s.Env))
	for name, value := range s.Env {
		env[name] = variable.ReplaceAllStringFunc(value, func(match string) string {
			if match == "$$" {
				return "$"
			}
			if v, ok := vars[strings.Trim(match, "${}")]; ok {
				return v
			}
			return match
		})
	}
	return env
}

// Extension returns metadata.ekg, the zero value where there is none.
func (s Spec) Extension() (Extension, error) {
	var ext Extension
	if len(s.Metadata) == 0 {
		return ext, nil
	}
	root, err := parse(s.Metadata)
	if err != nil {
		return ext, fmt.Errorf("kernelspec %s: metadata: %w", s.Name, err)
	}
	r := reader{}
	ext = r.extension(root.member("ekg"))
	if len(r.problems) > 0 {
		return Extension{}, fmt.Errorf("kernelspec %s: %s: %s", s.Name, r.problems[0].Key, r.problems[0].Message)
	}
	return ext, nil
}

// Transport returns how supervisor and kernel talk: what metadata.ekg.transport says, else TransportIPC for ipykernel,
// which is known to speak it, else TransportTCP, which every kernel speaks.
func (s Spec) Transport() (string, error) {
	ext, err := s.Extension()
	if err != nil {
		return "", err
	}
	if ext.Transport != "" {
		return ext.Transport, nil
	}
	for _, arg := range s.Argv {
		if arg == "ipykernel_launcher" || arg == "ipykernel" {
			return TransportIPC, nil
		}
	}
	return TransportTCP, nil
}
