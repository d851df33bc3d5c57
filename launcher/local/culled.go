package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// Culled returns the kernels that were culled: those that are shown as dead, and those of which a tombstone is left.
func (l *Launcher) Culled(ctx context.Context) ([]launcher.Culled, error) {
	if err := l.rescan(ctx); err != nil {
		return nil, err
	}
	all, there := []launcher.Culled{}, map[string]bool{}
	for _, k := range l.known() {
		end, err := l.layout.readEnding(k.id) // written also by a supervisor that stays for a while
		if err != nil {
			l.log.Warn("record of a kernel's end cannot be read", "kernel", k.id, "err", err)
		}
		// It may be buried at this moment: its tombstone is there before its folder goes.
		if _, err := os.Stat(k.dir); end == nil && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		there[k.id] = true
		if end != nil && end.Culled {
			all = append(all, launcher.Culled{ID: k.id, SpecName: k.rec.SpecName, Owner: k.rec.Owner, Reason: end.Reason, At: end.At, Usage: usageOf(*end)})
		}
	}
	stones, err := os.ReadDir(l.layout.ended())
	if err != nil {
		return nil, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
	}
	for _, e := range stones {
		id := strings.TrimSuffix(e.Name(), ".json")
		if there[id] || !launcher.ValidID(id) {
			continue // one that was started again
		}
		var t tombstone
		if err := readJSON(filepath.Join(l.layout.ended(), e.Name()), &t); err != nil {
			if !errors.Is(err, fs.ErrNotExist) { // else it has just been removed for its age
				l.log.Warn("record of a kernel's end cannot be read", "kernel", id, "err", err)
			}
			continue
		}
		if t.Culled {
			all = append(all, launcher.Culled{ID: id, SpecName: t.SpecName, Owner: t.Owner, Reason: t.Reason, At: t.At, Usage: usageOf(t.Ending)})
		}
	}
	slices.SortFunc(all, launcher.NewestFirst)
	return all, nil
}

func usageOf(end supervisor.Ending) launcher.Usage {
	return launcher.Usage{Started: end.Started, Seconds: end.Seconds}
}
