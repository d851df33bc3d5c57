package devices

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
)

// machine returns a list of n GPUs with 16 GB each.
func machine(n int) (l gpu.List) {
	for i := range n {
		l.Devices = append(l.Devices, gpu.Listed{UUID: fmt.Sprintf("GPU-%d", i), Index: i, Model: "Tesla T4",
			MemoryTotal: 16_000_000_000, Healthy: true})
	}
	return l
}

func newPool(t testing.TB) *Pool {
	t.Helper()
	p, err := NewPool(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// lend lends from a pool, or fails the test. The loan is returned at its end.
func lend(t *testing.T, p *Pool, l gpu.List, kernel string, w Want, prefer ...string) *Loan {
	t.Helper()
	loan, err := p.Lend(t.Context(), Borrower{Kernel: kernel, Prefer: prefer}, l, w, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(loan.Return)
	return loan
}

// All shares together are what programs can have of the memory.
func TestPool_Reserved(t *testing.T) {
	p, l := newPool(t), machine(1)
	l.Devices[0].Reserved = 1_000_000_000
	for _, kernel := range []string{"a", "b", "c"} {
		if loan := lend(t, p, l, kernel, Want{Share: gpu.One / 4}); loan.Memory != 3_750_000_000 {
			t.Errorf("a quarter of 15 GB is %d bytes", loan.Memory)
		}
	}
	m := gpu.List{Devices: []gpu.Listed{{UUID: "GPU-m", MIG: true, Healthy: true, Instances: []gpu.Instance{
		{UUID: "MIG-1", MemoryTotal: 9_000_000_000, Reserved: 1_000_000_000}}}}}
	if loan := lend(t, p, m, "d", Want{Share: gpu.One / 2}); loan.Memory != 4_000_000_000 {
		t.Errorf("half of 8 GB is %d bytes", loan.Memory)
	}
}

func TestPool_Lend(t *testing.T) {
	p, l := newPool(t), machine(3)
	other := &Pool{dir: p.dir} // of another gateway
	one := lend(t, p, l, "a", Want{}, "GPU-1")
	if !reflect.DeepEqual(one.Devices, []string{"GPU-1"}) || one.Memory != 0 {
		t.Errorf("the preferred one: %+v", one)
	}
	half := lend(t, other, l, "b", Want{Share: gpu.One / 2})
	memory := lend(t, p, l, "c", Want{Memory: 4_000_000_000})
	if half.Devices[0] != "GPU-0" || half.Memory != 8_000_000_000 || memory.Devices[0] != "GPU-2" || memory.Share != 250 {
		t.Errorf("shares are on those with the most left: %+v, %+v", half, memory)
	}
	for kernel, w := range map[string]Want{"d": {}, "e": {Count: 2}, "f": {Share: 751}} {
		var busy *BusyError
		_, err := other.Lend(t.Context(), Borrower{Kernel: kernel}, l, w, nil)
		if !errors.As(err, &busy) || len(busy.Candidates) != 3 {
			t.Errorf("%s gets %v", kernel, err)
		}
	}
	lend(t, other, l, "g", Want{Share: 250}, "GPU-2")
	got, err := p.Held(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	want := []gpu.Held{
		{Holders: []gpu.Holder{{Kernel: "b", Share: 500}}}, {Holders: []gpu.Holder{{Kernel: "a", Share: gpu.One}}},
		{Holders: []gpu.Holder{{Kernel: "c", Share: 250}, {Kernel: "g", Share: 250}}},
	}
	for i := range want {
		want[i].UUID, want[i].Model, want[i].MemoryTotal = fmt.Sprintf("GPU-%d", i), "Tesla T4", 16_000_000_000
		want[i].Healthy = true
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("held are\n%+v\nnot\n%+v", got, want)
	}
	memory.Return()
	half.Return()
	if again := lend(t, p, l, "h", Want{Share: gpu.One / 4}); again.Devices[0] != "GPU-0" {
		t.Errorf("after a return %+v is lent", again)
	}
}

// TestPool_Promised: a kernel does not get what others have waited for.
func TestPool_Promised(t *testing.T) {
	p := newPool(t)
	_, err := p.Lend(t.Context(), Borrower{Kernel: "a"}, machine(2), Want{Count: 2}, map[string]bool{"GPU-1": true})
	const want = "it waits for 2 GPUs: 0 of 2 are held by other kernels, and kernels that have waited for longer get 1"
	if err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
}

// TestPool_Locked: a program that holds the lock of all GPUs for too long does not stop others for ever.
func TestPool_Locked(t *testing.T) {
	p := newPool(t)
	unlock, err := p.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Lend(ctx, Borrower{Kernel: "a"}, machine(1), Want{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// BenchmarkPool_Lend lends a share on a machine with eight GPUs that already has 32 kernels.
func BenchmarkPool_Lend(b *testing.B) {
	p, l := newPool(b), machine(8)
	for i := range 32 {
		loan, err := p.Lend(b.Context(), Borrower{Kernel: fmt.Sprint(i)}, l, Want{Share: gpu.One / 8}, nil)
		if err != nil {
			b.Fatal(err)
		}
		defer loan.Return()
	}
	for b.Loop() {
		loan, err := p.Lend(b.Context(), Borrower{Kernel: "x"}, l, Want{Share: gpu.One / 8}, nil)
		if err != nil {
			b.Fatal(err)
		}
		loan.Return()
	}
}
