package process

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// callsCUDA makes the first call of CUDA three times: one is interrupted, one is passed, and a child makes one.
const callsCUDA = `
import errno, fcntl, os, sys
def call():
    try:
        fcntl.ioctl(sys.stdin, 0x30000001)
    except OSError as e:
        return errno.errorcode[e.errno]
try:
    call()
except KeyboardInterrupt:
    print('interrupted', flush=True)
print(call(), flush=True)
if os.fork() == 0:
    print('child', call(), flush=True)
    os._exit(0)
os.wait()
`

// Calls of CUDA wait in the kernel's process and in its children. SIGINT ends a wait.
func TestProcess_GPUCalls(t *testing.T) {
	called := make(chan *Process, 10)
	p, err := Start(Options{KernelID: t.Name(), Argv: []string{"python3", "-c", callsCUDA}, GPUCalled: func(p *Process) {
		select {
		case called <- p:
		default:
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	if holds, why := p.HoldsGPUCalls(); !holds {
		t.Skip(why)
	}
	waits := func() {
		t.Helper()
		select {
		case <-called:
		case <-p.Done():
			t.Fatal("the process has ended", p.LastOutput(1000, time.Time{}))
		case <-time.After(20 * time.Second):
			t.Fatal("no call waits")
		}
	}
	stdout, _ := p.Output()
	waits()
	if err := p.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(stdout.Text(1000), "interrupted") {
		waits() // each second, and in the next call
	}
	p.PassGPUCalls()
	for !strings.Contains(stdout.Text(1000), "ENOTTY") {
		waits()
		p.PassGPUCalls()
	}
	for ended := false; !ended; {
		select {
		case <-called:
			p.PassGPUCalls()
		case <-p.Done():
			ended = true
		}
	}
	if got := stdout.Text(1000); got != "interrupted\nENOTTY\nchild ENOTTY\n" {
		t.Errorf("got %q", got)
	}
}
