package gateway

import (
	"bytes"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// wholeList is the list of all kernels as callers see it who see everything. It is not modified, but for body. A later
// request gets the same bytes, if nothing has changed of what the models are made of:
//
//   - the kernels. A launcher that implements ListerShared returns another list after each change, and another pointer
//     for each kernel that has changed.
//   - jobs in kernels. Each change of them changes jobs.Manager.InKernels.
//   - the time, for kernels that their owners keep.
//   - kernelspecs, flavors and free GPUs, for some kernels; see dependsOnMore. Their models are made for each request.
type wholeList struct {
	list  *launcher.List
	jobs  uint64       // jobs.Manager.InKernels, read before the texts were made
	texts []*modelText // of list.Kernels

	fixed    []bool // by kernel: its text depends on nothing but the kernel and its job
	allFixed bool   // from the time of "from" until the time of "until", all texts do
	from     time.Time
	until    time.Time // zero: without an end

	body atomic.Pointer[[]byte] // of the answer; nil until a second request gets the same
}

// dependsOnMore reports whether a kernel's model depends on more than the kernel, its job and the time.
func (g *Gateway) dependsOnMore(k *launcher.Kernel) bool {
	return k.Profile != "" && g.opts.ProfilesAsSpecs || // profiledName
		k.Flavor != "" && (g.opts.FlavorsAsSpecs || k.State == api.Starting) // specName, explainWait
}

// is reports whether the list has the texts of a launcher's list at a time.
func (l *wholeList) is(list *launcher.List, jobs uint64, now time.Time) bool {
	return l.list == list && l.jobs == jobs && l.allFixed && !now.Before(l.from) &&
		(l.until.IsZero() || now.Before(l.until))
}

// wholeFor returns the whole list for a caller who sees everything. again is true if an earlier call has returned it.
func (g *Gateway) wholeFor(who caller, list *launcher.List) (whole *wholeList, again bool, err error) {
	now := time.Now().Round(0) // by the wall clock, as all times of kernels
	var inKernels uint64
	if g.jobs != nil {
		inKernels = g.jobs.InKernels()
	}
	last := g.whole.Load()
	if last == nil {
		last = &wholeList{list: &launcher.List{}}
	} else if last.is(list, inKernels, now) {
		return last, true, nil
	}
	g.texts.age()
	n := len(list.Kernels)
	l := &wholeList{list: list, jobs: inKernels, texts: make([]*modelText, n), fixed: make([]bool, n), allFixed: true,
		from: now}
	at := 0 // in the last list
	for i, k := range list.Kernels {
		at = last.seek(at, k)
		if l.jobs == last.jobs && last.hasFixed(at, k) {
			l.texts[i], l.fixed[i] = last.texts[at], true
			continue
		}
		if l.texts[i], err = g.textFor(who, k, last.guess(at)); err != nil {
			return nil, false, err
		}
		l.note(i, k, g.dependsOnMore(k))
	}
	g.whole.Store(l)
	return l, false, nil
}

// note records what the text of a kernel depends on.
func (l *wholeList) note(i int, k *launcher.Kernel, more bool) {
	l.fixed[i] = !more && k.KeepUntil.IsZero()
	l.allFixed = l.allFixed && !more
	if k.KeepUntil.After(l.from) && (l.until.IsZero() || k.KeepUntil.Before(l.until)) {
		l.until = k.KeepUntil
	}
}

// seek returns the place of a kernel, from an earlier place on, or the place where it would be. Lists are in the order
// of ByCreation, and most kernels of two lists are the same.
func (l *wholeList) seek(from int, k *launcher.Kernel) int {
	for ; from < len(l.texts); from++ {
		at := l.list.Kernels[from]
		if at == k || launcher.CompareCreation(at.Created, at.ID, k.Created, k.ID) >= 0 {
			break
		}
	}
	return from
}

// hasFixed reports whether the kernel at a place is the same one, and its text depends on nothing else.
func (l *wholeList) hasFixed(at int, k *launcher.Kernel) bool {
	return at < len(l.texts) && l.fixed[at] && l.list.Kernels[at] == k
}

// guess returns the text at a place, or nil.
func (l *wholeList) guess(at int) *modelText {
	if at < len(l.texts) {
		return l.texts[at]
	}
	return nil
}

// writeWhole answers with the models of all kernels.
func (g *Gateway) writeWhole(w http.ResponseWriter, who caller, list *launcher.List) error {
	l, again, err := g.wholeFor(who, list)
	if err != nil {
		return err
	}
	if !again { // lists that change each time would make megabytes of garbage
		return writeTexts(w, l.texts)
	}
	body := l.wholeBody()
	beginBody(w, http.StatusOK, len(body))
	if _, err := w.Write(body); err != nil {
		return &unwritten{err}
	}
	return endBody(w)
}

// wholeBody returns the answer.
func (l *wholeList) wholeBody() []byte {
	if body := l.body.Load(); body != nil {
		return *body
	}
	buffer := bytes.NewBuffer(make([]byte, 0, lengthOf(l.texts)))
	writeList(buffer, l.texts) // a buffer has no error
	body := buffer.Bytes()
	l.body.Store(&body)
	return body
}
