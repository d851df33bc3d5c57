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
	enterprise.Answer
	IP              string `json:"ip"`
	Transport       string `json:"transport"`
	SignatureScheme string `json:"signature_scheme"`
	KernelName      string `json:"kernel_name"`
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
	return connection(cfg, enterprise.Answer{ShellPort: ports[0], ControlPort: ports[1], StdinPort: ports[2],
		IOPubPort: ports[3], HBPort: ports[4], Key: cfg.Secret.KernelKey})
}

// Launched returns the Connection to a kernel whose launcher has answered.
func Launched(cfg *api.Config, a *enterprise.Answer) (Connection, error) { return connection(cfg, *a) }

// Adopt returns the Connection to a kernel that an earlier supervisor has started with this connection file. It reports
// false if the file has no five ports. A child in another container decides where its kernel listens, but nothing else
// about the connection. A child of the same machine also has the key, and so does one whose launcher has chosen it.
func Adopt(cfg *api.Config, file json.RawMessage) (c Connection, ok bool, err error) {
	var f content
	if json.Unmarshal(file, &f) != nil {
		return Connection{}, false, nil
	}
	for _, p := range []int{f.ShellPort, f.ControlPort, f.StdinPort, f.IOPubPort, f.HBPort} {
		if p < 1 || p > 65535 {
			return Connection{}, false, nil
		}
	}
	if !cfg.SameMachine && cfg.ResponseAddress == "" {
		f.Key = cfg.Secret.KernelKey
	}
	c, err = connection(cfg, f.Answer)
	return c, err == nil, err
}

// connection returns the Connection to a kernel with these ports. An empty key is replaced by a new one.
func connection(cfg *api.Config, a enterprise.Answer) (Connection, error) {
	f := content{Answer: a, IP: listenIP(cfg), Transport: cfg.Transport, SignatureScheme: "hmac-sha256",
		KernelName: cfg.SpecName}
	if f.Key == "" {
		var key [32]byte
		rand.Read(key[:]) // never fails
		f.Key = hex.EncodeToString(key[:])
	}
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
	ep := Endpoints{Heartbeat: endpoint(f.HBPort), jupyter.Shell: endpoint(f.ShellPort),
		jupyter.Control: endpoint(f.ControlPort), jupyter.Stdin: endpoint(f.StdinPort), jupyter.IOPub: endpoint(f.IOPubPort)}
	return Connection{Endpoints: ep, Signer: jupyter.NewSigner([]byte(f.Key)), File: b, CommPort: f.CommPort}, nil
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
