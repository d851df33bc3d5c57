package gateway

import (
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// modelsKept is how long an unused text is kept at least. It is kept for twice that at most.
const modelsKept = time.Minute

// eventSeed is for hashes of models, which never leave the process.
var eventSeed = maphash.MakeSeed()

// modelText is a model as JSON, with all that it was made of. It is not modified.
type modelText struct {
	model kernelModel // without its times
	times modelTimes
	text  []byte
	sum   uint64 // hash of text
}

// is reports whether the text is that of a model and its times.
func (t *modelText) is(m *kernelModel, at *modelTimes) bool {
	return t.times == *at && t.model.equal(m)
}

// equal reports whether two models are encoded alike. It may be false for models that are.
func (m *kernelModel) equal(o *kernelModel) bool {
	return m.ID == o.ID && m.ExecutionState == o.ExecutionState && m.Connections == o.Connections &&
		m.Memory == o.Memory && m.Reason == o.Reason && m.Name == o.Name && m.Owner == o.Owner && m.Flavor == o.Flavor &&
		m.GPUs == o.GPUs && m.SharedToUse == o.SharedToUse && m.LastActivity == o.LastActivity && m.CullAt == o.CullAt &&
		m.KeepUntil == o.KeepUntil && m.Created == o.Created && equalJobs(m.Job, o.Job) &&
		slices.Equal(m.GPU, o.GPU) && // a pointer in it is that of the same status
		(m.SharedWith == nil) == (o.SharedWith == nil) && slices.Equal(m.SharedWith, o.SharedWith)
}

func equalJobs(a, b *kernelJob) bool { return a == b || a != nil && b != nil && *a == *b }

// modelTexts holds the texts of models as the owners of their kernels see them. Most kernels do not change between two
// lists, and encoding a model takes longer than all else that a list does with it. A text is used only for a model that
// equals the one that it was made of. So it is never older than the list. It may be used concurrently.
type modelTexts struct {
	mu      sync.Mutex
	now     map[string]*modelText // guarded by mu; by kernel
	before  map[string]*modelText // guarded by mu; those that were used in the minute before
	changed time.Time             // guarded by mu; when now became before
}

// find returns the text of a kernel, or nil.
func (t *modelTexts) find(id string) *modelText {
	t.mu.Lock()
	defer t.mu.Unlock()
	if text := t.now[id]; text != nil {
		return text
	}
	text := t.before[id]
	if text != nil {
		t.now[id] = text
	}
	return text
}

// put keeps a text.
func (t *modelTexts) put(text *modelText) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now[text.model.ID] = text
}

// age forgets the texts that were not used for modelsKept. Each list calls it first.
func (t *modelTexts) age() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now == nil || time.Since(t.changed) >= modelsKept {
		t.now, t.before, t.changed = make(map[string]*modelText, len(t.now)), t.now, time.Now()
	}
}

// textFor returns the text of a kernel's model as the caller may see it. guess may be that text, or nil.
func (g *Gateway) textFor(who caller, k *launcher.Kernel, guess *modelText) (*modelText, error) {
	m, at := g.untimed(who, k)
	kept := who.owns(k.Owner) // others see less, and are few
	if guess != nil && guess.is(&m, &at) {
		return guess, nil
	}
	if kept {
		if text := g.texts.find(k.ID); text != nil && text.is(&m, &at) {
			return text, nil
		}
	}
	text := &modelText{model: m, times: at}
	text.model.SharedWith = slices.Clone(m.SharedWith) // the launcher may change its own
	at.write(&m)
	var err error
	if text.text, err = m.appendJSON(nil); err != nil {
		return nil, err
	}
	text.text = slices.Clip(text.text)
	text.sum = maphash.Bytes(eventSeed, text.text)
	if kept {
		g.texts.put(text)
	}
	return text, nil
}

// appendTexts appends the texts of those kernels that the caller may see.
func (g *Gateway) appendTexts(texts []*modelText, who caller, kernels []*launcher.Kernel) ([]*modelText, error) {
	g.texts.age()
	texts = slices.Grow(texts, len(kernels))
	for _, k := range kernels {
		if !who.owns(k.Owner) && !who.sees(*k) {
			continue
		}
		text, err := g.textFor(who, k, nil)
		if err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	return texts, nil
}
