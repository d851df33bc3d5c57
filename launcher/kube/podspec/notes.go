package podspec

import (
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// Annotations of a kernel's pod that gateways change while the pod lives.
const (
	AnnotationSessions = Domain + "sessions"    // []launcher.Session in JSON
	AnnotationShared   = Domain + "shared-with" // []launcher.Grant in JSON
	// AnnotationSharedToUse is "true" for launcher.Notes.SharedToUse; else it is missing or empty.
	AnnotationSharedToUse = Domain + "shared-to-use"
	// AnnotationClaimed is Unclaimed from the pod's creation until a client knows the kernel's id, then Claimed.
	AnnotationClaimed = Domain + "claimed"
	Unclaimed         = "false"
	Claimed           = "true"
)

const maxNoteBytes = 64 << 10 // of one kind of notes; all annotations of an object may have 256 KiB

// ReadNotes reads a pod's notes. An annotation that cannot be parsed is dropped, and the error names it.
func ReadNotes(pod *corev1.Pod) (launcher.Notes, error) {
	notes := launcher.Notes{SharedToUse: pod.Annotations[AnnotationSharedToUse] != ""}
	var errs []error
	for key, into := range map[string]any{AnnotationSessions: &notes.Sessions, AnnotationShared: &notes.SharedWith} {
		text := pod.Annotations[key]
		if text == "" {
			continue
		}
		if err := json.Unmarshal([]byte(text), into); err != nil {
			errs = append(errs, fmt.Errorf("annotation %s: %w", key, err))
			switch key { // drop what was read before the error
			case AnnotationSessions:
				notes.Sessions = nil
			case AnnotationShared:
				notes.SharedWith, notes.SharedToUse = nil, true // it may have been shared
			}
		}
	}
	return notes, errors.Join(errs...)
}

// NoteAnnotations returns the annotations of a pod with these notes. The error is a *launcher.FailedError if they are
// too long.
func NoteAnnotations(notes launcher.Notes) (map[string]string, error) {
	annotations := map[string]string{AnnotationSharedToUse: ""}
	if notes.SharedToUse {
		annotations[AnnotationSharedToUse] = "true"
	}
	for key, what := range map[string]struct {
		name  string
		value any
	}{AnnotationSessions: {"sessions", notes.Sessions}, AnnotationShared: {"grants", notes.SharedWith}} {
		text, err := json.Marshal(what.value)
		if err != nil {
			return nil, err
		}
		if len(text) > maxNoteBytes {
			return nil, &launcher.FailedError{
				Reason: fmt.Sprintf("its %s would take %d bytes, %d at most can be kept", what.name, len(text), maxNoteBytes),
			}
		}
		if string(text) == "null" || string(text) == "[]" {
			text = nil // most kernels have none, and people read pods, too
		}
		annotations[key] = string(text)
	}
	return annotations, nil
}
