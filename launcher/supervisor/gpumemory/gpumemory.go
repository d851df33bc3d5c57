// Package gpumemory has NVIDIA's driver save and restore the GPU memory of a kernel's process, through ekg-gpu beside
// the kernel. It says which messages need that memory. Package parker decides when a kernel is parked. The package
// starts no goroutine. Begin with Driver.Ask.
package gpumemory

import (
	"context"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
)

const (
	askLimit    = 10 * time.Second // for ekg-gpu to answer, and for each GiB askLimitGiB
	askLimitGiB = 2 * time.Second

	// Pause is the time between two attempts to restore, or to learn the state.
	Pause = 200 * time.Millisecond
)

// Process is the kernel's process, as package starter has it.
type Process interface {
	AskGPU(command process.GPUCommand)
}

// Driver asks ekg-gpu about one kernel. Answered may be called concurrently; one goroutine uses the other methods.
type Driver struct {
	answers chan gpu.Answer
}

// New returns a Driver.
func New() *Driver { return &Driver{make(chan gpu.Answer, 4)} }

// Answered hands an answer of ekg-gpu to the goroutine that awaits it. It does not wait. Only the answer to the last
// question matters.
func (d *Driver) Answered(a gpu.Answer) {
	for {
		select {
		case d.answers <- a:
			return
		default:
		}
		select {
		case <-d.answers: // nobody awaits it
		default:
		}
	}
}

// limitOf returns how long ekg-gpu may take for an answer, by the bytes of the GPU's memory.
func limitOf(memory int64) time.Duration {
	return askLimit + time.Duration(float64(memory)/(1<<30)*float64(askLimitGiB))
}

// Ask asks ekg-gpu about a process with so many bytes of the GPU's memory. The answer has the state gpu.CUDAUnanswered
// if there is none in time, or ctx has ended.
func (d *Driver) Ask(ctx context.Context, p Process, do gpu.Action, memory int64) gpu.Answer {
	id, limit := jupyter.NewID(), limitOf(memory)
	p.AskGPU(process.GPUCommand{ID: id, Do: do, Limit: limit, Memory: memory})
	t := time.NewTimer(limit + askLimit/2) // its child may be away, or older
	defer t.Stop()
	why := ""
	for why == "" {
		select {
		case a := <-d.answers:
			if a.ID == id {
				return a
			}
		case <-t.C:
			why = "the program that runs the kernel does not answer"
		case <-ctx.Done():
			why = "the kernel has ended"
		}
	}
	return gpu.Answer{State: gpu.CUDAUnanswered, Failure: &gpu.CUDAError{Text: why}}
}

// Settle is Ask. If ekg-gpu ends before it has answered, it asks for the state again, for twice the limit of an answer.
// gpu.CUDAUnknown means that nothing was done, unless ekg-gpu has ended before: then it is not known what was done.
func (d *Driver) Settle(ctx context.Context, p Process, do gpu.Action, memory int64) gpu.Answer {
	a := d.Ask(ctx, p, do, memory)
	if a.State == gpu.CUDAUnknown {
		return a
	}
	for deadline := time.Now().Add(2 * limitOf(memory)); a.State == gpu.CUDAUnanswered || a.State == gpu.CUDAUnknown; {
		if goroutines.Sleep(ctx, Pause) != nil || !time.Now().Before(deadline) {
			return a
		}
		a = d.Ask(ctx, p, gpu.Look, memory)
	}
	return a
}

// Needs reports whether a kernel needs its GPU memory for a message. The others do not run the user's code.
func Needs(m *jupyter.Message, msgType string) bool {
	if msgType == "debug_request" {
		switch jupyter.StringField(m.Content, "command") {
		case "evaluate", "variables", "inspectVariables", "richInspectVariables", "copyToGlobals":
			return true
		}
	}
	return NeedsType(msgType)
}

// NeedsType is Needs without the content of a message: a debug_request counts as one that needs nothing.
func NeedsType(msgType string) bool {
	switch msgType {
	case "execute_request", "comm_open", "comm_msg", "comm_close":
		return true
	}
	return Looks(msgType)
}

// Looks reports whether a message asks for what an editor shows while a user types. It does not wait for a GPU.
func Looks(msgType string) bool { return msgType == "complete_request" || msgType == "inspect_request" }
