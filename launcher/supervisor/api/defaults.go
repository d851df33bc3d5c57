package api

import "time"

// Defaults of kernels, the same for all launchers.
const (
	// LeastLogLimit is the smallest limit of a log, in bytes, if the limit follows the free space of the disk.
	LeastLogLimit = 64 << 20
	// DefaultStopGrace is Config.StopGrace: half of jupyter_client's shutdown_wait_time.
	DefaultStopGrace = 2500 * time.Millisecond
	// DefaultRestartLimit is Config.RestartLimit: jupyter_client's restart_limit.
	DefaultRestartLimit = 5
	// DefaultProcessors is GOMAXPROCS of a supervisor: how many processors it uses at once. More of them cost memory and
	// context switches, and do not save output. It reads faster than kernels write. While large messages pass, it uses
	// two.
	DefaultProcessors = 1
	// DefaultDeadLinger is how long launchers show a dead kernel.
	DefaultDeadLinger = 15 * time.Minute
)
