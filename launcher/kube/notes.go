package kube

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

const (
	noteAttempts = 30 // attempts at a change; an attempt fails if the pod was changed in between
	notePause    = 20 * time.Millisecond
)

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
		before, err := podspec.ReadNotes(pod)
		if err != nil {
			l.log.Warn("notes of a kernel cannot be read and are replaced", logkey.Kernel, id, logkey.Err, err)
		}
		after, err := change(before)
		if err != nil {
			return launcher.Notes{}, err
		}
		annotations, err := podspec.NoteAnnotations(after)
		if err != nil {
			return launcher.Notes{}, err
		}
		err = l.annotate(ctx, pod, pod.ResourceVersion, annotations)
		switch {
		case err == nil:
			l.replicas.Notify(ctx, id)
			return after, nil
		case apierrors.IsNotFound(err):
			return launcher.Notes{}, l.endings.Gone(id)
		case !apierrors.IsConflict(err):
			return launcher.Notes{}, l.unavailable(ctx, "change of a pod's notes", err)
		}
		if pod, err = l.getPod(ctx, pod.Namespace, pod.Name); err != nil {
			return launcher.Notes{}, err
		} else if pod == nil {
			return launcher.Notes{}, l.endings.Gone(id)
		}
		l.updatePod(pod)
	}
	return launcher.Notes{}, fmt.Errorf("%w: its notes are being changed by others", launcher.ErrUnavailable)
}
