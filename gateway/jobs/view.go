package jobs

import (
	"context"
	"sync"
	"time"
)

// Observer counts what one gateway does with jobs. Its methods may be called concurrently. They do not block.
type Observer interface {
	// JobBegan counts a job whose first cell may run for the first time. It has waited since its submission. The flavor
	// is "" for none.
	JobBegan(flavor string, waited time.Duration)
	// JobEnded counts a job that has ended in a final state. ran is the time since its last attempt began, and 0 if none
	// began.
	JobEnded(state string, ran time.Duration)
	// JobDue counts a time of a schedule. made is false if no job could be made for it.
	JobDue(made bool)
	// JobGaveWay counts a job that is ended for a kernel that waits for a GPU.
	JobGaveWay()
}

// unobserved is the Observer of a manager that was given none.
type unobserved struct{}

func (unobserved) JobBegan(string, time.Duration) {}
func (unobserved) JobEnded(string, time.Duration) {}
func (unobserved) JobDue(bool)                    {}
func (unobserved) JobGaveWay()                    {}

// Brief is the part of a job that this gateway knows without reading records.
type Brief struct {
	ID, Name, Owner string
	State           State
	Reason, Kernel  string
	Attempt         int
	Cell, Cells     int
	Stopping        bool
}

func (j *Job) brief() Brief {
	return Brief{ID: j.ID, Name: j.Name, Owner: j.Owner, State: j.State, Reason: j.Reason, Kernel: j.Kernel,
		Attempt: j.Attempt, Cell: j.Cell, Cells: j.Cells, Stopping: j.Stopping}
}

// viewAge is the age from which a view says nothing any more.
const viewAge = time.Minute

// view is what this gateway knows of the jobs that have not ended, without reading them. It knows it from its last look
// at all jobs, and from what it has written since.
type view struct {
	mu   sync.RWMutex
	at   time.Time         // of the last look; zero before the first
	jobs map[string]Brief  // by id
	in   map[string]string // by kernel: the job's id

	awaited map[string]chan struct{} // by job: closed when the job is seen to have changed
}

// replace takes the jobs that were read. own returns what this gateway knows of a job that it holds, which is newer.
func (v *view) replace(all []stored, own func(id string) (Brief, bool)) {
	jobs, in := make(map[string]Brief, len(all)), map[string]string{}
	for i := range all {
		job := all[i].brief()
		if mine, ok := own(job.ID); ok {
			job = mine
		}
		if job.State.Final() {
			continue
		}
		jobs[job.ID] = job
		if job.Kernel != "" {
			in[job.Kernel] = job.ID
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for id := range v.awaited {
		if job, open := jobs[id]; !open || v.jobs[id] != job { // one that is not open may have ended before it was seen
			v.wakeLocked(id)
		}
	}
	v.at, v.jobs, v.in = time.Now(), jobs, in
}

// changes returns a channel for an open job. The channel is closed when this gateway sees that the job has changed.
func (v *view) changes(id string) <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.awaited == nil {
		v.awaited = map[string]chan struct{}{}
	}
	if v.awaited[id] == nil {
		v.awaited[id] = make(chan struct{})
	}
	return v.awaited[id]
}

// wakeLocked wakes those who wait for a job's change.
func (v *view) wakeLocked(id string) {
	if c := v.awaited[id]; c != nil {
		close(c)
		delete(v.awaited, id)
	}
}

// note takes a job that this gateway has written.
func (v *view) note(job Brief) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.jobs == nil {
		v.jobs, v.in = map[string]Brief{}, map[string]string{}
	}
	before := v.jobs[job.ID]
	if before != job {
		v.wakeLocked(job.ID)
	}
	if v.in[before.Kernel] == job.ID {
		delete(v.in, before.Kernel)
	}
	if job.State.Final() {
		delete(v.jobs, job.ID)
		return
	}
	v.jobs[job.ID] = job
	if job.Kernel != "" {
		v.in[job.Kernel] = job.ID
	}
}

// KernelJob returns the job that has a kernel, as this gateway knows it. It reads no records, and may be some seconds
// old.
func (m *Manager) KernelJob(kernel string) (job Brief, there bool) {
	m.view.mu.RLock()
	defer m.view.mu.RUnlock()
	job, there = m.view.jobs[m.view.in[kernel]]
	return job, there
}

// Await returns a job when same is false for it, when it has ended, or when ctx ends. It learns at once of what this
// gateway changes, and with its next look at all jobs of what others change. It reads the record only after a change.
func (m *Manager) Await(ctx context.Context, id string, same func(*Job) bool) (Job, error) {
	for {
		changed := m.view.changes(id) // before it is read, so that no change is missed
		job, err := m.Get(context.WithoutCancel(ctx), id)
		if err != nil || job.State.Final() {
			m.view.settled(id)
			return job, err
		}
		if !same(&job) || ctx.Err() != nil {
			return job, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// settled wakes those who wait for a job that will not change any more. So its channel does not stay.
func (v *view) settled(id string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.wakeLocked(id)
}

// States returns how many jobs are in each state that is not final, as this gateway knows it. ok is false if it has not
// read the jobs for a minute.
func (m *Manager) States() (states map[State]int, ok bool) {
	m.view.mu.RLock()
	defer m.view.mu.RUnlock()
	if m.view.at.IsZero() || time.Since(m.view.at) > viewAge {
		return nil, false
	}
	states = map[State]int{Queued: 0, Starting: 0, Running: 0}
	for id := range m.view.jobs {
		states[m.view.jobs[id].State]++
	}
	return states, true
}

// held returns what this gateway knows of a job that it holds.
func (m *Manager) held(id string) (Brief, bool) {
	h := m.hold(id)
	if h == nil {
		return Brief{}, false
	}
	return *h.known.Load(), true
}

// observeEnd counts a job that has ended, and lets Run look whether its owner has too many of these.
func (m *Manager) observeEnd(job *Job) {
	m.mu.Lock()
	m.ends[job.Owner] = true
	m.mu.Unlock()
	m.look()
	ran := time.Duration(0)
	if !job.Started.IsZero() {
		ran = max(0, job.Ended.Sub(job.Started))
	}
	m.observer.JobEnded(string(job.State), ran)
}
