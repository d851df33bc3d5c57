package kernelspecs

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// interpreterTimeout bounds how long python may take to print its prefix. Normally it takes 30 ms.
const interpreterTimeout = 5 * time.Second

// Environment is where Jupyter's own programs would look for kernelspecs in this process's environment.
type Environment struct {
	DataDirs []string // Jupyter's data directories, best first; specs are in kernels/ of each
	Prefix   string   // the Python environment in use; "" for none
}

// FindEnvironment follows jupyter_core's search path: JUPYTER_PATH; the user's directory and those of the Python
// environments, in Jupyter's order; the system's; IPython's. The environments are VIRTUAL_ENV, CONDA_PREFIX and that of
// the first python3 on PATH. That python3 is run to print its prefix, because the path of the file is misleading for
// launchers such as pyenv's.
func FindEnvironment(ctx context.Context, getenv func(string) string) Environment {
	var env Environment
	var prefixes []string
	isolated := false // whether Jupyter prefers the environment's specs to the user's
	if v := getenv("VIRTUAL_ENV"); v != "" {
		prefixes = append(prefixes, v)
		isolated = true
	}
	if v := getenv("CONDA_PREFIX"); v != "" {
		prefixes = append(prefixes, v)
		if name := getenv("CONDA_DEFAULT_ENV"); name != "" && name != "base" {
			isolated = true
		}
	}
	if prefix, virtual := pythonPrefix(ctx, getenv("PATH")); prefix != "" {
		prefixes = append(prefixes, prefix)
		isolated = isolated || virtual
	}
	if v := strings.ToLower(getenv("JUPYTER_PREFER_ENV_PATH")); v != "" {
		isolated = !slices.Contains([]string{"no", "n", "false", "off", "0", "0.0"}, v)
	}
	if len(prefixes) > 0 {
		env.Prefix = prefixes[0]
	}

	var envDirs []string
	for _, p := range prefixes {
		envDirs = append(envDirs, filepath.Join(p, "share", "jupyter"))
	}
	for _, p := range filepath.SplitList(getenv("JUPYTER_PATH")) {
		env.add(p)
	}
	if isolated {
		env.add(envDirs...)
	}
	env.add(userDirs(getenv)...)
	system := []string{"/usr/local/share/jupyter", "/usr/share/jupyter"}
	for _, d := range envDirs {
		// Debian's python3 has the prefix /usr, which must not come before /usr/local.
		if !slices.Contains(system, d) {
			env.add(d)
		}
	}
	env.add(system...)
	if v := getenv("IPYTHONDIR"); v != "" {
		env.add(v)
	} else if home := getenv("HOME"); home != "" {
		env.add(filepath.Join(home, ".ipython"))
	}
	return env
}

// userDirs returns the user's own data directories: Jupyter's and that of pip install --user.
func userDirs(getenv func(string) string) []string {
	var dirs []string
	home := getenv("HOME")
	switch {
	case getenv("JUPYTER_DATA_DIR") != "":
		dirs = append(dirs, getenv("JUPYTER_DATA_DIR"))
	case getenv("XDG_DATA_HOME") != "":
		dirs = append(dirs, filepath.Join(getenv("XDG_DATA_HOME"), "jupyter"))
	case home != "":
		dirs = append(dirs, filepath.Join(home, ".local", "share", "jupyter"))
	}
	if base := getenv("PYTHONUSERBASE"); base != "" {
		dirs = append(dirs, filepath.Join(base, "share", "jupyter"))
	} else if home != "" {
		dirs = append(dirs, filepath.Join(home, ".local", "share", "jupyter"))
	}
	return dirs
}

// add appends directories that are not in the list yet.
func (e *Environment) add(dirs ...string) {
	for _, d := range dirs {
		if d == "" {
			continue
		}
		abs, err := filepath.Abs(d)
		if err != nil {
			continue // the working directory was deleted: a relative path means nothing
		}
		if !slices.Contains(e.DataDirs, abs) {
			e.DataDirs = append(e.DataDirs, abs)
		}
	}
}

// pythonPrefix returns the prefix of the first python3 on the search path, and whether it is a virtual environment.
func pythonPrefix(ctx context.Context, searchPath string) (prefix string, virtual bool) {
	python := lookPath("python3", searchPath)
	if python == "" {
		return "", false
	}
	ctx, cancel := context.WithTimeout(ctx, interpreterTimeout)
	defer cancel()
	// -I ignores PYTHONPATH and modules in the working directory.
	cmd := exec.CommandContext(ctx, python, "-I", "-c", "import sys; print(sys.prefix); print(sys.base_prefix)")
	cmd.WaitDelay = time.Second // a grandchild may hold the pipe open
	out, err := cmd.Output()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err != nil || len(lines) != 2 || !filepath.IsAbs(lines[0]) {
		// An interpreter that cannot be run still is in bin/ of its prefix.
		return filepath.Dir(filepath.Dir(python)), false
	}
	return lines[0], lines[0] != lines[1]
}

// lookPath is exec.LookPath for a search path that is not this process's own.
func lookPath(name, searchPath string) string {
	for _, dir := range filepath.SplitList(searchPath) {
		if !filepath.IsAbs(dir) {
			continue // as in os/exec, programs in the working directory are not trusted
		}
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}
