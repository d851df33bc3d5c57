// Package schedule says when a job is due. Parse reads a cron expression and a time zone into a Schedule. A Firer fires
// each due job once, although several gateways have a Firer each. Package jobs runs one, and implements its Store,
// which keeps the job definitions. The package starts no goroutine: Firer.Run blocks.
package schedule

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // for machines without time zones; the gateway's image has none

	"github.com/robfig/cron/v3"
)

// reach bounds how far ahead Next looks. February 29 is at most eight years away.
const reach = 9 * 366 * 24 * time.Hour

// transition is the longest time by which a change of a clock moves it, and more.
const transition = 25 * time.Hour

// maxExpression bounds an expression, in bytes.
const maxExpression = 256

// Schedule is a cron expression in a time zone. The zero value is not valid; Parse returns one. It may be used
// concurrently.
type Schedule struct {
	times    cron.SpecSchedule // of a clock that is never set
	zone     *time.Location
	frequent bool // it has several hours: "*" or "*/N"
}

// named are the expressions that have names.
var named = map[string]string{
	"@yearly":    "0 0 1 1 *",
	"@annually":  "0 0 1 1 *",
	"@monthly":   "0 0 1 * *",
	"@weekly":    "0 0 * * 0",
	"@daily":     "0 0 * * *",
	"@midnight":  "0 0 * * *",
	"@hourly":    "0 * * * *",
	"@always":    "* * * * *",
	"@5minutes":  "*/5 * * * *",
	"@10minutes": "*/10 * * * *",
	"@15minutes": "*/15 * * * *",
	"@30minutes": "*/30 * * * *",
}

// Fields of an expression, in order.
const (
	hour       = 1
	dayOfMonth = 2
	dayOfWeek  = 4
	fieldCount = 5
)

// star marks a field of a cron.SpecSchedule that begins with a star: the day must match the other field of days, too.
const star = 1 << 63

var parser = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

// Parse returns the Schedule of a cron expression in an IANA time zone; "" is UTC. The expression has five fields
// (minute, hour, day of month, month, day of week), or is a name like @daily. The error is a sentence for users.
func Parse(expression, zone string) (*Schedule, error) {
	if len(expression) > maxExpression {
		return nil, fmt.Errorf("the schedule %.80q... has %d characters, and may have %d", expression, len(expression),
			maxExpression)
	}
	fields := strings.Fields(expression)
	if len(fields) == 1 && strings.HasPrefix(fields[0], "@") {
		meant, ok := named[strings.ToLower(fields[0])]
		if !ok {
			return nil, fmt.Errorf("the schedule %.80q is not a cron expression", expression)
		}
		fields = strings.Fields(meant)
	}
	if len(fields) != fieldCount {
		return nil, fmt.Errorf("the schedule %.80q has %d fields, and cron needs 5: minute, hour, day of month, month, "+
			"day of week", expression, len(fields))
	}
	times, err := parseFields(fields)
	switch {
	case err == nil:
	case strings.ContainsAny(fields[dayOfMonth], "LWlw#"), strings.ContainsAny(fields[dayOfWeek], "Ll#"):
		return nil, fmt.Errorf("the schedule %.80q has L, W or #, which are not cron's: name the days by numbers",
			expression)
	default:
		return nil, fmt.Errorf("the schedule %.80q is not a cron expression", expression)
	}
	at, err := time.LoadLocation(zone)
	if err != nil || strings.EqualFold(zone, "local") {
		return nil, fmt.Errorf("%.80q is not a time zone: use a name like Europe/Berlin", zone)
	}
	s := &Schedule{times: times, zone: at, frequent: strings.Contains(fields[hour], "*")}
	if s.Next(time.Now()).IsZero() {
		return nil, fmt.Errorf("the schedule %.80q is never due", expression)
	}
	return s, nil
}

// parseFields compiles an expression of five fields into bit sets.
func parseFields(fields []string) (times cron.SpecSchedule, err error) {
	if strings.Contains(fields[0], "=") { // the parser would read a time zone
		return times, errors.New("it names a time zone")
	}
	compile := func(fields ...string) (cron.SpecSchedule, error) {
		s, err := parser.Parse(strings.Join(fields, " "))
		if spec, ok := s.(*cron.SpecSchedule); ok && err == nil {
			return *spec, nil
		}
		return cron.SpecSchedule{}, cmp.Or(err, errors.New("it is no expression of five fields"))
	}
	days := fields[dayOfWeek]
	if times, err = compile(fields...); err != nil && strings.Contains(days, "7") {
		// Sunday is 0 and 7, and the parser knows 0 only. Hours may be 7.
		times, err = compile(fields[0], fields[1], fields[2], fields[3], "*")
		times.Dow = 0
		for part := range strings.SplitSeq(days, ",") {
			of, derr := compile("0", "0", "1", "1", part)
			if derr != nil {
				of, derr = compile("0", part, "1", "1", "0")
				if of.Dow = of.Hour&0x7f | of.Hour>>7; of.Hour>>8 != 0 {
					derr = errors.New("it has a day of the week that does not exist")
				}
			}
			if derr != nil {
				return times, derr
			}
			times.Dow |= of.Dow
		}
	}
	// A star with a step is a star, too.
	for field, set := range map[int]*uint64{dayOfMonth: &times.Dom, dayOfWeek: &times.Dow} {
		if strings.ContainsAny(fields[field][:1], "*?") {
			*set |= star
		}
	}
	times.Location = time.UTC
	return times, err
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
// The library looks five years ahead, and February 29 may be eight years away.
func (s *Schedule) tick(wall time.Time) time.Time {
	for end := wall.Add(reach); wall.Before(end); wall = wall.AddDate(4, 0, 0) {
		if next := s.times.Next(wall); !next.IsZero() {
			return next
		}
	}
	return time.Time{}
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
