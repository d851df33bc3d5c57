package launcher

import (
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Measures is the data for metrics: what a launcher knows at this moment, and what it has counted since it was opened.
// Every gateway sees every kernel, so several gateways of the same kernels report the same counts.
type Measures struct {
	Kernels []Kernel // the last known

	// Counts of all supervisors, including those that have ended since. They never decrease.
	Traffic    []Traffic // one for each channel and direction
	LogEvicted int64     // messages that left a log because its bound was reached
	LogLost    int64     // of these, messages that a client has missed; the client was notified
	Failed     int64     // supervisors that ended unexpectedly, and whose kernels others have adopted
	Wakes      api.Wakes // of kernels that had given their GPUs back

	Culls map[CullLabels]int64 // culled kernels

	Warm       map[string]WarmCount // by kernelspec; only the gateway that keeps the warm kernels knows it
	WarmClaims map[WarmClaim]int64  // starts by this gateway; never decreases

	// WarmGaveWay counts the warm kernels that this gateway has ended for starts that waited, by kernelspec. It never
	// decreases.
	WarmGaveWay map[string]int64

	// Keys counts the kernels that live by the master key of their keys: KeyCurrent, KeySecond and KeyUnknown. It is nil
	// where there is no master key.
	Keys map[string]int64

	GPUs       map[GPULabels]float64 // GPUs that kernels' pods hold now
	GPUSeconds map[GPULabels]float64 // seconds for which they were held; never decreases
	GPUBusy    map[GPULabels]float64 // as GPUSeconds: those in which they computed, as far as measured
}

// GPULabels is the key by which GPUs are counted.
type GPULabels struct {
	SpecName string
	Flavor   string // "" for none
}

// Keys of Measures.Keys.
const (
	KeyCurrent = "current" // of new kernels
	KeySecond  = "second"  // that is accepted, too
	KeyUnknown = "unknown" // neither of both, or the pod does not say it
)

// CullLabels is the key by which culled kernels are counted.
type CullLabels struct {
	SpecName string
	Limit    string // name of the limit: idle, busy or age; "" if the supervisor did not say
}

// Traffic counts the messages of one channel in one direction, over all kernels.
type Traffic struct {
	Channel  string // shell, control, stdin or iopub
	ToKernel bool
	Messages int64
	Bytes    int64 // of headers, contents and buffers
}

// Phase is a part of a kernel's start.
type Phase struct {
	Name string // one of the Phase constants
	Took time.Duration
}

// The phases of a start, in their order. Each begins at the end of the one before. A launcher leaves out phases that it
// does not have.
const (
	PhaseAdmission = "admission" // from the request until the kernel's pod or supervisor was created
	PhaseScheduled = "scheduled" // until the pod was scheduled
	PhasePulled    = "pulled"    // until its image was on the node
	PhaseStarted   = "started"   // until the kernel's program ran
	PhaseReady     = "ready"     // until the program had answered
)

// Failure says in a word why a kernel was not started. It labels metrics, so there are only a few.
type Failure string

// The classes of failures.
const (
	FailedRefused     Failure = "refused"       // the request is not allowed here
	FailedLimit       Failure = "limit"         // a limit on kernels or GPUs was reached
	FailedQuota       Failure = "quota"         // the cluster admits no more
	FailedInvalid     Failure = "invalid"       // the kernelspec, or the pod made from it, is not valid
	FailedUnscheduled Failure = "unscheduled"   // no node was found in time
	FailedImage       Failure = "image"         // its image could not be pulled
	FailedContainer   Failure = "container"     // its container or process could not be created
	FailedMemory      Failure = "out_of_memory" // it was killed for using too much memory before it answered
	FailedExited      Failure = "exited"        // it ended before it answered
	FailedSilent      Failure = "silent"        // it ran and did not answer in time
	FailedEvicted     Failure = "taken"         // its node was lost, or it was evicted
	FailedUnavailable Failure = "unavailable"   // the cluster did not answer
	FailedInternal    Failure = "internal"      // a fault of the gateway
)

// Failures are all classes.
var Failures = []Failure{
	FailedRefused,
	FailedLimit,
	FailedQuota,
	FailedInvalid,
	FailedUnscheduled,
	FailedImage,
	FailedContainer,
	FailedMemory,
	FailedExited,
	FailedSilent,
	FailedEvicted,
	FailedUnavailable,
	FailedInternal,
}

// Observer is called about events that leave no trace in the launcher's state. Its methods are called while locks are
// held: they return at once and call no method of the launcher. They may be called concurrently.
type Observer interface {
	// KernelUp reports that a kernel which this launcher started has answered for the first time.
	KernelUp(spec string, phases []Phase)
	// KernelFailed reports that a kernel which this launcher's Start has returned will not come up. Failures within Start
	// are errors of Start instead.
	KernelFailed(spec string, why Failure)
	// GPUWaited reports how long a kernel which this launcher started has waited for its GPUs. The flavor is "" for none.
	GPUWaited(flavor string, took time.Duration)
	// ClusterRequest reports a request to the cluster's API server; code is 0 if there was no answer.
	ClusterRequest(verb, resource string, code int, took time.Duration)
	// ClusterWait reports how long a request to the cluster's API server has waited for its turn, because of the gateway's
	// own limit. client is "requests" or "leases".
	ClusterWait(client string, took time.Duration)
}

// NoObserver is an Observer that ignores every event.
var NoObserver Observer = noObserver{}

type noObserver struct{}

func (noObserver) KernelUp(string, []Phase)                          {}
func (noObserver) KernelFailed(string, Failure)                      {}
func (noObserver) GPUWaited(string, time.Duration)                   {}
func (noObserver) ClusterRequest(string, string, int, time.Duration) {}
func (noObserver) ClusterWait(string, time.Duration)                 {}
