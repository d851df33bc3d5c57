package logs

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// drawHolders draws logs of some owners.
func drawHolders(t *rapid.T, most int64) []Log {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Log {
		h := Log{
			Owner: rapid.SampledFrom([]string{"ann", "bob", "cyd", "dan"}).Draw(t, "owner"),
			Limit: rapid.Int64Range(0, most).Draw(t, "limit"),
			Ended: rapid.IntRange(0, 5).Draw(t, "ended") == 0,
		}
		if rapid.Bool().Draw(t, "holds something") {
			h.Used = rapid.Int64Range(0, most).Draw(t, "used")
		}
		return h
	}), 1, 40).Draw(t, "holders")
}

// TestShareLogs_Model checks the rules of max-min fairness.
func TestShareLogs_Model(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Int64Range(1, 1<<34).Draw(t, "total")
		most := rapid.Int64Range(1, min(total, 1<<32)).Draw(t, "most")
		holders := drawHolders(t, most)
		n := int64(len(holders))
		shares := shareLogs(total, most, holders)
		least := min(leastShare, most, total/leastPart/n)
		var sum, needs int64
		open := false // some log could take more
		owners := map[string]extent{}
		for i, h := range holders {
			need := max(least, h.need(most))
			sum, needs = sum+shares[i], needs+need
			open = open || !h.Ended && shares[i] < most
			if shares[i] < least || shares[i] > most {
				t.Fatalf("log %d gets %d, not %d to %d", i, shares[i], least, most)
			}
			owners[h.Owner] = extent{owners[h.Owner].lo + shares[i], owners[h.Owner].hi + need}
		}
		if sum > total {
			t.Fatalf("the shares are %d in all, of %d", sum, total)
		}
		if rounding := 3 * n; open && sum+rounding < total {
			t.Fatalf("%d of %d is shared, although logs could take more", sum, total)
		}
		for i, h := range holders {
			need := max(least, h.need(most))
			if needs <= total && shares[i] < need {
				t.Fatalf("log %d gets %d of %d, although all needs are %d of %d", i, shares[i], need, needs, total)
			}
			if shares[i] >= need {
				continue
			}
			// No other has more, unless that is its least.
			for j, other := range holders {
				if other.Owner == h.Owner && shares[j] > max(least, shares[i]+3*n) {
					t.Fatalf("log %d of %s lacks something, and gets %d; log %d gets %d", i, h.Owner, shares[i], j, shares[j])
				}
			}
			for name, o := range owners {
				if own := owners[h.Owner]; o.lo > max(own.lo+3*n, least*n) {
					t.Fatalf("%s lacks something and gets %d, and %s gets %d", h.Owner, own.lo, name, o.lo)
				}
			}
		}
	})
}

// TestShareLogs gives examples.
func TestShareLogs(t *testing.T) {
	const mib = 1 << 20
	many := func(n int, h Log) []Log {
		all := make([]Log, n)
		for i := range all {
			all[i] = h
		}
		return all
	}
	full := Log{Owner: "ann", Used: 56 * mib, Limit: 64 * mib}
	for name, c := range map[string]struct {
		total, most int64
		holders     []Log
		first       extent // what the first gets, in MiB
		last        extent
	}{
		"one": {1024 * mib, 256 * mib, many(1, full), extent{256, 256}, extent{256, 256}},
		"a full one and nine empty ones": {64 * mib, 64 * mib, append([]Log{full}, many(9, Log{Owner: "ann"})...),
			extent{60, 64}, extent{0, 1}},
		"nine empty ones of another user": {64 * mib, 64 * mib,
			append([]Log{full}, many(9, Log{Owner: "bob"})...), extent{60, 64}, extent{0, 1}},
		"nine that grow, of another user": {64 * mib, 64 * mib,
			append([]Log{full}, many(9, Log{Owner: "bob", Used: 8 * mib, Limit: 8 * mib})...),
			extent{31, 32}, extent{3, 4}},
		"one that grows": {64 * mib, 64 * mib, []Log{full, {Owner: "ann", Used: mib, Limit: mib}},
			extent{48, 48}, extent{16, 16}},
		"one that has ended": {64 * mib, 64 * mib, []Log{full, {Owner: "bob", Used: mib, Limit: mib, Ended: true}},
			extent{62, 64}, extent{1, 2}},
		"4,000 empty ones": {1024 * mib, 64 * mib, many(4000, Log{Owner: "ann"}), extent{0, 1}, extent{0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			shares := shareLogs(c.total, c.most, c.holders)
			var sum int64
			for _, s := range shares {
				sum += s
			}
			if sum > c.total {
				t.Errorf("%d bytes of %d are shared", sum, c.total)
			}
			for what, of := range map[int]extent{0: c.first, len(shares) - 1: c.last} {
				if got := shares[what]; got < of.lo*mib || got > of.hi*mib || got == 0 {
					t.Errorf("log %d gets %d bytes, want %d to %d MiB", what, got, of.lo, of.hi)
				}
			}
		})
	}
	if got := shareLogs(1, 1, nil); len(got) > 0 {
		t.Errorf("no logs get %v", got)
	}
}

// TestShares_Measure: bounds that the operator did not set follow the free space of the disk, and others do not.
func TestShares_Measure(t *testing.T) {
	const mib, gib = 1 << 20, 1 << 30
	for name, c := range map[string]struct {
		limit, total, free, used int64
		want                     bounds
	}{
		"a large disk":              {0, 0, 1000 * gib, 0, bounds{250 * gib, 4 * gib, 5}},
		"a disk that logs have":     {0, 0, 20 * gib, 20 * gib, bounds{10 * gib, 2560 * mib, 5}},
		"a small disk":              {0, 0, 2 * gib, 0, bounds{gib, 256 * mib, 5}},
		"a full disk":               {0, 0, 0, 0, bounds{gib, 256 * mib, 5}},
		"memory":                    {0, 0, -1, 0, bounds{gib, 64 * mib, 0}},
		"a limit":                   {100 * mib, 0, 1000 * gib, 0, bounds{250 * gib, 100 * mib, 0}},
		"a limit above the total":   {8 * gib, 0, gib, 0, bounds{8 * gib, 8 * gib, 0}},
		"a total":                   {0, 2 * gib, 1000 * gib, 0, bounds{2 * gib, 512 * mib, 5}},
		"a small total":             {0, 10 * mib, 1000 * gib, 0, bounds{10 * mib, 10 * mib, 5}},
		"a limit and a total":       {100 * mib, 200 * mib, gib, gib, bounds{200 * mib, 100 * mib, 0}},
		"both, and the disk is RAM": {100 * mib, 200 * mib, -1, 0, bounds{200 * mib, 100 * mib, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewShares(c.total, c.limit)
			if s.Measure(c.free, []Log{{Used: c.used}}); s.bounds != c.want {
				got := s.bounds
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// TestShares_ManyStarts: when kernels start, few of the others are sent a new limit, and all logs together stay within
// the total. Most starts among many kernels need not share the total again. New limits are calculated after one start,
// or after some.
func TestShares_ManyStarts(t *testing.T) {
	const total, starts = 100 << 30, 1000
	for name, c := range map[string]struct{ users, every, quick int }{
		"one user": {1, 1, starts * 8 / 10}, "30 users": {30, 1, starts * 8 / 10}, "30 users, at once": {30, 20, starts / 4},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewShares(total, total/limitPart)
			s.Measure(-1, nil)
			var logs []Log
			sent, sum, quick := 0, int64(0), 0
			for n := range starts {
				owner, room := fmt.Sprint("user-", n%c.users), s.next.left > 0
				limit, _ := s.Start(owner, func() []Log { return slices.Clone(logs) })
				logs = append(logs, Log{Owner: owner, Limit: limit})
				shared := (n+1)%c.every == 0
				if shared {
					for i, limit := range s.Limits(logs) {
						if limit > 0 {
							logs[i].Limit = limit
							sent++
						}
					}
				}
				sum = 0
				for _, log := range logs {
					sum += log.Limit
				}
				if sum > total && (room || shared) {
					t.Fatalf("%d logs may have %d bytes of %d", n+1, sum, total)
				}
				if room {
					quick++
				}
			}
			if quick < c.quick {
				t.Errorf("only %d of %d starts have not shared the total again", quick, starts)
			}
			if sent > 30*starts {
				t.Errorf("%d limits were sent to %d kernels", sent, starts)
			}
			if sum < total/8*7-total/100 {
				t.Errorf("only %d bytes of %d are shared", sum, total)
			}
			t.Logf("%d limits were sent to %d kernels", sent, starts)
		})
	}
}
