package proctree

import (
	"io"
	"os"
	"os/exec"
	"strconv"
	"testing"
)

// TestTreeMemory checks that the memory of descendants counts, and that a process that has ended has none.
func TestTreeMemory(t *testing.T) {
	own := TreeMemory(os.Getpid())
	if own < 1<<20 {
		t.Fatalf("this process has %d bytes", own)
	}
	// A shell that waits for a shell that waits for its input.
	cmd, in := startShell(t, "sh -c 'echo; read x; :'; :")
	tree, outer := TreeMemory(cmd.Process.Pid), residentMemory(cmd.Process.Pid)
	if outer == 0 || tree <= outer {
		t.Errorf("the tree has %d bytes, its root %d", tree, outer)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := TreeMemory(cmd.Process.Pid); got != 0 {
		t.Errorf("after its end: %d", got)
	}
}

// startShell starts a shell, and returns when the script has written something. in is its input.
func startShell(t *testing.T, script string) (cmd *exec.Cmd, in io.WriteCloser) {
	t.Helper()
	cmd = exec.Command("sh", "-c", script)
	in, err := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return cmd, in
}

// TestChildrenOf: a list that is longer than the buffer is read whole.
func TestChildrenOf(t *testing.T) {
	const many = 250 // numbers of five digits
	cmd, in := startShell(t, "for i in $(seq "+strconv.Itoa(many)+"); do sleep 60 & done; echo; read x; kill $(jobs -p)")
	if got := len(childrenOf(cmd.Process.Pid)); got != many {
		t.Errorf("found %d of %d children", got, many)
	}
	_ = in.Close() // its end kills the children
	_ = cmd.Wait() // the status of kill does not matter
}
