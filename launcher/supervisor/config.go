package supervisor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// ProtocolVersion is the version of the seam between gateway and supervisor: of Config, of Status and of the routes.
// A gateway routes to every supervisor from OldestProtocolVersion to its own version, and leaves others running.
const (
	ProtocolVersion       = 1
	OldestProtocolVersion = 1
)

// Config is all that a launcher tells a supervisor: one JSON file of mode 0600, named on the command line. Unknown
// keys are refused.
type Config struct {
	Protocol int    `json:"protocol"`  // ProtocolVersion of the launcher that wrote the file
	KernelID string `json:"kernel_id"` // the one kernel this supervisor answers for
	SpecName string `json:"spec_name"` // kernelspec name, shown in the model

	// The kernel's process.
	Argv          []string          `json:"argv"`           // with {connection_file}; all other placeholders already replaced
	Env           map[string]string `json:"env"`            // the whole environment of the kernel
	WorkingDir    string            `json:"working_dir"`    // exists
	InterruptMode string            `json:"interrupt_mode"` // "signal" or "message"

	// Where things are.
	Listen         string `json:"listen"`              // "unix:/path" or "tcp:host:port"
	TLSSeed        []byte `json:"tls_seed"`            // 32 bytes: seed of the ed25519 key of the certificate; only with tcp
	Token          string `json:"token"`               // bearer token that is demanded of every request; only with tcp
	ConnectionFile string `json:"connection_file"`     // written by the supervisor, 0600
	Transport      string `json:"transport"`           // "ipc" or "tcp": between supervisor and kernel
	RunDir         string `json:"run_dir"`             // for ipc sockets; short (a socket path has at most 107 bytes)
	LockFile       string `json:"lock_file"`           // flock(2)ed for the supervisor's whole life
	SpillDir       string `json:"spill_dir,omitempty"` // for the part of the log that does not fit memory; "": there is none
	EndFile        string `json:"end_file"`            // where Ending is written when the kernel has ended for good

	// Bounds.
	LogLimit     int64         `json:"log_limit"`     // bytes of the message log
	StopGrace    time.Duration `json:"stop_grace"`    // nanoseconds from shutdown_request to SIGTERM, and again to SIGKILL
	DeadLinger   time.Duration `json:"dead_linger"`   // nanoseconds a supervisor stays after its kernel ended for good
	RestartLimit int           `json:"restart_limit"` // automatic restarts in a row
}

// Ending is what a supervisor leaves in Config.EndFile.
type Ending struct {
	KernelID string    `json:"kernel_id"`
	Reason   string    `json:"reason"`  // one sentence for the owner
	At       time.Time `json:"at"`      // UTC
	Stopped  bool      `json:"stopped"` // it was stopped on request (404 from now on) rather than died
}

// ReadConfig reads and checks a Config file.
func ReadConfig(path string) (Config, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Config{}, err
	}
	var c Config
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	if err := c.validate(); err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

func (c *Config) validate() error {
	switch {
	case c.Protocol != ProtocolVersion:
		return fmt.Errorf("protocol is %d, this supervisor speaks %d", c.Protocol, ProtocolVersion)
	case c.KernelID == "":
		return fmt.Errorf("kernel_id is missing")
	case len(c.Argv) == 0:
		return fmt.Errorf("argv is empty")
	case c.Transport != "ipc" && c.Transport != "tcp":
		return fmt.Errorf("transport is %q, not ipc or tcp", c.Transport)
	case c.InterruptMode != "signal" && c.InterruptMode != "message":
		return fmt.Errorf("interrupt_mode is %q, not signal or message", c.InterruptMode)
	case c.LogLimit <= 0:
		return fmt.Errorf("log_limit is %d", c.LogLimit)
	}
	return nil
}
