package supervisor

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

// connectionFile is what a kernel is told of its sockets, in the form of
// https://jupyter-client.readthedocs.io/en/stable/kernels.html#connection-files.
type connectionFile struct {
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
}

// connection is how one life of the kernel is spoken to.
type connection struct {
	ep      endpoints
	signer  *wire.Signer
	content []byte // of the connection file
}

// newConnection makes up addresses and, unless one is given, a key for one life of the kernel.
func newConnection(cfg *Config) (connection, error) {
	ports, err := choosePorts(cfg)
	if err != nil {
		return connection{}, err
	}
	return connectionTo(cfg, ports)
}

// connectionTo is the connection to a kernel with these ports: shell, control, stdin, iopub and heartbeat.
func connectionTo(cfg *Config, ports []int) (connection, error) {
	f := connectionFile{IP: connectionIP(cfg), Transport: cfg.Transport, Key: cfg.kernelKey, SignatureScheme: "hmac-sha256",
		KernelName: cfg.SpecName}
	if f.Key == "" {
		var key [32]byte
		rand.Read(key[:]) //nolint:errcheck // crypto/rand.Read never fails
		f.Key = hex.EncodeToString(key[:])
	}
	f.ShellPort, f.ControlPort, f.StdinPort, f.IOPubPort, f.HBPort = ports[0], ports[1], ports[2], ports[3], ports[4]
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return connection{}, err
	}
	endpoint := func(port int) string {
		if cfg.Transport == "ipc" {
			return fmt.Sprintf("ipc://%s-%d", f.IP, port)
		}
		return fmt.Sprintf("tcp://%s:%d", f.IP, port)
	}
	var ep endpoints
	for i, c := range channels {
		ep[c] = endpoint(ports[i])
	}
	ep[heartbeat] = endpoint(f.HBPort)
	return connection{ep: ep, signer: wire.NewSigner([]byte(f.Key)), content: b}, nil
}

// connectionIP is where the kernel listens: an address of this machine, or the beginning of its sockets' paths.
func connectionIP(cfg *Config) string {
	if cfg.Transport == "ipc" {
		return filepath.Join(cfg.RunDir, "k")
	}
	return "127.0.0.1"
}

// choosePorts returns five port numbers. With tcp they were free a moment ago; nothing can keep others from taking
// them before the kernel does.
func choosePorts(cfg *Config) ([]int, error) {
	ip := connectionIP(cfg)
	ports := make([]int, 0, 5)
	if cfg.Transport == "ipc" {
		for n := range 5 {
			ports = append(ports, n+1)
			// What an earlier life left behind would make a kernel's bind fail.
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

// lostPort reports whether a kernel's last words say that somebody else took its port.
func lostPort(cfg *Config, words string) bool {
	return cfg.Transport == "tcp" && strings.Contains(strings.ToLower(words), "address already in use")
}

// writeFile replaces a file by one of mode 0600, whole or not at all.
func writeFile(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name()) //nolint:errcheck // the first error is the one that matters
	}
	return err
}

// command returns the kernel's argv with the connection file filled in.
func command(cfg *Config) []string {
	argv := make([]string, len(cfg.Argv))
	for i, a := range cfg.Argv {
		argv[i] = strings.ReplaceAll(a, "{connection_file}", cfg.ConnectionFile)
	}
	return argv
}
