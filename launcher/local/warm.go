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
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/devices"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
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

// warmKind is what warm kernels of a kernelspec are started from.
type warmKind struct {
	launcher.Warm
	content string // digest of all that a start cannot change
	mode    string
	cfg     api.Config
	want    *devices.Want // GPUs; nil: none
}

// warmEntries returns the entries, the oldest first. Unreadable ones are left out.
func (l *Launcher) warmEntries() ([]warmEntry, error) {
	names, err := readNames(l.layout.warm())
	if err != nil {
		return nil, err
	}
	var all []warmEntry
	for _, name := range names {
		var e warmEntry
		id := strings.TrimSuffix(name, ".json")
		if !launcher.ValidID(id) || readJSON(l.layout.warmFile(id), &e) != nil || e.ID != id {
			continue
		}
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b warmEntry) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return all, nil
}

// kindOf returns from what warm kernels of a plain start are started. The error says why there can be none.
func (l *Launcher) kindOf(w launcher.Warm) (warmKind, error) {
	w.Start.ID = uuid.Nil.String()
	rec, cfg, err := l.prepare(w.Start)
	if err != nil {
		return warmKind{}, err
	}
	program, err := os.Stat(l.opts.Supervisor)
	if err != nil {
		return warmKind{}, err
	}
	k := warmKind{Warm: w, mode: launcher.WarmMode(w.Start.Spec), cfg: fixedPart(cfg), want: rec.Want}
	parts := []any{k.mode, k.cfg, l.opts.Supervisor, program.Size(), program.ModTime().UnixNano()}
	if k.want != nil {
		parts = append(parts, k.want)
	}
	text, err := json.Marshal(parts)
	if err != nil {
		return k, err
	}
	sum := sha256.Sum256(text)
	k.content = hex.EncodeToString(sum[:])
	return k, nil
}

// fixedPart returns a configuration without what differs between two kernels of one kernelspec and owner.
func fixedPart(cfg api.Config) api.Config {
	cfg.KernelID, cfg.Listen, cfg.ChildSocket, cfg.RunDir, cfg.ControlGroup = "", "", "", "", ""
	cfg.ConnectionFile, cfg.LockFile, cfg.EndFile, cfg.SpillDir = "", "", "", ""
	return cfg
}

// fits returns the assignment with which a warm kernel of a kind becomes the kernel of a request.
func (l *Launcher) fits(kind warmKind, req launcher.Request) (api.Assignment, record, bool) {
	a := api.Assignment{ID: uuid.NewString(), Owner: req.Owner}
	req.ID = uuid.Nil.String()
	rec, cfg, err := l.prepare(req)
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

// takeWarm gives a start a warm kernel, if one fits. The error is a *launcher.LimitError if limits do not allow the
// start. Without a warm kernel, taken is false and the start is an ordinary one.
func (l *Launcher) takeWarm(ctx context.Context, req launcher.Request) (d launcher.Kernel, taken bool, err error) {
	if l.opts.Warm == nil {
		return d, false, nil
	}
	wanted := l.opts.Warm()
	at := slices.IndexFunc(wanted, func(w launcher.Warm) bool { return w.Start.Spec.Name == req.Spec.Name })
	if at < 0 {
		return d, false, nil
	}
	result := launcher.ClaimUnfit
	defer func() {
		l.mu.Lock()
		l.warm.Claimed(req.Spec.Name, result)
		l.mu.Unlock()
	}()
	if !req.AnyID {
		return d, false, nil
	}
	kind, err := l.kindOf(wanted[at])
	if err != nil {
		return d, false, nil
	}
	assignment, rec, ok := l.fits(kind, req)
	if !ok {
		return d, false, nil
	}
	ctx, leave, err := l.join(ctx)
	if err != nil {
		return d, false, err
	}
	defer leave()
	requested := l.timing.now()
	k, err := l.claimWarm(ctx, kind, rec)
	if err != nil || k == nil {
		result = launcher.ClaimEmpty
		return d, false, err
	}
	goroutines.Wake(l.warmTaken)
	d, result, err = l.giveWarm(ctx, k, kind, assignment, requested)
	return d, result == launcher.ClaimTaken, err
}

// giveWarm assigns a kernel that was taken to its owner, or ends it. The result is launcher.ClaimTaken or
// launcher.ClaimFailed.
func (l *Launcher) giveWarm(ctx context.Context, k *kernel, kind warmKind, a api.Assignment, requested time.Time,
) (d launcher.Kernel, result string, err error) {
	claimed := l.timing.now()
	assigning, cancel := context.WithTimeout(ctx, launcher.WarmAssignTime)
	defer cancel()
	if err := l.client(k).Assign(assigning, a); err != nil {
		if ctx.Err() == nil { // else its client has gone
			l.warmFailed(k.rec.SpecName, kind.content, err.Error())
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
	l.removeWarmEntry(k.id)
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

// claimWarm makes the oldest warm kernel of a kind the kernel of a record, whose other fields it sets. It returns nil
// if there is none.
func (l *Launcher) claimWarm(ctx context.Context, kind warmKind, rec record) (*kernel, error) {
	entries, err := l.warmEntries()
	if err != nil {
		return nil, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
	}
	for _, e := range entries {
		if e.Content != kind.content {
			continue
		}
		k, err := l.claim(ctx, e, rec)
		if k != nil || err != nil {
			return k, err
		}
	}
	return nil, nil
}

// claim makes one warm kernel the kernel of a record. It returns nil if the kernel is not there, or is not warm.
func (l *Launcher) claim(ctx context.Context, e warmEntry, rec record) (*kernel, error) {
	folder, err := lockFolder(l.layout.kernel(e.ID))
	if err != nil {
		return nil, nil // another start takes it, or it has gone
	}
	defer unlock(folder)
	warm, err := l.layout.readRecord(e.ID)
	if err != nil || warm.Warm != e.Content {
		return nil, nil
	}
	if held, err := l.layout.supervised(e.ID); err != nil || !held {
		return nil, nil
	}
	rec.ID, rec.Socket, rec.RunDir, rec.Warm, rec.Created = warm.ID, warm.Socket, warm.RunDir, "", l.timing.now().UTC()
	counted, err := l.admit(ctx, heldBy(rec))
	if err != nil {
		return nil, err
	}
	defer counted()
	if err := writeJSON(l.layout.file(e.ID, recordFile), rec); err != nil {
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
	l.recountSoon()
	return k, nil
}

func (l *Launcher) removeWarmEntry(id string) {
	if err := os.Remove(l.layout.warmFile(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.log.Warn("entry of a warm kernel cannot be removed", logkey.Kernel, id, logkey.Err, err)
	}
}

// keepWarm keeps the wanted numbers of warm kernels while this launcher is the one that does so.
func (l *Launcher) keepWarm() {
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
			lock = l.takeWarmLock()
		}
		if lock != nil {
			if err := l.warmRound(); err != nil && l.ctx.Err() == nil {
				l.log.Warn("warm kernels cannot be kept; this is tried again", logkey.Err, err)
			}
		}
		select {
		case <-tick.C:
		case <-l.warmTaken:
		case <-l.ctx.Done():
			return
		}
	}
}

// takeWarmLock tries to become the launcher that keeps the warm kernels. It returns nil if another one does.
func (l *Launcher) takeWarmLock() *os.File {
	f, err := os.OpenFile(filepath.Join(l.layout.state, warmLock), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		l.log.Error("lock of the warm kernels cannot be opened", logkey.Err, err)
		return nil
	}
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		_ = f.Close() // nothing was written
		return nil
	}
	return f
}

// warmRound ends warm kernels that are not wanted, and starts those that are missing.
func (l *Launcher) warmRound() error {
	entries, err := l.warmEntries()
	if err != nil {
		return err
	}
	counts, kinds := map[string]launcher.WarmCount{}, map[string]warmKind{}
	for _, w := range l.opts.Warm() {
		name := w.Start.Spec.Name
		kind, err := l.kindOf(w)
		if err != nil {
			counts[name] = launcher.WarmCount{Wanted: w.Count, Reason: err.Error()}
			l.warmFailed(name, "", err.Error())
			continue
		}
		kinds[name], counts[name] = kind, launcher.WarmCount{Wanted: w.Count}
	}
	for _, e := range entries {
		c := counts[e.SpecName]
		if l.keepsWarm(e, kinds[e.SpecName], c) {
			c.Waiting++
			counts[e.SpecName] = c
		}
	}
	for name, kind := range kinds {
		counts[name] = l.startMissing(kind, counts[name])
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.warm.SetCounts(counts)
	return nil
}

// keepsWarm reports whether an entry stands for a warm kernel that waits and is wanted. Others are ended.
func (l *Launcher) keepsWarm(e warmEntry, kind warmKind, c launcher.WarmCount) bool {
	if l.isEnding(e.ID) {
		return false
	}
	folder, err := lockFolder(l.layout.kernel(e.ID))
	if errors.Is(err, fs.ErrNotExist) { // it was ended, or its gateway died before it was created
		l.removeWarmEntry(e.ID)
		return false
	}
	if err != nil {
		return false // a start takes it
	}
	defer unlock(folder)
	rec, err := l.layout.readRecord(e.ID)
	if err != nil {
		return false
	}
	if rec.Warm == "" {
		l.finishClaim(e, rec)
		return false
	}
	held, err := l.layout.supervised(e.ID)
	switch {
	case err != nil:
		return false
	case !held:
		reason := "it ended unexpectedly"
		if end, err := l.layout.readEnding(e.ID); err == nil && end != nil {
			reason = end.Reason
		}
		l.warmFailed(e.SpecName, e.Content, reason)
	case rec.Warm == kind.content && c.Waiting < c.Wanted:
		if l.timing.now().Sub(e.Created) >= warmProof {
			l.mu.Lock()
			l.warm.Works(e.SpecName)
			l.mu.Unlock()
		}
		return true
	}
	l.endUntaken(rec, "it is not wanted any more")
	return false
}

// endUntaken ends a warm kernel, which no start takes from now on. It reports whether that has begun. The folder's lock
// is held.
func (l *Launcher) endUntaken(rec record, reason string) bool {
	rec.Warm = warmEnding
	if err := writeJSON(l.layout.file(rec.ID, recordFile), rec); err != nil {
		l.log.Warn("warm kernel cannot be ended", logkey.Kernel, rec.ID, logkey.Err, err)
		return false
	}
	l.endWarm(l.newKernel(rec), reason)
	return true
}

// endWarm ends a kernel in the background. Until that is done, warmRound leaves the kernel alone.
func (l *Launcher) endWarm(k *kernel, reason string) {
	op := l.beginStop(l.ctx, k, reason, true)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.warmStops[k.id] = op
}

// isEnding reports whether endWarm is ending a kernel.
func (l *Launcher) isEnding(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	op := l.warmStops[id]
	if op == nil {
		return false
	}
	select {
	case <-op.done:
		delete(l.warmStops, id)
		return false
	default:
		return true
	}
}

// finishClaim ends a kernel that was taken and whose gateway died before its owner was assigned. The folder's lock is
// held.
func (l *Launcher) finishClaim(e warmEntry, rec record) {
	var stored struct {
		Done bool `json:"done"`
	}
	if err := readJSON(l.layout.file(e.ID, api.AssignmentFile), &stored); err == nil && stored.Done {
		l.removeWarmEntry(e.ID)
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
	l.endWarm(k, "its start was interrupted")
}

// startMissing starts warm kernels of a kind, a few at once.
func (l *Launcher) startMissing(kind warmKind, c launcher.WarmCount) launcher.WarmCount {
	name, started := kind.Start.Spec.Name, false
	for range min(c.Wanted-c.Waiting, launcher.WarmAtOnce) {
		if c.Reason = l.whyNoGPU(kind.want); c.Reason != "" {
			break
		}
		l.mu.Lock()
		may := l.warm.May(name, kind.content, l.timing.now())
		l.mu.Unlock()
		if !may || l.ctx.Err() != nil {
			break
		}
		if err := l.createWarm(kind); err != nil {
			if errors.As(err, new(*devices.BusyError)) { // a start was faster
				c.Reason = launcher.NoGPUIsFree
			} else if l.ctx.Err() == nil {
				l.warmFailed(name, kind.content, err.Error())
			}
			break
		}
		c.Waiting++
		started = true
	}
	if started && c.Waiting < c.Wanted {
		goroutines.Wake(l.warmTaken) // the next ones
	}
	return c
}

// warmFailed notes why a warm kernel could not be started, or has ended.
func (l *Launcher) warmFailed(spec, content, reason string) {
	l.mu.Lock()
	if !l.warm.May(spec, content, l.timing.now()) {
		l.mu.Unlock()
		return // it is known
	}
	pause := l.warm.Failed(spec, content, reason, l.timing.now())
	l.mu.Unlock()
	l.log.Warn("warm kernels of a kernelspec fail", logkey.Spec, spec, logkey.Reason, reason,
		logkey.Pause, pause)
}

// createWarm starts a warm kernel, and returns when its program runs.
func (l *Launcher) createWarm(kind warmKind) error {
	req := kind.Start
	req.ID = uuid.NewString()
	rec, cfg, err := l.prepare(req)
	if err != nil {
		return err
	}
	rec.Warm, cfg.Warm = kind.content, kind.mode
	entry := warmEntry{ID: rec.ID, SpecName: rec.SpecName, Flavor: rec.Flavor, Content: kind.content, RunDir: rec.RunDir,
		Created: rec.Created}
	if err := writeJSON(l.layout.warmFile(rec.ID), entry); err != nil {
		return err
	}
	l.setLogBounds(&cfg)
	k, folder, err := l.makeFolder(rec, cfg)
	if err != nil {
		l.removeWarmEntry(rec.ID)
		return err
	}
	defer k.giveTurn()
	defer unlock(folder)
	loan, err := l.borrowBehind(l.ctx, k, nil)
	if err == nil {
		err = l.launchWith(l.ctx, k, &cfg, loan)
	}
	if err != nil {
		if left := l.remove(k); left != nil {
			return errors.Join(err, left) // with its entry, it is ended later as one that is not wanted
		}
		l.removeWarmEntry(rec.ID)
		return err
	}
	l.log.Info("warm kernel started", logkey.Kernel, rec.ID, logkey.Spec, rec.SpecName)
	return nil
}
