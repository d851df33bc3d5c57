// Package kernelspecs finds, reads, checks and watches Jupyter kernelspecs: directories with a kernel.json that says
// how a kernel is started. It interprets a Spec as Jupyter's own clients do: placeholders in argv, variables in env,
// the interpreter behind a bare "python3". It does not start kernels.
//
// cmd/ekg opens a Finder, from which the gateway takes its specs. A Finder keeps the specs of some directories in
// memory and watches the directories, so that no request reads the disk. Begin with Finder in finder.go, then read.go;
// extension.go has ekg's own keys (metadata.ekg), and check.go is `ekg kernelspec check`.
//
// Open starts one goroutine, besides fsnotify's own. Close ends both and waits for them.
package kernelspecs

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
)

// Spec is a kernelspec that can be started. All callers of a Finder share its slices and maps, which must not be
// modified.
type Spec struct {
	Name          string            // lower-case directory name
	Dir           string            // absolute resource directory
	Argv          []string          // as in kernel.json, with placeholders; nil if metadata.ekg.imageKernelspec is set
	Env           map[string]string // as in kernel.json, with ${VAR}
	DisplayName   string
	Language      string
	InterruptMode string          // "signal" or "message"
	Metadata      json.RawMessage // an object; {} if absent
	Prefix        string          // Python environment: replaces {prefix} and has the python for "python3"; "" for none
	Users         Users           // who may start a kernel, by metadata.process_proxy.config
	Image         string          // of its pods unless metadata.ekg names one, by the same; "" for none
	LaunchTimeout time.Duration   // replaces a KERNEL_LAUNCH_TIMEOUT that the client does not send; 0 for none
	Launcher      *Launcher       // of Enterprise Gateway, which runs in the pod instead of Argv; nil: Argv runs
	Warnings      []Problem       // what has no effect; the spec is usable
	Profile       string          // name of the profile that WithProfile has applied; "" for none
	ProfileTitle  string          // its name for people

	resources    map[string]string // see Resources; read with the spec
	metadataLine int               // line of kernel.json on which Metadata begins; 0 if it is absent
}

// file returns the path of the spec's kernel.json.
func (s Spec) file() string { return filepath.Join(s.Dir, "kernel.json") }

// The values of metadata.ekg.transport.
const (
	TransportIPC = "ipc"
	TransportTCP = "tcp"
)

// lazily returns a function that compiles a regular expression at its first call. The supervisor imports this package
// and needs none of them. There may be thousands of supervisors: together these would cost each 0.4 ms and 200 kB.
func lazily(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}

// placeholder matches what jupyter_client replaces. Other braces, as in R code, stay as they are.
var placeholder = lazily(`\{([A-Za-z0-9_]+)\}`)

// bareInterpreter matches an argv[0] that means Jupyter's own interpreter (sys.executable) instead of one on PATH.
var bareInterpreter = lazily(`^python(3(\.[0-9]+)?)?$`)

// Command returns the argv to run, as jupyter_client builds it. {name} is replaced if vars or the spec itself
// (resource_dir, prefix) has the name, and stays otherwise: without connection_file in vars, a later step can fill it
// in. A bare python is replaced by the interpreter of the spec's prefix, if the prefix has one.
func (s Spec) Command(vars map[string]string) []string {
	argv := make([]string, len(s.Argv))
	for i, arg := range s.Argv {
		argv[i] = placeholder().ReplaceAllStringFunc(arg, func(match string) string {
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

// interpreter returns the program of prefix for a bare interpreter name. It returns "" if name is no such name or
// prefix has no such program. Symlinks are not resolved: a virtual environment's python finds its environment by the
// path with which it is called.
func interpreter(prefix, name string) string {
	if prefix == "" || !bareInterpreter().MatchString(name) {
		return ""
	}
	candidates := []string{name}
	// "python" and "python3" are the same to jupyter_client; a prefix like Debian's /usr has only one of the two.
	// A minor version must match: the modules of another one are missing.
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
var variable = lazily(`\$(\$|[_A-Za-z][_A-Za-z0-9]*|\{[_A-Za-z][_A-Za-z0-9]*\})`)

// ExpandEnv returns the spec's env with $NAME and ${NAME} replaced from vars, as jupyter_client does: not recursively,
// and with $$ for one dollar sign. Unknown names stay unchanged, because they may be meant for a shell.
func (s Spec) ExpandEnv(vars map[string]string) map[string]string {
	env := make(map[string]string, len(s.Env))
	for name, value := range s.Env {
		env[name] = variable().ReplaceAllStringFunc(value, func(match string) string {
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

// Extension returns metadata.ekg, or the zero value if it is absent.
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

// Transport returns the ZeroMQ transport between supervisor and kernel. It is metadata.ekg.transport if that is set.
// Else it is TransportIPC for kernels that are known to support it (ipykernel, and IRkernel since 0.7). For others it
// is TransportTCP, which every kernel supports.
func (s Spec) Transport() (string, error) {
	ext, err := s.Extension()
	if err != nil {
		return "", err
	}
	if ext.Transport != "" {
		return ext.Transport, nil
	}
	for _, arg := range s.Argv {
		if arg == "ipykernel_launcher" || arg == "ipykernel" || arg == "IRkernel::main()" {
			return TransportIPC, nil
		}
	}
	return TransportTCP, nil
}
