package kube

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// A finished pod says how its kernel ended, but the pod vanishes when it is deleted, and with its node. So every
// gateway that sees an ending stores it in the kernel's namespace. There is one config map for each hour in which
// kernels ended, and more of them if it is full, see storeEndings:
//
//	ekg-endings-2026112123
//	  data:
//	    KERNEL ID: {"reason": "it was shut down on request", "at": "2026-11-21T23:04:05Z", "stopped": true,
//	      "owner": "ann", "kernelspec": "python3", "started": "2026-11-21T21:04:05Z", "seconds": 7200, "gpus": 1}
//
// Several gateways may write the same entry. The last write wins, and changes no other kernel's entry.
const (
	endingsPrefix = "ekg-endings-"
	endingsHour   = "2006010215"

	componentEndings = "endings" // the config maps' labelComponent

	// selectEndings selects the config maps of endings.
	selectEndings = selectManaged + "," + podspec.LabelComponent + "=" + componentEndings

	endingsKept  = 1 << 14 // endings that are kept in memory
	maxUnwritten = 1 << 12 // endings that wait to be written; further ones are never written
	// characters of a reason that are written: so a config map, at most 1 MiB, holds 1,600 kernels or more
	maxNotedReason = 400
	firstRetry     = time.Second     // pause after a failed write
	lastRetry      = time.Minute     // longest pause
	lastWrite      = 2 * time.Second // for the last write of a gateway that ends
	endingsPage    = 16              // config maps in one answer of the API server: 16 MiB at most
)

// storedEnding is how a kernel ended, as JSON in a config map and between replicas.
type storedEnding struct {
	Reason    string    `json:"reason"`
	At        time.Time `json:"at"`
	Stopped   bool      `json:"stopped,omitempty"`    // on request: the kernel exists no longer
	Culled    bool      `json:"culled,omitempty"`     // by its supervisor; if Stopped too, the kernel was removed later
	CulledFor string    `json:"culled_for,omitempty"` // api.Ending.CulledFor
	Failed    bool      `json:"failed,omitempty"`     // api.Ending.Failed
	Refused   bool      `json:"refused,omitempty"`    // a limit prevented its start, so it was never shown
	Owner     string    `json:"owner,omitempty"`
	Spec      string    `json:"kernelspec,omitempty"`
	Flavor    string    `json:"flavor,omitempty"`
	launcher.Usage
	GPUUse api.GPUUse `json:"gpu_use,omitzero"`

	limit string    // name of the limit that prevented its start, or ""
	pod   types.UID // the kernel's last pod, if known: later events about it are ignored
}

// endingStore holds how kernels have ended. Launcher.mu guards it.
type endingStore struct {
	known     *lru.Cache[string, *storedEnding]
	unwritten map[string]unwrittenEnding // by kernel
	full      map[endingsPlace]bool      // config maps of hours that took no more endings
	changed   chan struct{}              // capacity 1: unwritten has grown
}

type unwrittenEnding struct {
	namespace string
	end       *storedEnding
}

func newEndings() (endingStore, error) {
	known, err := lru.New[string, *storedEnding](endingsKept)
	return endingStore{
		known:     known,
		unwritten: map[string]unwrittenEnding{},
		full:      map[endingsPlace]bool{},
		changed:   make(chan struct{}, 1),
	}, err
}

// endLocked records how a kernel has ended.
func (l *Launcher) endLocked(k *kernel, end *storedEnding) {
	if k.supervisor.HasStatus && end.GPUUse == (api.GPUUse{}) { // as when its node is lost
		end.GPUUse = k.supervisor.Status.GPUUse
	}
	k.end = end
	l.reportStartLocked(k)
	l.recordEndingLocked(k.rec, k.pod, end)
}

// rememberEndingLocked keeps an ending in memory, and reports whether it is new.
func (l *Launcher) rememberEndingLocked(id string, end *storedEnding) bool {
	before, ok := l.endings.known.Get(id)
	l.endings.known.Add(id, end)
	same := ok && before.At.Equal(end.At)
	if end.Culled && !(same && before.Culled) && !end.At.Before(l.toCluster(l.opened)) {
		l.culls[launcher.CullLabels{SpecName: end.Spec, Limit: end.CulledFor}]++
	}
	return !same || before.Stopped != end.Stopped
}

// recordEndingLocked keeps the ending of a pod's kernel, and has it written if it is new.
func (l *Launcher) recordEndingLocked(rec podspec.Record, pod *corev1.Pod, end *storedEnding) {
	noted := *end
	noted.Owner, noted.Spec, noted.Flavor, noted.pod = rec.Owner, rec.SpecName, rec.Flavor, pod.UID
	if noted.Usage == (launcher.Usage{}) { // else it comes from a peer, which may have seen more of the pod
		noted.Usage = podstatus.UsageOf(pod, end.At)
	}
	before, ok := l.endings.known.Get(rec.ID)
	if ok && noted.GPUUse == (api.GPUUse{}) && before.Started.Equal(noted.Started) { // the same pod: a removal later
		noted.GPUUse = before.GPUUse
	}
	refused := refusedUnclaimed(pod)
	if ok && end.limit != "" { // a restart was refused: the earlier ending stays
		noted = *before
		noted.pod = pod.UID
	} else {
		noted.Refused = refused
	}
	if !l.rememberEndingLocked(rec.ID, &noted) || refused {
		return
	}
	if _, waits := l.endings.unwritten[rec.ID]; !waits && len(l.endings.unwritten) >= maxUnwritten {
		l.log.Warn("the ending of a kernel is not stored: too many others wait to be written", logkey.Kernel, rec.ID,
			logkey.Reason, end.Reason)
		return
	}
	l.endings.unwritten[rec.ID] = unwrittenEnding{l.endingsSpace(pod), &noted}
	goroutines.Wake(l.endings.changed)
}

// endingsSpace returns the namespace that keeps the ending of a pod's kernel. An owner's own namespace keeps none: its
// quota and its users must not touch it.
func (l *Launcher) endingsSpace(pod *corev1.Pod) string {
	if slices.Contains(l.homeSpaces, pod.Namespace) {
		return pod.Namespace
	}
	return l.opts.Pods.Namespace
}

// readEndings reads what earlier gateways have stored. An unreadable ending is ignored: answers about that kernel then
// give no reason.
func (l *Launcher) readEndings(ctx context.Context) {
	for _, ns := range l.homeSpaces {
		// They come ordered by name, so the newest are kept.
		if err := l.eachEndings(ctx, ns, l.enterEndings); err != nil {
			l.log.Warn("endings of kernels cannot be read", logkey.Namespace, ns, logkey.Err, err)
		}
	}
}

// eachEndings calls do with each config map of a namespace, the oldest hour first.
func (l *Launcher) eachEndings(ctx context.Context, ns string, do func(*corev1.ConfigMap)) error {
	return l.eachConfigMap(ctx, ns, selectEndings, endingsPage, do)
}

// eachConfigMap calls do for each config map of a namespace that a selector finds. It asks for so many at a time.
func (l *Launcher) eachConfigMap(
	ctx context.Context, ns, selector string, perPage int64, do func(*corev1.ConfigMap),
) error {
	options := metav1.ListOptions{LabelSelector: selector, Limit: perPage}
	for {
		asking, cancel := l.apiContext(ctx)
		page, err := l.client.CoreV1().ConfigMaps(ns).List(asking, options)
		cancel()
		if err != nil {
			return err
		}
		for i := range page.Items {
			do(&page.Items[i])
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return nil
		}
	}
}

func (l *Launcher) enterEndings(m *corev1.ConfigMap) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, text := range m.Data {
		end := new(storedEnding)
		if !launcher.ValidID(id) || json.Unmarshal([]byte(text), end) != nil || end.Reason == "" {
			l.log.Warn("the ending of a kernel cannot be read", logkey.Namespace, m.Namespace, logkey.ConfigMap, m.Name,
				logkey.Key, id)
			continue
		}
		end.Reason = podstatus.OneLine(end.Reason, maxReason)
		if before, ok := l.endings.known.Peek(id); ok && end.precedes(before) {
			continue // another config map of the hour has a later state
		}
		l.rememberEndingLocked(id, end)
	}
}

// writeEndings writes the endings that recordEndingLocked has queued, until the launcher closes. Then it writes once
// more.
func (l *Launcher) writeEndings() {
	for {
		select {
		case <-l.endings.changed:
			pause := l.timing.gatherEndings // endings of the same moment are written together
			for goroutines.Sleep(l.ctx, pause) == nil && !l.writeUnwritten(l.ctx) {
				pause = min(max(2*pause, firstRetry), lastRetry)
			}
		case <-l.ctx.Done():
			ctx, cancel := context.WithTimeout(context.WithoutCancel(l.ctx), lastWrite)
			defer cancel()
			l.writeUnwritten(ctx)
			return
		}
	}
}

// writeUnwritten writes all queued endings. It reports whether none is left for a later attempt.
func (l *Launcher) writeUnwritten(ctx context.Context) bool {
	l.mu.Lock()
	all := l.endings.unwritten
	l.endings.unwritten = map[string]unwrittenEnding{}
	l.mu.Unlock()
	texts := map[endingsPlace]map[string]string{}
	for id, u := range all {
		text, err := u.end.encode()
		if err != nil {
			l.log.Warn("the ending of a kernel cannot be encoded", logkey.Kernel, id, logkey.Err, err)
			continue
		}
		p := endingsPlace{u.namespace, u.end.configMap()}
		if texts[p] == nil {
			texts[p] = map[string]string{}
		}
		texts[p][id] = text
	}
	done := true
	for p, data := range texts {
		err := l.storeEndings(ctx, p, data)
		switch {
		case err == nil:
		case apierrors.IsForbidden(err),
			apierrors.IsNotFound(err),
			apierrors.IsInvalid(err),
			apierrors.IsRequestEntityTooLargeError(err):
			l.log.Warn("endings of kernels cannot be stored", logkey.Namespace, p.namespace, logkey.ConfigMap, p.name,
				logkey.Kernels, len(data), logkey.Err, err)
		default:
			l.log.Info("endings of kernels could not be stored; this is tried again", logkey.Namespace, p.namespace,
				logkey.Kernels, len(data), logkey.Err, err)
			done = false
			l.mu.Lock()
			for id := range data {
				if _, newer := l.endings.unwritten[id]; !newer {
					l.endings.unwritten[id] = all[id]
				}
			}
			l.mu.Unlock()
		}
	}
	return done
}

// encode returns an ending as a config map holds it. It fails for a time beyond the year 9999.
func (e *storedEnding) encode() (string, error) {
	noted := *e
	noted.Reason = podstatus.OneLine(noted.Reason, maxNotedReason)
	text, err := json.Marshal(noted)
	return string(text), err
}

// configMap returns the name of the config map of the ending's hour.
func (e *storedEnding) configMap() string { return endingsPrefix + e.At.UTC().Format(endingsHour) }

// storeEndingOf writes how the kernel of a pod has ended, and returns when it is stored.
func (l *Launcher) storeEndingOf(ctx context.Context, pod *corev1.Pod) error {
	id := pod.Labels[podspec.LabelKernel]
	l.mu.Lock()
	end, ok := l.endings.known.Get(id)
	l.mu.Unlock()
	if !ok || end.pod != pod.UID {
		return errors.New("its ending is not known yet")
	}
	text, err := end.encode()
	if err != nil {
		return err
	}
	return l.storeEndings(ctx, endingsPlace{l.endingsSpace(pod), end.configMap()}, map[string]string{id: text})
}

// writeEndingsOf adds entries to a config map, and creates it if need be.
func (l *Launcher) writeEndingsOf(ctx context.Context, ns, name string, data map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, l.timing.api)
	defer cancel()
	patch, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		return err
	}
	maps := l.client.CoreV1().ConfigMaps(ns)
	_, err = maps.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	_, err = maps.Create(ctx, &corev1.ConfigMap{Data: data, ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name,
		Labels: map[string]string{
			podspec.LabelManagedBy: podspec.Manager,
			podspec.LabelComponent: componentEndings,
		}}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) { // another gateway was faster
		_, err = maps.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	return err
}

// pruneEndings removes the config maps whose hour is older than keepEndings.
func (l *Launcher) pruneEndings(ctx context.Context) {
	oldest := endingsPrefix + l.clusterNow().Add(-keepEndings).UTC().Format(endingsHour)
	for _, ns := range l.homeSpaces {
		if l.denial(ns) != "" {
			continue
		}
		var old []string
		err := l.eachEndings(ctx, ns, func(m *corev1.ConfigMap) {
			if hour, ok := hourOf(m.Name); ok && hour < oldest {
				old = append(old, m.Name)
			}
		})
		for _, name := range old {
			asking, cancel := context.WithTimeout(ctx, l.timing.api)
			derr := l.client.CoreV1().ConfigMaps(ns).Delete(asking, name, metav1.DeleteOptions{})
			cancel()
			if derr != nil && !apierrors.IsNotFound(derr) {
				err = derr
				break
			}
			l.log.Info("old endings of kernels were removed", logkey.Namespace, ns, logkey.ConfigMap, name)
		}
		if err != nil && ctx.Err() == nil {
			l.log.Warn("old endings of kernels could not be removed; this is tried again", logkey.Namespace, ns, logkey.Err, err)
		}
	}
}

// storedEndingOf converts an ending that a supervisor has left.
func storedEndingOf(e api.Ending) *storedEnding {
	return &storedEnding{
		Reason:    podstatus.OneLine(e.Reason, maxReason),
		At:        e.At.UTC(),
		Stopped:   e.Stopped,
		Culled:    e.Culled,
		CulledFor: e.CulledFor,
		Failed:    e.Failed,
		GPUUse:    e.GPUUse,
	}
}

// cause returns what the ending says about its cause.
func (e *storedEnding) cause() api.Ending {
	return api.Ending{Stopped: e.Stopped, Culled: e.Culled, Failed: e.Failed}
}

// Ended returns the kernels that were culled or died and whose endings are still kept.
func (l *Launcher) Ended(ctx context.Context) ([]launcher.EndedKernel, error) {
	if err := l.proveFresh(ctx); err != nil {
		return nil, err // the last ending may be unknown
	}
	oldest := l.clusterNow().Add(-keepEndings)
	all := []launcher.EndedKernel{}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range l.endings.known.Keys() {
		end, ok := l.endings.known.Peek(id)
		if !ok || end.Refused || !end.cause().Unrequested() || end.At.Before(oldest) {
			continue
		}
		if k := l.kernels[id]; k != nil && k.end == nil { // it was started again
			continue
		}
		all = append(all, launcher.EndedKernel{
			ID:       id,
			SpecName: end.Spec,
			Owner:    end.Owner,
			Reason:   end.Reason,
			Culled:   end.Culled,
			At:       end.At,
			Usage:    end.Usage,
		})
	}
	slices.SortFunc(all, launcher.NewestFirst)
	return all, nil
}
