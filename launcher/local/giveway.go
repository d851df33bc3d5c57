package local

import (
	"errors"
	"io/fs"
	"slices"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/devices"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// Warm kernels hold GPUs only while no other kernel needs them. launcher.GiveWay decides which of them end for a kernel
// that waits. While any kernel waits, none is started. None takes a GPU that other kernels are pinned to.

// gaveWayReason is the reason of such an end.
const gaveWayReason = "a kernel waits for its GPU"

// giveWay ends warm kernels whose GPUs are enough for a kernel that waits, or is pinned to one. Some GPUs are not for
// it. It ends none if some are being ended that are enough.
func (l *Launcher) giveWay(k *kernel, notFor func(uuid string) bool) {
	warm, err := l.warm.holders()
	if err != nil {
		l.log.Warn("warm kernels do not give way; this is tried again", logkey.Kernel, k.id, logkey.Err, err)
		return
	}
	if len(warm) == 0 {
		return
	}
	all, _, err := l.lender.Held(l.ctx)
	if err != nil {
		if l.ctx.Err() == nil {
			l.log.Warn("warm kernels do not give way; this is tried again", logkey.Kernel, k.id, logkey.Err, err)
		}
		return
	}
	all = slices.DeleteFunc(all, func(h gpu.Held) bool { return notFor(h.UUID) })
	_, ends := launcher.GiveWay([]launcher.Place{room(*k.rec.Want, all, warm)})
	for _, w := range warm {
		if e := w.warmEntry; slices.Contains(ends, e.ID) && l.warm.end(e.ID, gaveWayReason, false) {
			l.warm.GaveWay(e.SpecName)
			l.log.Info("warm kernel gives way to a kernel that waits", logkey.Kernel, e.ID, logkey.Spec, e.SpecName,
				logkey.Waits, k.id)
		}
	}
}

// warmHolder is a warm kernel that may hold GPUs.
type warmHolder struct {
	warmEntry
	ending bool // it is being ended
}

// holders returns the warm kernels, the oldest first.
func (w *warmStore) holders() (all []warmHolder, err error) {
	entries, err := w.entries()
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		rec, err := w.l.layout.readRecord(e.ID)
		switch {
		case errors.Is(err, fs.ErrNotExist): // it is being created, or has ended
		case err != nil:
			return nil, err
		case rec.Warm != "":
			all = append(all, warmHolder{e, rec.Warm == warmEnding})
		}
	}
	return all, nil
}

// room returns the machine as a place where warm kernels may end for a kernel, the newest first. Those that are being
// ended count as gone.
func room(want devices.Want, all []gpu.Held, warm []warmHolder) launcher.Place {
	var p launcher.Place
	for _, w := range slices.Backward(warm) {
		if w.ending {
			all = devices.Without(all, w.ID)
		} else if holds(all, w.ID) {
			p.Ends = append(p.Ends, w.ID)
		}
	}
	p.Fits = func(ends []string) bool {
		left := all
		for _, id := range ends {
			left = devices.Without(left, id)
		}
		free, _ := want.Room(left)
		return free > 0
	}
	return p
}

// holds reports whether a kernel holds some of these GPUs.
func holds(all []gpu.Held, id string) bool {
	return slices.ContainsFunc(all, func(h gpu.Held) bool {
		return slices.ContainsFunc(h.Holders, func(one gpu.Holder) bool { return one.Kernel == id })
	})
}

// WhyNot says why no warm kernel that wants GPUs is started now, "" if one may be.
func (w *warmStore) WhyNot(kind warmKind) string {
	l, want := w.l, kind.want
	if want == nil {
		return ""
	}
	if l.lender.Waits() {
		return launcher.WaitsForGPU
	}
	all, _, err := l.lender.Held(l.ctx)
	if err != nil {
		return err.Error()
	}
	all = slices.DeleteFunc(all, func(h gpu.Held) bool { return len(h.Pinned) > 0 }) // kernels take it when they need it
	if free, _ := want.Room(all); free == 0 {
		return launcher.NoGPUIsFree
	}
	return ""
}

// withoutWarm returns GPUs as if warm kernels held none, since these give way.
func withoutWarm(all []gpu.Held, warm []warmHolder) []gpu.Held {
	for _, w := range warm {
		all = devices.Without(all, w.ID)
	}
	return all
}
