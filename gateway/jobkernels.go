package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/gateway/jobs"
	"github.com/elastic-kernel-gateway/ekg/gateway/jobs/notebook"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// jobKernels starts and reaches the kernels of jobs as routes do for clients, so that the same checks, limits and
// records hold. It implements jobs.Kernels.
type jobKernels struct{ g *Gateway }

// call makes the request of a job's author. It has no connection and no credential.
func (j jobKernels) call(ctx context.Context, author jobs.Author, query url.Values) (*call, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://job/?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	who := soleOwner()
	if !author.Sole {
		user := identity.User{Name: author.Name, Groups: author.Groups, Admin: author.Admin}
		who = caller{User: user, has: ownKernel}
	}
	id := newRequestID()
	return &call{Request: r.WithContext(launcher.WithRequestID(ctx, id)), id: id, who: who}, nil
}

// authorOf returns the caller as the author of a job.
func authorOf(who caller) jobs.Author {
	if who.sole {
		return jobs.Author{Sole: true}
	}
	return jobs.Author{Name: who.Name, Groups: who.Groups, Admin: who.Admin}
}

// Start starts a job's kernel.
func (j jobKernels) Start(ctx context.Context, author jobs.Author, id string, body json.RawMessage) error {
	r, err := j.call(ctx, author, nil)
	if err != nil {
		return err
	}
	if author.Sole != (j.g.opts.Users == nil) {
		return &jobs.RefusedError{Reason: "the gateway had no users when the job was submitted, or has none any more"}
	}
	var wanted object
	if err := json.Unmarshal(body, &wanted); err != nil {
		return err
	}
	if wanted["kernel_id"], err = json.Marshal(id); err != nil {
		return err
	}
	err = j.explained(r, j.start(r, id, wanted))
	var wait *jobs.WaitError
	if !errors.As(err, &wait) { // else it is tried again every few seconds
		e := r.entry("start", "")
		e.Outcome = auditDone
		if err != nil {
			e.Outcome = auditFailed
		}
		j.g.audit.write(e)
	}
	return err
}

// startGrace is how long a start goes on when its gateway or its job ends. Launchers may remove a kernel whose start is
// given up.
const startGrace = 5 * time.Second

// start starts the kernel, or leaves it as it is if an earlier call or another gateway has started it. Nothing is
// removed when the gateway ends: the job's record has the kernel's id, so the next gateway goes on with it.
func (j jobKernels) start(r *call, id string, wanted object) error {
	req, err := j.g.kernelRequest(r.who, wanted)
	if err != nil {
		return err
	}
	k, err := j.g.opts.Launcher.Kernel(r.Context(), id)
	switch {
	case err == nil && k.Owner == r.who.owner(): // it was counted, and it may be dead: method Up says why
		r.starts(req)
	case err == nil:
		return launcher.ErrConflict
	case !errors.Is(err, launcher.ErrNotFound):
		return err
	default:
		if err := j.g.allowStart(r, &req); err != nil {
			return err
		}
		req.Job = true
		ctx, cancel := outlive(r.Context(), startGrace)
		defer cancel()
		var created bool
		if k, created, err = j.g.launch(ctx, req); err != nil {
			return err
		}
		if created {
			j.g.log.Info("kernel started", logkey.Kernel, k.ID, logkey.Spec, k.SpecName, logkey.Request, r.id)
		}
	}
	j.g.opts.Launcher.Claim(k.ID)
	return nil
}

// outlive returns a context that ends some time after ctx.
func outlive(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	detach := context.AfterFunc(ctx, func() {
		t := time.NewTimer(grace)
		defer t.Stop()
		select {
		case <-t.C:
			cancel()
		case <-longer.Done():
		}
	})
	return longer, func() {
		detach()
		cancel()
	}
}

// explained turns the error of a start into one that the author of the job reads.
func (j jobKernels) explained(r *call, err error) error {
	var limit *launcher.LimitError
	switch {
	case err == nil, r.Context().Err() != nil:
		return err
	case errors.As(err, &limit):
		return &jobs.WaitError{Reason: limit.Reason}
	}
	p := problemOf(r, err)
	reason := strings.Join(strings.Fields(p.message), " ") // without the line breaks for dialogs
	switch {
	case p.status == http.StatusTooManyRequests:
		return &jobs.WaitError{Reason: reason}
	case p.status == http.StatusServiceUnavailable:
		return fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
	case p.status < http.StatusInternalServerError:
		return &jobs.RefusedError{Reason: reason}
	case p.err != nil:
		j.g.log.Error("the kernel of a job cannot be started", logkey.Request, r.id, logkey.Err, p.err)
	}
	return errors.New(reason)
}

// Up waits until a job's kernel is up.
func (j jobKernels) Up(ctx context.Context, id string, waits func(reason string)) error {
	said := ""
	for {
		k, err := j.g.opts.Launcher.Wait(ctx, id, func(k launcher.Kernel) bool { return isUp(k) || k.Reason != said })
		var limit *launcher.LimitError
		switch {
		case err == nil && !isUp(k):
			said = k.Reason
			waits(k.Reason)
			continue
		case err == nil:
			err = startError(k)
		}
		if errors.As(err, &limit) {
			return &jobs.WaitError{Reason: limit.Reason}
		}
		return err
	}
}

// lostTime bounds the wait for the end of a kernel that has told its clients that it ends.
const lostTime = 5 * time.Second

// Lost returns why a job's kernel has ended.
func (j jobKernels) Lost(ctx context.Context, id string) string {
	ctx, cancel := context.WithTimeout(ctx, lostTime)
	defer cancel()
	k, err := j.g.opts.Launcher.Wait(ctx, id, func(k launcher.Kernel) bool { return k.State == api.Dead })
	var gone *launcher.GoneError
	switch {
	case errors.As(err, &gone):
		return gone.Reason
	case err != nil:
		return ""
	}
	return k.Reason
}

// Dial connects to the channels of a job's kernel.
func (j jobKernels) Dial(
	ctx context.Context, author jobs.Author, id string, query url.Values,
) (*websocket.Conn, error) {
	r, err := j.call(ctx, author, query)
	if err != nil {
		return nil, err
	}
	out, err := j.g.outgoing(ctx, r, id, http.MethodGet, "channels")
	if err != nil {
		return nil, err
	}
	out.URL.Scheme = "ws"
	dialer := websocket.Dialer{
		NetDialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return j.g.dial(ctx, net.JoinHostPort(id, "80"))
		},
		HandshakeTimeout: upgradeTime,
		Subprotocols:     []string{jupyter.SubprotocolRelay},
	}
	ws, resp, err := dialer.DialContext(ctx, out.URL.String(), out.Header)
	if err == nil {
		return ws, nil
	}
	if resp != nil {
		_ = resp.Body.Close() // the dialer has read what there is
	}
	// The error of a dial does not decide whether the kernel exists.
	k, lost := j.g.kernel(ctx, id)
	var gone *launcher.GoneError
	switch {
	case errors.As(lost, &gone):
		return nil, fmt.Errorf("%w: %s", notebook.ErrGone, gone.Reason)
	case errors.Is(lost, launcher.ErrNotFound):
		return nil, fmt.Errorf("%w: it does not exist any more", notebook.ErrGone)
	case lost == nil && k.State == api.Dead:
		return nil, fmt.Errorf("%w: %s", notebook.ErrGone, k.Reason)
	}
	return nil, err
}

// Interrupt interrupts a job's kernel.
func (j jobKernels) Interrupt(ctx context.Context, author jobs.Author, id string) error {
	r, err := j.call(ctx, author, nil)
	if err != nil {
		return err
	}
	_, err = j.g.forward(r, id, http.MethodPost, "interrupt", actionTime)
	return err
}

// GPUSeconds returns for how long a kernel has held GPUs after a time, as GET /api/usage counts it.
func (j jobKernels) GPUSeconds(ctx context.Context, id string, since time.Time) (float64, error) {
	all, err := j.g.opts.Launcher.Usage(ctx)
	if err != nil {
		return 0, err
	}
	return gpuSecondsOf(all, id, since, time.Now()), nil
}

// gpuSecondsOf returns for how long one of several kernels has held GPUs between two times.
func gpuSecondsOf(all []launcher.KernelUsage, id string, since, until time.Time) float64 {
	for i := range all {
		if all[i].ID == id && !all[i].Started.IsZero() {
			row, _ := usageRow(all[i], since, until)
			return row.Held
		}
	}
	return 0
}

// addGPUSeconds adds to jobs that have not ended what their present kernels have held of GPUs by now. If that cannot be
// read, they have that of earlier attempts.
func (g *Gateway) addGPUSeconds(ctx context.Context, list []jobs.Job) {
	has := func(j jobs.Job) bool { return !j.State.Final() && j.Kernel != "" && !j.Started.IsZero() }
	if !slices.ContainsFunc(list, has) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	all, err := g.opts.Launcher.Usage(ctx)
	if err != nil {
		g.log.Debug("the GPU time of running jobs lacks their present attempt", logkey.Err, err)
		return
	}
	now := time.Now()
	for i := range list {
		if j := &list[i]; has(*j) {
			j.GPUSeconds = seconds(j.GPUSeconds + gpuSecondsOf(all, j.Kernel, j.GPUsSince(), now))
		}
	}
}

// Stop ends a job's kernel.
func (j jobKernels) Stop(ctx context.Context, author jobs.Author, id, reason string) error {
	r, err := j.call(ctx, author, nil)
	if err != nil {
		return err
	}
	if err := j.g.stop(r, id, reason); err != nil && !errors.Is(err, launcher.ErrNotFound) {
		return err
	}
	return nil
}

// GPUWaits returns the kernels that wait for GPUs. The list is empty if the launcher does not know them.
func (j jobKernels) GPUWaits(ctx context.Context) ([]launcher.GPUWait, error) {
	waiter, ok := j.g.opts.Launcher.(launcher.GPUWaiter)
	if !ok {
		return nil, nil
	}
	return waiter.GPUWaits(ctx)
}

// Starts reports whether a kernel is still being started.
func (j jobKernels) Starts(ctx context.Context, id string) (bool, error) {
	k, err := j.g.opts.Launcher.Kernel(ctx, id)
	if errors.Is(err, launcher.ErrNotFound) {
		return false, nil
	}
	return err == nil && !isUp(k), err
}

// GaveWay writes to the audit log that a job's kernel is ended for another kernel.
func (j jobKernels) GaveWay(ctx context.Context, author jobs.Author, id string) {
	r, err := j.call(ctx, author, nil)
	if err != nil {
		j.g.log.Error("the audit log has no entry for a job that gave way", logkey.Kernel, id, logkey.Err, err)
		return
	}
	r.kernel = id
	e := r.entry("give-way", "")
	e.Outcome = auditDone
	j.g.audit.write(e)
}
