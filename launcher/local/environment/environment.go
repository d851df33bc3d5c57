// Package environment chooses the environment variables and the working directory of the processes that launcher/local
// starts: kernels get For, and their supervisors get Supervisor. The package starts no goroutine.
package environment

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// inherited are the variables that kernels get from the gateway's environment. Other variables may hold secrets, such
// as the gateway's token.
var inherited = []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "XDG_RUNTIME_DIR",
	"LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "JUPYTER_PATH", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR"}

// supervisorInherits are the variables that a supervisor needs, those with which ekg-gpu finds its library, and the
// operator's GOMAXPROCS. Only programs with Go's race detector read GORACE. Without it, such a supervisor would wait
// for a second before it ends.
var supervisorInherits = []string{"PATH", "HOME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", maxProcessors, "GORACE"}

// maxProcessors is the variable that says how many processors a Go program uses at once. A program that sets the number
// itself has already taken memory for all processors of the machine.
const maxProcessors = "GOMAXPROCS"

// selectEnv returns the variables of environ that have one of the names, and all LC_*.
func selectEnv(environ []string, names ...[]string) map[string]string {
	wanted := make(map[string]bool)
	for _, list := range names {
		for _, n := range list {
			wanted[n] = true
		}
	}
	env := make(map[string]string)
	for _, v := range environ {
		name, value, ok := strings.Cut(v, "=")
		if ok && (wanted[name] || strings.HasPrefix(name, "LC_")) {
			env[name] = value
		}
	}
	return env
}

// For returns the whole environment of a kernel: selected variables of the gateway, then the spec's, then the
// client's. Variables of the gateway and of the client are expanded in the spec's.
func For(environ, inherit []string, spec kernelspecs.Spec, client map[string]string) (map[string]string, error) {
	env := selectEnv(environ, inherited, inherit)
	maps.DeleteFunc(env, reserved)
	known := maps.Clone(env)
	maps.Copy(known, client)
	maps.DeleteFunc(known, reserved)
	maps.Copy(env, spec.ExpandEnv(known))
	maps.Copy(env, client)
	maps.DeleteFunc(env, reserved)
	for name, value := range env {
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			return nil, fmt.Errorf("%q cannot be the name of an environment variable of the kernel", name)
		case strings.Contains(value, "\x00"):
			return nil, fmt.Errorf("the kernel's environment variable %s contains a zero byte", name)
		}
	}
	return env, nil
}

// reserved is launcher.ReservedVariable in the form that maps.DeleteFunc needs.
func reserved(name, _ string) bool { return launcher.ReservedVariable(name) }

// WorkingDir returns the first wanted folder that exists, or the root.
func WorkingDir(wanted ...string) string {
	for _, d := range wanted {
		if strings.HasPrefix(d, "/") {
			if st, err := os.Stat(d); err == nil && st.IsDir() {
				return d
			}
		}
	}
	return "/"
}

// Supervisor is a supervisor's environment. It holds none of the gateway's secrets. It holds no EKG_KERNEL_ID
// either, which would mark the supervisor as a process of the kernel that the gateway may run in.
func Supervisor(environ []string) []string {
	env := selectEnv(environ, supervisorInherits)
	if env[maxProcessors] == "" {
		env[maxProcessors] = strconv.Itoa(api.DefaultProcessors)
	}
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}
