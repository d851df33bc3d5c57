package local

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/internal/flock"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/devices"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/warm"
)

// A warm kernel is a complete kernel whose record has no owner. A start takes it under the lock of its folder: it
// replaces the record, and then assigns the kernel to its owner. A kernel whose record was replaced is never warm
// again. If a gateway dies between the two, the kernel is ended by the launcher that keeps the warm kernels.

const (
	warmLock = "warm.lock" // in the state directory

	// warmEnding is the record.Warm of a kernel that no start may take: it is being ended.
	warmEnding = "ending"

	// warmProof is the age of a warm kernel that shows that its kernelspec works.
	warmProof = 10 * time.Second
)

// warmEntry is STATE/warm/ID.json. It exists before the kernel's folder, and until the kernel has its owner.
type warmEntry struct {
	ID       string    `json:"id"`
	SpecName string    `json:"spec_name"`
	Flavor   string    `json:"flavor,omitempty"`
	Content  string    `json:"content"` // record.Warm of the kernel
	RunDir   string    `json:"run_dir"`
	Created  time.Time `json:"created"` // UTC
}

// warmStore is the warm kernels of a state directory, as launcher/warm keeps them.
type warmStore struct {
	l *Launcher
	*warm.Pool[warmKind]

	mu    sync.Mutex       // the last that is locked
	stops map[string]*stop // warm kernels that this launcher ends, by id
}

func newWarmStore(l *Launcher) *warmStore {
	w := &warmStore{l: l, stops: map[string]*stop{}}
	w.Pool = warm.NewPool(l.opts.Warm, w, l.timing.now, l.log)
	return w
}

// warmKind is what warm kernels of a kernelspec are started from.
type warmKind struct {
	start   launcher.Request
	content string // digest of all that a start cannot change
	mode    string
	cfg     api.Config
	want    *devices.Want // GPUs; nil: none
}

// entries returns the entries, the oldest first. Unreadable ones are left out.
func (w *warmStore) entries() ([]warmEntry, error) {
	names, err := readNames(w.l.layout.warm())
	if err != nil {
		return nil, err
	}
	var all []warmEntry
	for _, name := range names {
		var e warmEntry
		id := strings.TrimSuffix(name, ".json")
		if !launcher.ValidID(id) || files.ReadJSON(w.l.layout.warmFile(id), &e) != nil || e.ID != id {
			continue
		}
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b warmEntry) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return all, nil
}

// Kind returns from what warm kernels of a plain start are started. The error says why there can be none.
func (w *warmStore) Kind(start launcher.Request) (k warmKind, content string, err error) {
	start.ID = uuid.Nil.String()
	rec, cfg, err := w.l.prepare(start)
	if err != nil {
		return k, "", err
	}
	program, err := os.Stat(w.l.opts.Supervisor)
	if err != nil {
		return k, "", err
	}
	k = warmKind{start: start, mode: launcher.WarmMode(start.Spec), cfg: fixedPart(cfg), want: rec.Want}
	parts := []any{k.mode, k.cfg, w.l.opts.Supervisor, program.Size(), program.ModTime().UnixNano()}
	if k.want != nil {
		parts = append(parts, k.want)
	}
	text, err := json.Marshal(parts)
	if err != nil {
		return k, "", err
	}
	sum := sha256.Sum256(text)
	k.content = hex.EncodeToString(sum[:])
	return k, k.content, nil
}

// fixedPart returns a configuration without what differs between two kernels of one kernelspec and owner.
func fixedPart(cfg api.Config) api.Config {
	cfg.KernelID, cfg.Listen, cfg.ChildSocket, cfg.RunDir, cfg.ControlGroup = "", "", "", "", ""
	cfg.ConnectionFile, cfg.LockFile, cfg.EndFile, cfg.SpillDir = "", "", "", ""
	return cfg
}

// fits returns the assignment with which a warm kernel of a kind becomes the kernel of a request.
func (w *warmStore) fits(kind warmKind, req launcher.Request) (api.Assignment, record, bool) {
	a := api.Assignment{ID: uuid.NewString(), Owner: req.Owner}
	req.ID = uuid.Nil.String()
	rec, cfg, err := w.l.prepare(req)
	if err != nil || !reflect.DeepEqual(rec.Want, kind.want) {
		return a, rec, false // an ordinary start says why
	}
	cfg = fixedPart(cfg)
	env, ok := launcher.ChangedVariables(kind.mode, kind.cfg.Env, cfg.Env)
	a.Env, a.WorkingDir = env, cfg.WorkingDir
	cfg.Owner, cfg.Env, cfg.WorkingDir = kind.cfg.Owner, kind.cfg.Env, kind.cfg.WorkingDir
	have, err1 := json.Marshal(kind.cfg)
	want, err2 := json.Marshal(cfg)
	return a, rec, ok && err1 == nil && err2 == nil && string(have) == string(want)
}

// Claim gives a start a warm kernel of a kind, if it fits. The error is a *launcher.LimitError if limits do not allow
// the start.
func (w *warmStore) Claim(ctx context.Context, kind warmKind, req launcher.Request,
) (d launcher.Kernel, result string, err error) {
	assignment, rec, ok := w.fits(kind, req)
	if !ok {
		return d, launcher.ClaimUnfit, nil
	}
	ctx, leave, err := w.l.join(ctx)
	if err != nil {
		return d, launcher.ClaimUnfit, err
	}
	defer leave()
	requested := w.l.timing.now()
	k, err := w.claimOldest(ctx, kind, rec)
	if err != nil || k == nil {
		return d, launcher.ClaimEmpty, err
	}
	return w.give(ctx, k, kind, assignment, requested)
}

// give assigns a kernel that was taken to its owner, or ends it. The result is launcher.ClaimTaken or
// launcher.ClaimFailed.
func (w *warmStore) give(ctx context.Context, k *kernel, kind warmKind, a api.Assignment, requested time.Time,
) (d launcher.Kernel, result string, err error) {
	l := w.l
	claimed := l.timing.now()
	assigning, cancel := context.WithTimeout(ctx, launcher.WarmAssignTime)
	defer cancel()
	if err := k.client().Assign(assigning, a); err != nil {
		if ctx.Err() == nil { // else its client has gone
			w.Failed(k.rec.SpecName, kind.content, err.Error())
		}
		l.log.Warn("a warm kernel could not be given to its owner and is ended", logkey.Kernel, k.id, logkey.Spec,
			k.rec.SpecName, logkey.Err, err)
		op := l.beginStop(context.WithoutCancel(ctx), k, "it could not be given to its owner", true)
		if launcher.HasLimits(l.opts.Limits) { // until it has ended it counts for its owner, whose start goes on
			select {
			case <-op.done:
			case <-time.After(launcher.WarmAssignTime):
			case <-ctx.Done():
			}
		}
		return d, launcher.ClaimFailed, nil
	}
	w.removeEntry(k.id)
	l.trackStart(k, &start{since: l.timing.now(), phases: []launcher.Phase{
		{Name: launcher.PhaseAdmission, Took: claimed.Sub(requested)},
		{Name: launcher.PhaseStarted, Took: l.timing.now().Sub(claimed)},
	}})
	l.log.Info("warm kernel has got its owner", logkey.Kernel, k.id, logkey.Spec, k.rec.SpecName)
	if d, err = l.describe(k); err != nil {
		return d, launcher.ClaimFailed, err
	}
	return d, launcher.ClaimTaken, nil
}

// claimOldest makes the oldest warm kernel of a kind the kernel of a record, whose other fields it sets. It returns nil
// if there is none.
func (w *warmStore) claimOldest(ctx context.Context, kind warmKind, rec record) (*kernel, error) {
	entries, err := w.entries()
	if err != nil {
		return nil, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
	}
	for _, e := range entries {
		if e.Content != kind.content {
			continue
		}
		k, err := w.claim(ctx, e, rec)
		if k != nil || err != nil {
			return k, err
		}
	}
	return nil, nil
}

// claim makes one warm kernel the kernel of a record. It returns nil if the kernel is not there, or is not warm.
func (w *warmStore) claim(ctx context.Context, e warmEntry, rec record) (*kernel, error) {
	l := w.l
	folder, err := flock.Folder(l.layout.kernel(e.ID))
	if err != nil {
		return nil, nil // another start takes it, or it has gone
	}
	defer flock.Unlock(folder)
	was, err := l.layout.readRecord(e.ID)
	if err != nil || was.Warm != e.Content {
		return nil, nil
	}
	if held, err := l.layout.supervised(e.ID); err != nil || !held {
		return nil, nil
	}
	rec.ID, rec.Socket, rec.RunDir, rec.Warm, rec.Created = was.ID, was.Socket, was.RunDir, "", l.timing.now().UTC()
	counted, err := l.starts.admit(ctx, heldBy(rec))
	if err != nil {
		return nil, err
	}
	defer counted()
	if err := files.WriteJSON(l.layout.file(e.ID, recordFile), rec); err != nil {
		return nil, err
	}
	l.folders.Lock()
	k := l.newKernel(rec)
	l.mu.Lock()
	old := l.addLocked(k)
	l.mu.Unlock()
	l.folders.Unlock()
	if old != nil {
		l.markGone(old, launcher.ErrNotFound)
	}
	if err := os.Chmod(k.dir, 0o700); err != nil { // other gateways notice it
		l.log.Warn("other gateways will notice a kernel late", logkey.Kernel, k.id, logkey.Err, err)
	}
	l.ensureFollowed(k)
	l.logs.recountSoon()
	return k, nil
}

func (w *warmStore) removeEntry(id string) {
	if err := os.Remove(w.l.layout.warmFile(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.l.log.Warn("entry of a warm kernel cannot be removed", logkey.Kernel, id, logkey.Err, err)
	}
}

// keep keeps the wanted numbers of warm kernels while this launcher is the one that does so.
func (w *warmStore) keep() {
	l := w.l
	tick := time.NewTicker(l.timing.warmPause)
	defer tick.Stop()
	var lock *os.File
	defer func() {
		if lock != nil {
			_ = lock.Close() // nothing was written
		}
	}()
	for {
		if lock == nil {
			lock = w.takeLock()
		}
		if lock != nil {
			if err := w.Round(l.ctx); err != nil && l.ctx.Err() == nil {
				l.log.Warn("warm kernels cannot be kept; this is tried again", logkey.Err, err)
			}
		}
		select {
		case <-tick.C:
		case <-w.Woken():
		case <-l.ctx.Done():
			return
		}
	}
}

// takeLock tries to become the launcher that keeps the warm kernels. It returns nil if another one does.
func (w *warmStore) takeLock() *os.File {
	f, err := flock.Try(filepath.Join(w.l.layout.state, warmLock))
	if err != nil && !errors.Is(err, flock.ErrBusy) {
		w.l.log.Error("lock of the warm kernels cannot be taken", logkey.Err, err)
	}
	return f
}

// List looks at each warm kernel. It finishes what a gateway that died has left half done.
func (w *warmStore) List(context.Context) (all []warm.Kernel, err error) {
	entries, err := w.entries()
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if k, is := w.look(e); is {
			all = append(all, k)
		}
	}
	return all, nil
}

// look returns a warm kernel as it is now. is is false if it is being ended, or a start has taken it.
func (w *warmStore) look(e warmEntry) (k warm.Kernel, is bool) {
	l := w.l
	k = warm.Kernel{ID: e.ID, SpecName: e.SpecName, Content: e.Content}
	if w.isEnding(e.ID) {
		return k, false
	}
	folder, err := flock.Folder(l.layout.kernel(e.ID))
	if errors.Is(err, fs.ErrNotExist) { // it was ended, or its gateway died before it was created
		w.removeEntry(e.ID)
		return k, false
	}
	if err != nil {
		return k, false // a start takes it
	}
	defer flock.Unlock(folder)
	rec, err := l.layout.readRecord(e.ID)
	if err != nil {
		return k, false
	}
	if rec.Warm == "" {
		w.finishClaim(e, rec)
		return k, false
	}
	held, err := l.layout.supervised(e.ID)
	switch {
	case err != nil:
		return k, false
	case !held:
		k.State, k.Reason = warm.Failed, "it ended unexpectedly"
		if end, err := l.layout.readEnding(e.ID); err == nil && end != nil {
			k.Reason = end.Reason
		}
		return k, true
	case l.timing.now().Sub(e.Created) >= warmProof:
		k.State = warm.Proven
	}
	k.Content = rec.Warm // none fits that is being ended
	return k, true
}

// Delete ends a warm kernel that is not wanted any more. Another one may replace it at once.
func (w *warmStore) Delete(_ context.Context, k warm.Kernel) bool {
	w.end(k.ID, "it is not wanted any more", true)
	return false
}

// end ends a warm kernel, unless a start takes it at this moment. With again, it also goes on with an end that another
// gateway has begun. It reports whether the end has begun.
func (w *warmStore) end(id, reason string, again bool) bool {
	folder, err := flock.Folder(w.l.layout.kernel(id))
	if err != nil {
		return false // it is being created, taken or ended
	}
	defer flock.Unlock(folder)
	rec, err := w.l.layout.readRecord(id)
	if err != nil || rec.Warm == "" || rec.Warm == warmEnding && !again {
		return false
	}
	rec.Warm = warmEnding // no start takes it from now on
	if err := files.WriteJSON(w.l.layout.file(id, recordFile), rec); err != nil {
		w.l.log.Warn("warm kernel cannot be ended", logkey.Kernel, id, logkey.Err, err)
		return false
	}
	w.stop(w.l.newKernel(rec), reason)
	return true
}

// stop ends a kernel in the background. Until that is done, look leaves the kernel alone.
func (w *warmStore) stop(k *kernel, reason string) {
	op := w.l.beginStop(w.l.ctx, k, reason, true)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stops[k.id] = op
}

// isEnding reports whether stop is ending a kernel.
func (w *warmStore) isEnding(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	op := w.stops[id]
	if op == nil {
		return false
	}
	select {
	case <-op.done:
		delete(w.stops, id)
		return false
	default:
		return true
	}
}

// finishClaim ends a kernel that was taken and whose gateway died before its owner was assigned. The folder's lock is
// held.
func (w *warmStore) finishClaim(e warmEntry, rec record) {
	l := w.l
	var stored struct {
		Done bool `json:"done"`
	}
	if err := files.ReadJSON(l.layout.file(e.ID, api.AssignmentFile), &stored); err == nil && stored.Done {
		w.removeEntry(e.ID)
		return
	}
	if l.timing.now().Sub(rec.Created) < l.timing.warmFinish {
		return // its gateway may be at it
	}
	l.log.Warn("a kernel was taken and not given to its owner; it is ended", logkey.Kernel, e.ID)
	k := l.newKernel(rec)
	l.mu.Lock()
	if known := l.kernels.byID[e.ID]; known != nil {
		k = known
	}
	l.mu.Unlock()
	w.stop(k, "its start was interrupted")
}

// Create starts a warm kernel, and returns when its program runs.
func (w *warmStore) Create(ctx context.Context, kind warmKind) error {
	l, req := w.l, kind.start
	req.ID = uuid.NewString()
	rec, cfg, err := l.prepare(req)
	if err != nil {
		return err
	}
	rec.Warm, cfg.Warm = kind.content, kind.mode
	entry := warmEntry{ID: rec.ID, SpecName: rec.SpecName, Flavor: rec.Flavor, Content: kind.content, RunDir: rec.RunDir,
		Created: rec.Created}
	if err := files.WriteJSON(l.layout.warmFile(rec.ID), entry); err != nil {
		return err
	}
	l.logs.set(&cfg)
	k, folder, err := l.makeFolder(rec, cfg)
	if err != nil {
		w.removeEntry(rec.ID)
		return err
	}
	defer k.giveTurn()
	defer flock.Unlock(folder)
	loan, err := l.lender.Lend(ctx, k.place, nil)
	if err == nil {
		err = l.launchWith(ctx, k, &cfg, loan)
	}
	if err != nil {
		if left := l.remove(k); left != nil {
			return errors.Join(err, left) // with its entry, it is ended later as one that is not wanted
		}
		w.removeEntry(rec.ID)
		if errors.As(err, new(*devices.BusyError)) { // a start was faster
			return warm.NotNow(launcher.NoGPUIsFree)
		}
		return err
	}
	l.log.Info("warm kernel started", logkey.Kernel, rec.ID, logkey.Spec, rec.SpecName)
	return nil
}
