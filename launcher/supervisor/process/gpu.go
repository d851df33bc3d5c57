package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// MaxGPUFailure bounds GPUUse.Failure, in bytes.
const MaxGPUFailure = 300

const (
	gpuPatience  = 20 * time.Second // beyond the time of a look, for a driver that has to wake up first
	gpuFarewell  = 2 * time.Second  // for a killed ekg-gpu to end; if the driver holds it, it never does
	maxGPUReport = 1 << 20          // bytes
)

// GPULook asks to measure GPUs. The zero value measures none. Its JSON is part of the child protocol.
type GPULook struct {
	Program string        `json:"program"` // the absolute path of ekg-gpu
	For     time.Duration `json:"for"`     // nanoseconds
}

// GPUUse is the result of a look at GPUs. Its JSON is part of the child protocol.
type GPUUse struct {
	GPUs    float64   `json:"gpus"`              // how many computed for the kernel's session, averaged over the look
	Failure string    `json:"failure,omitempty"` // why GPUs is unknown, or incomplete
	At      time.Time `json:"-"`                 // the end of the look; zero: no look has ended yet
}

// look is a look at GPUs in progress.
type look struct {
	cancel context.CancelFunc
	done   chan struct{}
	hangs  bool // it should have ended; guarded by Process.mu
}

// startLookLocked starts a look at GPUs in the background. Used returns its result.
func (p *Process) startLookLocked(ask GPULook) {
	ctx, cancel := context.WithCancel(context.Background())
	l := &look{cancel: cancel, done: make(chan struct{})}
	p.look = l
	go func() {
		defer close(l.done)
		defer cancel()
		limit := ask.For + gpuPatience
		// A process that waits for a hanging driver cannot be killed. Until it ends, no other look is started.
		held := time.AfterFunc(limit+gpuFarewell, func() {
			p.setGPUUse(l, GPUUse{Failure: "ekg-gpu does not end; the driver may hang"}, false)
		})
		defer held.Stop()
		limited, end := context.WithTimeout(ctx, limit)
		defer end()
		u, err := p.lookAtGPUs(limited, ask)
		if ctx.Err() != nil {
			return // the kernel has ended
		}
		if err != nil {
			u.Failure = api.PlainText(err.Error(), MaxGPUFailure)
		}
		p.setGPUUse(l, u, true)
	}()
}

// setGPUUse notes the result of a look. A look that has not ended by then hangs.
func (p *Process) setGPUUse(l *look, u GPUUse, ended bool) {
	u.At = time.Now()
	p.mu.Lock()
	p.use.GPU, l.hangs = u, !ended
	if ended {
		p.look = nil
	}
	p.mu.Unlock()
	if p.opts.GPUSeen != nil {
		p.opts.GPUSeen(p)
	}
}

// LookHangs reports whether a look should have ended and has not. No other look is started meanwhile.
func (p *Process) LookHangs() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.look != nil && p.look.hangs
}

// endLook ends the look in progress. The kernel has ended, so no other look is started.
func (p *Process) endLook() {
	p.mu.Lock()
	l := p.look
	p.mu.Unlock()
	if l == nil {
		return
	}
	l.cancel()
	select {
	case <-l.done:
	case <-time.After(gpuFarewell):
		p.opts.Logger.Warn("ekg-gpu does not end; the driver may hang", logkey.Kernel, p.opts.KernelID)
	}
}

// lookAtGPUs runs ekg-gpu and returns how much of the use was for the kernel's session.
func (p *Process) lookAtGPUs(ctx context.Context, ask GPULook) (GPUUse, error) {
	said := new(Tail)
	cmd := exec.CommandContext(ctx, ask.Program, "--for", ask.For.String())
	cmd.Stderr, cmd.WaitDelay = said, time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return GPUUse{}, err
	}
	reaper := p.opts.Reaper
	err = reaper.Start(func() (int, error) {
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		return cmd.Process.Pid, nil
	})
	if err != nil {
		return GPUUse{}, fmt.Errorf("ekg-gpu cannot be run: %w", err)
	}
	printed, rerr := io.ReadAll(io.LimitReader(out, maxGPUReport))
	err = cmd.Wait()
	reaper.Forget(cmd.Process.Pid)
	if ctx.Err() != nil {
		return GPUUse{}, fmt.Errorf("ekg-gpu has not answered in %s", ask.For+gpuPatience)
	}
	if st, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && st.Signal() == syscall.SIGKILL {
		p.excuseOOMKill() // ekg-gpu shares the memory of the kernel's container
	}
	if err = errors.Join(err, rerr); err != nil {
		text := strings.TrimPrefix(said.Text(MaxGPUFailure), "ekg-gpu: ")
		return GPUUse{}, fmt.Errorf("ekg-gpu has failed: %s (%w)", text, err)
	}
	report, err := gpu.ParseReport(printed)
	if err != nil {
		return GPUUse{}, err
	}
	if len(report.Devices) == 0 {
		return GPUUse{}, errors.New("ekg-gpu sees no GPU: no GPU, no driver or no driver library (libnvidia-ml.so.1)")
	}
	use, err := report.Use(p.inSession)
	return GPUUse{GPUs: use}, err
}
