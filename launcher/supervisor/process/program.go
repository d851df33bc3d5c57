package process

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// defaultPath is where a program is looked for if the kernel's environment has no PATH.
const defaultPath = "/usr/local/bin:/usr/bin:/bin"

// NoProgramError says that a kernel's program does not exist.
type NoProgramError struct {
	Name   string
	OnPath bool // Name was looked for on PATH
}

func (e *NoProgramError) Error() string {
	if e.OnPath {
		return fmt.Sprintf("the kernel's program %q was not found on its PATH", e.Name)
	}
	return fmt.Sprintf("the kernel's program %q does not exist", e.Name)
}

// findProgram returns the path of argv[0], looked up as the kernel's own shell would.
func findProgram(argv []string, path string) (string, error) {
	if len(argv) == 0 || argv[0] == "" {
		return "", errors.New("the kernel's command is empty")
	}
	name := argv[0]
	if strings.Contains(name, "/") {
		return name, nil
	}
	if path == "" {
		path = defaultPath
	}
	refused := ""
	for _, d := range filepath.SplitList(path) {
		if !filepath.IsAbs(d) {
			continue // relative to the working directory: a file in a notebook's folder must not replace a program
		}
		p := filepath.Join(d, name)
		st, err := os.Stat(p)
		switch {
		case err != nil || st.IsDir():
		case st.Mode()&0o111 == 0:
			refused = p
		default:
			return p, nil
		}
	}
	if refused != "" {
		return "", fmt.Errorf("the kernel's program %q is not executable", refused)
	}
	return "", &NoProgramError{Name: name, OnPath: true}
}

// explainExec turns the error of a fork, chdir or exec, which share one errno, into a sentence for the kernel's owner.
func explainExec(path, dir string, err error) error {
	if dir != "" {
		if st, e := os.Stat(dir); errors.Is(e, fs.ErrNotExist) {
			return fmt.Errorf("the kernel's working directory %q does not exist", dir)
		} else if e == nil && !st.IsDir() {
			return fmt.Errorf("the kernel's working directory %q is not a directory", dir)
		}
	}
	file := path
	if !filepath.IsAbs(file) {
		file = filepath.Join(dir, file) // the new process changes its directory first
	}
	st, statErr := os.Stat(file)
	switch {
	case errors.Is(statErr, fs.ErrNotExist) || errors.Is(statErr, syscall.ENOTDIR):
		return &NoProgramError{Name: path}
	case statErr != nil:
		return fmt.Errorf("the kernel's program %q cannot be reached: %w", path, errors.Unwrap(statErr))
	case st.IsDir():
		return fmt.Errorf("the kernel's program %q is a directory", path)
	case st.Mode()&0o111 == 0:
		return fmt.Errorf("the kernel's program %q is not executable", path)
	}
	script := interpreter(file)
	switch {
	case errors.Is(err, syscall.ENOENT) && script != "":
		return fmt.Errorf("the kernel's program %q asks for the interpreter %q, which does not exist", path, script)
	case errors.Is(err, syscall.EACCES) && script != "":
		return fmt.Errorf("the kernel's program %q asks for the interpreter %q, which may not be executed", path, script)
	case errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("the kernel's program %q needs a loader that this machine does not have", path)
	case errors.Is(err, syscall.ENOEXEC):
		return fmt.Errorf("the kernel's program %q is not in a format that this machine can execute", path)
	case errors.Is(err, syscall.EINVAL):
		return errors.New("the kernel's command or environment contains a zero byte")
	case errors.Is(err, syscall.E2BIG):
		return errors.New("the kernel's command and environment are too large for this machine")
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM):
		return fmt.Errorf("this machine cannot start another process for the kernel: %w", err)
	}
	return fmt.Errorf("the kernel's program %q cannot be started: %w", path, err)
}

// interpreter returns the program that a script's first line names, "" if the file is not a script.
func interpreter(file string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()                                        //nolint:errcheck // it was only read
	line, _ := bufio.NewReaderSize(f, 256).ReadSlice('\n') // Linux reads no more either
	name, ok := strings.CutPrefix(string(line), "#!")
	if !ok {
		return ""
	}
	// Only these end the name: a script saved on Windows asks for "python3\r".
	fields := strings.FieldsFunc(name, func(r rune) bool { return r == ' ' || r == '\t' || r == '\n' })
	if len(fields) > 0 {
		return fields[0]
	}
	return ""
}
