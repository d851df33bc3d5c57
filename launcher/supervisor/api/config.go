package api

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"
)

// maxSecret bounds each text of the secret, in bytes; one is a ZeroMQ identity.
const maxSecret = 255

// MaxSocketPath is the longest path of a unix socket, in bytes: sockaddr_un holds 108 with the closing zero.
const MaxSocketPath = 107

// Config is everything that a launcher tells a supervisor. On one machine it is a JSON file of mode 0600, named on the
// command line; in a pod it is an environment variable. Unknown fields are ignored, see Ignored and ProtocolVersion.
type Config struct {
	// Protocol is the ProtocolVersion of the launcher that wrote the Config. Needs is the lowest version whose supervisors
	// run the kernel as the Config asks; 0: as Protocol. SetVersion sets both.
	Protocol int `json:"protocol"`
	Needs    int `json:"needs_protocol,omitempty"`

	KernelID string `json:"kernel_id"` // the one kernel of this supervisor
	SpecName string `json:"spec_name"` // kernelspec name, shown in the model

	// Owner is the user that HeaderUser names in requests of the kernel's owner. "": every user counts as the owner.
	Owner string `json:"owner,omitempty"`

	// The kernel's process. In Argv the supervisor replaces {connection_file}; the launcher has replaced every other
	// placeholder. Env is the whole environment; in a pod it is added to the container's. WorkingDir must exist,
	// except in a pod. InterruptMode is "signal" or "message".
	Argv          []string          `json:"argv"`
	Env           map[string]string `json:"env"`
	WorkingDir    string            `json:"working_dir"`
	InterruptMode string            `json:"interrupt_mode"`

	// Warm says that the kernel has no owner yet: WarmProcess or WarmContainer. An Assignment, which SpillDir keeps, sets
	// Owner, adds to Env and may replace WorkingDir. "": the kernel is started for its owner.
	Warm string `json:"warm,omitempty"`

	// How the supervisor is reached. Listen is "unix:/path" or "tcp:host:port". TLSSeed and Token are for tcp alone: the
	// 32 bytes from which Certificate makes the key, and the bearer token that every request must carry.
	Listen  string `json:"listen"`
	TLSSeed []byte `json:"tls_seed"`
	Token   string `json:"token"`

	// Files, each with mode 0600. In a pod, the child chooses the path of ConnectionFile. RunDir holds ipc sockets and is
	// bounded by MaxSocketPath. LockFile stays locked with flock(2) while the supervisor or its parent lives. SpillDir
	// holds the part of the log that exceeds memory. EndFile receives the Ending. The parents of a machine
	// share scans of /proc in ScanFile. An empty path switches its use off.
	ConnectionFile string `json:"connection_file"`
	Transport      string `json:"transport"` // "ipc" or "tcp": between supervisor and kernel
	RunDir         string `json:"run_dir"`
	LockFile       string `json:"lock_file"`
	SpillDir       string `json:"spill_dir,omitempty"`
	EndFile        string `json:"end_file"`
	ScanFile       string `json:"scan_file,omitempty"`

	// ControlGroup is the path of the kernel's own control group, as cgroup.Path makes it. The parent creates it with the
	// kernel's process; launchers remove it. "": the kernel gets none.
	ControlGroup string `json:"control_group,omitempty"`

	// A child runs the kernel's process, which outlives the supervisor then. The child dials ChildSocket. With
	// SameMachine the child is the supervisor's parent. Without it the child is in another container of the pod.
	// ImageKernelspec names a kernelspec of the kernel's image and is used without Argv; "" is python3, or the only one.
	// SecretDir replaces TLSSeed and Token; see readSecret. TerminationFile receives the Ending, in place and at most
	// MaxTermination bytes. TerminationGrace is the time from SIGTERM to SIGKILL for all containers of the pod.
	ChildSocket      string        `json:"child_socket,omitempty"`
	SameMachine      bool          `json:"same_machine,omitempty"`
	ImageKernelspec  string        `json:"image_kernelspec,omitempty"`
	SecretDir        string        `json:"secret_dir,omitempty"`
	TerminationFile  string        `json:"termination_file,omitempty"`
	TerminationGrace time.Duration `json:"termination_grace,omitempty"` // nanoseconds

	// ResponseAddress is set if Argv is a launcher of Enterprise Gateway, in a pod. It chooses the kernel's ports and key,
	// and sends them to this address of loopback within LaunchLimit. In Argv the supervisor also replaces
	// {response_address} and {public_key}.
	ResponseAddress string        `json:"response_address,omitempty"`
	LaunchLimit     time.Duration `json:"launch_limit,omitempty"` // nanoseconds

	GPUSamples GPUSamples `json:"gpu_samples,omitzero"` // of the GPUs that the kernel holds

	// Paths of programs. Cull.GPU and GPUSamples need GPUProgram, which is ekg-gpu. In a pod the supervisor copies it
	// there, and copies itself to Program for the child.
	GPUProgram string `json:"gpu_program,omitempty"`
	Program    string `json:"program,omitempty"`

	// Bounds. StopGrace is the time that a kernel has to end by itself until SIGTERM, and then until SIGKILL. DeadLinger
	// is the time that a supervisor stays after its kernel ended for good.
	LogLimit     int64         `json:"log_limit"`     // bytes of the message log
	StopGrace    time.Duration `json:"stop_grace"`    // nanoseconds
	DeadLinger   time.Duration `json:"dead_linger"`   // nanoseconds
	RestartLimit int           `json:"restart_limit"` // automatic restarts in a row

	// LogKeepFree is the percentage of its disk that the log leaves free. For that it becomes smaller than LogLimit, down
	// to LeastLogLimit. 0: the log fills LogLimit, as its operator has set it.
	LogKeepFree int `json:"log_keep_free,omitempty"`

	Cull Cull `json:"cull,omitzero"` // limits at which the supervisor ends its kernel

	Secret Secret `json:"-"` // read from SecretDir, as TLSSeed and Token are

	// Ignored has the paths of the fields that ParseConfig does not know, such as "cull.x". A newer launcher has set them.
	Ignored []string `json:"-"`
}

// Secret has what supervisor and kernel share. It stays the same when a supervisor is started again beside a living
// kernel.
type Secret struct {
	KernelKey string // key of the connection file; "": each life gets a new one
	Identity  string // ZeroMQ identity of the supervisor's sockets; "": a new one is made
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

// ParseConfig reads and checks a Config and the files of its SecretDir.
func ParseConfig(b []byte) (Config, error) {
	var c Config
	d := json.NewDecoder(bytes.NewReader(b))
	err := d.Decode(&c)
	if version := c.checkVersion(); version != nil && c.Protocol > ProtocolVersion {
		return Config{}, version // which may also be why a field cannot be read
	}
	if err != nil {
		return Config{}, err
	}
	c.Ignored = unknownFields(b, reflect.TypeFor[Config](), "")
	if _, err := d.Token(); err != io.EOF {
		return Config{}, errors.New("there is more text after the configuration")
	}
	if err := c.Validate(); err != nil {
		return Config{}, err
	}
	if c.SecretDir != "" {
		if err := c.readSecret(); err != nil {
			return Config{}, fmt.Errorf("secret_dir: %w", err)
		}
	}
	return c, nil
}

// unknownFields returns the names in a JSON object that a struct type does not have, each behind prefix, sorted. It
// looks into the objects of the struct's own structs.
func unknownFields(object []byte, known reflect.Type, prefix string) []string {
	var values map[string]json.RawMessage
	if json.Unmarshal(object, &values) != nil {
		return nil // null
	}
	fields := make(map[string]reflect.Type, known.NumField())
	for i := range known.NumField() {
		f := known.Field(i)
		if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag != "-" {
			fields[tag] = f.Type
		}
	}
	var unknown []string
	for name, value := range values {
		t, ok := fields[name]
		if !ok { // package json does not look at the case of letters
			for tag, of := range fields {
				if strings.EqualFold(tag, name) {
					t, ok = of, true
				}
			}
		}
		switch {
		case !ok:
			unknown = append(unknown, prefix+name)
		case t.Kind() == reflect.Struct:
			unknown = append(unknown, unknownFields(value, t, prefix+name+".")...)
		}
	}
	slices.Sort(unknown)
	return unknown
}

// readSecret reads the files of SecretDir.
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
	for name, to := range map[string]*string{
		"token": &c.Token, "kernel-key": &c.Secret.KernelKey, "identity": &c.Secret.Identity,
	} {
		if *to, err = read(name, 16, maxSecret); err != nil {
			return err
		}
		if strings.ContainsFunc(*to, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return fmt.Errorf("%s holds something other than printable characters", name)
		}
	}
	return nil
}

// Validate says what is wrong with the configuration, with the JSON key in front.
func (c *Config) Validate() error {
	if err := c.checkVersion(); err != nil {
		return err
	}
	switch {
	case c.KernelID == "":
		return fmt.Errorf("kernel_id is missing")
	case len(c.Argv) == 0 && (c.ChildSocket == "" || c.SameMachine):
		return fmt.Errorf("argv is empty")
	case c.ChildSocket == "" && c.SameMachine:
		return fmt.Errorf("same_machine is allowed only with child_socket")
	case c.ChildSocket != "" && !c.SameMachine && c.Transport != "tcp":
		return fmt.Errorf("transport is %q: with child_socket it is tcp", c.Transport)
	case c.ChildSocket != "" && c.checkChildSocket() != nil:
		return c.checkChildSocket()
	case (c.ChildSocket == "" || c.SameMachine) && (c.ImageKernelspec != "" || c.TerminationGrace != 0):
		return fmt.Errorf("image_kernelspec and termination_grace are allowed only in a pod")
	case len(c.Argv) > 0 && c.ImageKernelspec != "":
		return fmt.Errorf("argv and image_kernelspec are both set")
	case c.ResponseAddress != "" && (len(c.Argv) == 0 || c.ChildSocket == "" || c.SameMachine):
		return fmt.Errorf("response_address is allowed only in a pod, and with argv")
	case (c.ResponseAddress != "") != (c.LaunchLimit > 0):
		return fmt.Errorf("response_address and launch_limit are not both set")
	case c.SecretDir != "" && (c.Token != "" || len(c.TLSSeed) > 0):
		return fmt.Errorf("token or tls_seed is set together with secret_dir")
	case c.GPUProgram == "" && c.Cull.GPU > 0:
		return fmt.Errorf("gpu_program is missing, which cull.gpu needs")
	case c.GPUProgram == "" && c.GPUSamples.Every > 0:
		return fmt.Errorf("gpu_program is missing, which gpu_samples needs")
	case c.GPUProgram != "" && !filepath.IsAbs(c.GPUProgram):
		return fmt.Errorf("gpu_program is %q, not an absolute path", c.GPUProgram)
	case c.Program != "" && !filepath.IsAbs(c.Program):
		return fmt.Errorf("program is %q, not an absolute path", c.Program)
	case c.TerminationGrace < 0:
		return fmt.Errorf("termination_grace is %d", c.TerminationGrace)
	case c.SameMachine && c.ConnectionFile == "":
		return fmt.Errorf("connection_file is missing, which same_machine needs")
	case c.ControlGroup != "" && !c.SameMachine:
		return fmt.Errorf("control_group is allowed only with same_machine")
	case c.Transport != "ipc" && c.Transport != "tcp":
		return fmt.Errorf("transport is %q, not ipc or tcp", c.Transport)
	case c.Warm != "" && c.Warm != WarmProcess && c.Warm != WarmContainer:
		return fmt.Errorf("warm is %q, not %s or %s", c.Warm, WarmProcess, WarmContainer)
	case c.Warm != "" && (c.SpillDir == "" || c.Owner != ""):
		return fmt.Errorf("warm is allowed only with spill_dir and without owner")
	case c.InterruptMode != "signal" && c.InterruptMode != "message":
		return fmt.Errorf("interrupt_mode is %q, not signal or message", c.InterruptMode)
	case c.LogLimit <= 0:
		return fmt.Errorf("log_limit is %d", c.LogLimit)
	case c.LogKeepFree < 0 || c.LogKeepFree > 99:
		return fmt.Errorf("log_keep_free is %d, not a percentage", c.LogKeepFree)
	}
	if c.GPUSamples.Park.Shared && (c.ChildSocket == "" || c.SameMachine || c.SpillDir == "" || c.GPUSamples.Every == 0) {
		return fmt.Errorf("gpu_samples.park.shared is allowed only in a pod, with spill_dir and gpu_samples.every")
	}
	if err := c.GPUSamples.Park.Validate(); err != nil {
		return err
	}
	return c.Cull.Validate()
}

func (c *Config) checkChildSocket() error {
	if !filepath.IsAbs(c.ChildSocket) || len(c.ChildSocket) > MaxSocketPath {
		return fmt.Errorf("child_socket is %q, not an absolute path of at most %d bytes", c.ChildSocket, MaxSocketPath)
	}
	return nil
}
