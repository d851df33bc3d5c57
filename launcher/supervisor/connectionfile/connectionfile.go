// Package connectionfile chooses the addresses and the key of one life of a kernel (New). It encodes the connection
// file that tells them to the kernel, and decodes one that exists (Adopt). Package supervisor passes the Endpoints to
// package zeromq. This package opens no connection to the kernel.
package connectionfile

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/enterprise"
)

// content is a connection file's, in the form of
// https://jupyter-client.readthedocs.io/en/stable/kernels.html#connection-files.
type content struct {
	ShellPort       int    `json:"shell_port"`
	IOPubPort       int    `json:"iopub_port"`
	StdinPort       int    `json:"stdin_port"`
	ControlPort     int    `json:"control_port"`
	HBPort          int    `json:"hb_port"`
	IP              string `json:"ip"`
	Transport       string `json:"transport"`
	Key             string `json:"key"`
	SignatureScheme string `json:"signature_scheme"`
	KernelName      string `json:"kernel_name"`
	CommPort        int    `json:"comm_port,omitempty"` // of a launcher of Enterprise Gateway
}

// Heartbeat is the index of the channel that carries no messages.
const Heartbeat = jupyter.Channel(0)

// Endpoints are the ZeroMQ addresses of a kernel, by channel.
type Endpoints [jupyter.IOPub + 1]string

// Connection describes the connections to one life of a kernel.
type Connection struct {
	Endpoints Endpoints
	Signer    *jupyter.Signer
	File      []byte // content of the connection file
	CommPort  int    // communication port of a launcher of Enterprise Gateway; 0: there is none
}

// New chooses addresses and, unless the Config has one, a key.
func New(cfg *api.Config) (Connection, error) {
	ports, err := choosePorts(cfg)
	if err != nil {
		return Connection{}, err
	}
	return withPorts(cfg, ports, cfg.Secret.KernelKey, 0)
}

// Launched returns the Connection to a kernel whose launcher has answered.
func Launched(cfg *api.Config, a *enterprise.Answer) (Connection, error) {
	ports := []int{a.ShellPort, a.ControlPort, a.StdinPort, a.IOPubPort, a.HBPort}
	return withPorts(cfg, ports, a.Key, a.CommPort)
}

// Adopt returns the Connection to a kernel that an earlier supervisor has started with this connection file. It reports
// false if the file has no five ports. A child in another container decides where its kernel listens, but nothing else
// about the connection. A child of the same machine also has the key, and so does one whose launcher has chosen it.
func Adopt(cfg *api.Config, file json.RawMessage) (c Connection, ok bool, err error) {
	var f content
	if json.Unmarshal(file, &f) != nil {
		return Connection{}, false, nil
	}
	ports := []int{f.ShellPort, f.ControlPort, f.StdinPort, f.IOPubPort, f.HBPort}
	for _, p := range ports {
		if p < 1 || p > 65535 {
			return Connection{}, false, nil
		}
	}
	key := cfg.Secret.KernelKey
	if cfg.SameMachine || cfg.ResponseAddress != "" {
		key = f.Key
	}
	c, err = withPorts(cfg, ports, key, f.CommPort)
	return c, err == nil, err
}

// withPorts returns the Connection to a kernel with these ports: shell, control, stdin, iopub and heartbeat. An empty
// key is replaced by a new one. comm is the communication port or 0.
func withPorts(cfg *api.Config, ports []int, key string, comm int) (Connection, error) {
	f := content{IP: listenIP(cfg), Transport: cfg.Transport, Key: key, SignatureScheme: "hmac-sha256",
		KernelName: cfg.SpecName, CommPort: comm}
	if f.Key == "" {
		var key [32]byte
		rand.Read(key[:]) // never fails
		f.Key = hex.EncodeToString(key[:])
	}
	f.ShellPort, f.ControlPort, f.StdinPort, f.IOPubPort, f.HBPort = ports[0], ports[1], ports[2], ports[3], ports[4]
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return Connection{}, err
	}
	endpoint := func(port int) string {
		if cfg.Transport == "ipc" {
			return fmt.Sprintf("ipc://%s-%d", f.IP, port)
		}
		return fmt.Sprintf("tcp://%s:%d", f.IP, port)
	}
	var ep Endpoints
	for i, c := range [...]jupyter.Channel{jupyter.Shell, jupyter.Control, jupyter.Stdin, jupyter.IOPub} {
		ep[c] = endpoint(ports[i])
	}
	ep[Heartbeat] = endpoint(f.HBPort)
	return Connection{Endpoints: ep, Signer: jupyter.NewSigner([]byte(f.Key)), File: b, CommPort: comm}, nil
}

// listenIP returns where the kernel listens: an address of this machine, or the beginning of its sockets' paths.
func listenIP(cfg *api.Config) string {
	if cfg.Transport == "ipc" {
		return filepath.Join(cfg.RunDir, "k")
	}
	return "127.0.0.1"
}

// choosePorts returns five port numbers. With tcp the ports are free at first, but another process may take them before
// the kernel does.
func choosePorts(cfg *api.Config) ([]int, error) {
	ip := listenIP(cfg)
	ports := make([]int, 0, 5)
	if cfg.Transport == "ipc" {
		for n := range 5 {
			ports = append(ports, n+1)
			// A socket of an earlier life would make a kernel's bind fail.
			if err := os.Remove(fmt.Sprintf("%s-%d", ip, n+1)); err != nil && !os.IsNotExist(err) {
				return nil, err
			}
		}
		return ports, nil
	}
	for range 5 {
		l, err := net.Listen("tcp", ip+":0")
		if err != nil {
			return nil, err
		}
		defer l.Close() //nolint:errcheck // nothing was sent on it
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// PortTaken reports whether a kernel's last output says that another process took its port.
func PortTaken(cfg *api.Config, output string) bool {
	return cfg.Transport == "tcp" && strings.Contains(strings.ToLower(output), "address already in use")
}
