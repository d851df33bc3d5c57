package supervisor

import (
	"bytes"
	"crypto/aes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
)

// launcherVariable makes the test's program a launcher of Enterprise Gateway. "deaf" is one that never reads its
// communication port.
const launcherVariable = "EKG_TEST_LAUNCHER"

// launcherMain starts a fake kernel, answers with version 0, and serves the communication port as the launcher for
// Python does: it ends when the kernel has ended and it was told its own end.
func launcherMain() int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, "launcher:", err)
		return 3
	}
	conn := launchertest.NewConnection("tcp", "")
	for _, port := range []*int{&conn.ShellPort, &conn.IOPubPort, &conn.StdinPort, &conn.ControlPort, &conn.HBPort} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return fail(err)
		}
		defer l.Close() //nolint:errcheck // nothing was sent
		*port = l.Addr().(*net.TCPAddr).Port
		_ = l.Close() // the kernel listens there
	}
	text, err := json.Marshal(conn)
	if err != nil {
		return fail(err)
	}
	file := filepath.Join(os.TempDir(), "fake-"+os.Getenv("KERNEL_ID"))
	defer os.Remove(file) //nolint:errcheck // the test's folder goes too
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return fail(err)
	}
	comm, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fail(err)
	}
	kernel := exec.Command(os.Args[0], "-f", file)
	kernel.Env = append(os.Environ(), launcherVariable+"=")
	kernel.Stdout, kernel.Stderr = os.Stdout, os.Stderr
	if err := kernel.Start(); err != nil {
		return fail(err)
	}
	if err := answerVersion0(&conn, comm.Addr().(*net.TCPAddr).Port); err != nil {
		return fail(err)
	}
	deaf, told := os.Getenv(launcherVariable) == "deaf", make(chan struct{})
	go func() {
		defer close(told)
		for more := !deaf; more; {
			more = serveComm(comm, kernel.Process.Pid)
		}
	}()
	err = kernel.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		if status := exit.Sys().(syscall.WaitStatus); status.Signaled() {
			return 128 + int(status.Signal())
		}
		return exit.ExitCode()
	}
	<-told
	return 0
}

// answerVersion0 sends an answer of version 0: '%' fills the last block, and the key is the beginning of the id.
func answerVersion0(conn *launchertest.Connection, comm int) error {
	text, err := json.Marshal(struct {
		*launchertest.Connection
		CommPort int `json:"comm_port"`
	}{conn, comm})
	if err != nil {
		return err
	}
	text = append(text, bytes.Repeat([]byte("%"), aes.BlockSize-len(text)%aes.BlockSize)...)
	block, err := aes.NewCipher([]byte(os.Getenv("KERNEL_ID")[:aes.BlockSize]))
	if err != nil {
		return err
	}
	for i := 0; i < len(text); i += aes.BlockSize {
		block.Encrypt(text[i:i+aes.BlockSize], text[i:i+aes.BlockSize])
	}
	peer, err := net.Dial("tcp", os.Getenv("EG_RESPONSE_ADDRESS"))
	if err != nil {
		return err
	}
	defer func() { _ = peer.Close() }() // the supervisor has read it, or waits in vain
	_, err = peer.Write([]byte(base64.StdEncoding.EncodeToString(text)))
	return err
}

// serveComm serves one request. It returns false after the last one.
func serveComm(comm net.Listener, kernel int) bool {
	peer, err := comm.Accept()
	if err != nil {
		return false
	}
	defer func() { _ = peer.Close() }() // nothing was sent
	var request struct{ Signum, Shutdown int }
	if err := json.NewDecoder(peer).Decode(&request); err != nil {
		fmt.Fprintln(os.Stderr, "launcher:", err) // as Enterprise Gateway's, it does not survive that
		return false
	}
	fmt.Fprintln(os.Stderr, "launcher got", request)
	if request.Signum > 0 {
		_ = syscall.Kill(kernel, syscall.Signal(request.Signum)) // it may have ended
	}
	return request.Shutdown == 0
}
