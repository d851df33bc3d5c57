package settings

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Shape says how many texts an option takes.
type Shape int

// Shapes of options.
const (
	Single Shape = iota // one text
	Many                // any number of texts
	Toggle              // a flag without argument, or with one behind "="; true or false elsewhere
)

// value reads an option into settings and shows it.
type value struct {
	shape Shape
	set   func(s *Settings, texts []string) error // takes as many texts as shape allows
	show  func(s *Settings) []string              // returns the texts in their shortest form
}

// scalar returns a value that reads one text into a T.
func scalar[T any](at func(*Settings) *T, parse func(string) (T, error), format func(T) string) value {
	return value{
		shape: Single,
		set: func(s *Settings, texts []string) error {
			v, err := parse(texts[0])
			if err != nil {
				return err
			}
			*at(s) = v
			return nil
		},
		show: func(s *Settings) []string { return []string{format(*at(s))} },
	}
}

func text(at func(*Settings) *string, checks ...func(string) error) value {
	return scalar(at, func(t string) (string, error) {
		for _, check := range checks {
			if err := check(t); err != nil {
				return "", err
			}
		}
		return t, nil
	}, func(t string) string { return t })
}

func boolean(at func(*Settings) *bool) value {
	v := scalar(at, func(t string) (bool, error) {
		b, err := strconv.ParseBool(t)
		if err != nil {
			return false, fmt.Errorf("%q is not true or false", t)
		}
		return b, nil
	}, strconv.FormatBool)
	v.shape = Toggle
	return v
}

// not is a boolean that is kept as its opposite.
func not(at func(*Settings) *bool) value {
	v := boolean(at)
	set := v.set
	v.set = func(s *Settings, texts []string) error {
		err := set(s, texts)
		*at(s) = !*at(s)
		return err
	}
	v.show = func(s *Settings) []string { return []string{strconv.FormatBool(!*at(s))} }
	return v
}

// remote is the text of --no-auth that also allows an address that other machines reach.
const remote = "remote"

// noAuth is the value of --no-auth: a boolean, or remote.
var noAuth = value{
	shape: Toggle,
	set: func(s *Settings, texts []string) error {
		on, err := strconv.ParseBool(texts[0])
		if texts[0] != remote && err != nil {
			return fmt.Errorf("%q is not true, false or remote", texts[0])
		}
		s.NoAuthRemote = texts[0] == remote
		s.NoAuth = on || s.NoAuthRemote
		return nil
	},
	show: func(s *Settings) []string {
		if s.NoAuthRemote {
			return []string{remote}
		}
		return []string{strconv.FormatBool(s.NoAuth)}
	},
}

func duration(at func(*Settings) *time.Duration, checks ...func(int64) error) value {
	return scalar(at, func(t string) (time.Duration, error) {
		d, err := time.ParseDuration(t)
		switch {
		case err != nil:
			return 0, fmt.Errorf("%q is not a duration like 5s, 1m30s or 500ms", t)
		case d < 0:
			return 0, fmt.Errorf("%q is negative", t)
		}
		for _, check := range checks {
			if err := check(int64(d)); err != nil {
				return 0, err
			}
		}
		return d, nil
	}, time.Duration.String)
}

// limit is a duration that Enterprise Gateway sets in seconds. A plain number means seconds. A negative number means 0,
// which is no limit.
func limit(at func(*Settings) *time.Duration, checks ...func(int64) error) value {
	v := duration(at, checks...)
	set := v.set
	v.set = func(s *Settings, texts []string) error {
		if n, err := strconv.ParseInt(texts[0], 10, 64); err == nil {
			if n > int64(math.MaxInt64/time.Second) {
				return fmt.Errorf("%q is more seconds than can be counted", texts[0])
			}
			return set(s, []string{(time.Duration(max(n, 0)) * time.Second).String()})
		}
		err := set(s, texts)
		if _, perr := time.ParseDuration(texts[0]); perr != nil {
			return fmt.Errorf("%q is neither a duration like 1h, 90m or 1h30m nor a number of seconds", texts[0])
		}
		return err
	}
	return v
}

func number(at func(*Settings) *float64) value {
	return scalar(at, func(t string) (float64, error) {
		n, err := strconv.ParseFloat(t, 64)
		if err != nil || !(n >= 0) || math.IsInf(n, 0) { // also rejects NaN
			return 0, fmt.Errorf("%q is not a number from 0 on", t)
		}
		return n, nil
	}, func(n float64) string { return strconv.FormatFloat(n, 'g', -1, 64) })
}

// levelOf is a log level.
type levelOf = slog.Level

// levels are the names of ekg and of Python, and Python's numbers. Deployments of Enterprise Gateway use Python's.
var levels = map[string]levelOf{
	"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
	"warning": slog.LevelWarn, "critical": slog.LevelError,
	"10": slog.LevelDebug, "20": slog.LevelInfo, "30": slog.LevelWarn, "40": slog.LevelError, "50": slog.LevelError,
}

func level(at func(*Settings) *levelOf) value {
	return scalar(at, func(t string) (levelOf, error) {
		l, ok := levels[strings.ToLower(t)]
		if !ok {
			return 0, fmt.Errorf("%q is not debug, info, warn or error", t)
		}
		return l, nil
	}, func(l levelOf) string { return strings.ToLower(l.String()) })
}

func list(at func(*Settings) *[]string, checks ...func(string) error) value {
	return value{
		shape: Many,
		set: func(s *Settings, texts []string) error {
			for _, t := range texts {
				for _, check := range append([]func(string) error{notEmpty}, checks...) {
					if err := check(t); err != nil {
						return err
					}
				}
			}
			*at(s) = slices.Clone(texts)
			return nil
		},
		show: func(s *Settings) []string { return *at(s) },
	}
}

func size(at func(*Settings) *int64, checks ...func(int64) error) value {
	return scalar(at, func(t string) (int64, error) {
		n, err := parseSize(t)
		for _, check := range checks {
			if err == nil {
				err = check(n)
			}
		}
		return n, err
	}, formatSize)
}

// automatic is the text of a size that ekg chooses.
const automatic = "auto"

// automaticSize is a size that may be automatic, which is 0.
func automaticSize(at func(*Settings) *int64, checks ...func(int64) error) value {
	v := size(at, checks...)
	set, show := v.set, v.show
	v.set = func(s *Settings, texts []string) error {
		if texts[0] == automatic {
			*at(s) = 0
			return nil
		}
		return set(s, texts)
	}
	v.show = func(s *Settings) []string {
		if *at(s) == 0 {
			return []string{automatic}
		}
		return show(s)
	}
	return v
}

// units are the suffixes of a size. Longer ones precede those that they end with.
var units = []struct {
	name  string
	bytes int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1},
}

func parseSize(t string) (int64, error) {
	digits, factor := t, int64(1)
	for _, u := range units {
		if before, ok := strings.CutSuffix(t, u.name); ok {
			digits, factor = strings.TrimSpace(before), u.bytes
			break
		}
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || n > uint64(math.MaxInt64/factor) {
		return 0, fmt.Errorf("%q is not a size like 64MiB, 1GiB or 1048576", t)
	}
	return int64(n) * factor, nil
}

// formatSize returns the shortest exact form with a binary unit.
func formatSize(n int64) string {
	for _, u := range slices.Backward(units[:4]) {
		if n >= u.bytes && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}

// count is a number of things. It may be 0.
func count(at func(*Settings) *int) value {
	return scalar(at, func(t string) (int, error) {
		n, err := strconv.ParseUint(t, 10, 31)
		if err != nil {
			return 0, fmt.Errorf("%q is not a number from 0 on", t)
		}
		return int(n), nil
	}, strconv.Itoa)
}

// most is a count that Enterprise Gateway has, too. A negative number means 0, which is no limit.
func most(at func(*Settings) *int) value {
	v := count(at)
	set := v.set
	v.set = func(s *Settings, texts []string) error {
		if n, err := strconv.ParseInt(texts[0], 10, 32); err == nil && n < 0 {
			texts = []string{"0"}
		}
		return set(s, texts)
	}
	return v
}

func notEmpty(t string) error {
	if t == "" {
		return errors.New("is empty")
	}
	return nil
}

func positive(n int64) error {
	if n <= 0 {
		return errors.New("must be more than 0")
	}
	return nil
}

func oneOf(allowed ...string) func(string) error {
	return func(t string) error {
		if slices.Contains(allowed, t) {
			return nil
		}
		return fmt.Errorf("%q is not %s", t, strings.Join(allowed, " or "))
	}
}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// CheckEnvName returns an error if t cannot be the name of an environment variable.
func CheckEnvName(t string) error {
	if !variableName.MatchString(t) {
		return fmt.Errorf("%q is not the name of an environment variable", t)
	}
	return nil
}

// checkListen accepts host:port and unix:/path.
func checkListen(t string) error {
	if path, ok := strings.CutPrefix(t, "unix:"); ok {
		switch {
		case !filepath.IsAbs(path):
			return fmt.Errorf("%q has no absolute path", t)
		case len(path) > maxSocketPath:
			return fmt.Errorf("%q is longer than the %d bytes that a socket's path may have", path, maxSocketPath)
		}
		return nil
	}
	return checkPort(t, "host:port or unix:/path")
}

// checkMetricsListen accepts host:port, and "" for no listener.
func checkMetricsListen(t string) error {
	if t == "" {
		return nil
	}
	return checkPort(t, "host:port")
}

func checkPort(t, form string) error {
	_, port, err := net.SplitHostPort(t)
	if err != nil {
		return fmt.Errorf("%q is not %s", t, form)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q has no port from 0 to 65535", t)
	}
	return nil
}

// maxSocketPath is the space in Linux's sockaddr_un without the final NUL, in bytes.
const maxSocketPath = 107
