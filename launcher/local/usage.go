package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Usage returns what the kernels use that live, and what those have used whose endings are still kept.
func (l *Launcher) Usage(ctx context.Context) ([]launcher.KernelUsage, error) {
	if err := l.rescan(ctx); err != nil {
		return nil, err
	}
	all, there := []launcher.KernelUsage{}, map[string]bool{}
	for _, k := range l.snapshot() {
		end, err := l.layout.readEnding(k.id)
		if err != nil {
			l.log.Warn("record of a kernel's end cannot be read", logkey.Kernel, k.id, logkey.Err, err)
		}
		// The kernel may be removed at this moment. Its ending is stored before its folder is removed.
		if _, err := os.Stat(k.dir); end == nil && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		there[k.id] = true
		u := launcher.KernelUsage{ID: k.id, SpecName: k.rec.SpecName, Owner: k.rec.Owner}
		if end != nil {
			addEnding(&u, *end)
		} else {
			l.addStatus(&u, k)
		}
		all = append(all, u)
	}
	stones, err := os.ReadDir(l.layout.ended())
	if err != nil {
		return nil, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
	}
	for _, e := range stones {
		id := strings.TrimSuffix(e.Name(), ".json")
		if there[id] || !launcher.ValidID(id) {
			continue // it was started again
		}
		var t storedEnding
		if err := readJSON(filepath.Join(l.layout.ended(), e.Name()), &t); err != nil {
			if !errors.Is(err, fs.ErrNotExist) { // else it was just removed for its age
				l.log.Warn("record of a kernel's end cannot be read", logkey.Kernel, id, logkey.Err, err)
			}
			continue
		}
		u := launcher.KernelUsage{ID: id, SpecName: t.SpecName, Owner: t.Owner}
		addEnding(&u, t.Ending)
		all = append(all, u)
	}
	return all, nil
}

// addEnding adds what a kernel had used at its end. A dead kernel may be removed later than it ended.
func addEnding(u *launcher.KernelUsage, end api.Ending) {
	u.End, u.GPUUse, u.Usage = end.At, end.GPUUse, usageOf(end)
	u.GPUs = gpu.Whole(int64(max(0, end.GPUs)))
	if !end.Started.IsZero() {
		u.End = end.Started.Add(time.Duration(end.Seconds) * time.Second)
	}
}

// addStatus adds what a kernel has used according to its supervisor.
func (l *Launcher) addStatus(u *launcher.KernelUsage, k *kernel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !k.supervisor.HasStatus {
		return
	}
	st := &k.supervisor.Status
	u.GPUUse, u.Started, u.GPUs = st.GPUUse, st.Started, gpu.Whole(int64(max(0, st.GPUs)))
	if !st.Started.IsZero() {
		u.Seconds = int64(max(0, l.timing.now().Sub(st.Started)) / time.Second)
	}
}
