package jobs

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

const (
	// giveWayAfter is the time for which an attempt runs at least before it gives way, so that jobs come further.
	giveWayAfter = time.Minute
	// giveWayHold bounds how long a job that has given way waits for the other kernel's start.
	giveWayHold = 10 * time.Minute

	reasonGaveWay = "it gave way to a notebook that waited for a GPU"
)

// errStays says that a job does not give way.
var errStays = errors.New("jobs: it does not give way")

// mayGiveWay reports whether the job's kernel can be ended for another one: the job begins again by its retries. A job
// gives way to a kernel once. If that kernel still waits after giveWayHold, the job's GPU is of no use to it.
func (e *entry) mayGiveWay(kernel string) bool {
	return e.State == Running && e.Outcome == nil && !e.Stopping && !e.inKernel() && e.GiveWay == "" &&
		e.GaveWay != kernel && e.Attempt <= e.Retries && time.Since(e.Started) >= giveWayAfter
}

// giveWay looks at each kernel that has waited for a GPU for as long as its flavor says. It chooses a job whose end
// gives that kernel a GPU, and writes the choice into the job's record, where the job's holder reads it. All gateways
// choose alike: the job with the lowest priority, then the one that was started last.
func (m *Manager) giveWay(ctx context.Context, all []stored) error {
	waits, err := m.kernels.GPUWaits(ctx)
	if err != nil {
		return err
	}
	ofJobs, given := map[string]bool{}, map[string]bool{}
	for i := range all {
		if s := &all[i]; !s.ended() {
			ofJobs[s.Kernel] = ofJobs[s.Kernel] || !s.inKernel()
			given[s.GiveWay] = true
		}
	}
	for _, w := range waits {
		if ofJobs[w.Kernel] || given[w.Kernel] {
			continue
		}
		s := gives(all, w)
		if s == nil {
			continue
		}
		now, err := m.store.change(ctx, s.ID, func(e *entry) error {
			if !e.mayGiveWay(w.Kernel) {
				return errStays
			}
			e.GiveWay = w.Kernel
			return nil
		})
		switch {
		case errors.Is(err, errStays), errors.Is(err, launcher.ErrNoRecord):
			continue // the next round looks again
		case err != nil:
			return err
		}
		*s = now
		m.log.Info("a job gives way to a kernel that waits for a GPU", logkey.Job, s.ID, logkey.Kernel, w.Kernel,
			logkey.Took, w.For)
		m.observer.JobGaveWay()
		m.kernels.GaveWay(ctx, s.Author, s.Kernel)
		if h := m.hold(s.ID); h != nil {
			h.end(errGaveWay)
		}
	}
	return nil
}

// gives returns the job that gives way to a kernel that waits; nil if none does. The end of any of the kernels that the
// launcher names is enough.
func gives(all []stored, w launcher.GPUWait) *stored {
	may := map[string]*stored{}
	place := launcher.Place{Fits: func(ended []string) bool { return len(ended) > 0 }}
	for i := range all {
		if s := &all[i]; s.mayGiveWay(w.Kernel) && slices.Contains(w.Holders, s.Kernel) {
			may[s.ID], place.Ends = s, append(place.Ends, s.ID)
		}
	}
	slices.SortStableFunc(place.Ends, func(a, b string) int {
		return cmp.Or(cmp.Compare(may[a].Priority, may[b].Priority), may[b].Started.Compare(may[a].Started))
	})
	_, ends := launcher.GiveWay([]launcher.Place{place})
	if len(ends) == 0 {
		return nil
	}
	return may[ends[0]]
}

// behind reports whether a job in the queue has to wait until the kernel to which it gave way has started.
func (h *hold) behind(e *entry) (bool, error) {
	if e.GiveWay == "" {
		return false, nil
	}
	starts, err := h.m.kernels.Starts(h.ctx, e.GiveWay)
	if err != nil {
		return false, err
	}
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	since, known := h.m.gave[h.id]
	if !known {
		since = time.Now()
		h.m.gave[h.id] = since
	}
	if starts && time.Since(since) < giveWayHold {
		h.m.notYet[h.id] = time.Now().Add(h.m.timing.again)
		return true, nil
	}
	delete(h.m.gave, h.id)
	return false, nil
}
