package jobs

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/gateway/jobs/notebook"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Dialer connects to the channels of a kernel; see notebook.RelayOptions.
type Dialer func(ctx context.Context, a *kernels.Act, id string, query url.Values) (*websocket.Conn, error)

// KernelsOf returns the kernels of a service. They are started and reached as those of clients, so that the same checks
// and limits hold.
func KernelsOf(s *kernels.Service, dial Dialer) Kernels { return &served{s, dial} }

// served are the kernels of a service.
type served struct {
	*kernels.Service
	dial Dialer
}

// AuthorOf returns the caller as the author of a job.
func AuthorOf(who kernels.Caller) Author {
	if who.Sole {
		return Author{Sole: true}
	}
	return Author{Name: who.Name, Groups: who.Groups, Admin: who.Admin}
}

// act is one step of a job.
func (a Author) act() *kernels.Act {
	who := kernels.SoleOwner()
	if !a.Sole {
		user := identity.User{Name: a.Name, Groups: a.Groups, Admin: a.Admin}
		who = kernels.Caller{User: user, Has: kernels.OwnKernel}
	}
	return &kernels.Act{ID: kernels.NewRequestID(), Who: who, Verb: "POST"} // as clients start kernels
}

// Start starts a job's kernel.
func (k *served) Start(ctx context.Context, author Author, id string, wish kernels.Wish) error {
	if author.Sole != k.Sole() {
		return &RefusedError{Reason: "the gateway had no users when the job was submitted, or has none any more"}
	}
	wish.ID = id
	a := author.act()
	err := k.StartJob(ctx, a, wish)
	if err == nil || ctx.Err() != nil {
		return err
	}
	r := kernels.RefusalOf(a.Who, "", err)
	reason := strings.Join(strings.Fields(r.Message), " ") // one line
	switch {
	case r.Check == kernels.LimitCheck:
		return &WaitError{Reason: reason}
	case r.Class == kernels.Unavailable:
		return fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
	case r.Class != kernels.Internal:
		return &RefusedError{Reason: reason}
	case r.Err != nil:
		k.Log().Error("the kernel of a job cannot be started", logkey.Request, a.ID, logkey.Err, r.Err)
	}
	return errors.New(reason)
}

// Up waits until a job's kernel is up.
func (k *served) Up(ctx context.Context, id string, waits func(reason string)) error {
	err := k.Service.Up(ctx, id, waits)
	if limit := (*launcher.LimitError)(nil); errors.As(err, &limit) {
		return &WaitError{Reason: limit.Reason}
	}
	return err
}

// Dial connects to the channels of a job's kernel.
func (k *served) Dial(ctx context.Context, author Author, id string, query url.Values) (*websocket.Conn, error) {
	ws, err := k.dial(ctx, author.act(), id, query)
	if err == nil {
		return ws, nil
	}
	// The error of a dial does not decide whether the kernel exists.
	now, lost := k.Kernel(ctx, id)
	var gone *launcher.GoneError
	switch {
	case errors.As(lost, &gone):
		return nil, fmt.Errorf("%w: %s", notebook.ErrGone, gone.Reason)
	case errors.Is(lost, launcher.ErrNotFound):
		return nil, fmt.Errorf("%w: it does not exist any more", notebook.ErrGone)
	case lost == nil && now.State == api.Dead:
		return nil, fmt.Errorf("%w: %s", notebook.ErrGone, now.Reason)
	}
	return nil, err
}

// Interrupt interrupts a job's kernel.
func (k *served) Interrupt(ctx context.Context, author Author, id string) error {
	return k.Service.Interrupt(ctx, author.act(), id)
}

// Stop ends a job's kernel.
func (k *served) Stop(ctx context.Context, author Author, id, reason string) error {
	if err := k.Service.Stop(ctx, author.act(), id, reason); err != nil && !errors.Is(err, launcher.ErrNotFound) {
		return err
	}
	return nil
}

// GaveWay writes to the audit log that a job's kernel is ended for another kernel.
func (k *served) GaveWay(_ context.Context, author Author, id string) {
	k.Service.GaveWay(author.act(), id)
}
