package schedule

import (
	"strings"
	"testing"
	"time"
)

func parse(t *testing.T, expression, zone string) *Schedule {
	t.Helper()
	s, err := Parse(expression, zone)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func instant(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// TestNext: the times at which schedules are due, also when clocks are set forward (in 2026, on March 29 in Berlin) and
// back (on October 25).
func TestNext(t *testing.T) {
	for _, test := range []struct{ name, expression, zone, after, want string }{
		{"UTC", "30 2 * * *", "", "2026-03-01T00:00:00Z", "03-01T02:30:00Z 03-02T02:30:00Z"},
		{"exactly then", "30 2 * * *", "", "2026-03-01T02:30:00Z", "03-02T02:30:00Z"},
		{"half a minute later", "* * * * *", "", "2026-03-01T02:30:30Z", "03-01T02:31:00Z 03-01T02:32:00Z"},
		{"a zone", "0 9 * * 1-5", "America/New_York", "2026-03-06T15:00:00Z", "03-09T13:00:00Z 03-10T13:00:00Z"},
		{"Sunday is 7", "0 9 * * 7", "", "2026-03-06T15:00:00Z", "03-08T09:00:00Z 03-15T09:00:00Z"},
		{"up to Sunday", "0 9 * * 6-7", "", "2026-03-06T15:00:00Z", "03-07T09:00:00Z 03-08T09:00:00Z 03-14T09:00:00Z"},
		{"Sunday and a name", "0 9 * * 7,sat", "", "2026-03-06T15:00:00Z", "03-07T09:00:00Z 03-08T09:00:00Z"},
		{"either day", "0 0 10 * 1", "", "2026-03-06T15:00:00Z", "03-09T00:00:00Z 03-10T00:00:00Z 03-16T00:00:00Z"},
		{"a star with a step and a day", "0 0 */2 * 1", "", "2026-03-06T15:00:00Z", "03-09T00:00:00Z 03-23T00:00:00Z"},
		{"each quarter", "@15minutes", "", "2026-03-06T15:00:00Z", "03-06T15:15:00Z 03-06T15:30:00Z"},
		{"a name", "@daily", "Europe/Berlin", "2026-06-01T12:00:00Z", "06-01T22:00:00Z"},
		{"February 29", "0 0 29 2 *", "", "2026-03-01T00:00:00Z", "02-29T00:00:00Z"},
		{"a time that does not exist", "30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z",
			"03-29T01:00:00Z 03-30T00:30:00Z"},
		{"a time that occurs twice", "30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z",
			"10-25T00:30:00Z 10-26T01:30:00Z"},
		{"between both", "30 2 * * *", "Europe/Berlin", "2026-10-25T01:00:00Z", "10-26T01:30:00Z"},
		{"every hour, set forward", "0 * * * *", "Europe/Berlin", "2026-03-28T23:30:00Z",
			"03-29T00:00:00Z 03-29T01:00:00Z 03-29T02:00:00Z"},
		{"half an hour, set back", "*/30 * * * *", "Europe/Berlin", "2026-10-24T23:45:00Z",
			"10-25T00:00:00Z 10-25T00:30:00Z 10-25T01:00:00Z 10-25T01:30:00Z 10-25T02:00:00Z"},
		{"half an hour's change", "15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z",
			"10-03T15:30:00Z 10-04T15:15:00Z"},
		{"no midnight", "0 0 * * *", "America/Santiago", "2026-09-05T12:00:00Z", "09-06T04:00:00Z 09-07T03:00:00Z"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, at, got := parse(t, test.expression, test.zone), instant(t, test.after), []string{}
			for range strings.Fields(test.want) {
				at = s.Next(at)
				got = append(got, at.UTC().Format("01-02T15:04:05Z07:00"))
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("got  %s\nwant %s", strings.Join(got, " "), test.want)
			}
		})
	}
}

// TestNext_Year: over a year with both changes, a schedule for a time of the day is due once on each day. One for every
// half an hour is due every half an hour.
func TestNext_Year(t *testing.T) {
	for _, zone := range []string{"Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "America/Santiago", "UTC"} {
		for _, expression := range []string{"30 2 * * *", "0 0 * * *"} {
			s, days := parse(t, expression, zone), map[string]int{}
			at, end := instant(t, "2026-01-01T12:00:00Z"), instant(t, "2027-01-01T12:00:00Z")
			for at = s.Next(at); at.Before(end); at = s.Next(at) {
				days[at.Format(time.DateOnly)]++
			}
			for day, n := range days {
				if n != 1 {
					t.Errorf("%s %s: %d times on %s", zone, expression, n, day)
				}
			}
			if len(days) != 365 {
				t.Errorf("%s %s: due on %d days", zone, expression, len(days))
			}
		}
		s, at := parse(t, "*/30 * * * *", zone), instant(t, "2026-03-07T00:00:00Z")
		for at.Before(instant(t, "2026-04-06T00:00:00Z")) {
			next := s.Next(at)
			if next.Sub(at) != 30*time.Minute {
				t.Fatalf("%s: %s follows %s", zone, next, at)
			}
			at = next
		}
	}
}

func TestParse_Refusals(t *testing.T) {
	for _, test := range []struct{ expression, zone, want string }{
		{"", "", "has 0 fields"},
		{"* * * *", "", "has 4 fields"},
		{"* * * * * *", "", "has 6 fields"},
		{"61 * * * *", "", "not a cron expression"},
		{"a b c d e", "", "not a cron expression"},
		{"@never", "", "not a cron expression"},
		{"@everysecond", "", "not a cron expression"},
		{"@every 1s", "", "has 2 fields"},
		{"TZ=UTC * * * *", "", "not a cron expression"},
		{"* * * * 8", "", "not a cron expression"},
		{"* * * * 1-8", "", "not a cron expression"},
		{"* * * * 7-9,1", "", "not a cron expression"},
		{"0 0 L * *", "", "L, W or #"},
		{"0 0 15W * *", "", "L, W or #"},
		{"0 0 * * 5#2", "", "L, W or #"},
		{"0 0 * * 5L", "", "L, W or #"},
		{strings.Repeat("1,", 100) + "1" + strings.Repeat(" *", 28), "", "has 257 characters, and may have 256"},
		{"0 0 30 2 *", "", "never due"},
		{"0 0 * * *", "Mars/Olympus", "not a time zone"},
		{"0 0 * * *", "../etc/passwd", "not a time zone"},
		{"0 0 * * *", "Local", "not a time zone"},
	} {
		if _, err := Parse(test.expression, test.zone); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("Parse(%q, %q): %v, want %q", test.expression, test.zone, err, test.want)
		}
	}
}

// TestNext_LeapYears: February 29 is found when it is eight years away.
func TestNext_LeapYears(t *testing.T) {
	got := parse(t, "0 0 29 2 *", "").Next(instant(t, "2096-03-01T00:00:00Z"))
	if want := instant(t, "2104-02-29T00:00:00Z"); !got.Equal(want) {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestParse_Cost: no expression that is accepted, and none that is refused, takes long. Expressions that search for
// their days took seconds.
func TestParse_Cost(t *testing.T) {
	longest := strings.Repeat("1-59/2,", 1000) // 7 KB
	for _, expression := range []string{
		longest + "1 * * * *", "0 0 " + longest + "1 2 *", strings.Repeat("0 ", 8<<10),
		"0 0 29 2 *", "0 0 30 2 *", "59 23 31 12 7", "0 0 31 2,4,6,9,11 *",
		"0 0 29 2 " + strings.Repeat("1-6,", 60) + "0",
	} {
		n := testing.AllocsPerRun(1, func() { _, _ = Parse(expression, "Europe/Berlin") })
		if n > 3000 {
			t.Errorf("%.40q: %v allocations", expression, n)
		}
		began := time.Now()
		for range 20 {
			_, _ = Parse(expression, "Europe/Berlin")
		}
		if took := time.Since(began) / 20; took > 50*time.Millisecond {
			t.Errorf("%.40q takes %s", expression, took)
		}
	}
}

// TestDue: only the newest of the missed times is fired, and only within the deadline.
func TestDue(t *testing.T) {
	s := parse(t, "0 * * * *", "")
	now := instant(t, "2026-03-01T12:10:00Z")
	for _, test := range []struct{ name, since, want string }{
		{"nothing since", "2026-03-01T12:00:00Z", ""},
		{"one", "2026-03-01T11:30:00Z", "2026-03-01T12:00:00Z"},
		{"several", "2026-03-01T02:30:00Z", "2026-03-01T12:00:00Z"},
		{"months", "2025-01-01T00:00:00Z", "2026-03-01T12:00:00Z"},
	} {
		var want time.Time
		if test.want != "" {
			want = instant(t, test.want)
		}
		if got := s.Due(instant(t, test.since), now, time.Hour); !got.Equal(want) {
			t.Errorf("%s: %s", test.name, got)
		}
	}
	if got := s.Due(instant(t, "2026-03-01T11:30:00Z"), now, 5*time.Minute); !got.IsZero() {
		t.Errorf("later than the deadline: %s", got)
	}
	if got := s.Due(instant(t, "2026-03-01T11:30:00Z"), now, 10*time.Minute); got.IsZero() {
		t.Error("at the deadline it is not due")
	}
}
