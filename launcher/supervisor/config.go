package supervisor

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	maxSecret     = 255 // bytes of each text of the secret; one is a ZeroMQ identity
	maxSocketPath = 107 // bytes
)

// ProtocolVersion is the version of the seam between gateway and supervisor: of Config, of Status and of the routes.
// A gateway routes to every supervisor from OldestProtocolVersion to its own version, and leaves others running.
const (
	ProtocolVersion       = 1
	OldestProtocolVersion = 1
)

// Config is all that a launcher tells a supervisor: one JSON file of mode 0600, named on the command line, or in a pod a
// variable of its environment. Unknown keys are refused.
type Config struct {
	Protocol int    `json:"protocol"`  // ProtocolVersion of the launcher that wrote the file
	KernelID string `json:"kernel_id"` // the one kernel this supervisor answers for
	SpecName string `json:"spec_name"` // kernelspec name, shown in the model

	// The kernel's process.
	Argv          []string          `json:"argv"`           // with {connection_file}; all other placeholders already replaced
	Env           map[string]string `json:"env"`            // the whole environment of the kernel; with a child, in addition to its container's
	WorkingDir    string            `json:"working_dir"`    // exists; with a child it need not
	InterruptMode string            `json:"interrupt_mode"` // "signal" or "message"

	// Where things are.
	Listen         string `json:"listen"`              // "unix:/path" or "tcp:host:port"
	TLSSeed        []byte `json:"tls_seed"`            // 32 bytes: seed of the ed25519 key of the certificate; only with tcp
	Token          string `json:"token"`               // bearer token that is demanded of every request; only with tcp
	ConnectionFile string `json:"connection_file"`     // written by the supervisor, 0600; with a child the child chooses it
	Transport      string `json:"transport"`           // "ipc" or "tcp": between supervisor and kernel
	RunDir         string `json:"run_dir"`             // for ipc sockets; short (a socket path has at most 107 bytes)
	LockFile       string `json:"lock_file"`           // flock(2)ed for the supervisor's whole life; "": there is none
	SpillDir       string `json:"spill_dir,omitempty"` // for the part of the log that does not fit memory; "": there is none
	EndFile        string `json:"end_file"`            // where Ending is written when the kernel has ended for good; "": nowhere

	// A pod: the kernel's process is in another container, and is run by a child there (RunChild).
	ChildSocket      string        `json:"child_socket,omitempty"`      // unix socket that the child dials; "": the process is the supervisor's own
	ImageKernelspec  string        `json:"image_kernelspec,omitempty"`  // with no Argv: name of the kernelspec in the kernel's image; "": python3 or the only one
	SecretDir        string        `json:"secret_dir,omitempty"`        // holds tls-seed, token, kernel-key and identity, in place of TLSSeed and Token
	TerminationFile  string        `json:"termination_file,omitempty"`  // Ending is written here too, in place and in at most MaxTermination bytes
	TerminationGrace time.Duration `json:"termination_grace,omitempty"` // nanoseconds between SIGTERM and SIGKILL to all containers of the pod
	GPUProgram       string        `json:"gpu_program,omitempty"`       // ekg-gpu, which Cull.GPU needs; in a pod where the supervisor puts a copy of it
	Program          string        `json:"program,omitempty"`           // where the supervisor puts a copy of its program for the child

	// Bounds.
	LogLimit     int64         `json:"log_limit"`     // bytes of the message log
	StopGrace    time.Duration `json:"stop_grace"`    // nanoseconds from shutdown_request to SIGTERM, and again to SIGKILL
	DeadLinger   time.Duration `json:"dead_linger"`   // nanoseconds a supervisor stays after its kernel ended for good
	RestartLimit int           `json:"restart_limit"` // automatic restarts in a row
	Cull         Cull          `json:"cull,omitzero"` // when the kernel is ended without anybody's asking for it

	// Of the secret: what stays the same when a supervisor is started again beside a kernel that lives.
	kernelKey string // of the connection file; "": a new one for each life
	identity  string // by which the kernel's sockets know the supervisor; "": a new one
}

// MaxTermination bounds Config.TerminationFile, in bytes: the kubelet reads no more of a termination message.
const MaxTermination = 4096

// Ending is what a supervisor leaves in Config.EndFile and Config.TerminationFile.
type Ending struct {
	KernelID  string    `json:"kernel_id"`
	Reason    string    `json:"reason"`               // one sentence for the owner
	At        time.Time `json:"at"`                   // UTC
	Stopped   bool      `json:"stopped"`              // it was stopped on request (404 from now on) rather than died
	Culled    bool      `json:"culled,omitempty"`     // it was ended by Config.Cull; if Stopped too, it was removed afterwards
	CulledFor string    `json:"culled_for,omitempty"` // the limit of Config.Cull that has ended it: LimitIdle, LimitBusy or LimitAge
	Started   time.Time `json:"started,omitzero"`     // UTC; when the kernel was, or was again after its end; zero: it is not known
	Seconds   int64     `json:"seconds,omitempty"`    // from then on that it lived; At may be later, when a dead one was removed
}

// ReadConfig reads and checks a Config file.
func ReadConfig(path string) (Config, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Config{}, err
	}
	c, err := ParseConfig(b)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// ParseConfig reads and checks a Config, and what its SecretDir holds.
func ParseConfig(b []byte) (Config, error) {
	var c Config
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return Config{}, err
	}
	if _, err := d.Token(); err != io.EOF {
		return Config{}, errors.New("there is something behind the configuration")
	}
	if err := c.validate(); err != nil {
		return Config{}, err
	}
	if c.SecretDir != "" {
		if err := c.readSecret(); err != nil {
			return Config{}, fmt.Errorf("secret_dir: %w", err)
		}
	}
	return c, nil
}

// readSecret takes keys and names from the files of SecretDir.
func (c *Config) readSecret() error {
	read := func(name string, least, most int) (string, error) {
		b, err := os.ReadFile(filepath.Join(c.SecretDir, name))
		if err == nil && (len(b) < least || len(b) > most) {
			err = fmt.Errorf("%s has %d bytes, not %d to %d", name, len(b), least, most)
		}
		return string(b), err
	}
	seed, err := read("tls-seed", ed25519.SeedSize, ed25519.SeedSize)
	if err != nil {
		return err
	}
	c.TLSSeed = []byte(seed)
	for name, to := range map[string]*string{"token": &c.Token, "kernel-key": &c.kernelKey, "identity": &c.identity} {
		if *to, err = read(name, 16, maxSecret); err != nil {
			return err
		}
		if strings.ContainsFunc(*to, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return fmt.Errorf("%s holds something other than printable characters", name)
		}
	}
	return nil
}

func (c *Config) validate() error {
	switch {
	case c.Protocol != ProtocolVersion:
		return fmt.Errorf("protocol is %d, this supervisor speaks %d", c.Protocol, ProtocolVersion)
	case c.KernelID == "":
		return fmt.Errorf("kernel_id is missing")
	case len(c.Argv) == 0 && c.ChildSocket == "":
		return fmt.Errorf("argv is empty")
	case c.ChildSocket != "" && c.Transport != "tcp":
		return fmt.Errorf("transport is %q: with child_socket it is tcp", c.Transport)
	case c.ChildSocket != "" && (!filepath.IsAbs(c.ChildSocket) || len(c.ChildSocket) > maxSocketPath):
		return fmt.Errorf("child_socket is %q, not an absolute path of at most %d bytes", c.ChildSocket, maxSocketPath)
	case c.ChildSocket == "" && (c.ImageKernelspec != "" || c.TerminationGrace != 0):
		return fmt.Errorf("image_kernelspec and termination_grace mean something only with child_socket")
	case len(c.Argv) > 0 && c.ImageKernelspec != "":
		return fmt.Errorf("argv and image_kernelspec are both set")
	case c.SecretDir != "" && (c.Token != "" || len(c.TLSSeed) > 0):
		return fmt.Errorf("token or tls_seed is set beside secret_dir")
	case c.GPUProgram == "" && c.Cull.GPU > 0:
		return fmt.Errorf("cull.gpu needs gpu_program")
	case c.GPUProgram != "" && !filepath.IsAbs(c.GPUProgram):
		return fmt.Errorf("gpu_program is %q, not an absolute path", c.GPUProgram)
	case c.Program != "" && !filepath.IsAbs(c.Program):
		return fmt.Errorf("program is %q, not an absolute path", c.Program)
	case c.TerminationGrace < 0:
		return fmt.Errorf("termination_grace is %d", c.TerminationGrace)
	case c.Transport != "ipc" && c.Transport != "tcp":
		return fmt.Errorf("transport is %q, not ipc or tcp", c.Transport)
	case c.InterruptMode != "signal" && c.InterruptMode != "message":
		return fmt.Errorf("interrupt_mode is %q, not signal or message", c.InterruptMode)
	case c.LogLimit <= 0:
		return fmt.Errorf("log_limit is %d", c.LogLimit)
	}
	return c.Cull.validate()
}
