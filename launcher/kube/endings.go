package kube

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// A finished pod tells how its kernel has ended, but it vanishes with its node, or when somebody has it deleted. So every
// gateway that sees an end writes it down, for those that come later: into one config map of the kernel's namespace for every
// hour in which kernels have ended,
//
//	ekg-endings-2026112123
//	  data:
//	    KERNEL ID: {"reason": "it was shut down on request", "at": "2026-11-21T23:04:05Z", "stopped": true, "owner": "ann",
//	      "kernelspec": "python3", "started": "2026-11-21T21:04:05Z", "seconds": 7200, "gpus": 1}
//
// That several gateways write the same is harmless: the last one wins, for this kernel alone.
const (
	endingsPrefix = "ekg-endings-"
	endingsHour   = "2006010215"

	componentEndings = "endings" // the config maps' labelComponent

	// selectEndings selects the config maps of endings.
	selectEndings = managed + "," + labelComponent + "=" + componentEndings

	endingsKept    = 1 << 14         // kernels whose end is remembered in memory
	maxUnwritten   = 1 << 12         // ends that wait to be written; more are lost to later gateways
	maxNotedReason = 400             // characters of a reason that are written: 1 MiB, an hour's space, is for 1,600 kernels or more
	firstRetry     = time.Second     // after a failure to write
	lastRetry      = time.Minute     // and at most
	lastWrite      = 2 * time.Second // for what a gateway has to write when it ends
	endingsPage    = 16              // config maps in one answer of the API server: 16 MiB at most
)

// ending is how a kernel ended, in JSON as it is written and as one replica tells it to another.
type ending struct {
	Reason    string    `json:"reason"`
	At        time.Time `json:"at"`
	Stopped   bool      `json:"stopped,omitempty"`    // on request: there is no such kernel any more
	Culled    bool      `json:"culled,omitempty"`     // by its supervisor, as the operator wants it; if stopped too, it was removed afterwards
	CulledFor string    `json:"culled_for,omitempty"` // supervisor.Ending.CulledFor
	Owner     string    `json:"owner,omitempty"`
	Spec      string    `json:"kernelspec,omitempty"`
	launcher.Usage

	limit string    // not "": it never began, because of the limit of this name
	pod   types.UID // the kernel's last pod, if a gateway has seen it: later news of it are no news
}

// endings remembers how kernels have ended. Launcher.mu guards it.
type endings struct {
	known     *lru.Cache[string, *ending]
	unwritten map[string]unwrittenEnding // by kernel
	news      chan struct{}              // capacity 1: unwritten has something new
}

type unwrittenEnding struct {
	namespace string
	end       *ending
}

func newEndings() (endings, error) {
	known, err := lru.New[string, *ending](endingsKept)
	return endings{known: known, unwritten: map[string]unwrittenEnding{}, news: make(chan struct{}, 1)}, err
}

// enterEnd enters how a kernel has ended. Launcher.mu is held.
func (l *Launcher) enterEnd(k *kernel, end *ending) {
	k.end = end
	l.observe(k)
	l.noteEnd(k.rec, k.pod, end)
}

// remember keeps how a kernel has ended, and reports whether that is news. Launcher.mu is held.
func (l *Launcher) remember(id string, end *ending) bool {
	before, ok := l.endings.known.Get(id)
	l.endings.known.Add(id, end)
	same := ok && before.At.Equal(end.At)
	if end.Culled && !(same && before.Culled) && !end.At.Before(l.opened) {
		l.culls[launcher.Cull{SpecName: end.Spec, Limit: end.CulledFor}]++
	}
	return !same || before.Stopped != end.Stopped
}

// noteEnd remembers how the kernel of a pod has ended, and has it written if that is news. Launcher.mu is held.
func (l *Launcher) noteEnd(rec record, pod *corev1.Pod, end *ending) {
	noted := *end
	noted.Owner, noted.Spec, noted.pod = rec.owner, rec.spec, pod.UID
	if noted.Usage == (launcher.Usage{}) { // else a peer has told it, who may have seen more of the pod
		noted.Usage = usageOf(pod, end.At)
	}
	if before, ok := l.endings.known.Get(rec.id); ok && end.limit != "" { // it was not started again: how it has ended is still the same
		noted = *before
		noted.pod = pod.UID
	}
	if !l.remember(rec.id, &noted) || forgotten(pod) {
		return
	}
	if _, waits := l.endings.unwritten[rec.id]; !waits && len(l.endings.unwritten) >= maxUnwritten {
		l.log.Warn("the end of a kernel is not written down: too many others wait for that", "kernel", rec.id, "reason", end.Reason)
		return
	}
	l.endings.unwritten[rec.id] = unwrittenEnding{pod.Namespace, &noted}
	select {
	case l.endings.news <- struct{}{}:
	default:
	}
}

// readEndings reads what earlier gateways have written. What cannot be read is only missing in answers about kernels that are
// gone.
func (l *Launcher) readEndings(ctx context.Context) {
	for _, ns := range l.namespaces {
		// They come in the order of their names, so that the newest are kept.
		if err := l.eachEndings(ctx, ns, l.enterEndings); err != nil {
			l.log.Warn("how kernels have ended cannot be read", "namespace", ns, "err", err)
		}
	}
}

// eachEndings calls do with each config map of a namespace, the oldest hour first.
func (l *Launcher) eachEndings(ctx context.Context, ns string, do func(*corev1.ConfigMap)) error {
	options := metav1.ListOptions{LabelSelector: selectEndings, Limit: endingsPage}
	for {
		asking, cancel := context.WithTimeout(ctx, l.timing.api)
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
		end := new(ending)
		if !launcher.ValidID(id) || json.Unmarshal([]byte(text), end) != nil || end.Reason == "" {
			l.log.Warn("an entry of a kernel's end cannot be read", "namespace", m.Namespace, "configmap", m.Name, "key", id)
			continue
		}
		end.Reason = quote(end.Reason, maxReason)
		l.remember(id, end)
	}
}

// writeEndings writes what noteEnd has left, until the launcher closes; then once more.
func (l *Launcher) writeEndings() {
	for {
		select {
		case <-l.endings.news:
			pause := l.timing.gather // others that end at the same moment are written with it
			for sleep(l.ctx, pause) == nil && !l.writeUnwritten(l.ctx) {
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

// writeUnwritten writes all that waits, and reports whether nothing is left that might be written later.
func (l *Launcher) writeUnwritten(ctx context.Context) bool {
	l.mu.Lock()
	all := l.endings.unwritten
	l.endings.unwritten = map[string]unwrittenEnding{}
	l.mu.Unlock()
	type place struct{ namespace, name string }
	texts := map[place]map[string]string{}
	for id, u := range all {
		noted := *u.end
		noted.Reason = quote(noted.Reason, maxNotedReason)
		text, err := json.Marshal(noted)
		if err != nil { // a time beyond the year 9999
			l.log.Warn("the end of a kernel cannot be written down", "kernel", id, "err", err)
			continue
		}
		p := place{u.namespace, endingsPrefix + u.end.At.UTC().Format(endingsHour)}
		if texts[p] == nil {
			texts[p] = map[string]string{}
		}
		texts[p][id] = string(text)
	}
	done := true
	for p, data := range texts {
		err := l.writeEndingsOf(ctx, p.namespace, p.name, data)
		switch {
		case err == nil:
		case apierrors.IsForbidden(err), apierrors.IsNotFound(err), apierrors.IsInvalid(err), apierrors.IsRequestEntityTooLargeError(err):
			l.log.Warn("the ends of kernels cannot be written down", "namespace", p.namespace, "configmap", p.name, "kernels", len(data), "err", err)
		default:
			l.log.Info("the ends of kernels could not be written down; this is tried again", "namespace", p.namespace, "kernels", len(data), "err", err)
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

// writeEndingsOf adds entries to a config map, which it makes if need be.
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
		Labels: map[string]string{LabelManagedBy: Manager, labelComponent: componentEndings}}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) { // another gateway was faster
		_, err = maps.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	return err
}

// pruneEndings removes the config maps whose hour is longer ago than endings are kept.
func (l *Launcher) pruneEndings(ctx context.Context) {
	oldest := endingsPrefix + l.timing.now().Add(-l.opts.KeepEndings).UTC().Format(endingsHour)
	for _, ns := range l.namespaces {
		if l.rights.refusal(ns) != "" {
			continue
		}
		var old []string
		err := l.eachEndings(ctx, ns, func(m *corev1.ConfigMap) {
			if m.Name < oldest && len(m.Name) == len(oldest) {
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
			l.log.Info("the ends of kernels of an hour long ago were removed", "namespace", ns, "configmap", name)
		}
		if err != nil && ctx.Err() == nil {
			l.log.Warn("old ends of kernels could not be removed; this is tried again", "namespace", ns, "err", err)
		}
	}
}

// endingTold is an ending as a supervisor has left it.
func endingTold(e supervisor.Ending) *ending {
	return &ending{Reason: quote(e.Reason, maxReason), At: e.At.UTC(), Stopped: e.Stopped, Culled: e.Culled, CulledFor: e.CulledFor}
}

// Culled returns the kernels that were culled, as far as their ends are kept.
func (l *Launcher) Culled(ctx context.Context) ([]launcher.Culled, error) {
	if err := l.proveFresh(ctx); err != nil {
		return nil, err // the last end may not have been heard of
	}
	oldest := l.timing.now().Add(-l.opts.KeepEndings)
	all := []launcher.Culled{}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range l.endings.known.Keys() {
		end, ok := l.endings.known.Peek(id)
		if k := l.kernels[id]; !ok || !end.Culled || end.At.Before(oldest) || k != nil && k.end == nil { // it was started again
			continue
		}
		all = append(all, launcher.Culled{ID: id, SpecName: end.Spec, Owner: end.Owner, Reason: end.Reason, At: end.At, Usage: end.Usage})
	}
	slices.SortFunc(all, launcher.NewestFirst)
	return all, nil
}
