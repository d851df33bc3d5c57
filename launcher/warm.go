package launcher

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Warm is a number of kernels that are started before anybody asks for them. They have no owner, are in no list, and
// count for no limit until a start takes them.
type Warm struct {
	Start Request // a plain start of the kernelspec
	Count int     // how many kernels wait for an owner
}

// WarmCount says how many warm kernels a kernelspec has.
type WarmCount struct {
	Wanted  int    // by the kernelspec
	Waiting int    // that wait for an owner; some of them may still be starting
	Reason  string // why there are less than wanted; "": they are being started, or there are all
}

// WarmClaim is the key by which starts of kernelspecs with warm kernels are counted.
type WarmClaim struct {
	SpecName string
	Result   string // one of the Claim constants
}

// WhyNoWarm says why a warm kernel with GPUs is not started.
const (
	WaitsForGPU = "kernels wait for GPUs, and get them first"
	NoGPUIsFree = "not enough of a GPU is free"
)

// Results of a start of a kernelspec that has warm kernels.
const (
	ClaimTaken  = "taken"  // it got a warm kernel
	ClaimEmpty  = "empty"  // no warm kernel was left, so it was an ordinary start
	ClaimUnfit  = "unfit"  // it asks for something else than warm kernels have, or more than limits seem to allow
	ClaimFailed = "failed" // a warm kernel could not be given to its owner, and was ended
)

// WarmMode returns how warm kernels of a kernelspec wait: api.WarmProcess or api.WarmContainer. Only Python can change
// its variables and its working directory while it runs. Launchers of Enterprise Gateway read variables themselves.
func WarmMode(spec kernelspecs.Spec) string {
	if strings.EqualFold(spec.Language, "python") && spec.Launcher == nil {
		return api.WarmProcess
	}
	return api.WarmContainer
}

// early are the beginnings of variables that programs and libraries read when they start.
var early = []string{"PYTHON", "IPYTHON", "JUPYTER", "LD_", "LC_", "MALLOC_", "OMP_", "MKL_", "OPENBLAS_", "NUMBA_",
	"CUDA_", "NVIDIA_"}

// earlyNames are further ones.
var earlyNames = []string{"HOME", "PATH", "TZ", "LANG", "TMPDIR", "SHELL", "USER"}

// ChangedVariables returns the variables that a start has besides those of a warm kernel, or with another value. ok is
// false if the warm kernel cannot get them: it has one that the start lacks, or its process runs and has read one.
func ChangedVariables(mode string, warm, start map[string]string) (changed map[string]string, ok bool) {
	changed = map[string]string{}
	for name, value := range start {
		if before, there := warm[name]; !there || before != value {
			changed[name] = value
		}
	}
	for name := range warm {
		if _, there := start[name]; !there {
			return nil, false
		}
	}
	if mode != api.WarmProcess {
		return changed, true
	}
	for name := range changed {
		if slices.Contains(earlyNames, name) ||
			slices.ContainsFunc(early, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			return nil, false
		}
	}
	return changed, true
}

// Pauses after warm kernels that could not be started.
const (
	firstWarmPause   = 5 * time.Second
	longestWarmPause = 10 * time.Minute
)

// WarmAtOnce is how many warm kernels of a kernelspec are being started at the same time.
const WarmAtOnce = 2

// WarmAssignTime bounds the wait until a warm kernel has been given to its owner. After it the start is an ordinary
// one.
const WarmAssignTime = 5 * time.Second

// WarmLedger counts warm kernels and holds back kernelspecs whose warm kernels fail. The zero value is ready. It takes
// no lock: its callers guard it.
type WarmLedger struct {
	counts  map[string]WarmCount
	claims  map[WarmClaim]int64
	gaveWay map[string]int64
	pauses  map[string]warmPause
}

// warmPause holds one kernelspec back.
type warmPause struct {
	content string // the kernelspec's version; another one is tried at once
	reason  string
	pause   time.Duration
	until   time.Time
}

// Claimed counts a start.
func (w *WarmLedger) Claimed(spec, result string) {
	if w.claims == nil {
		w.claims = map[WarmClaim]int64{}
	}
	w.claims[WarmClaim{spec, result}]++
}

// GaveWay counts a warm kernel that was ended for a start that waits.
func (w *WarmLedger) GaveWay(spec string) {
	if w.gaveWay == nil {
		w.gaveWay = map[string]int64{}
	}
	w.gaveWay[spec]++
}

// Failed notes that a warm kernel of a version of a kernelspec could not be started, or has ended. It returns for how
// long no other is started: twice as long as the last time.
func (w *WarmLedger) Failed(spec, content, reason string, now time.Time) time.Duration {
	p := w.pauses[spec]
	if p.content != content {
		p = warmPause{content: content}
	}
	p.pause = min(max(2*p.pause, firstWarmPause), longestWarmPause)
	p.reason, p.until = reason, now.Add(p.pause)
	if w.pauses == nil {
		w.pauses = map[string]warmPause{}
	}
	w.pauses[spec] = p
	return p.pause
}

// Works notes that a warm kernel of a kernelspec waits for its owner.
func (w *WarmLedger) Works(spec string) { delete(w.pauses, spec) }

// May reports whether a warm kernel of a version of a kernelspec may be started now.
func (w *WarmLedger) May(spec, content string, now time.Time) bool {
	p, paused := w.pauses[spec]
	return !paused || p.content != content || !now.Before(p.until)
}

// SetCounts replaces the numbers. It adds the reasons of failures to kernelspecs that lack warm kernels.
func (w *WarmLedger) SetCounts(counts map[string]WarmCount) {
	for spec, c := range counts {
		if p := w.pauses[spec]; p.reason != "" && c.Reason == "" && c.Waiting < c.Wanted {
			c.Reason = p.reason
			counts[spec] = c
		}
	}
	w.counts = counts
}

// Reason returns why a kernelspec has fewer warm kernels than wanted, "" if that is not known.
func (w *WarmLedger) Reason(spec string) string { return w.counts[spec].Reason }

// Measure adds the numbers to the data for metrics.
func (w *WarmLedger) Measure(m *Measures) {
	m.Warm, m.WarmClaims, m.WarmGaveWay = maps.Clone(w.counts), maps.Clone(w.claims), maps.Clone(w.gaveWay)
}
