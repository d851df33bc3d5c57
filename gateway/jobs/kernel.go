package jobs

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// ErrOccupied says that another job runs in the kernel.
var ErrOccupied = errors.New("jobs: another job runs in the kernel")

// occupy stores a job that goes on in its author's kernel, if no other job has that kernel. This gateway holds the
// record while it looks for other jobs, so no gateway begins the job. If two jobs are stored at once, at most one
// stays. If this gateway dies meanwhile, another one takes the job and looks itself; see hold.accept.
func (m *Manager) occupy(ctx context.Context, s *stored) error {
	m.mu.Lock()
	m.looking[s.ID] = true // a round of this gateway does not take what is its own
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.looking, s.ID)
	}()
	s.Holder, s.Pending = m.name, true
	if err := m.store.write(ctx, s); err != nil {
		return err
	}
	job, there, err := m.in(ctx, s.Kernel, s.ID)
	refused := err != nil || there
	ctx = context.WithoutCancel(ctx)
	now, changeErr := m.store.change(ctx, s.ID, func(e *entry) error {
		if e.Holder != m.name || !e.Pending {
			return errLost
		}
		if e.Holder, e.Pending = "", false; refused {
			e.State, e.Reason, e.Ended = Failed, reasonOccupied, time.Now().UTC()
		}
		return nil
	})
	switch {
	case errors.Is(changeErr, errLost): // this gateway was frozen, and another one has looked meanwhile
		*s, err = m.store.job(ctx, s.ID)
		return err
	case changeErr != nil: // another gateway looks later
		return changeErr
	case !refused:
		*s = now
		return nil
	}
	m.log.Info("a job was not accepted", logkey.Job, s.ID, logkey.Kernel, job.Kernel)
	return errors.Join(cmp.Or(err, ErrOccupied), m.store.remove(ctx, &now.entry))
}

const reasonOccupied = "another job runs in its kernel"

// accept ends a job whose gateway has died before it looked for other jobs in the kernel, if there is one.
func (h *hold) accept(e *entry) error {
	_, there, err := h.m.in(h.ctx, e.Kernel, e.ID)
	if err != nil {
		return err
	}
	return h.last("accept", func(e *entry) {
		if e.Pending = false; there {
			e.State, e.Reason, e.Ended = Failed, reasonOccupied, time.Now().UTC()
		}
	})
}

// In returns the job that runs in a kernel and has not ended. If no job runs there, there is false.
func (m *Manager) In(ctx context.Context, kernel string) (job Job, there bool, err error) {
	return m.in(ctx, kernel, "")
}

// in is In without one job.
func (m *Manager) in(ctx context.Context, kernel, but string) (job Job, there bool, err error) {
	all, _, err := m.readable(ctx, true)
	if err != nil {
		return Job{}, false, err
	}
	for i := range all {
		s := &all[i]
		if s.Kernel == kernel && s.ID != but && !s.ended() {
			return s.Job, true, nil
		}
	}
	return Job{}, false, nil
}
