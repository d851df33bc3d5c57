package podspec

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// Notes are read as they were written. Those that cannot be read may have shared the kernel, and too long ones are
// refused.
func TestNotes(t *testing.T) {
	pod := &corev1.Pod{}
	for _, want := range []launcher.Notes{{}, {Sessions: []launcher.Session{{ID: "s", Path: "a.ipynb"}}, SharedToUse: true,
		SharedWith: []launcher.Grant{{User: "ann", Right: launcher.Read}}}} {
		annotations, err := NoteAnnotations(want)
		if err != nil {
			t.Fatal(err)
		}
		pod.Annotations = annotations
		if got, err := ReadNotes(pod); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%v: read %+v, %v", annotations, got, err)
		}
	}
	pod.Annotations = map[string]string{AnnotationShared: "{half"}
	if notes, err := ReadNotes(pod); err == nil || !notes.SharedToUse {
		t.Errorf("unreadable grants: %+v, %v", notes, err)
	}
	long := launcher.Notes{Sessions: []launcher.Session{{ID: strings.Repeat("s", maxNoteBytes)}}}
	var failed *launcher.FailedError
	if _, err := NoteAnnotations(long); !errors.As(err, &failed) {
		t.Errorf("too long: %v", err)
	}
}
