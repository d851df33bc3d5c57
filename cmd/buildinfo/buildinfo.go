// Package buildinfo says from which commit a program was built, and with which Go. All programs print it for --version.
package buildinfo

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// commit is set by the linker, where the build has no git repository. It is a full hash, or "".
var commit = ""

// Line is what a program prints for --version: its name, its version, the commit, Go's version and the platform.
func Line(program, version string) string {
	return fmt.Sprintf("%s %s commit %s %s %s/%s", program, version, Commit(), runtime.Version(), runtime.GOOS,
		runtime.GOARCH)
}

// Commit returns the hash of the commit. It ends with "-dirty" if Go built the program from changed files, and it is
// "unknown" if neither the linker nor Go knows it.
func Commit() string {
	if commit != "" {
		return commit
	}
	hash, changed := "unknown", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				hash = s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				changed = "-dirty"
			}
		}
	}
	return hash + changed
}
