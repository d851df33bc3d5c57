package local

import (
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// unsupportedPause is between two looks at a supervisor of another protocol version, whose end is to be noticed.
const unsupportedPause = 30 * time.Second

// watcher stands for the one goroutine that follows a kernel's status. A kernel's watcher field names the present one;
// any other ends as soon as it looks.
type watcher struct{ unsupported bool }

// ensureWatch starts to follow a kernel whose supervisor lives, or may.
func (l *Launcher) ensureWatch(k *kernel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.watcher != nil || k.gone != nil {
		return
	}
	w := new(watcher)
	if l.ownLocked(func() { l.watch(k, w) }) {
		k.watcher = w
	}
}

// watch follows a kernel until its supervisor has ended or the launcher closes.
func (l *Launcher) watch(k *kernel, w *watcher) {
	pause := l.timing.firstRedial
	for {
		heard, err := l.stream(k, w)
		if l.ctx.Err() != nil {
			return
		}
		l.streamEnded(k, w, err)
		if v := l.settle(k); v == dead || v == gone {
			return
		}
		if heard {
			pause = l.timing.firstRedial
		}
		wait := pause + time.Duration(rand.Int64N(int64(pause/4)+1))
		if w.unsupported {
			wait = unsupportedPause
		}
		if sleep(l.ctx, wait) != nil || !l.watches(k, w) {
			return
		}
		pause = min(2*pause, l.timing.lastRedial)
	}
}

// watches reports whether w is the kernel's present watcher.
func (l *Launcher) watches(k *kernel, w *watcher) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return k.watcher == w
}

// stream opens the status stream and follows it to its end.
func (l *Launcher) stream(k *kernel, w *watcher) (heard bool, err error) {
	select {
	case l.opening <- struct{}{}:
	case <-l.ctx.Done():
		return false, context.Cause(l.ctx)
	}
	// A stream counts as open from its first line; until then it keeps its place among those being opened.
	opened := sync.OnceFunc(func() { <-l.opening })
	defer opened()
	err = l.client(k).Watch(l.ctx, func(st supervisor.Status) {
		opened()
		heard = true
		l.hear(k, w, st)
	})
	return heard, err
}

// hear enters a status.
func (l *Launcher) hear(k *kernel, w *watcher, st supervisor.Status) {
	var end *supervisor.Ending // of a kernel whose supervisor stays for a while
	if st.State == string(launcher.Dead) {
		var err error
		if end, err = l.layout.readEnding(k.id); err != nil {
			l.log.Warn("record of a kernel's end cannot be read", "kernel", k.id, "err", err)
		}
	}
	l.mu.Lock()
	if k.watcher != w {
		l.mu.Unlock()
		return
	}
	newProcess := !k.heard || k.status.PID != st.PID || k.status.KernelPID != st.KernelPID
	newLimit := !k.heard || k.status.PID != st.PID
	k.status, k.heard, k.streaming, k.unsupported = st, true, true, ""
	if newLimit {
		k.pushed = st.LogLimit
	}
	l.tally.Add(k.counted, st.Counts)
	k.counted = st.Counts
	l.countCull(k, end)
	l.observe(k)
	k.touch()
	l.mu.Unlock()
	if newLimit {
		l.countChanged()
	}
	if newProcess {
		l.noteProcesses(k, processes{Supervisor: st.PID, Kernel: st.KernelPID})
	}
}

// noteProcesses writes down whom a later gateway has to look for if the supervisor is killed. The turn is not taken:
// the file is replaced as a whole, and what it says is true.
func (l *Launcher) noteProcesses(k *kernel, p processes) {
	if err := writeJSON(l.layout.file(k.id, processFile), p); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.log.Warn("process ids of a kernel cannot be noted", "kernel", k.id, "err", err)
	}
}

// streamEnded marks what is known as old.
func (l *Launcher) streamEnded(k *kernel, w *watcher, err error) {
	var version *supervisor.VersionError
	w.unsupported = errors.As(err, &version)
	l.mu.Lock()
	if k.watcher != w {
		l.mu.Unlock()
		return
	}
	was, first := k.streaming, w.unsupported && k.unsupported == ""
	k.streaming = false
	if w.unsupported {
		k.unsupported = err.Error()
	}
	if was || first {
		k.touch()
	}
	l.mu.Unlock()
	switch {
	case first:
		l.log.Error("kernel is left alone", "kernel", k.id, "err", err)
	case was:
		l.log.Debug("status stream ended", "kernel", k.id, "err", err)
	}
}
