package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
)

// hostVariable makes the harness's program a host of fake kernels. Its value is the path of the socket.
const hostVariable = "EKG_BENCH_HOST"

// host runs a fake kernel for each connection from stub/stub.c, until either ends. It returns when it can accept none.
func host(path string) error {
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer func() { _ = conn.Close() }() // the stub ends then
			if err := hostOne(conn); err != nil {
				fmt.Fprintln(os.Stderr, "host:", err)
				_, _ = fmt.Fprintln(conn, err) // the stub prints it and exits with 1, if it still lives
			}
		}()
	}
}

func hostOne(conn net.Conn) error {
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	c, err := launchertest.ReadConnection(strings.TrimSuffix(line, "\n"))
	if err != nil {
		return err
	}
	k, err := launchertest.StartFakeKernel(c, launchertest.FakeKernelOptions{})
	if err != nil {
		return err
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, conn) // the stub sends nothing more
	}()
	select {
	case <-gone:
	case <-k.Done():
	}
	k.Close()
	return nil
}
