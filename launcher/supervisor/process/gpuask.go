package process

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/cgroup"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
)

// GPUCommand asks ekg-gpu to move the GPU memory of the kernel's process. Its JSON is part of the child protocol.
type GPUCommand struct {
	ID    string        `json:"id"` // comes back in the answer
	Do    gpu.Action    `json:"do"`
	Limit time.Duration `json:"limit"` // nanoseconds; without an answer by then, ekg-gpu is killed

	// Memory is how much of the GPU's memory the process has, in bytes. It is not saved if the machine's memory, or that
	// of the container, has no room for it. 0: that is not checked.
	Memory int64 `json:"memory,omitempty"`
}

// savedContext is what the process grows by when it is saved, beside its GPU memory: see docs/gpu-measured.md.
const savedContext = 600 << 20

// NoRoom says why so many bytes of the GPU's memory of a process cannot be kept in the machine's memory. "" means that
// they can.
func NoRoom(pid int, memory int64) string {
	needs := memory + memory/10 + savedContext
	room, err := cgroup.Headroom(pid)
	switch {
	case err != nil:
		return "the free memory is not known: " + err.Error()
	case room < needs:
		return fmt.Sprintf("its GPU memory needs %d MiB of the machine's memory, and %d MiB are free", needs>>20, room>>20)
	}
	return ""
}

// NoGPUProgram is the text of a failure that says that nothing was asked. ekg-gpu is started again then.
const NoGPUProgram = "the program ekg-gpu does not run"

const gpuProgramEnded = "the program ekg-gpu has ended before it has answered"

// gpuCommands are the commands to ekg-gpu watch that have no answer yet.
type gpuCommands struct {
	wanted chan struct{} // capacity 1: a command came while ekg-gpu did not run

	mu   sync.Mutex
	in   io.Writer          // of ekg-gpu; nil: it does not run
	stop context.CancelFunc // kills it
	open map[string]*time.Timer
}

// AskGPU hands a command to ekg-gpu, which WatchGPUs has started. Options.GPUAnswer gets one answer, with the state
// gpu.CUDAUnanswered if ekg-gpu ends before, and gpu.CUDAUnknown if it was not asked.
func (p *Process) AskGPU(c GPUCommand) {
	if c.Do == gpu.Save && c.Memory > 0 {
		if why := NoRoom(p.leader, c.Memory); why != "" {
			p.answered(gpu.Answer{ID: c.ID, State: gpu.CUDAUnknown, Failure: &gpu.CUDAError{Text: why, NoRoom: true}})
			return
		}
	}
	if !p.asked.ask(c, p.leader) {
		goroutines.Wake(p.asked.wanted)
		p.answered(gpu.Answer{ID: c.ID, State: gpu.CUDAUnknown, Failure: &gpu.CUDAError{Text: NoGPUProgram}})
	}
}

func (p *Process) answered(a gpu.Answer) {
	if p.opts.GPUAnswer != nil {
		p.opts.GPUAnswer(p, a)
	}
}

// ask writes a command. It returns false if ekg-gpu does not run.
func (q *gpuCommands) ask(c GPUCommand, session int) bool {
	line, err := json.Marshal(gpu.Command{ID: c.ID, Do: c.Do, Session: session})
	q.mu.Lock()
	defer q.mu.Unlock()
	if err != nil || q.in == nil {
		return false
	}
	if q.open[c.ID] != nil {
		return true // it was asked twice
	}
	stop := q.stop
	q.open[c.ID] = time.AfterFunc(c.Limit, stop)
	if _, err := q.in.Write(append(line, '\n')); err != nil {
		stop() // end answers
	}
	return true
}

// begin notes that ekg-gpu runs. in does not block for long: ekg-gpu reads at once.
func (q *gpuCommands) begin(in io.Writer, stop context.CancelFunc) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.in, q.stop, q.open = in, stop, map[string]*time.Timer{}
}

// settle passes an answer on.
func (q *gpuCommands) settle(a *gpu.Answer, to func(gpu.Answer)) {
	q.mu.Lock()
	limit := q.open[a.ID]
	delete(q.open, a.ID)
	q.mu.Unlock()
	if limit != nil {
		limit.Stop()
		to(*a)
	}
}

// end notes that ekg-gpu prints no more. Its commands that have no answer get one.
func (q *gpuCommands) end(to func(gpu.Answer)) {
	q.mu.Lock()
	open := q.open
	q.in, q.open = nil, nil
	q.mu.Unlock()
	for id, limit := range open {
		limit.Stop()
		to(gpu.Answer{ID: id, State: gpu.CUDAUnanswered, Failure: &gpu.CUDAError{Text: gpuProgramEnded}})
	}
}
