package kernelspecs

import (
	"slices"
	"syscall"
)

// watchable are the magic numbers of file systems that only this machine changes. On others, such as NFS or FUSE,
// inotify does not report the changes of other machines.
var watchable = []int64{
	0xEF53,     // ext
	0x58465342, // xfs
	0x9123683E, // btrfs
	0x01021994, // tmpfs
	0x858458F6, // ramfs
	0x794C7630, // overlay
	0x2FC12FC1, // zfs
	0xF2F52010, // f2fs
	0x73717368, // squashfs
	0xCA451A4E, // bcachefs
}

// reliable reports whether inotify reports all changes of a directory.
func reliable(dir string) bool {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return false
	}
	return slices.Contains(watchable, int64(uint32(st.Type)))
}
