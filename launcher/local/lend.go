package local

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/devices"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/flock"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// waitFile exists in the folder of a kernel that waits for a GPU and has no supervisor yet. Any gateway of the state
// directory may start it.
const waitFile = "waiting.json"

// gpusDir has the locks of the GPUs; see package devices.
const gpusDir = "gpus"

const (
	lendPause   = time.Second      // between two looks for GPUs that other gateways' kernels have given back
	listMaxAge  = 30 * time.Second // after it the GPUs are listed again, if a kernel waits
	lendTimeout = 10 * time.Second // for the lock of the GPUs
	busyLimit   = 30 * time.Second // after it a kernel that another gateway works on keeps no GPU from later ones
)

// unknownWait is the reason of a kernel that waits, before this launcher has looked for its GPUs.
const unknownWait = "it waits for a GPU"

// waiting says that a kernel waits for a GPU.
type waiting struct {
	Since      time.Time `json:"since"` // UTC
	reason     string
	candidates []string  // UUIDs of the GPUs that would do; none before the first look for one
	busySince  time.Time // since then no look at the kernel has been possible; zero after one
}

// promisesLocked adds the GPUs that a kernel which waits keeps from those that go behind it. It keeps them before this
// launcher has first looked for one, as another gateway may be working on it. After busyLimit it keeps none: that
// gateway may have frozen.
func (l *Launcher) promisesLocked(k *kernel, list gpu.List, to map[string]bool) {
	if busy := k.waiting.busySince; !busy.IsZero() && l.timing.now().Sub(busy) >= busyLimit {
		return
	}
	uuids := k.waiting.candidates
	if len(uuids) == 0 && k.rec.Want != nil {
		uuids = k.rec.Want.Candidates(list)
	}
	for _, uuid := range uuids {
		to[uuid] = true
	}
}

// listGPUs asks ekg-gpu for the machine's GPUs, and logs what has changed.
func (l *Launcher) listGPUs() {
	list := devices.List(l.ctx, l.opts.GPUProgram, supervisorEnv(l.environ))
	if l.ctx.Err() != nil {
		return
	}
	l.gpusLock.Lock()
	if len(list.Devices) > 0 || l.gpus == nil { // else the program has failed, and is asked again
		l.gpus = &list
	}
	text := fmt.Sprint(len(list.Devices), list.Reason)
	news := text != l.gpusLogged
	l.gpusListed, l.gpusLogged = time.Now(), text
	l.gpusLock.Unlock()
	switch {
	case news && len(list.Devices) > 0:
		l.log.Info("kernels get GPUs", logkey.Count, len(list.Devices))
	case news:
		l.log.Info("no GPU is found for kernels", logkey.Reason, list.Reason)
	}
}

// gpuList returns the GPUs of this machine. It waits for the first list.
func (l *Launcher) gpuList() gpu.List {
	select {
	case <-l.listed:
	case <-l.ctx.Done():
	}
	l.gpusLock.Lock()
	defer l.gpusLock.Unlock()
	if l.gpus == nil {
		return gpu.List{}
	}
	return *l.gpus
}

// GPUs returns the GPUs of this machine and who holds them, whichever gateway has started the kernels. Without GPUs
// reason says why there are none. It asks no driver, but waits for the first list.
func (l *Launcher) GPUs(ctx context.Context) (all []gpu.Held, reason string, err error) {
	select {
	case <-l.listed:
	case <-ctx.Done():
		return nil, "", fmt.Errorf("%w: the GPUs of this machine are not known yet", launcher.ErrUnavailable)
	case <-l.ctx.Done():
	}
	list := l.gpuList()
	all, err = l.pool.Held(ctx, list)
	if err != nil {
		return nil, "", fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
	}
	return all, list.Reason, nil
}

// borrow takes what a kernel asks for; nil if it asks for nothing. The error is a *devices.BusyError if it has to wait.
func (l *Launcher) borrow(ctx context.Context, k *kernel, prefer []string, promised map[string]bool) (
	*devices.Loan, error) {
	if k.rec.Want == nil {
		return nil, nil
	}
	list := l.gpuList()
	ctx, cancel := context.WithTimeout(ctx, lendTimeout)
	defer cancel()
	loan, err := l.pool.Lend(ctx, k.id, list, *k.rec.Want, prefer, promised)
	switch {
	case err == nil, errors.As(err, new(*devices.BusyError)), errors.As(err, new(*devices.NeverError)):
		return loan, err
	}
	return nil, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
}

// borrowBehind is borrow for a kernel that goes behind all that wait, also those that other gateways have made wait.
func (l *Launcher) borrowBehind(ctx context.Context, k *kernel, prefer []string) (*devices.Loan, error) {
	if k.rec.Want == nil {
		return nil, nil
	}
	if err := l.catchUp(ctx); err != nil {
		return nil, err
	}
	return l.borrow(ctx, k, prefer, l.promised(k))
}

// promised returns the GPUs that other kernels in memory wait for, if those go before this one: a job's kernel goes
// behind all others.
func (l *Launcher) promised(to *kernel) map[string]bool {
	if to.rec.Want == nil { // it asks for nothing, and there may be thousands of others
		return nil
	}
	list := l.gpuList()
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string]bool{}
	for _, k := range l.kernels.ordered {
		if k.waiting != nil && (to.rec.Job || !k.rec.Job) {
			l.promisesLocked(k, list, all)
		}
	}
	return all
}

// beginWaiting makes a kernel without a supervisor wait for a GPU. The turn and the folder's lock are held.
func (l *Launcher) beginWaiting(k *kernel, why error) error {
	w := waiting{Since: l.timing.now().UTC()}
	if err := writeJSON(l.layout.file(k.id, waitFile), w); err != nil {
		return err
	}
	if err := os.Remove(l.layout.file(k.id, endFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l.markWaiting(k, w, why)
	l.log.Info("kernel waits", logkey.Kernel, k.id, logkey.Spec, k.rec.SpecName, logkey.Reason, why.Error())
	goroutines.Wake(l.lends)
	return nil
}

// isWaiting reads whether a kernel without supervisor and ending waits for a GPU.
func (l *Launcher) isWaiting(k *kernel) (w waiting, is bool) {
	if k.rec.Want == nil {
		return w, false
	}
	err := readJSON(l.layout.file(k.id, waitFile), &w)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.log.Warn("kernel does not wait any more", logkey.Kernel, k.id, logkey.Err, err)
	}
	return w, err == nil
}

// seemsToWait reads without the folder's lock whether a kernel waits for a GPU. Another gateway may be starting it.
func (l *Launcher) seemsToWait(k *kernel) (w waiting, is bool) {
	if w, is = l.isWaiting(k); !is {
		return w, false
	}
	end, err := l.layout.readEnding(k.id)
	return w, err == nil && end == nil
}

// markWaiting records that a kernel waits. why is nil if it is not known yet.
func (l *Launcher) markWaiting(k *kernel, w waiting, why error) {
	w.reason = unknownWait
	if why != nil {
		w.reason = why.Error()
	}
	if busy := (*devices.BusyError)(nil); errors.As(why, &busy) {
		w.candidates = busy.Candidates
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	before := k.waiting
	k.unsure = false
	if before != nil && why == nil {
		return
	}
	if before == nil {
		l.kernels.setEnd(k, nil)
		k.supervisor.HasStatus, k.supervisor.Unsupported, k.pushedLimit = false, "", 0
		k.supervisor.LeaveLocked()
	}
	k.waiting = &w
	if before == nil || before.reason != w.reason {
		k.supervisor.ChangedLocked()
	}
	if before == nil {
		goroutines.Wake(l.lends)
	}
}

// endWaiting forgets that a kernel waits. Its supervisor lives, or its end is on record.
func (l *Launcher) endWaiting(k *kernel) {
	if k.rec.Want == nil {
		return
	}
	if err := os.Remove(l.layout.file(k.id, waitFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.log.Warn("kernel still seems to wait", logkey.Kernel, k.id, logkey.Err, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.waiting != nil {
		k.waiting = nil
		k.supervisor.ChangedLocked()
	}
}

// lend starts kernels that wait for GPUs, when kernels of this launcher end, and at intervals while any kernel waits.
func (l *Launcher) lend() {
	l.listGPUs()
	close(l.listed)
	for {
		var again <-chan time.Time
		if l.startWaiting() {
			again = time.After(l.timing.lendPause)
		}
		select {
		case <-l.lends:
		case <-again:
		case <-l.ctx.Done():
			return
		}
	}
}

// inTurn returns the kernels in memory that wait, in the order of arrival, the kernels of jobs after all others.
func (l *Launcher) inTurn() (all []*kernel) {
	since := map[*kernel]time.Time{}
	l.mu.Lock()
	for _, k := range l.kernels.ordered {
		if k.waiting != nil {
			all = append(all, k)
			since[k] = k.waiting.Since
		}
	}
	l.mu.Unlock()
	slices.SortStableFunc(all, func(a, b *kernel) int {
		return cmp.Or(behind(a, b), since[a].Compare(since[b]), cmp.Compare(a.id, b.id))
	})
	return all
}

// startWaiting starts what can be started, in the order of inTurn. It reports whether kernels still wait. If memory has
// no kernel that waits, it does nothing: a gateway that knows one starts it.
func (l *Launcher) startWaiting() bool {
	if len(l.inTurn()) == 0 {
		return false
	}
	if err := l.catchUp(l.ctx); err != nil { // for kernels that other gateways have made wait
		if l.ctx.Err() == nil {
			l.log.Warn("no kernel that waits gets a GPU; this is tried again", logkey.Err, err)
		}
		return true
	}
	all := l.inTurn()
	l.gpusLock.Lock()
	old := time.Since(l.gpusListed) >= listMaxAge
	l.gpusLock.Unlock()
	if old {
		l.listGPUs()
	}
	list := l.gpuList()
	promised := map[string]bool{}
	for _, k := range all {
		if l.ctx.Err() != nil {
			return false
		}
		looked := l.tryWaiting(k, promised)
		l.mu.Lock()
		if k.waiting != nil {
			switch {
			case looked:
				k.waiting.busySince = time.Time{}
			case k.waiting.busySince.IsZero():
				k.waiting.busySince = l.timing.now()
			}
			l.promisesLocked(k, list, promised)
		}
		l.mu.Unlock()
	}
	return true
}

// behind orders the kernels of jobs behind all others.
func behind(a, b *kernel) int {
	switch {
	case a.rec.Job == b.rec.Job:
		return 0
	case a.rec.Job:
		return 1
	}
	return -1
}

// tryWaiting starts a kernel that waits, if the GPUs are there that it needs. It reports whether it could look at the
// kernel: another goroutine or gateway may be working on it.
func (l *Launcher) tryWaiting(k *kernel, promised map[string]bool) (looked bool) {
	if !k.tryTurn() {
		return false
	}
	defer k.giveTurn()
	folder, err := flock.Folder(k.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		l.markGone(k, l.layout.goneError(k.id))
		return true
	case err != nil:
		if !errors.Is(err, flock.ErrBusy) {
			l.log.Warn("kernel cannot be looked at", logkey.Kernel, k.id, logkey.Err, err)
		}
		return false
	}
	defer flock.Unlock(folder)
	if v, err := l.reconcileFolder(k); v != inLine || err != nil {
		if err != nil {
			l.log.Warn("kernel that waits cannot be looked at", logkey.Kernel, k.id, logkey.Err, err)
		}
		return err == nil
	}
	l.mu.Lock()
	var known []string
	if k.waiting != nil {
		known = k.waiting.candidates
	}
	l.mu.Unlock()
	if len(known) > 0 && !slices.ContainsFunc(known, func(uuid string) bool { return !promised[uuid] }) {
		return true // kernels that have waited for longer get all that would do
	}
	w, _ := l.isWaiting(k)
	loan, err := l.borrow(l.ctx, k, nil, promised)
	if err != nil {
		l.markWaiting(k, w, err)
		if errors.As(err, new(*devices.BusyError)) {
			l.giveWay(k, promised)
		}
		return true
	}
	lent := l.timing.now()
	err = l.launchAgain(l.ctx, k, loan)
	switch {
	case l.ctx.Err() != nil && err != nil: // another gateway starts it
	case err != nil:
		end := &api.Ending{KernelID: k.id, Reason: "it could not be started: " + err.Error(), At: l.timing.now().UTC()}
		if failed := (*launcher.FailedError)(nil); errors.As(err, &failed) {
			end.Reason = failed.Reason
		} else {
			l.log.Error("kernel that has waited cannot be started", logkey.Kernel, k.id, logkey.Err, err)
		}
		if err := writeJSON(l.layout.file(k.id, endFile), end); err != nil {
			l.log.Error("kernel's end cannot be recorded", logkey.Kernel, k.id, logkey.Err, err)
			return true
		}
		l.endWaiting(k)
		l.markDead(k, end)
	default:
		running := l.timing.now()
		l.trackStart(k, &start{since: running, phases: []launcher.Phase{
			{Name: launcher.PhaseAdmission, Took: lent.Sub(w.Since)},
			{Name: launcher.PhaseStarted, Took: running.Sub(lent)},
		}})
		l.markAlive(k)
		l.opts.Observer.GPUWaited(k.rec.Flavor, l.timing.now().Sub(w.Since))
		l.log.Info("kernel started", logkey.Kernel, k.id, logkey.Spec, k.rec.SpecName, logkey.Took,
			l.timing.now().Sub(w.Since))
	}
	return true
}

// launchAgain starts a kernel from its stored configuration, with the GPUs of loan, which may be nil. After an error
// they are free as launchWith says. The turn and the folder's lock are held.
func (l *Launcher) launchAgain(ctx context.Context, k *kernel, loan *devices.Loan) error {
	// The file may be an earlier version's, with other fields.
	var cfg api.Config
	b, err := os.ReadFile(l.layout.file(k.id, configFile))
	if err == nil {
		err = json.Unmarshal(b, &cfg)
	}
	if err != nil {
		if loan != nil {
			loan.Return()
		}
		return &launcher.FailedError{Reason: "the record of how this kernel was started cannot be read"}
	}
	cfg.SetVersion()
	l.setLogBounds(&cfg)
	cfg.StopGrace, cfg.DeadLinger, cfg.RestartLimit = l.opts.StopGrace, l.opts.DeadLinger, api.DefaultRestartLimit
	cfg.WorkingDir = workingDir(cfg.WorkingDir, l.dir)
	cfg.ChildSocket, cfg.SameMachine = childSocket(k.rec.RunDir), true
	l.removeGroup(k) // the file will not name it any more
	cfg.ScanFile, cfg.ControlGroup = l.layout.scanFile(), l.newGroup(k.id)
	// Its ids are those of processes that have ended.
	if err := os.Remove(l.layout.file(k.id, processFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.log.Warn("process ids of a kernel cannot be removed", logkey.Kernel, k.id, logkey.Err, err)
	}
	return l.launchWith(ctx, k, &cfg, loan)
}

// launchWith stores the configuration and starts the kernel with the GPUs of loan, which may be nil. After an error
// they are free once the last process has ended that has inherited their locks: one that is killed may take a moment.
func (l *Launcher) launchWith(ctx context.Context, k *kernel, cfg *api.Config, loan *devices.Loan) error {
	var held []*os.File
	if loan != nil {
		l.equip(cfg, loan)
		held = loan.Files
		defer loan.Close()
	}
	err := keepJSON(l.layout.file(k.id, configFile), cfg)
	if err == nil {
		err = l.launch(ctx, k, held)
	}
	if err == nil {
		l.endWaiting(k)
	}
	return err
}

// devicesBefore returns the GPUs that a kernel had when it was started last.
func (l *Launcher) devicesBefore(k *kernel) []string {
	var cfg struct {
		Env map[string]string `json:"env"`
	}
	if k.rec.Want == nil || readJSON(l.layout.file(k.id, configFile), &cfg) != nil { // then any others will do
		return nil
	}
	return heldGPUs(cfg.Env[visibleVariable])
}

// endLingering ends the supervisor of a dead kernel that had GPUs. It has given them back. So a restart takes others,
// or waits for them.
func (l *Launcher) endLingering(ctx context.Context, k *kernel) error {
	if k.rec.Want == nil {
		return nil
	}
	if err := k.takeTurn(ctx); err != nil {
		return err
	}
	defer k.giveTurn()
	folder, err := waitFolder(ctx, k.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // whoever asks next learns of it
	}
	if err != nil {
		return err
	}
	defer flock.Unlock(folder)
	held, err := l.layout.supervised(k.id)
	if err != nil {
		return fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
	}
	end, err := l.layout.readEnding(k.id)
	if err != nil {
		return fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
	}
	if !held || end == nil {
		return nil
	}
	pid := l.readProcesses(k.id).holder()
	if err := l.layout.signal(k.id, pid, syscall.SIGTERM); err != nil {
		l.log.Warn("supervisor of a dead kernel cannot be signaled", logkey.Kernel, k.id, logkey.PID, pid, logkey.Err, err)
	}
	if err := l.awaitUnlocked(ctx, k, exitLimit); err != nil {
		return err
	}
	_, err = l.reconcileFolder(k)
	return err
}

// poolOf returns the pool of GPUs of a state directory.
func poolOf(lay layout) (*devices.Pool, error) {
	return devices.NewPool(filepath.Join(lay.state, gpusDir))
}
