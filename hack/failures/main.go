// Command failures prints the last lines of each failed test, from the events of `go test -json` in the file that its
// argument names. hack/gotest runs it at the end, because CI keeps only the end of an output.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// Bounds of what is printed.
const (
	maxLines = 15   // of one test
	maxLine  = 400  // bytes of one line
	maxTests = 10   // that are printed
	maxBytes = 3000 // of all tests' lines together
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "failures:", err)
		os.Exit(1)
	}
}

func run(args []string, to io.Writer) error {
	if len(args) != 1 {
		return errors.New("it takes the name of one file")
	}
	f, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	failed, err := read(f)
	if err != nil {
		return err
	}
	_, err = io.WriteString(to, text(failed))
	return err
}

// test is one run of a test that failed.
type test struct {
	name  string
	lines []string // the last ones of its own
}

// read returns the failed tests that printed something, in the order in which they ended.
func read(events io.Reader) ([]test, error) {
	var failed []test
	lines := map[string][]string{}
	for d := json.NewDecoder(events); ; {
		var e struct{ Action, Package, Test, Output string }
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return failed, nil
		} else if err != nil {
			return nil, err
		}
		key := e.Package + " " + e.Test
		switch e.Action {
		case "run":
			delete(lines, key) // this is its second run
		case "output":
			if line := strings.TrimRight(e.Output, "\n"); isOwn(line) {
				kept := append(lines[key], line)
				lines[key] = kept[max(0, len(kept)-maxLines):]
			}
		case "fail":
			if len(lines[key]) > 0 && e.Test != "" {
				failed = append(failed, test{e.Test, lines[key]})
			}
		}
	}
}

// isOwn reports whether a test printed this line, and not the testing package.
func isOwn(line string) bool {
	line = strings.TrimSpace(line)
	return line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ")
}

// text returns what is printed. Each test gets an equal part of maxBytes, and its last lines matter most.
func text(failed []test) string {
	var b strings.Builder
	shown := failed[:min(len(failed), maxTests)]
	for _, f := range shown {
		left := maxBytes / len(shown)
		first := len(f.lines)
		for ; first > 0; first-- {
			if left -= min(len(f.lines[first-1]), maxLine) + 1; left < 0 && first < len(f.lines) {
				break
			}
		}
		fmt.Fprintf(&b, "=== %s failed:\n", f.name)
		for _, line := range f.lines[first:] {
			fmt.Fprintln(&b, strings.ToValidUTF8(line[:min(len(line), maxLine)], ""))
		}
	}
	if more := len(failed) - len(shown); more > 0 {
		fmt.Fprintf(&b, "=== and %d more failed\n", more)
	}
	return b.String()
}
