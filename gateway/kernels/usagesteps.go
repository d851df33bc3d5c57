package kernels

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/gpus"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

const (
	leastUsageStep = time.Minute
	usageSteps     = 1000 // most steps of an answer
	usageGroups    = 12   // most groups that have steps of their own

	// mostUsageTime is the longest time that is divided into steps. A time.Duration ends after 292 years.
	mostUsageTime = 100 * 365 * 24 * time.Hour
)

// UsageSteps is the usage of each of equally long times. The first one begins at Usage.Since, the last one may end
// after Usage.Until.
type UsageSteps struct {
	Seconds float64       `json:"seconds"`          // length of a step
	Groups  []UsageSeries `json:"groups"`           // those that lived longest, at most 12
	Others  *UsageSeries  `json:"others,omitempty"` // the sum of all other groups, if there are any
}

// UsageSeries is the usage of one group, with one number for each step.
type UsageSeries struct {
	Name  string    `json:"name"`           // of the group
	Lived []float64 `json:"kernel_seconds"` // of its kernels, also those without GPUs
	Held  []float64 `json:"held_seconds"`   // as in gpus.UsageRow
	Busy  []float64 `json:"busy_seconds"`   // as in gpus.UsageRow
}

// usageStep reads the parameter step; 0: there is none. since is before until.
func usageStep(text string, since, until time.Time) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	step, err := time.ParseDuration(text)
	switch {
	case err != nil || step < leastUsageStep:
		return 0, refuse(Invalid, "The parameter step is not a duration like 1h of at least %v.",
			leastUsageStep)
	case until.Sub(since) > mostUsageTime:
		return 0, refuse(Invalid, "A parameter since of more than 100 years ago cannot be divided into steps.")
	case (until.Sub(since)-1)/step >= usageSteps:
		return 0, refuse(Invalid, "There are at most %d steps; choose a longer step or a later since.",
			usageSteps)
	}
	return step, nil
}

// usageEnd returns when a kernel ended; a kernel that lives ends at until.
func usageEnd(u *launcher.KernelUsage, until time.Time) time.Time {
	if u.End.IsZero() {
		return until
	}
	return u.Started.Add(time.Duration(u.Seconds) * time.Second)
}

// stepsOf divides the usage of kernels into steps. Series are made only for the groups that lived longest and for the
// sum of all others, however many groups there are.
func stepsOf(kernels []launcher.KernelUsage, by string, step time.Duration, since, until time.Time) *UsageSteps {
	lived := map[string]time.Duration{} // between since and until, of each group
	for i := range kernels {
		if d := livedBetween(&kernels[i], since, until); d > 0 {
			lived[usageGroup(&kernels[i], by)] += d
		}
	}
	names := slices.SortedFunc(maps.Keys(lived), func(a, b string) int {
		return cmp.Or(cmp.Compare(lived[b], lived[a]), cmp.Compare(a, b))
	})
	number := int((until.Sub(since)-1)/step) + 1
	steps := &UsageSteps{Seconds: step.Seconds(), Groups: make([]UsageSeries, min(len(names), usageGroups))}
	series := make(map[string]*UsageSeries, len(names))
	for i, name := range names {
		switch {
		case i < usageGroups:
			steps.Groups[i] = newUsageSeries(name, number)
			series[name] = &steps.Groups[i]
			continue
		case steps.Others == nil:
			others := newUsageSeries("", number)
			steps.Others = &others
		}
		series[name] = steps.Others
	}
	for i := range kernels {
		if s := series[usageGroup(&kernels[i], by)]; s != nil {
			s.addKernel(&kernels[i], step, since, until)
		}
	}
	for i := range steps.Groups {
		steps.Groups[i].round()
	}
	if steps.Others != nil {
		steps.Others.round()
	}
	return steps
}

// livedBetween returns how long a kernel lived between two times. It is not positive if it did not.
func livedBetween(u *launcher.KernelUsage, since, until time.Time) time.Duration {
	return earlier(usageEnd(u, until), until).Sub(later(u.Started, since))
}

// usageGroup returns the group of a kernel.
func usageGroup(u *launcher.KernelUsage, by string) string {
	switch by {
	case gpus.UsageByUser:
		return u.Owner
	case gpus.UsageBySpec:
		return u.SpecName
	case gpus.UsageByFlavor:
		return u.Flavor
	}
	return u.ID
}

func newUsageSeries(name string, steps int) UsageSeries {
	return UsageSeries{Name: name, Lived: make([]float64, steps), Held: make([]float64, steps),
		Busy: make([]float64, steps)}
}

// addKernel adds a kernel's usage to the steps in which it lived. When its GPUs computed is not known, so that use is
// divided evenly over its life.
func (s *UsageSeries) addKernel(u *launcher.KernelUsage, step time.Duration, since, until time.Time) {
	if u.Started.IsZero() {
		return
	}
	end := usageEnd(u, until)
	whole := end.Sub(u.Started)
	if whole <= 0 {
		return
	}
	gpus := u.GPUs.Float()
	had := 1 - min(1, max(0, u.GPUUse.Parked.Seconds()/whole.Seconds()))
	busy := gpus * min(had, max(0, min(u.GPUUse.Busy, u.GPUUse.Measured)).Seconds()/whole.Seconds())
	first := max(0, int(u.Started.Sub(since)/step))
	for i := first; i < len(s.Lived); i++ {
		from := since.Add(time.Duration(i) * step)
		to := earlier(earlier(from.Add(step), end), until)
		lived := to.Sub(later(from, u.Started)).Seconds()
		if lived <= 0 {
			break // the kernel had ended
		}
		s.Lived[i] += lived
		s.Held[i] += gpus * had * lived
		s.Busy[i] += busy * lived
	}
}

// round rounds the series to milliseconds.
func (s *UsageSeries) round() {
	for i := range s.Lived {
		s.Lived[i], s.Held[i], s.Busy[i] = gpus.Seconds(s.Lived[i]), gpus.Seconds(s.Held[i]), gpus.Seconds(s.Busy[i])
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
