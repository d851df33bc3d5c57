package files

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// FolderID identifies a folder of this machine by its device and inode. It is "" if path is not a folder, or if this
// process must not enter it.
func FolderID(path string) string {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() || unix.Access(path, unix.X_OK) != nil {
		return ""
	}
	st := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}
