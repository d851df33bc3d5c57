package files

import "syscall"

// Space is what a file system says about itself. launcher/local shares a disk out among the logs of its kernels by it,
// and package messagelog bounds a log by it.
type Space struct {
	Free     int64 // bytes that this user may write
	Size     int64 // bytes of the whole file system
	InMemory bool  // it is a tmpfs or ramfs
}

// File systems in memory, as statfs(2) names them.
const (
	tmpfsMagic = 0x01021994
	ramfsMagic = 0x858458f6
)

// most bounds both numbers of a Space, in bytes. Some network file systems report sizes that overflow, and callers add
// to them.
const most = 1 << 60

// SpaceOf measures the file system of a folder. It may take as long as the disk hangs. It may be called concurrently.
func SpaceOf(dir string) (Space, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return Space{}, err
	}
	return spaceOf(&st), nil
}

// spaceOf reads the answer of statfs(2). It counts blocks in units of Frsize. Old kernels leave that 0, and Bsize is
// the unit then.
func spaceOf(st *syscall.Statfs_t) Space {
	unit := st.Frsize
	if unit == 0 {
		unit = st.Bsize
	}
	magic := uint32(st.Type)
	return Space{
		Free:     product(st.Bavail, unit),
		Size:     product(st.Blocks, unit),
		InMemory: magic == tmpfsMagic || magic == ramfsMagic,
	}
}

// product returns blocks of so many bytes in bytes, at most the constant most.
func product(blocks uint64, unit int64) int64 {
	if unit <= 0 {
		return 0
	}
	if blocks > most/uint64(unit) {
		return most
	}
	return int64(blocks) * unit
}
