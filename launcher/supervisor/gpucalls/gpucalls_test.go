package gpucalls

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// caller makes the test's program one that makes ioctls. It reads lines: a request, and how often it is made. It
// answers with the error of the last one and the time of all.
const caller = "EKG_TEST_GPU_CALLS"

func TestMain(m *testing.M) {
	if os.Getenv(caller) == "" {
		os.Exit(m.Run())
	}
	null, err := unix.Open(os.DevNull, unix.O_RDWR, 0)
	if err != nil {
		panic(err)
	}
	runtime.LockOSThread()
	var request uintptr
	var times int
	for {
		if _, err := fmt.Scanln(&request, &times); err != nil {
			os.Exit(0)
		}
		fmt.Println("calls")
		began := time.Now()
		var errno unix.Errno
		for range times {
			_, _, errno = unix.Syscall(unix.SYS_IOCTL, uintptr(null), request, 0)
		}
		fmt.Println(int(errno), time.Since(began).Nanoseconds())
	}
}

// testProgram runs behind a filter.
type testProgram struct {
	t     testing.TB
	calls *Calls
	asks  chan struct{}
	in    io.Writer
	out   *bufio.Scanner
	pid   int
	ends  bool // it was killed
}

func start(t testing.TB, filtered bool) *testProgram {
	t.Helper()
	p := &testProgram{t: t, asks: make(chan struct{}, 100)}
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), caller+"=1")
	in, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in, p.out = in, bufio.NewScanner(out)
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked
		var err error
		if filtered {
			p.calls, err = Hold()
		}
		if err == nil {
			err = command.Start()
		}
		started <- err
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	p.pid = command.Process.Pid
	served := make(chan error, 1)
	if filtered {
		go func() {
			served <- p.calls.Serve(func() {
				select {
				case p.asks <- struct{}{}:
				default:
				}
			})
		}()
	}
	t.Cleanup(func() {
		_ = in.Close()
		if filtered {
			p.calls.End()
			if err := <-served; err != nil {
				t.Error(err)
			}
			p.calls.Close()
			p.calls.Close()
		}
		if err := command.Wait(); err != nil && !p.ends {
			t.Error(err)
		}
	})
	return p
}

// begin makes the program call.
func (p *testProgram) begin(request uint32, times int) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, request, times); err != nil {
		p.t.Fatal(err)
	}
	if line := p.line(); line != "calls" {
		p.t.Fatal(line)
	}
}

func (p *testProgram) line() string {
	p.t.Helper()
	if !p.out.Scan() {
		p.t.Fatal("the program has ended", p.out.Err())
	}
	return p.out.Text()
}

// result returns how the calls ended.
func (p *testProgram) result() (errno unix.Errno, took time.Duration) {
	p.t.Helper()
	if _, err := fmt.Sscan(p.line(), &errno, &took); err != nil {
		p.t.Fatal(err)
	}
	return errno, took
}

func (p *testProgram) asked() {
	p.t.Helper()
	select {
	case <-p.asks:
	case <-time.After(10 * time.Second):
		p.t.Fatal("nothing waits")
	}
}

func TestCalls(t *testing.T) {
	for _, request := range matched {
		t.Run(fmt.Sprintf("%#x waits until it is passed", request), func(t *testing.T) {
			p := start(t, true)
			p.begin(request, 1)
			p.asked()
			p.asked() // again, since it waits
			p.calls.Pass()
			if errno, took := p.result(); errno != unix.ENOTTY || took < Repeat/2 {
				t.Errorf("the device answered %v after %v", errno, took)
			}
			p.begin(request, 1)
			p.asked() // each call waits
			p.calls.Pass()
			p.result()
		})
	}
	t.Run("other calls pass", func(t *testing.T) {
		p := start(t, true)
		for _, request := range []uint32{0xc020462a, 26, 38, 0x30000002, unix.TCGETS} {
			p.begin(request, 1)
			if errno, _ := p.result(); errno != unix.ENOTTY {
				t.Errorf("%#x: %v", request, errno)
			}
		}
		select {
		case <-p.asks:
			t.Error("a call waits")
		default:
		}
	})
	t.Run("a call of a program that was killed waits no more", func(t *testing.T) {
		p := start(t, true)
		p.begin(matched[0], 1)
		p.asked()
		p.ends = true
		if err := unix.Kill(p.pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if p.out.Scan() {
			t.Errorf("the program says %q", p.out.Text())
		}
		if p.calls.waits() {
			t.Error("its call waits")
		}
	})
	t.Run("one filter is enough", func(t *testing.T) {
		done := make(chan error, 2)
		go func() {
			runtime.LockOSThread() // and never unlocked
			c, err := Hold()
			done <- err
			if err == nil {
				_, err = Hold()
				done <- err
				c.Close()
			}
		}()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if err := <-done; err == nil || !strings.Contains(err.Error(), "another program already holds calls") {
			t.Errorf("a second one: %v", err)
		}
	})
}

// Measures an ioctl without the filter, one that the filter does not match, and one that is passed at once.
func BenchmarkCalls(b *testing.B) {
	for name, c := range map[string]struct {
		filtered bool
		request  uint32
	}{"without": {false, 26}, "other": {true, 26}, "passed": {true, matched[0]}} {
		b.Run(name, func(b *testing.B) {
			p := start(b, c.filtered)
			if c.request == matched[0] {
				go func() {
					for range p.asks {
						p.calls.Pass()
					}
				}()
			}
			p.begin(c.request, b.N)
			_, took := p.result()
			b.ReportMetric(float64(took.Nanoseconds())/float64(b.N), "ns/call")
		})
	}
}
