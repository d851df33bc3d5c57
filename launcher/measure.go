package launcher

import "time"

// Measures is what a launcher knows at this moment and what it has counted since it was opened: what metrics are made of.
// Every gateway sees every kernel, so that several gateways of the same kernels count the same.
type Measures struct {
	Kernels []Kernel // as they are known, without asking anybody

	// What supervisors have counted, also those that have gone since. None of it ever decreases.
	Traffic    []Traffic // one for each channel and direction
	LogEvicted int64     // messages that logs have let go because their bound was reached
	LogLost    int64     // of these, messages that a client has missed for that, and was told so

	Culls map[Cull]int64 // kernels that were seen to be culled

	GPUs       map[string]int64   // devices, or parts of one, that kernels' pods hold now, by kernelspec
	GPUSeconds map[string]float64 // for how long they were held, by kernelspec; it never decreases
}

// Cull is what culled kernels are counted by.
type Cull struct {
	SpecName string
	Limit    string // which they had reached: idle, busy or age; "" of a supervisor that does not say
}

// Traffic is what has passed on one of the kernels' channels in one direction.
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

// The phases of a start, in their order. Each begins where the one before ended; a launcher leaves out what it does not have.
const (
	PhaseAdmission = "admission" // from the request until the kernel's pod or supervisor was there
	PhaseScheduled = "scheduled" // until the pod had a node
	PhasePulled    = "pulled"    // until its image was on the node
	PhaseStarted   = "started"   // until the kernel's program ran
	PhaseReady     = "ready"     // until the program had answered
)

// Failure says in a word why a kernel was not started. It labels metrics, so there are few.
type Failure string

// The reasons for which starts fail.
const (
	FailedRefused     Failure = "refused"       // what was asked for is not allowed here
	FailedLimit       Failure = "limit"         // there are as many kernels, or GPUs in use, as there may be here
	FailedQuota       Failure = "quota"         // the cluster admits no more
	FailedInvalid     Failure = "invalid"       // the kernelspec, or the pod made from it, is not valid
	FailedUnscheduled Failure = "unscheduled"   // no node took it in time
	FailedImage       Failure = "image"         // its image could not be had
	FailedContainer   Failure = "container"     // its container or process could not be made
	FailedMemory      Failure = "out_of_memory" // it was killed for its memory before it answered
	FailedExited      Failure = "exited"        // it ended before it answered
	FailedSilent      Failure = "silent"        // it ran and did not answer in time
	FailedTaken       Failure = "taken"         // its node was lost, or it was evicted
	FailedUnavailable Failure = "unavailable"   // the cluster did not answer
	FailedInternal    Failure = "internal"      // a fault of the gateway's
)

// Failures are all of them.
var Failures = []Failure{FailedRefused, FailedLimit, FailedQuota, FailedInvalid, FailedUnscheduled, FailedImage, FailedContainer,
	FailedMemory, FailedExited, FailedSilent, FailedTaken, FailedUnavailable, FailedInternal}

// Observer is told by a launcher what happens once and cannot be seen later. Its methods are called while locks are held: they
// return at once and ask the launcher nothing. They may be called concurrently.
type Observer interface {
	// KernelUp tells that a kernel which this launcher has started has answered for the first time.
	KernelUp(spec string, phases []Phase)
	// KernelFailed tells that a kernel which this launcher's Start has returned will not come up. What Start itself refuses
	// it tells by its error.
	KernelFailed(spec string, why Failure)
	// ClusterAsked tells of a request to the cluster's API server that was answered; code is 0 if it was not.
	ClusterAsked(verb, resource string, code int, took time.Duration)
}

// Unobserved is an Observer that nobody looks at.
var Unobserved Observer = unobserved{}

type unobserved struct{}

func (unobserved) KernelUp(string, []Phase)                        {}
func (unobserved) KernelFailed(string, Failure)                    {}
func (unobserved) ClusterAsked(string, string, int, time.Duration) {}
