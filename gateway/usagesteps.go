package gateway

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

const (
	leastUsageStep = time.Minute
	usageSteps     = 1000 // most steps of an answer
	usageGroups    = 12   // most groups that have steps of their own
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
	Held  []float64 `json:"held_seconds"`   // as in UsageRow
	Busy  []float64 `json:"busy_seconds"`   // as in UsageRow
}

// usageStep reads the parameter step; 0: there is none. since is before until.
func usageStep(text string, since, until time.Time) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	step, err := time.ParseDuration(text)
	switch {
	case err != nil || step < leastUsageStep:
		return 0, refuse(http.StatusBadRequest, "The parameter step is not a duration like 1h of at least %v.",
			leastUsageStep)
	case (until.Sub(since)-1)/step >= usageSteps:
		return 0, refuse(http.StatusBadRequest, "There are at most %d steps; choose a longer step or a later since.",
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

// stepsOf divides the usage of kernels into steps.
func stepsOf(kernels []launcher.KernelUsage, by string, step time.Duration, since, until time.Time) *UsageSteps {
	number := int((until.Sub(since)-1)/step) + 1
	groups := map[string]*UsageSeries{}
	for i := range kernels {
		name := usageGroup(&kernels[i], by)
		s := groups[name]
		if s == nil {
			s = newUsageSeries(name, number)
			groups[name] = s
		}
		s.addKernel(&kernels[i], step, since, until)
	}
	all := make([]*UsageSeries, 0, len(groups))
	for _, s := range groups {
		all = append(all, s)
	}
	slices.SortFunc(all, compareSeries)
	steps := &UsageSteps{Seconds: step.Seconds(), Groups: []UsageSeries{}}
	for i, s := range all {
		switch {
		case s.sum() == 0:
		case i < usageGroups:
			steps.Groups = append(steps.Groups, s.rounded())
		default:
			if steps.Others == nil {
				steps.Others = newUsageSeries("", number)
			}
			steps.Others.addSeries(s)
		}
	}
	if steps.Others != nil {
		sum := steps.Others.rounded()
		steps.Others = &sum
	}
	return steps
}

// usageGroup returns the group of a kernel.
func usageGroup(u *launcher.KernelUsage, by string) string {
	switch by {
	case UsageByUser:
		return u.Owner
	case UsageBySpec:
		return u.SpecName
	case UsageByFlavor:
		return u.Flavor
	}
	return u.ID
}

// compareSeries orders series by how long their kernels lived, longest first.
func compareSeries(a, b *UsageSeries) int {
	return cmp.Or(cmp.Compare(b.sum(), a.sum()), cmp.Compare(a.Name, b.Name))
}

func newUsageSeries(name string, steps int) *UsageSeries {
	return &UsageSeries{Name: name, Lived: make([]float64, steps), Held: make([]float64, steps),
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
	busy := gpus * min(1, max(0, min(u.GPUUse.Busy, u.GPUUse.Measured)).Seconds()/whole.Seconds())
	first := max(0, int(u.Started.Sub(since)/step))
	for i := first; i < len(s.Lived); i++ {
		from := since.Add(time.Duration(i) * step)
		to := earlier(earlier(from.Add(step), end), until)
		lived := to.Sub(later(from, u.Started)).Seconds()
		if lived <= 0 {
			break // the kernel had ended
		}
		s.Lived[i] += lived
		s.Held[i] += gpus * lived
		s.Busy[i] += busy * lived
	}
}

func (s *UsageSeries) addSeries(other *UsageSeries) {
	for i := range s.Lived {
		s.Lived[i] += other.Lived[i]
		s.Held[i] += other.Held[i]
		s.Busy[i] += other.Busy[i]
	}
}

// sum returns how long the kernels lived.
func (s *UsageSeries) sum() (sum float64) {
	for _, lived := range s.Lived {
		sum += lived
	}
	return sum
}

// rounded returns the series in milliseconds.
func (s *UsageSeries) rounded() UsageSeries {
	for i := range s.Lived {
		s.Lived[i], s.Held[i], s.Busy[i] = seconds(s.Lived[i]), seconds(s.Held[i]), seconds(s.Busy[i])
	}
	return *s
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
