package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

const (
	maxSessionBytes = 64 << 10 // of a kernel's sessions; all annotations of an object may have 256 KiB
	sessionAttempts = 30       // of a change, each after somebody else has changed the pod
	sessionPause    = 20 * time.Millisecond
)

// readSessions reads a pod's sessions.
func readSessions(pod *corev1.Pod) ([]launcher.Session, error) {
	text := pod.Annotations[annotationSessions]
	if text == "" {
		return nil, nil
	}
	var all []launcher.Session
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", annotationSessions, err)
	}
	return all, nil
}

// UpdateSessions changes the kernel's sessions, which are an annotation of its pod, by compare-and-swap.
func (l *Launcher) UpdateSessions(ctx context.Context, id string, change func([]launcher.Session) ([]launcher.Session, error)) ([]launcher.Session, error) {
	k, err := l.find(ctx, id)
	if err != nil {
		return nil, err
	}
	// Those of this gateway wait for each other; with others' changes it is a matter of luck.
	select {
	case k.changing <- struct{}{}:
		defer func() { <-k.changing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	l.mu.Lock()
	pod := k.pod
	l.mu.Unlock()
	for attempt := range sessionAttempts {
		if attempt > 0 {
			if err := sleep(ctx, rand.N(sessionPause)); err != nil {
				return nil, err
			}
		}
		before, err := readSessions(pod)
		if err != nil {
			l.log.Warn("sessions of a kernel cannot be read and begin anew", "kernel", id, "err", err)
			before = nil
		}
		after, err := change(before)
		if err != nil {
			return nil, err
		}
		err = l.writeSessions(ctx, pod, after)
		switch {
		case err == nil:
			l.tellPeers(ctx, id)
			return after, nil
		case apierrors.IsNotFound(err):
			return nil, l.goneError(id)
		case !apierrors.IsConflict(err):
			return nil, l.unavailable(ctx, "change of a pod's sessions", err)
		}
		asking, cancel := l.asking(ctx)
		pod, err = l.client.CoreV1().Pods(pod.Namespace).Get(asking, pod.Name, metav1.GetOptions{})
		cancel()
		switch {
		case apierrors.IsNotFound(err):
			return nil, l.goneError(id)
		case err != nil:
			return nil, l.unavailable(ctx, "pod", err)
		}
		l.enterPod(pod)
	}
	return nil, fmt.Errorf("%w: its sessions are being changed by others", launcher.ErrUnavailable)
}

// writeSessions replaces a pod's sessions if nobody has changed the pod meanwhile.
func (l *Launcher) writeSessions(ctx context.Context, pod *corev1.Pod, sessions []launcher.Session) error {
	text, err := json.Marshal(sessions)
	if err != nil {
		return err
	}
	if len(text) > maxSessionBytes {
		return &launcher.FailedError{Reason: fmt.Sprintf("its sessions would take %d bytes, %d at most can be kept", len(text), maxSessionBytes)}
	}
	return l.annotate(ctx, pod, pod.ResourceVersion, map[string]string{annotationSessions: string(text)})
}

// unavailable is the error for what the cluster did not do at this moment.
func (l *Launcher) unavailable(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	l.log.Warn("the cluster does not answer", "what", what, "err", err)
	return errNoAnswer
}
