package gateway

import (
	"encoding/json"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// kernelModel is a supervisor's model of its kernel with what the gateway adds.
type kernelModel struct {
	api.Model

	Created string     `json:"created"`
	GPUs    gpu.Amount `json:"gpus,omitempty"`
	Flavor  string     `json:"flavor,omitempty"`
	Owner   string     `json:"owner,omitempty"`
	Job     *kernelJob `json:"job,omitempty"` // the open job that runs in the kernel

	// Shown to the owner only.
	SharedWith  []launcher.Grant `json:"shared_with,omitzero"`
	SharedToUse bool             `json:"shared_to_use,omitempty"`
}

// kernelJob is the part of a job that its kernel's model has.
type kernelJob struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Cell  int    `json:"cell"`  // which cell with code runs, from 1; 0 before the first
	Cells int    `json:"cells"` // how many cells have code
}

// models makes models of kernels. It may be used concurrently.
type models struct {
	// Fixed.
	kernels *kernels.Service
	jobs    *jobRoutes

	texts modelTexts
}

// modelFor returns a kernel's model as the caller may see it.
func (ms *models) modelFor(who kernels.Caller, k *launcher.Kernel) kernelModel {
	m := ms.untimed(who, k, ms.kernels.SpecNames())
	timesOf(k).write(&m)
	return m
}

// untimed is modelFor without times, which take longer to write than all else.
func (ms *models) untimed(who kernels.Caller, k *launcher.Kernel, names *kernels.SpecNames) kernelModel {
	m := kernelModel{Model: api.Model{
		ID: k.ID, ExecutionState: k.State, Connections: k.Connections, Reason: who.ReasonOf(k), GPU: k.GPU,
		Memory: k.Memory, LastDeath: k.LastDeath, Parked: k.Parked,
	}}
	ms.addOwn(&m, who, k, names)
	return m
}

// modelTimes are when a kernel was created and active, when it will be culled, and until when it is kept. A zero time
// is not shown.
type modelTimes [4]time.Time

func timesOf(k *launcher.Kernel) modelTimes {
	at := modelTimes{k.Created, k.LastActivity, k.CullAt, k.KeepUntil}
	if k.LastActivity.IsZero() {
		at[1] = k.Created
	}
	if !k.KeepUntil.IsZero() && !k.KeepUntil.After(time.Now()) { // most have none, and the clock is slow for a list
		at[3] = time.Time{}
	}
	return at
}

// write writes the times into a model.
func (at modelTimes) write(m *kernelModel) {
	for i, to := range []*string{&m.Created, &m.LastActivity, &m.CullAt, &m.KeepUntil} {
		if !at[i].IsZero() {
			*to = api.Timestamp(at[i])
		}
	}
}

// addOwn adds to a model what only the gateway knows, but for times: the kernel's name and GPUs, its job, its owner
// and, for its owner, the users it is shared with.
func (ms *models) addOwn(m *kernelModel, who kernels.Caller, k *launcher.Kernel, names *kernels.SpecNames) {
	m.Name, m.GPUs, m.Flavor = names.Of(k), k.GPUs, k.Flavor
	if m.Flavor != "" {
		m.GPU = slices.Clone(m.GPU)
		for i := range m.GPU {
			m.GPU[i].Flavor = m.Flavor
		}
	}
	m.Reason += ms.kernels.ExplainWait(who, k)
	m.Job = ms.jobs.kernelJob(who, k)
	m.Owner, m.SharedWith, m.SharedToUse = "", nil, false
	if who.Sole {
		return
	}
	m.Owner = k.Owner
	if who.AccessTo(*k) == ownKernel {
		m.SharedWith = k.SharedWith
		if m.SharedWith == nil {
			m.SharedWith = []launcher.Grant{} // which is shown as an empty list
		}
		m.SharedToUse = k.SharedToUse
	}
}

// complete adds to a supervisor's model what only the gateway knows.
func (ms *models) complete(m *kernelModel, who kernels.Caller, k *launcher.Kernel) {
	ms.addOwn(m, who, k, ms.kernels.SpecNames())
	m.Created = api.Timestamp(k.Created)
}

// modelText is the JSON of a model, with all that it was made of. It is not modified.
type modelText struct {
	model kernelModel // without its times
	times modelTimes
	text  []byte
	sum   uint64 // hash of text
}

// equal reports whether two models are encoded alike. It may be false for models that are.
func (m *kernelModel) equal(o *kernelModel) bool {
	return m.ID == o.ID && m.ExecutionState == o.ExecutionState && m.Connections == o.Connections &&
		m.Memory == o.Memory && m.Reason == o.Reason && m.Name == o.Name && m.Owner == o.Owner && m.Flavor == o.Flavor &&
		m.GPUs == o.GPUs && m.SharedToUse == o.SharedToUse && m.LastActivity == o.LastActivity && m.CullAt == o.CullAt &&
		m.KeepUntil == o.KeepUntil && m.Created == o.Created && m.LastDeath == o.LastDeath && m.Parked == o.Parked &&
		(m.Job == o.Job || m.Job != nil && o.Job != nil && *m.Job == *o.Job) &&
		slices.Equal(m.GPU, o.GPU) && // a pointer in it is that of the same status
		(m.SharedWith == nil) == (o.SharedWith == nil) && slices.Equal(m.SharedWith, o.SharedWith)
}

// modelsKept is how long the texts of an unused list are kept at least. They are kept for twice that at most.
const modelsKept = time.Minute

// modelTexts holds the texts of each caller's last list, in its order. Callers who see all kernels share one. Encoding
// a model takes longer than all else that a list does with it. A text is used only for a model that equals its own, so
// it is never older than the list. It may be used concurrently.
type modelTexts struct {
	mu      sync.Mutex
	now     map[string][]*modelText // guarded by mu; by caller
	before  map[string][]*modelText // guarded by mu; those that were used in the minute before
	changed time.Time               // guarded by mu; when now became before
}

// last returns the texts of a caller's last list. It forgets those that were not used for modelsKept.
func (t *modelTexts) last(caller string) []*modelText {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now == nil || time.Since(t.changed) >= modelsKept {
		t.now, t.before, t.changed = make(map[string][]*modelText, len(t.now)), t.now, time.Now()
	}
	if texts, there := t.now[caller]; there {
		return texts
	}
	return t.before[caller]
}

// keep keeps the texts of a caller's list, which are not modified, for the next one.
func (t *modelTexts) keep(caller string, texts []*modelText) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now[caller] = texts
}

// textsFor returns the texts of those kernels that the caller may see. The kernels are in the launcher's order.
func (ms *models) textsFor(who kernels.Caller, kernels []launcher.Kernel) ([]*modelText, error) {
	caller := who.Name
	if who.SeesAll() {
		caller = ""
	}
	last, names := ms.texts.last(caller), ms.kernels.SpecNames()
	texts := []*modelText{} // they are kept: without room for kernels of others
	for i := range kernels {
		k := &kernels[i]
		if !who.Owns(k.Owner) && (len(k.SharedWith) == 0 || !who.Sees(*k)) {
			continue
		}
		for len(last) > 0 && launcher.CompareCreation(last[0].times[0], last[0].model.ID, k.Created, k.ID) < 0 {
			last = last[1:] // its kernel has gone
		}
		var before *modelText
		if len(last) > 0 && last[0].model.ID == k.ID {
			before, last = last[0], last[1:]
		}
		text, err := ms.textFor(who, k, names, before)
		if err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	ms.texts.keep(caller, texts)
	return texts, nil
}

// textFor returns the text of a kernel's model as the caller may see it: the one of before, if that is right still.
func (ms *models) textFor(
	who kernels.Caller, k *launcher.Kernel, names *kernels.SpecNames, before *modelText,
) (*modelText, error) {
	m, at := ms.untimed(who, k, names), timesOf(k)
	if before != nil && before.times == at && before.model.equal(&m) {
		return before, nil
	}
	text := &modelText{model: m, times: at}
	text.model.SharedWith = slices.Clone(m.SharedWith) // the launcher may change its own
	at.write(&m)
	var err error
	if text.text, err = json.Marshal(m); err != nil {
		return nil, err
	}
	text.sum = maphash.Bytes(eventSeed, text.text)
	return text, nil
}
