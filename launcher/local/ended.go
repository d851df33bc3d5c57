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

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Ended returns the kernels that were culled or died: those that are shown as dead, and those with a stored ending.
func (l *Launcher) Ended(ctx context.Context, owner string) ([]launcher.EndedKernel, error) {
	known, err := l.withEndings(ctx, owner)
	if err != nil {
		return nil, err
	}
	all := []launcher.EndedKernel{}
	for _, k := range known {
		if k.end != nil && k.end.Unrequested() {
			all = append(all, launcher.EndedKernel{
				ID: k.id, SpecName: k.specName, Owner: k.owner, Reason: k.end.Reason, Culled: k.end.Culled, At: k.end.At,
				Usage: usageOf(*k.end),
			})
		}
	}
	slices.SortFunc(all, launcher.NewestFirst)
	return all, nil
}

// knownKernel is a kernel that exists, or of which only the ending is kept.
type knownKernel struct {
	id, specName, owner, flavor string

	gpus   gpu.Amount  // that were assigned to it
	end    *api.Ending // nil: it lives
	kernel *kernel     // nil: only the ending is kept
}

// withEndings returns an owner's kernels that exist, and those of which the ending is kept; "": those of all.
func (l *Launcher) withEndings(ctx context.Context, owner string) ([]knownKernel, error) {
	if err := l.catchUp(ctx); err != nil {
		return nil, err
	}
	var all []knownKernel
	there := map[string]bool{}
	for _, k := range l.snapshot() {
		if owner != "" && k.rec.Owner != owner {
			continue
		}
		end, err := l.layout.readEnding(k.id) // a lingering supervisor has written one, too
		if err != nil {
			l.log.Warn("record of a kernel's end cannot be read", logkey.Kernel, k.id, logkey.Err, err)
		}
		// The kernel may be removed at this moment. Its ending is stored before its folder is removed.
		if _, err := os.Stat(k.dir); end == nil && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		there[k.id] = true
		all = append(all, knownKernel{k.id, k.rec.SpecName, k.rec.Owner, k.rec.Flavor, k.rec.GPUs, end, k})
	}
	stones, err := l.stones.Read(owner)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
	}
	for _, stone := range stones {
		t, name := &stone.Value, stone.Name
		id := strings.TrimSuffix(name, ".json")
		switch err := stone.Err; {
		case there[id] || !launcher.ValidID(id): // it was started again
		case errors.Is(err, files.ErrUnusable):
			l.layout.setAside(filepath.Join(l.layout.ended(), name), err)
		case err != nil:
			l.log.Warn("record of a kernel's end cannot be read", logkey.Kernel, id, logkey.Err, err)
		default:
			all = append(all, knownKernel{id, t.SpecName, t.Owner, t.Flavor, t.Held, &t.Ending, nil})
		}
	}
	return all, nil
}

func usageOf(end api.Ending) launcher.Usage {
	return launcher.Usage{Started: end.Started, Seconds: end.Seconds}
}
