package launcher

import (
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

// WarmAssignTime bounds the wait until a warm kernel has been given to its owner. After it the start is an ordinary
// one.
const WarmAssignTime = 5 * time.Second
