package process

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const (
	gpuWatchPause = time.Minute // before ekg-gpu is started again after it has ended
	// Lines without an answer for so many intervals are reported: ekg-gpu prints one in six at least.
	gpuWatchSilent = 12
	maxSampleLine  = 256 << 10 // bytes
)

// GPUWatch asks for samples of GPUs. The zero value asks for none. Its JSON is part of the child protocol.
type GPUWatch struct {
	Program string        `json:"program"`           // the absolute path of ekg-gpu
	Every   time.Duration `json:"every"`             // nanoseconds
	Devices []string      `json:"devices,omitempty"` // as in CUDA_VISIBLE_DEVICES; empty: all that are seen
	Session bool          `json:"session,omitempty"` // only processes of the kernel's session use its GPUs
}

// WatchGPUs starts to sample GPUs, until the process ends. Options.GPUSampled is called for each line. If they are
// sampled already, it is called with the last line.
func (p *Process) WatchGPUs(w GPUWatch) {
	if w.Every <= 0 || p.opts.GPUSampled == nil {
		return
	}
	p.mu.Lock()
	if p.sampler != nil || p.reaped {
		last := p.lastSamples
		p.mu.Unlock()
		if last != nil {
			again := *last
			again.Seconds = 0 // they have been counted
			p.opts.GPUSampled(p, again)
		}
		return
	}
	defer p.mu.Unlock()
	p.sampler = newGPURun(func(ctx context.Context, _ *gpuRun) { p.sampleGPUs(ctx, w) })
}

// sampleGPUs runs ekg-gpu, again after a pause if it ends, until ctx ends.
func (p *Process) sampleGPUs(ctx context.Context, w GPUWatch) {
	for told := ""; ctx.Err() == nil; {
		err := p.runSampler(ctx, w)
		if ctx.Err() != nil {
			return
		}
		told = p.samplerFailed(err, told)
		select {
		case <-time.After(gpuWatchPause):
		case <-p.asked.wanted:
		case <-ctx.Done():
		}
	}
}

// samplerFailed reports that ekg-gpu has ended, so that its last samples are not taken for present ones. It logs the
// reason, but not the one that was told before. It returns the reason.
func (p *Process) samplerFailed(err error, told string) string {
	text := api.PlainText(err.Error(), MaxGPUFailure)
	if text != told {
		p.opts.Logger.Warn("GPUs are not sampled; this is tried again", logkey.Kernel, p.opts.KernelID, logkey.Err, text)
	}
	p.sampled(gpu.Samples{Devices: []gpu.Sample{}, Error: text})
	return text
}

// runSampler runs ekg-gpu until it ends. The error is never nil.
func (p *Process) runSampler(ctx context.Context, w GPUWatch) error {
	args := []string{"watch", "--every", w.Every.String()}
	if len(w.Devices) > 0 {
		args = append(args, "--devices", strings.Join(w.Devices, ","))
	}
	if w.Session {
		args = append(args, "--session", strconv.Itoa(p.leader))
	}
	patience := gpuWatchSilent*w.Every + gpuPatience
	silent := time.AfterFunc(patience, func() {
		p.sampled(gpu.Samples{Devices: []gpu.Sample{}, Error: "ekg-gpu does not answer; the driver may hang"})
	})
	defer silent.Stop()
	ctx, end := context.WithCancel(ctx)
	defer end()
	err := p.runGPU(ctx, w.Program, args, func(in io.Writer, out io.Reader) error {
		p.asked.begin(in, end)
		defer p.asked.end(p.answered)
		return p.readSamples(out, func() { silent.Reset(patience) })
	})
	if err == nil {
		return errors.New("ekg-gpu has ended")
	}
	return err
}

// readSamples reports the lines of ekg-gpu until they end. The error says what is wrong with a line.
func (p *Process) readSamples(out io.Reader, answered func()) error {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, maxSampleLine)
	for lines.Scan() {
		a, s, err := gpu.ParseLine(lines.Bytes())
		if err != nil {
			return err
		}
		answered()
		if a != nil {
			p.asked.settle(a, p.answered)
			continue
		}
		for i, d := range s.Devices {
			s.Devices[i] = d.Of(p.inSession)
		}
		p.sampled(s)
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return err
	}
	return nil
}

// inSession reports whether a process belongs to the kernel.
func (p *Process) inSession(pid int) bool {
	session, err := unix.Getsid(pid)
	return err == nil && session == p.leader
}

// sampled reports a line.
func (p *Process) sampled(s gpu.Samples) {
	p.mu.Lock()
	p.lastSamples = &s
	now := time.Now()
	p.use.Samples.Add(s, p.began, now)
	p.mu.Unlock()
	p.opts.GPUSampled(p, s)
}
