package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
)

const (
	gpuLookTime   = 10 * time.Second // the longest that GPUs are looked at, of each interval of Config.Cull
	gpuPatience   = 20 * time.Second // beyond that time, for a driver that has to wake up first
	gpuFarewell   = 2 * time.Second  // for ekg-gpu to be gone when it was killed; one that the driver holds never is
	maxGPUReport  = 1 << 20          // bytes
	maxGPUFailure = 300              // bytes
)

// gpuLook asks to look at GPUs. The zero value: not at all.
type gpuLook struct {
	Program string        `json:"program"` // the absolute path of ekg-gpu
	For     time.Duration `json:"for"`     // nanoseconds
}

// gpuUse is what was seen of the GPUs of a kernel's session.
type gpuUse struct {
	GPUs    float64   `json:"gpus"`              // that computed for it, on average over the time of the look
	Failure string    `json:"failure,omitempty"` // why that is not known, or not of all GPUs
	at      time.Time // zero: nothing was seen yet
}

// processUse is what the processes of a kernel's session have used by a moment.
type processUse struct {
	processor processorTime
	gpu       gpuUse
}

// gpuLooking is a look in progress.
type gpuLooking struct {
	cancel context.CancelFunc
	done   chan struct{}
	hangs  bool // it should have ended; guarded by process.mu
}

// startLook looks at GPUs in the background, and notes what was seen. p.mu is held.
func (p *process) startLook(look gpuLook) {
	ctx, cancel := context.WithCancel(context.Background())
	l := &gpuLooking{cancel: cancel, done: make(chan struct{})}
	p.look = l
	note := func(u gpuUse, over bool) {
		u.at = time.Now()
		p.mu.Lock()
		p.use.gpu, l.hangs = u, !over
		if over {
			p.look = nil
		}
		p.mu.Unlock()
		p.seen()
	}
	go func() {
		defer close(l.done)
		defer cancel()
		limit := look.For + gpuPatience
		// Who waits for a driver that hangs waits for ever, and cannot be killed. No other look is begun meanwhile.
		held := time.AfterFunc(limit+gpuFarewell, func() { note(gpuUse{Failure: "ekg-gpu does not end; the driver may hang"}, false) })
		defer held.Stop()
		limited, end := context.WithTimeout(ctx, limit)
		defer end()
		u, err := p.lookAtGPUs(limited, look)
		if ctx.Err() != nil {
			return // the kernel has ended, and nobody asks any more
		}
		if err != nil {
			u.Failure = plainText(err.Error(), maxGPUFailure)
		}
		note(u, true)
	}()
}

// lookHangs reports whether a look should have ended and has not, so that no other is begun.
func (p *process) lookHangs() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.look != nil && p.look.hangs
}

// endLook ends the look in progress, if any. No other begins, since the kernel has ended.
func (p *process) endLook() {
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
		p.log.Warn("ekg-gpu does not end; the driver may hang", "kernel", p.kernelID)
	}
}

// lookAtGPUs has ekg-gpu look, and says how much of what that has seen was for the kernel's session.
func (p *process) lookAtGPUs(ctx context.Context, look gpuLook) (gpuUse, error) {
	said := new(tail)
	cmd := exec.CommandContext(ctx, look.Program, "--for", look.For.String())
	cmd.Stderr, cmd.WaitDelay = said, time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return gpuUse{}, err
	}
	p.orphans.hold(func() {
		if err = cmd.Start(); err == nil {
			p.orphans.spare(cmd.Process.Pid)
		}
	})
	if err != nil {
		return gpuUse{}, fmt.Errorf("ekg-gpu cannot be run: %w", err)
	}
	printed, rerr := io.ReadAll(io.LimitReader(out, maxGPUReport))
	err = cmd.Wait()
	p.orphans.forget(cmd.Process.Pid)
	if ctx.Err() != nil {
		return gpuUse{}, fmt.Errorf("ekg-gpu has not answered in %s", look.For+gpuPatience)
	}
	if st, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && st.Signal() == syscall.SIGKILL {
		p.forgiveOOM() // it shares the memory of the kernel's container
	}
	if err = errors.Join(err, rerr); err != nil {
		return gpuUse{}, fmt.Errorf("ekg-gpu has failed: %s (%w)", strings.TrimPrefix(said.text(maxGPUFailure), "ekg-gpu: "), err)
	}
	report, err := gpu.ParseReport(printed)
	if err != nil {
		return gpuUse{}, err
	}
	if len(report.Devices) == 0 {
		return gpuUse{}, errors.New("ekg-gpu sees no GPU: there is none, or no driver, or not its library (libnvidia-ml.so.1)")
	}
	use, err := report.Use(func(pid int) bool {
		session, err := unix.Getsid(pid)
		return err == nil && session == p.leader
	})
	return gpuUse{GPUs: use}, err
}
