package relay

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/jupyter/zmtp"
)

// connectionFile is what a program that starts a kernel writes for it.
type connectionFile struct {
	Transport string `json:"transport"`
	IP        string `json:"ip"`
	Key       string `json:"key"`
	Scheme    string `json:"signature_scheme"`
	Shell     int    `json:"shell_port"`
	IOPub     int    `json:"iopub_port"`
	Stdin     int    `json:"stdin_port"`
	Control   int    `json:"control_port"`
	Heartbeat int    `json:"hb_port"`
	Curve     string `json:"curve_publickey"`
}

func readConnectionFile(path string) (c connectionFile, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	if c.Key != "" && c.Scheme != "" && c.Scheme != "hmac-sha256" {
		return c, fmt.Errorf("%s: the signature_scheme %q is not hmac-sha256", path, c.Scheme)
	}
	if c.Transport != "" && c.Transport != "tcp" && c.Transport != "ipc" {
		return c, fmt.Errorf("%s: the transport %q is neither tcp nor ipc", path, c.Transport)
	}
	if c.Curve != "" {
		return c, fmt.Errorf("%s asks for CurveZMQ, which ekg relay does not speak", path)
	}
	return c, nil
}

// at returns the arguments of zmtp.Listen for a port.
func (c connectionFile) at(port int, o zmtp.Options) (network, address string, _ zmtp.Options) {
	if c.Transport == "ipc" {
		return "unix", c.IP + "-" + strconv.Itoa(port), o
	}
	return "tcp", net.JoinHostPort(c.IP, strconv.Itoa(port)), o
}

// note is a file beside the connection file. A program restarts its kernel by ending the process and starting another
// one with the same connection file and the same key. That process finds the kernel here, restarts it and takes it.
type note struct {
	path    string
	gateway string
	key     string
}

// left is what the file has.
type left struct {
	Kernel  string `json:"kernel"`
	Gateway string `json:"gateway"`
	Key     string `json:"key"` // SHA-256 of the connection file's key
}

func noteOf(o Options, file connectionFile) note {
	sum := sha256.Sum256([]byte("ekg relay " + file.Key))
	return note{o.File + ".ekg", o.Gateway.Name(), hex.EncodeToString(sum[:])}
}

// read returns the id of the kernel that another process has left, or "".
func (n note) read() string {
	text, err := os.ReadFile(n.path)
	var l left
	if err != nil || json.Unmarshal(text, &l) != nil || l.Gateway != n.gateway || l.Key != n.key {
		return ""
	}
	return l.Kernel
}

// write notes the kernel, in a file of mode 0600.
func (n note) write(kernel string) error {
	return files.WriteJSON(n.path, left{kernel, n.gateway, n.key})
}

// remove forgets the kernel.
func (n note) remove() {
	if err := os.Remove(n.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		_ = os.Truncate(n.path, 0) // an empty file names no kernel either
	}
}
