package api

import "time"

// Defaults of kernels, the same for all launchers.
const (
	// DefaultLogLimit is Config.LogLimit, in bytes.
	DefaultLogLimit = 64 << 20
	// DefaultStopGrace is Config.StopGrace: half of jupyter_client's shutdown_wait_time.
	DefaultStopGrace = 2500 * time.Millisecond
	// DefaultRestartLimit is Config.RestartLimit: jupyter_client's restart_limit.
	DefaultRestartLimit = 5
	// DefaultDeadLinger is how long launchers show a dead kernel.
	DefaultDeadLinger = 15 * time.Minute
)
