package process

import (
	"os"
	"sync"

	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gpucalls"
)

// holdGPUCalls makes the first calls of CUDA wait in the program that this thread starts next, if Options say so and
// the program needs no privileges.
func (p *Process) holdGPUCalls(program string) {
	if p.opts.GPUCalled == nil {
		return
	}
	if st, err := os.Stat(program); err == nil && st.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
		p.passes = "its program gains privileges, so its calls of CUDA cannot be held"
		return
	}
	calls, err := gpucalls.Hold()
	if err != nil {
		p.passes = err.Error()
		return
	}
	p.calls = calls
}

// serveGPUCalls starts the goroutine that serves the calls of CUDA that wait. end waits for it.
func (p *Process) serveGPUCalls() (end func()) {
	if p.calls == nil {
		return func() {}
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := p.calls.Serve(func() { p.opts.GPUCalled(p) }); err != nil {
			p.opts.Logger.Error("calls of CUDA wait without end", logkey.Kernel, p.opts.KernelID, logkey.Err, err)
		}
	})
	return func() {
		p.calls.End()
		serving.Wait()
		p.calls.Close()
	}
}

// HoldsGPUCalls reports whether the first calls of CUDA wait for PassGPUCalls. Otherwise why says why they do not, if
// they were meant to.
func (p *Process) HoldsGPUCalls() (holds bool, why string) { return p.calls != nil, p.passes }

// PassGPUCalls lets the calls of CUDA go on that wait now.
func (p *Process) PassGPUCalls() {
	if p.calls != nil {
		p.calls.Pass()
	}
}
