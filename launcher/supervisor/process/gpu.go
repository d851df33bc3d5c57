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

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
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

// gpuRun runs ekg-gpu in the background: for a look, or for samples.
type gpuRun struct {
	cancel context.CancelFunc
	done   chan struct{}
	hangs  bool // it should have ended; guarded by Process.mu
}

func newGPURun(f func(context.Context, *gpuRun)) *gpuRun {
	ctx, cancel := context.WithCancel(context.Background())
	r := &gpuRun{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		defer cancel()
		f(ctx, r)
	}()
	return r
}

// endGPURuns ends what runs ekg-gpu. The kernel has ended, so nothing else is started.
func (p *Process) endGPURuns() {
	p.mu.Lock()
	runs := [...]*gpuRun{p.look, p.sampler}
	p.mu.Unlock()
	for _, r := range runs {
		if r == nil {
			continue
		}
		if r.cancel(); !goroutines.Within(r.done, gpuFarewell) {
			p.opts.Logger.Warn("ekg-gpu does not end; the driver may hang", logkey.Kernel, p.opts.KernelID)
		}
	}
}

// startLookLocked starts a look at GPUs in the background. Used returns its result.
func (p *Process) startLookLocked(ask GPULook) {
	p.look = newGPURun(func(ctx context.Context, l *gpuRun) {
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
	})
}

// setGPUUse notes the result of a look. A look that has not ended by then hangs.
func (p *Process) setGPUUse(l *gpuRun, u GPUUse, ended bool) {
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

// lookAtGPUs runs ekg-gpu and returns how much of the use was for the kernel's session.
func (p *Process) lookAtGPUs(ctx context.Context, ask GPULook) (GPUUse, error) {
	var printed []byte
	err := p.runGPU(ctx, ask.Program, []string{"--for", ask.For.String()}, func(_ io.Writer, out io.Reader) (err error) {
		printed, err = io.ReadAll(io.LimitReader(out, maxGPUReport))
		return err
	})
	if ctx.Err() != nil {
		return GPUUse{}, fmt.Errorf("ekg-gpu has not answered in %s", ask.For+gpuPatience)
	}
	if err != nil {
		return GPUUse{}, err
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

// runGPU runs ekg-gpu until it has ended. An error of talk ends it, which reads what it prints, and may write to its
// standard input. The error is nil if it has ended by itself, with exit code 0.
func (p *Process) runGPU(ctx context.Context, program string, args []string,
	talk func(in io.Writer, out io.Reader) error) error {
	said := new(Tail)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stderr, cmd.WaitDelay = said, time.Second
	in, err := cmd.StdinPipe() // its end ends ekg-gpu watch, however this program ends
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // what was written has an answer, or none
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	err = p.opts.Reaper.Start(func() (int, error) {
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		return cmd.Process.Pid, nil
	})
	if err != nil {
		return fmt.Errorf("ekg-gpu cannot be run: %w", err)
	}
	rerr := talk(in, out)
	if rerr != nil {
		_ = cmd.Process.Kill() // it prints something else; Wait reports its end
	}
	err = cmd.Wait()
	p.opts.Reaper.Forget(cmd.Process.Pid)
	killed := cmd.ProcessState != nil && cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
	if killed && ctx.Err() == nil {
		p.excuseOOMKill() // ekg-gpu shares the memory of the kernel's container
	}
	if rerr != nil || err == nil {
		return rerr
	}
	return fmt.Errorf("ekg-gpu has failed: %s (%w)", strings.TrimPrefix(said.Text(MaxGPUFailure), "ekg-gpu: "), err)
}
