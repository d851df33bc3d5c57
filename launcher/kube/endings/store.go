package endings

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

const (
	// endingShards is how many further config maps an hour may have: with 1 MiB each, for 27,000 kernels or more.
	endingShards = 16
	maxFull      = 256 // full config maps that are remembered
)

// place names the config map of an hour.
type place struct{ namespace, name string }

// Read reads what earlier gateways have stored in a namespace. An unreadable ending is ignored: answers about that
// kernel then give no reason.
func (s *Store) Read(ctx context.Context, ns string) {
	// They come ordered by name, so the newest are kept.
	if err := s.each(ctx, ns, s.enter); err != nil {
		s.opts.Log.Warn("endings of kernels cannot be read", logkey.Namespace, ns, logkey.Err, err)
	}
}

// each calls do with each config map of a namespace, the oldest hour first.
func (s *Store) each(ctx context.Context, ns string, do func(*corev1.ConfigMap)) error {
	options := metav1.ListOptions{LabelSelector: selectEndings, Limit: endingsPage}
	for {
		asking, cancel := context.WithTimeout(ctx, s.opts.Timeout)
		page, err := s.opts.ConfigMaps(ns).List(asking, options)
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

func (s *Store) enter(m *corev1.ConfigMap) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, text := range m.Data {
		end := new(Ending)
		if !launcher.ValidID(id) || json.Unmarshal([]byte(text), end) != nil || end.Reason == "" {
			s.opts.Log.Warn("the ending of a kernel cannot be read", logkey.Namespace, m.Namespace, logkey.ConfigMap, m.Name,
				logkey.Key, id)
			continue
		}
		end.Reason = OneLine(end.Reason)
		if before, ok := s.known.Peek(id); ok && end.precedes(before) {
			continue // another config map of the hour has a later state
		}
		s.rememberLocked(id, end)
	}
}

// Write writes the endings that Record has queued, until ctx ends. Then it writes once more.
func (s *Store) Write(ctx context.Context) {
	for {
		select {
		case <-s.changed:
			pause := s.opts.Gather // endings of the same moment are written together
			for goroutines.Sleep(ctx, pause) == nil && !s.writeUnwritten(ctx) {
				pause = min(max(2*pause, firstRetry), lastRetry)
			}
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWrite)
			defer cancel()
			s.writeUnwritten(last)
			return
		}
	}
}

// writeUnwritten writes all queued endings. It reports whether none is left for a later attempt.
func (s *Store) writeUnwritten(ctx context.Context) bool {
	s.mu.Lock()
	all := s.unwritten
	s.unwritten = map[string]unwrittenEnding{}
	s.mu.Unlock()
	texts := map[place]map[string]string{}
	for id, u := range all {
		text, err := u.end.encode()
		if err != nil {
			s.opts.Log.Warn("the ending of a kernel cannot be encoded", logkey.Kernel, id, logkey.Err, err)
			continue
		}
		p := place{u.namespace, u.end.configMap()}
		if texts[p] == nil {
			texts[p] = map[string]string{}
		}
		texts[p][id] = text
	}
	done := true
	for p, data := range texts {
		err := s.store(ctx, p, data)
		switch {
		case err == nil:
		case apierrors.IsForbidden(err),
			apierrors.IsNotFound(err),
			apierrors.IsInvalid(err),
			apierrors.IsRequestEntityTooLargeError(err):
			s.opts.Log.Warn("endings of kernels cannot be stored", logkey.Namespace, p.namespace, logkey.ConfigMap, p.name,
				logkey.Kernels, len(data), logkey.Err, err)
		default:
			s.opts.Log.Info("endings of kernels could not be stored; this is tried again", logkey.Namespace, p.namespace,
				logkey.Kernels, len(data), logkey.Err, err)
			done = false
			s.mu.Lock()
			for id := range data {
				if _, newer := s.unwritten[id]; !newer {
					s.unwritten[id] = all[id]
				}
			}
			s.mu.Unlock()
		}
	}
	return done
}

// encode returns an ending as a config map holds it. It fails for a time beyond the year 9999.
func (e *Ending) encode() (string, error) {
	noted := *e
	noted.Reason = podstatus.OneLine(noted.Reason, maxNotedReason)
	text, err := json.Marshal(noted)
	return string(text), err
}

// configMap returns the name of the config map of the ending's hour.
func (e *Ending) configMap() string { return endingsPrefix + e.At.UTC().Format(endingsHour) }

// Store writes how the kernel of a pod has ended, and returns when it is stored.
func (s *Store) Store(ctx context.Context, id, namespace string, pod types.UID) error {
	end, ok := s.known.Get(id)
	if !ok || end.Pod != pod {
		return errors.New("its ending is not known yet")
	}
	text, err := end.encode()
	if err != nil {
		return err
	}
	return s.store(ctx, place{namespace, end.configMap()}, map[string]string{id: text})
}

// store stores the endings of one hour. If the hour's config map is full, an ending goes into one of 16 further
// config maps, ekg-endings-2026112123-0 to -f, which the kernel's id chooses. So gateways need not agree which of them
// are full, and two versions of an entry are in two config maps at most. Earlier versions of ekg read the further
// config maps, and go on writing to the first. If some config maps are full and others cannot be written for now, the
// error is that of the others, so that all is tried again.
func (s *Store) store(ctx context.Context, p place, data map[string]string) error {
	s.mu.Lock()
	full := s.full[p]
	s.mu.Unlock()
	if !full {
		err := s.add(ctx, p.namespace, p.name, data)
		if !podstatus.IsTooLarge(err) {
			return err
		}
		s.opts.Log.Info("the endings of kernels in this hour need further config maps", logkey.Namespace, p.namespace,
			logkey.ConfigMap, p.name)
		s.mu.Lock()
		if len(s.full) >= maxFull {
			clear(s.full)
		}
		s.full[p] = true
		s.mu.Unlock()
	}
	shards := map[string]map[string]string{}
	for id, text := range data {
		name := shardOf(p.name, id)
		if shards[name] == nil {
			shards[name] = map[string]string{}
		}
		shards[name][id] = text
	}
	var lost, temporary error
	for name, some := range shards {
		if err := s.add(ctx, p.namespace, name, some); podstatus.IsTooLarge(err) {
			lost = errors.Join(lost, err)
		} else {
			temporary = errors.Join(temporary, err)
		}
	}
	if temporary != nil {
		return temporary
	}
	return lost
}

// shardOf returns the name of the further config map that has a kernel's ending.
func shardOf(hour, id string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id))
	return fmt.Sprintf("%s-%x", hour, h.Sum32()%endingShards)
}

// hourOf returns the name of the first config map of the hour of another one.
func hourOf(name string) (hour string, ok bool) {
	n := len(endingsPrefix) + len(endingsHour)
	if len(name) < n || len(name) > n && name[n] != '-' || !strings.HasPrefix(name, endingsPrefix) {
		return "", false
	}
	return name[:n], true
}

// add adds entries to a config map, and creates it if need be.
func (s *Store) add(ctx context.Context, ns, name string, data map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	patch, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		return err
	}
	maps := s.opts.ConfigMaps(ns)
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

// Prune removes the config maps of a namespace whose hour is older than Kept.
func (s *Store) Prune(ctx context.Context, ns string) {
	oldest := endingsPrefix + s.opts.Now().Add(-Kept).UTC().Format(endingsHour)
	var old []string
	err := s.each(ctx, ns, func(m *corev1.ConfigMap) {
		if hour, ok := hourOf(m.Name); ok && hour < oldest {
			old = append(old, m.Name)
		}
	})
	for _, name := range old {
		asking, cancel := context.WithTimeout(ctx, s.opts.Timeout)
		derr := s.opts.ConfigMaps(ns).Delete(asking, name, metav1.DeleteOptions{})
		cancel()
		if derr != nil && !apierrors.IsNotFound(derr) {
			err = derr
			break
		}
		s.opts.Log.Info("old endings of kernels were removed", logkey.Namespace, ns, logkey.ConfigMap, name)
	}
	if err != nil && ctx.Err() == nil {
		s.opts.Log.Warn("old endings of kernels could not be removed; this is tried again", logkey.Namespace, ns, logkey.Err,
			err)
	}
}
