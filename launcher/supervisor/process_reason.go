package supervisor

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"
)

// defaultPath is where a program is looked for if the kernel's environment has no PATH.
const defaultPath = "/usr/local/bin:/usr/bin:/bin"

// lastLineLimit bounds what a reason quotes of a kernel's output.
const lastLineLimit = 300

// findProgram returns the path that argv[0] stands for, looked up as the kernel's own shell would.
func findProgram(argv []string, path, dir string) (string, error) {
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
			continue // relative to the working directory: nothing that a notebook's folder holds is run by its name
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
	return "", &noProgramError{name: name, onPath: true}
}

// noProgramError says that the program of a kernel is not there.
type noProgramError struct {
	name   string
	onPath bool // it was looked for on PATH
}

func (e *noProgramError) Error() string {
	if e.onPath {
		return fmt.Sprintf("the kernel's program %q was not found on its PATH", e.name)
	}
	return fmt.Sprintf("the kernel's program %q does not exist", e.name)
}

// explainExec turns the error of a fork, chdir or exec (they share one errno) into a sentence for the kernel's owner.
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
		return &noProgramError{name: path}
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
	defer f.Close()
	line, _ := bufio.NewReaderSize(f, 256).ReadSlice('\n') // the system reads no more either
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

// describeExit tells in one sentence why a kernel's process ended. words is its last output.
func describeExit(info exitInfo, words string) string {
	var s string
	said := "; the last line it wrote was: "
	switch {
	case info.Lost && info.Told != "":
		return info.Told
	case info.Lost:
		return "the kernel's container ended, and nobody has said why; that happens when it runs out of memory"
	case info.OOM && info.Limit > 0:
		s = fmt.Sprintf("the kernel's process was killed because it ran out of memory (limit %s)", binarySize(info.Limit))
	case info.OOM:
		s = "the kernel's process was killed because the memory of the machine or of its container ran out"
	case info.Signal == syscall.SIGKILL:
		s = "the kernel's process was killed (SIGKILL), which also happens when memory runs out"
	case info.Signal != 0:
		s = fmt.Sprintf("the kernel's process was ended by signal %d (%s)", int(info.Signal), info.Signal)
	case info.Code < 0:
		s = "the kernel's process ended in an unknown way"
	default:
		s = fmt.Sprintf("the kernel's process ended with exit code %d", info.Code)
		if info.Code > 0 {
			said = ": "
		}
	}
	if line := lastLine(words); line != "" {
		s += said + line
	}
	return s
}

// Terminal control: CSI sequences (colours), OSC sequences (titles, links) and the two-character ones.
var escapes = regexp.MustCompile("\x1b\\[[0-?]*[ -/]*[@-~]|\x1b\\][^\x07\x1b]*(\x07|\x1b\\\\)?|\x1b[ -/]*[0-~]")

// lastLine returns the last line of s that shows anything, as plain text of at most lastLineLimit bytes.
func lastLine(s string) string {
	for s != "" {
		i := strings.LastIndexAny(strings.TrimRight(s, "\r\n"), "\r\n")
		if line := plain(s[i+1:]); line != "" {
			return line
		}
		s = s[:max(i, 0)]
	}
	return ""
}

// binarySize writes a number of bytes as one writes a memory limit.
func binarySize(n int64) string {
	for i, unit := range []string{"GiB", "MiB", "KiB"} {
		if size := int64(1) << (30 - 10*i); n >= size {
			return strings.TrimSuffix(strconv.FormatFloat(float64(n)/float64(size), 'f', 1, 64), ".0") + " " + unit
		}
	}
	return strconv.FormatInt(n, 10) + " bytes"
}

// plain removes from a line what is not text, and what is over lastLineLimit.
func plain(s string) string { return plainText(s, lastLineLimit) }

// plainText removes from a line what is not text, and what is over limit bytes.
func plainText(s string, limit int) string {
	s = escapes.ReplaceAllString(strings.ToValidUTF8(s, ""), "")
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case unicode.IsControl(r), unicode.Is(unicode.Cf, r), unicode.Is(unicode.Zl, r), unicode.Is(unicode.Zp, r):
			return -1
		}
		return r
	}, s)
	s = strings.TrimSpace(s)
	if len(s) <= limit {
		return s
	}
	cut := limit - len("…")
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// hasLetters reports whether s shows anything at all.
func hasLetters(s string) bool { return lastLine(s) != "" }
