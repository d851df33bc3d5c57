package enterprise

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strconv"
	"syscall"
	"time"
)

// commLimit bounds a request to a communication port: the connection, and the wait for its end.
const commLimit = 2 * time.Second

// Signal makes the launcher send a signal to its kernel. An error says that the launcher has not read the request.
func Signal(port int, sig syscall.Signal) error { return ask(port, map[string]int{"signum": int(sig)}) }

// EndListener makes the launcher close its communication port. The launcher does not end before. The kernel goes on.
func EndListener(port int) error { return ask(port, map[string]int{"shutdown": 1}) }

// ask sends one request to the communication port of a launcher on this machine or in this pod. A launcher handles one
// connection at a time and closes it after reading. It does not survive a connection without a request.
func ask(port int, request map[string]int) error {
	text, err := json.Marshal(request)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(commLimit)
	d := net.Dialer{Deadline: deadline}
	conn, err := d.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // the launcher has read the request, or err says that it has not
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := conn.Write(text); err != nil {
		return err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, io.LimitReader(conn, maxAnswer)); err != nil {
		return fmt.Errorf("the launcher does not read its requests: %w", err)
	}
	return nil
}
