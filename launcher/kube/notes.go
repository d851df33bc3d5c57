package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

const (
	maxNoteBytes = 64 << 10 // of one kind of notes; all annotations of an object may have 256 KiB
	noteAttempts = 30       // attempts at a change; an attempt fails if the pod was changed in between
	notePause    = 20 * time.Millisecond
)

// readNotes reads a pod's notes. An annotation that cannot be parsed is dropped, and the error names it.
func readNotes(pod *corev1.Pod) (launcher.Notes, error) {
	notes := launcher.Notes{SharedToUse: pod.Annotations[annotationSharedToUse] != ""}
	var errs []error
	for key, into := range map[string]any{annotationSessions: &notes.Sessions, annotationShared: &notes.SharedWith} {
		text := pod.Annotations[key]
		if text == "" {
			continue
		}
		if err := json.Unmarshal([]byte(text), into); err != nil {
			errs = append(errs, fmt.Errorf("annotation %s: %w", key, err))
			switch key { // drop what was read before the error
			case annotationSessions:
				notes.Sessions = nil
			case annotationShared:
				notes.SharedWith, notes.SharedToUse = nil, true // it may have been shared
			}
		}
	}
	return notes, errors.Join(errs...)
}

// UpdateNotes changes the kernel's notes, which are annotations of its pod, by compare-and-swap.
func (l *Launcher) UpdateNotes(ctx context.Context, id string,
	change func(launcher.Notes) (launcher.Notes, error)) (launcher.Notes, error) {
	k, err := l.find(ctx, id)
	if err != nil {
		return launcher.Notes{}, err
	}
	// Changes by this gateway wait for each other; changes by others make the patch fail.
	select {
	case k.notesLock <- struct{}{}:
		defer func() { <-k.notesLock }()
	case <-ctx.Done():
		return launcher.Notes{}, ctx.Err()
	}
	l.mu.Lock()
	pod := k.pod
	l.mu.Unlock()
	for attempt := range noteAttempts {
		if attempt > 0 {
			if err := goroutines.Sleep(ctx, rand.N(notePause)); err != nil {
				return launcher.Notes{}, err
			}
		}
		before, err := readNotes(pod)
		if err != nil {
			l.log.Warn("notes of a kernel cannot be read and are replaced", logkey.Kernel, id, logkey.Err, err)
		}
		after, err := change(before)
		if err != nil {
			return launcher.Notes{}, err
		}
		err = l.writeNotes(ctx, pod, after)
		var failed *launcher.FailedError
		switch {
		case err == nil:
			l.replicas.Notify(ctx, id)
			return after, nil
		case errors.As(err, &failed):
			return launcher.Notes{}, err
		case apierrors.IsNotFound(err):
			return launcher.Notes{}, l.goneError(id)
		case !apierrors.IsConflict(err):
			return launcher.Notes{}, l.unavailable(ctx, "change of a pod's notes", err)
		}
		asking, cancel := l.apiContext(ctx)
		pod, err = l.client.CoreV1().Pods(pod.Namespace).Get(asking, pod.Name, metav1.GetOptions{})
		cancel()
		switch {
		case apierrors.IsNotFound(err):
			return launcher.Notes{}, l.goneError(id)
		case err != nil:
			return launcher.Notes{}, l.unavailable(ctx, "pod", err)
		}
		l.updatePod(pod)
	}
	return launcher.Notes{}, fmt.Errorf("%w: its notes are being changed by others", launcher.ErrUnavailable)
}

// writeNotes replaces a pod's notes if the pod has not changed.
func (l *Launcher) writeNotes(ctx context.Context, pod *corev1.Pod, notes launcher.Notes) error {
	annotations := map[string]string{annotationSharedToUse: ""}
	if notes.SharedToUse {
		annotations[annotationSharedToUse] = "true"
	}
	for key, what := range map[string]struct {
		name  string
		value any
	}{annotationSessions: {"sessions", notes.Sessions}, annotationShared: {"grants", notes.SharedWith}} {
		text, err := json.Marshal(what.value)
		if err != nil {
			return err
		}
		if len(text) > maxNoteBytes {
			return &launcher.FailedError{
				Reason: fmt.Sprintf("its %s would take %d bytes, %d at most can be kept", what.name, len(text), maxNoteBytes),
			}
		}
		if string(text) == "null" || string(text) == "[]" {
			text = nil // most kernels have none, and people read pods, too
		}
		annotations[key] = string(text)
	}
	return l.annotate(ctx, pod, pod.ResourceVersion, annotations)
}

// unavailable returns the error for a request that the cluster did not answer or could not carry out.
func (l *Launcher) unavailable(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	l.log.Warn("the cluster does not answer", logkey.What, what, logkey.Err, err)
	return errNoAnswer
}
