package devices

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
)

// pin pins a kernel to a GPU, or fails the test.
func pin(t *testing.T, p *Pool, n int, kernel string) *Loan {
	t.Helper()
	loan, err := p.Lend(t.Context(), Borrower{Kernel: kernel, Parks: true}, machine(n), Want{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(loan.Return)
	if !loan.Pinned || len(loan.Devices) != 1 || len(loan.Files) != 2 {
		t.Fatalf("a start gets %+v", loan)
	}
	return loan
}

// pinned returns how many kernels are pinned to each GPU, and fails the test if any GPU is held.
func pinned(t *testing.T, p *Pool, n int) (counts []int) {
	t.Helper()
	all, err := p.Held(t.Context(), machine(n))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range all {
		counts = append(counts, len(h.Pinned))
		if len(h.Holders) > 0 {
			t.Errorf("%s is held by %v", h.UUID, h.Holders)
		}
	}
	return counts
}

// Starts of several programs at once spread over the GPUs, and take none.
func TestPool_PinSpreads(t *testing.T) {
	p := newPool(t)
	var starts sync.WaitGroup
	for i := range 12 {
		starts.Go(func() {
			program := &Pool{dir: p.dir}
			loan, err := program.Lend(t.Context(), Borrower{Kernel: fmt.Sprint(i), Parks: true}, machine(2), Want{}, nil)
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(loan.Return)
		})
	}
	starts.Wait()
	if got := pinned(t, p, 2); !reflect.DeepEqual(got, []int{6, 6}) {
		t.Errorf("kernels of the two GPUs: %v", got)
	}
}

// A pin is there for as long as a process of the kernel, whatever has ended before.
func TestPool_PinEnds(t *testing.T) {
	p := newPool(t)
	loan := pin(t, p, 2, "a")
	kernel := exec.CommandContext(t.Context(), "cat")
	kernel.ExtraFiles = loan.Files
	_, err := kernel.StdinPipe() // it reads until its end
	must(t, err)
	must(t, kernel.Start())
	loan.Close() // as the gateway does, and its end
	if got := pinned(t, p, 2); !reflect.DeepEqual(got, []int{1, 0}) {
		t.Errorf("while it runs: %v", got)
	}
	if next := pin(t, p, 2, "b"); next.Devices[0] != "GPU-1" {
		t.Errorf("the next start gets %v", next.Devices)
	}
	must(t, kernel.Process.Kill())
	_ = kernel.Wait() // it was killed
	if got := pinned(t, p, 2); !reflect.DeepEqual(got, []int{0, 1}) {
		t.Errorf("after its end: %v", got)
	}
	if again := pin(t, p, 2, "c"); again.Devices[0] != "GPU-0" {
		t.Errorf("the GPU of a kernel that has ended is not chosen, but %v", again.Devices)
	}
}

// The least used GPU is chosen. One that is not given back comes last, and a kernel that is started again gets its own.
func TestPool_PinChooses(t *testing.T) {
	p := newPool(t)
	lend(t, p, machine(3), "job", Want{}, "GPU-0")
	first := pin(t, p, 3, "first")
	if first.Devices[0] != "GPU-1" {
		t.Errorf("with a job on the first GPU: %v", first.Devices)
	}
	if own, err := take(t, NewSeat("first", first.Files)); !own || err != nil {
		t.Fatalf("the seat does not get its GPU: %v", err)
	}
	second := pin(t, p, 3, "second")
	third := pin(t, p, 3, "third") // as many kernels on both, and one is free
	fourth := pin(t, p, 3, "fourth")
	if second.Devices[0] != "GPU-2" || third.Devices[0] != "GPU-2" || fourth.Devices[0] != "GPU-1" {
		t.Errorf("the others get %v, %v, %v", second.Devices, third.Devices, fourth.Devices)
	}
	if only := pin(t, p, 1, "only"); only.Devices[0] != "GPU-0" {
		t.Errorf("with nothing else a job's GPU is chosen, not %v", only.Devices)
	}
	same := Borrower{Kernel: "again", Parks: true, Prefer: []string{"GPU-0"}}
	again, err := p.Lend(t.Context(), same, machine(3), Want{}, nil)
	must(t, err)
	t.Cleanup(again.Return)
	if again.Devices[0] != "GPU-0" {
		t.Errorf("started again: %v", again.Devices)
	}
}

// A kernel that asks for more or less than one whole GPU is lent what it asks for, although it may be parked.
func TestPool_PinNot(t *testing.T) {
	mig := gpu.List{Devices: []gpu.Listed{{UUID: "GPU-m", MIG: true, Healthy: true,
		Instances: []gpu.Instance{{UUID: "MIG-1", MemoryTotal: 9_000_000_000}}}}}
	for name, c := range map[string]struct {
		list  gpu.List
		want  Want
		files int
	}{
		"two GPUs":     {machine(2), Want{Count: 2}, 2},
		"a share":      {machine(2), Want{Share: gpu.One / 2}, 2},
		"memory":       {machine(2), Want{Memory: 1_000_000_000}, 2},
		"an instance":  {mig, Want{}, 1},
		"any of three": {gpu.List{Devices: append(machine(2).Devices, mig.Devices...)}, Want{}, 1},
	} {
		p := newPool(t)
		loan, err := p.Lend(t.Context(), Borrower{Kernel: "a", Parks: true}, c.list, c.want, nil)
		if err != nil || loan.Pinned || len(loan.Files) != c.files {
			t.Errorf("%s: %+v, %v", name, loan, err)
			continue
		}
		loan.Return()
	}
}

// A warm kernel holds its GPU, and takes none that other kernels are pinned to. A job's may take those.
func TestPool_PinWarm(t *testing.T) {
	p := newPool(t)
	pin(t, p, 2, "a")
	warm, err := p.Lend(t.Context(), Borrower{Kernel: "warm", Parks: true, Warm: true}, machine(2), Want{}, nil)
	must(t, err)
	t.Cleanup(warm.Return)
	if warm.Pinned || warm.Devices[0] != "GPU-1" {
		t.Errorf("a warm kernel gets %+v", warm)
	}
	at := NewSeat("warm", warm.Files)
	if own, err := at.Owns(); !own || err != nil {
		t.Errorf("a warm kernel does not have its GPU: %v", err)
	}
	_, err = p.Lend(t.Context(), Borrower{Kernel: "next", Warm: true}, machine(2), Want{}, nil)
	if !errors.As(err, new(*BusyError)) {
		t.Errorf("a warm kernel takes a GPU that another is pinned to: %v", err)
	}
	if job := lend(t, p, machine(2), "job", Want{}); job.Devices[0] != "GPU-0" {
		t.Errorf("a job gets %v", job.Devices)
	}
}

// take takes the GPU of a seat in its turn.
func take(t *testing.T, s *Seat) (bool, error) {
	t.Helper()
	turn, err := s.Wait(time.Now(), false)
	if err != nil {
		return false, err
	}
	defer turn.Leave()
	taken, _, err := turn.Take()
	return taken, err
}

// A pinned kernel starts without the GPU. A later supervisor finds what the kernel has, and leaves a free GPU free.
func TestSeat_Pinned(t *testing.T) {
	p := newPool(t)
	loan, other := pin(t, p, 1, "first"), pin(t, p, 1, "second")
	first, second := NewSeat("first", loan.Files), NewSeat("second", other.Files)
	owns := func(want bool) {
		t.Helper()
		if own, err := NewSeat("first", loan.Files).Owns(); own != want || err != nil { // of a later supervisor
			t.Errorf("own %v, %v", own, err)
		}
	}
	owns(false)
	if got := holder(t, p); got != "" {
		t.Errorf("asked by its own kernel, the GPU is held by %q", got)
	}
	if taken, err := take(t, first); !taken || err != nil {
		t.Fatalf("a free GPU is not taken: %v", err)
	}
	owns(true)
	if taken, err := take(t, second); taken || err != nil || holder(t, p) != "first" {
		t.Errorf("taken by two: %v", err)
	}
	must(t, first.Return())
	owns(false)
	if taken, err := take(t, second); !taken || err != nil {
		t.Errorf("what was given back is not taken: %v", err)
	}
	owns(false)
	if NewSeat("first", []*os.File{loan.Files[1], loan.Files[0]}) != nil {
		t.Error("a pin is no GPU")
	}
}
