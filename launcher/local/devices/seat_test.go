package devices

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
)

func seat(t *testing.T, p *Pool, kernel string) *Seat {
	t.Helper()
	s := NewSeat(kernel, lend(t, p, machine(1), kernel, Want{}).Files)
	if s == nil {
		t.Fatal("a kernel with one whole GPU has no seat")
	}
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// holder returns the kernel that holds the only GPU, as the GPU view shows it.
func holder(t *testing.T, p *Pool) string {
	t.Helper()
	held, err := p.Held(t.Context(), machine(1))
	if err != nil {
		t.Fatal(err)
	}
	if len(held[0].Holders) == 0 {
		return ""
	}
	return held[0].Holders[0].Kernel
}

// Two kernels are pinned to one GPU and use it by turns. A kernel that starts goes behind the one that waits.
func TestSeat_Turns(t *testing.T) {
	p := newPool(t)
	first := seat(t, p, "first")
	if first.Wanted() {
		t.Error("nothing waits, and the GPU is wanted")
	}
	must(t, first.Return())
	second := seat(t, p, "second")
	if own, err := first.Owns(); own || err != nil {
		t.Errorf("owned by two: %v", err)
	}
	now := time.Now()
	turn, err := first.Wait(now, false)
	must(t, err)
	if taken, before, err := turn.Take(); taken || before != 0 || err != nil {
		t.Errorf("a lent GPU is taken: %v, %d, %v", taken, before, err)
	}
	if !second.Wanted() || holder(t, p) != "second" {
		t.Errorf("wanted %v, held by %q", second.Wanted(), holder(t, p))
	}
	must(t, second.Return())
	var busy *BusyError
	if _, err := p.Lend(t.Context(), Borrower{Kernel: "new"}, machine(1), Want{}, nil); !errors.As(err, &busy) {
		t.Errorf("a start overtakes a kernel that waits: %v", err)
	}
	later := Borrower{Kernel: "later", Since: now.Add(time.Second)}
	if _, err := p.Lend(t.Context(), later, machine(1), Want{}, nil); !errors.As(err, &busy) {
		t.Errorf("a start overtakes a kernel that has waited for longer: %v", err)
	}
	behind, err := second.Wait(now.Add(time.Second), false)
	must(t, err)
	if taken, before, err := behind.Take(); taken || before != 1 || err != nil {
		t.Errorf("the second in line: %v, %d, %v", taken, before, err)
	}
	if taken, _, err := turn.Take(); !taken || err != nil {
		t.Errorf("a free GPU is not taken: %v", err)
	}
	turn.Leave()
	if got := holder(t, p); got != "first" {
		t.Errorf("held by %q", got)
	}
	must(t, first.Return())
	if taken, _, err := behind.Take(); !taken || err != nil {
		t.Errorf("the next in line does not get it: %v", err)
	}
	behind.Leave()
	if left, err := filepath.Glob(filepath.Join(p.dir, "*"+waitMark+"*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// Those who wait see until when the holder keeps the unit, and the next holder keeps it no longer.
func TestSeat_Keep(t *testing.T) {
	p := newPool(t)
	first := seat(t, p, "first")
	must(t, first.Return())
	second := seat(t, p, "second")
	until := time.Now().Add(time.Hour).UTC()
	kept := func(want time.Time) {
		t.Helper()
		if at, err := first.Kept(); err != nil || !at.Equal(want) || holder(t, p) != "second" {
			t.Errorf("%q keeps it until %v, %v", holder(t, p), at, err)
		}
	}
	kept(time.Time{})
	must(t, second.Keep(until))
	kept(until)
	must(t, second.Keep(time.Now().Add(-time.Hour)))
	kept(time.Time{})
	must(t, second.Keep(until))
	must(t, second.Return())
	if at, err := first.Kept(); err != nil || !at.IsZero() {
		t.Errorf("a free unit is kept until %v, %v", at, err)
	}
	if own, err := second.Owns(); !own || err != nil {
		t.Errorf("it is not taken: %v, %v", own, err)
	}
	kept(time.Time{})
}

// A kernel that waited before goes first, also one that starts. A job's goes behind all others.
func TestPool_Order(t *testing.T) {
	p := newPool(t)
	s := seat(t, p, "first")
	must(t, s.Return())
	now := time.Now()
	job, err := s.Wait(now.Add(-time.Hour), true)
	must(t, err)
	turn, err := s.Wait(now, false)
	must(t, err)
	if _, before, err := job.Take(); before != 1 || err != nil {
		t.Errorf("a job has %d kernels before it: %v", before, err)
	}
	loan, err := p.Lend(t.Context(), Borrower{Kernel: "earlier", Since: now.Add(-time.Minute)}, machine(1), Want{}, nil)
	must(t, err)
	loan.Return()
	if _, err = p.Lend(t.Context(), Borrower{Kernel: "job", Since: now.Add(-time.Minute), Job: true}, machine(1),
		Want{}, nil); err == nil {
		t.Error("a job's start overtakes a person's kernel")
	}
	turn.Leave()
	job.Leave()
}

// A program that has died, or does not renew its wait, holds nobody up.
func TestPool_DeadWaits(t *testing.T) {
	p := newPool(t)
	s := seat(t, p, "first")
	dead, err := s.Wait(time.Now(), false)
	must(t, err)
	must(t, dead.file.Close()) // as the end of the program does
	if s.Wanted() {
		t.Error("a dead program wants the GPU")
	}
	old := time.Now().Add(-2 * waitRenewal)
	must(t, os.Chtimes(filepath.Join(p.dir, dead.name), old, old))
	if s.Wanted() {
		t.Error("a dead program wants the GPU")
	}
	if _, err := os.Stat(filepath.Join(p.dir, dead.name)); !os.IsNotExist(err) {
		t.Errorf("the file of a dead program: %v", err)
	}
	frozen, err := s.Wait(time.Now(), false)
	must(t, err)
	defer frozen.Leave()
	must(t, os.Chtimes(frozen.file.Name(), old, old))
	if s.Wanted() {
		t.Error("a frozen program wants the GPU")
	}
	must(t, frozen.Renew())
	if !s.Wanted() {
		t.Error("a program that goes on does not want the GPU")
	}
}

// Only a kernel with one whole GPU can give it back.
func TestNewSeat(t *testing.T) {
	p := newPool(t)
	part := lend(t, p, machine(1), "part", Want{Share: gpu.One / 2})
	two := lend(t, newPool(t), machine(2), "two", Want{Count: 2})
	if NewSeat("part", part.Files) != nil || NewSeat("two", two.Files) != nil || NewSeat("none", nil) != nil {
		t.Error("a kernel without a whole GPU has a seat")
	}
}
