package podseat

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// seat is a Seat of the tests, with its clock.
type seat struct {
	*Seat
	t       *testing.T
	file    string
	now     time.Time
	changes int
}

func open(t *testing.T) *seat {
	s := &seat{t: t, file: filepath.Join(t.TempDir(), "seat.json"), now: time.Unix(1e9, 0)}
	s.again()
	return s
}

// again opens the seat as the next supervisor does.
func (s *seat) again() {
	s.t.Helper()
	var err error
	if s.Seat, err = Open(s.file, false, func() { s.changes++ }, func() time.Time { return s.now }); err != nil {
		s.t.Fatal(err)
	}
}

func (s *seat) tell(n api.SeatNews) {
	s.t.Helper()
	if err := s.Told(n); err != nil {
		s.t.Fatal(err)
	}
}

// says checks the numbers that gateways read.
func (s *seat) says(holds, returned int64) {
	s.t.Helper()
	if got := s.Say(nil); got.Holds != holds || got.Returned != returned {
		s.t.Errorf("%+v, want %d and %d", got, holds, returned)
	}
}

func (s *seat) owns(want bool) {
	s.t.Helper()
	if got, err := s.Owns(); err != nil || got != want {
		s.t.Errorf("it owns the GPU: %v, %v", got, err)
	}
}

// TestSeat_Grants: what was granted is known to the next supervisor, and what was given back is not taken again.
func TestSeat_Grants(t *testing.T) {
	s := open(t)
	s.owns(false)
	s.tell(api.SeatNews{Grant: 1}) // it did not ask
	s.says(0, 1)
	turn, err := s.Wait(s.now)
	if err != nil {
		t.Fatal(err)
	}
	if s.Say(nil).Since.IsZero() {
		t.Error("nobody hears that it waits")
	}
	s.tell(api.SeatNews{Grant: 1}) // late
	s.says(0, 1)
	s.tell(api.SeatNews{Before: 2})
	if taken, before, err := turn.Take(); taken || before != 2 || err != nil {
		t.Errorf("%v %d %v", taken, before, err)
	}
	s.tell(api.SeatNews{Grant: 3, Wanted: true})
	if taken, _, err := turn.Take(); !taken || err != nil || !s.Wanted() {
		t.Errorf("%v %v %v", taken, err, s.Wanted())
	}
	turn.Leave()
	s.says(3, 1)
	s.again()
	s.owns(true)
	s.tell(api.SeatNews{Grant: 2, Wanted: true}) // late
	if s.says(3, 1); s.Wanted() {
		t.Error("late news count")
	}
	if err := s.Return(); err != nil {
		t.Fatal(err)
	}
	s.again()
	s.owns(false)
	s.says(0, 3)

	// A grant that comes while the kernel leaves the line is given back.
	if turn, err = s.Wait(s.now); err != nil {
		t.Fatal(err)
	}
	s.tell(api.SeatNews{Grant: 4})
	before := s.changes
	turn.Leave()
	if s.says(0, 4); s.changes == before {
		t.Error("nobody hears of it")
	}
}

// TestSeat_Disk: what cannot be kept for the next supervisor is neither taken nor given back. A file that cannot be
// read is an error: the kernel may have the GPU.
func TestSeat_Disk(t *testing.T) {
	s := open(t)
	if _, err := s.Wait(s.now); err != nil {
		t.Fatal(err)
	}
	s.tell(api.SeatNews{Grant: 1})
	aside := s.file + ".aside"
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Dir(s.file)
	move(dir, dir+aside[len(s.file):])
	if s.Return() == nil {
		t.Error("it is given back")
	}
	s.says(1, 0)
	move(dir+aside[len(s.file):], dir)
	if err := s.Return(); err != nil {
		t.Fatal(err)
	}
	s.says(0, 1)
	if err := os.WriteFile(s.file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(s.file, false, nil, nil); err == nil {
		t.Error("a broken file counts as no GPU")
	}
}

// TestSeat_Why: a kernel that waits says why.
func TestSeat_Why(t *testing.T) {
	s := open(t)
	if _, err := s.Wait(s.now); err != nil {
		t.Fatal(err)
	}
	why := func(want string) {
		t.Helper()
		if _, err := s.Kept(); (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	why("which GPU its pod has")
	s.Say([]api.GPU{{UUID: "GPU-1"}, {UUID: "GPU-2"}})
	why("which GPU its pod has")
	for _, uuid := range []string{"MIG-1", "", "GPU-", "GPU-1/../2", "GPU-1-", "GPU-1.2", "GPU-1\n"} {
		s.Say([]api.GPU{{UUID: uuid}})
		why("which GPU its pod has")
	}
	if got := s.Say([]api.GPU{{UUID: "GPU-1"}}); got.GPU != "GPU-1" {
		t.Errorf("%+v", got)
	}
	if got := s.Say([]api.GPU{{UUID: "GPU-2"}}); got.GPU != "GPU-1" {
		t.Errorf("it is another one later: %+v", got)
	}
	why("a gateway is asked")
	s.now = s.now.Add(answerTime)
	why("no gateway answers")
	s.tell(api.SeatNews{Before: 1})
	why("")
	s.now = s.now.Add(trusted - 1)
	s.tell(api.SeatNews{Problem: "of the tests"}) // another gateway knows
	why("")
	s.now = s.now.Add(1)
	s.tell(api.SeatNews{Problem: "of the tests"})
	why("of the tests")
	s.tell(api.SeatNews{Kept: s.now.Add(time.Hour)})
	if until, err := s.Kept(); err != nil || !until.Equal(s.now.Add(time.Hour)) {
		t.Errorf("%v %v", until, err)
	}
	s.now = s.now.Add(silence)
	why("no gateway answers")
}
