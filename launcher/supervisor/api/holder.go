package api

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
)

// holderWidth is the length of a process id in Config.LockFile. The id of a later holder replaces all of it.
const holderWidth = 20

// NoteHolder writes the id of this process into Config.LockFile, whose lock it has taken.
func NoteHolder(lock *os.File) error {
	_, err := lock.WriteAt(fmt.Appendf(nil, "%-*d\n", holderWidth, os.Getpid()), 0)
	return err
}

// ReadHolder returns the process that holds a kernel's lock, or was the last to hold it: the supervisor's parent, or a
// supervisor without one. It returns 0 if none has held it, or if a program of an earlier version has.
func ReadHolder(path string) (pid int, err error) {
	b, err := files.Read(path, files.MaxState)
	text := strings.TrimSpace(string(b))
	if err != nil || text == "" {
		return 0, err
	}
	if pid, err = strconv.Atoi(text); err != nil || pid <= 1 {
		return 0, fmt.Errorf("%s has no process id: %.40q", path, text)
	}
	return pid, nil
}
