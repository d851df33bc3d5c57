// Package schedule says when a job is due. Parse reads a cron expression and a time zone into a Schedule. A Firer fires
// each due job once, although several gateways have a Firer each. Package jobs runs one, and implements its Store,
// which keeps the job definitions. The package starts no goroutine: Firer.Run blocks.
package schedule

import (
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // for machines without time zones; the gateway's image has none

	"github.com/adhocore/gronx"
)

// reach bounds how far ahead Next looks. February 29 is at most eight years away.
const reach = 9 * 366 * 24 * time.Hour

// transition is the longest time by which a change of a clock moves it, and more.
const transition = 25 * time.Hour

// Schedule is a cron expression in a time zone. The zero value is not valid; Parse returns one. It may be used
// concurrently.
type Schedule struct {
	expression string
	zone       *time.Location
	frequent   bool // it has several hours: "*" or "*/N"
}

// Parse returns the Schedule of a cron expression in an IANA time zone; "" is UTC. The expression has five fields
// (minute, hour, day of month, month, day of week), or is a name like @daily. The error is a sentence for users.
func Parse(expression, zone string) (*Schedule, error) {
	fields := strings.Fields(expression)
	named := len(fields) == 1 && strings.HasPrefix(fields[0], "@")
	if !named && len(fields) != 5 {
		return nil, fmt.Errorf("the schedule %.80q has %d fields, and cron needs 5: minute, hour, day of month, month, "+
			"day of week", expression, len(fields))
	}
	expression = strings.Join(fields, " ")
	segments, err := gronx.Segments(expression)
	if err != nil || len(segments) < 6 || !gronx.IsValid(expression) {
		return nil, fmt.Errorf("the schedule %.80q is not a cron expression", expression)
	}
	if segments[0] != "0" || strings.Contains(expression, "@every") {
		return nil, fmt.Errorf("the schedule %.80q is due more often than once a minute", expression)
	}
	at, err := time.LoadLocation(zone)
	if err != nil || strings.EqualFold(zone, "local") {
		return nil, fmt.Errorf("%.80q is not a time zone: use a name like Europe/Berlin", zone)
	}
	s := &Schedule{expression: expression, zone: at, frequent: strings.Contains(segments[2], "*")}
	if s.Next(time.Now()).IsZero() {
		return nil, fmt.Errorf("the schedule %.80q is never due", expression)
	}
	return s, nil
}

// Next returns the first time after the given one at which the schedule is due. It returns the zero time if that is not
// within nine years.
//
// When clocks are set forward, a time that does not exist is replaced by the first one that does. When they are set
// back, a time that occurs twice is due the first time only. Schedules for every hour, or every few hours, go by the
// hours that pass: they are due as often as the clock shows their time.
func (s *Schedule) Next(after time.Time) time.Time {
	last := asUTC(after).Add(reach)
	if s.frequent {
		return s.nextPassing(after, last)
	}
	// A clock that was set back shows times again whose first occurrence may be due later than after.
	for wall := asUTC(after.In(s.zone)).Add(-transition); ; {
		if wall = s.tick(wall); wall.IsZero() || wall.After(last) {
			return time.Time{}
		}
		if at := s.instant(wall); at.After(after) {
			return at
		}
	}
}

// tick returns the first time after wall that the expression matches, or the zero time. Both are what a clock shows.
func (s *Schedule) tick(wall time.Time) time.Time {
	next, err := gronx.NextTickAfter(s.expression, wall, false)
	if err != nil || !next.After(wall) {
		return time.Time{}
	}
	return next
}

// nextPassing is Next for a schedule that goes by the hours that pass. Between two changes of the clock, its times are
// those of a clock that never changes.
func (s *Schedule) nextPassing(after, last time.Time) time.Time {
	from, in := after, after // in is an instant whose offset holds
	for {
		_, offset := in.In(s.zone).Zone()
		ahead := time.Duration(offset) * time.Second
		wall := s.tick(from.UTC().Add(ahead))
		if wall.IsZero() || wall.After(last) {
			return time.Time{}
		}
		at := wall.Add(-ahead).In(s.zone)
		if _, then := at.Zone(); then == offset {
			return at
		}
		in = s.change(in, at)
		from = in.Add(-time.Nanosecond) // the time of the change may match
	}
}

// asUTC returns the time that UTC's clock shows when the given time's clock shows it.
func asUTC(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
}

// instant returns when the zone's clock shows a time first, or when it is set forward beyond it.
func (s *Schedule) instant(wall time.Time) time.Time {
	_, before := wall.Add(-transition).In(s.zone).Zone()
	_, behind := wall.Add(transition).In(s.zone).Zone()
	first := wall.Add(-time.Duration(max(before, behind)) * time.Second)
	second := wall.Add(-time.Duration(min(before, behind)) * time.Second)
	for _, at := range []time.Time{first, second} {
		if asUTC(at.In(s.zone)).Equal(wall) {
			return at.In(s.zone)
		}
	}
	return s.change(first, second).In(s.zone)
}

// change returns when the zone's clock is set between two instants.
func (s *Schedule) change(from, to time.Time) time.Time {
	offset := func(t time.Time) int {
		_, seconds := t.In(s.zone).Zone()
		return seconds
	}
	old := offset(from)
	for to.Sub(from) > time.Second {
		if middle := from.Add(to.Sub(from) / 2); offset(middle) == old {
			from = middle
		} else {
			to = middle
		}
	}
	return to.Truncate(time.Second)
}

// Due returns the newest time after since, and not after now, at which the schedule was due: missed times before it
// are not fired. It returns the zero time if there was none, or if the newest is more than deadline ago.
func (s *Schedule) Due(since, now time.Time, deadline time.Duration) time.Time {
	if oldest := now.Add(-deadline); since.Before(oldest) {
		since = oldest.Add(-time.Nanosecond)
	}
	var newest time.Time
	for at := s.Next(since); !at.IsZero() && !at.After(now); at = s.Next(at) {
		newest = at
	}
	return newest
}
