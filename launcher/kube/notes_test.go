package kube

import (
	"errors"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

func TestUpdateNotes(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, nil)
	if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	add := func(name string) error {
		_, err := l.UpdateNotes(t.Context(), idA, func(n launcher.Notes) (launcher.Notes, error) {
			n.Sessions = append(n.Sessions, launcher.Session{ID: name, Path: name})
			n.SharedWith = []launcher.Grant{{User: name, Right: launcher.Read}}
			return n, nil
		})
		return err
	}
	if err := add("one"); err != nil {
		t.Fatal(err)
	}
	var conflicts atomic.Int32
	conflicts.Store(3)
	c.PrependReactor("patch", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
		conflict := apierrors.NewConflict(corev1.Resource("pods"), "x", errors.New("changed meanwhile"))
		return conflicts.Add(-1) >= 0, nil, conflict
	})
	if err := add("two"); err != nil {
		t.Fatal(err)
	}
	k, err := openTest(t, c, nil).Kernel(t.Context(), idA)
	if err != nil || len(k.Sessions) != 2 || k.Sessions[1].Path != "two" || len(k.SharedWith) != 1 ||
		k.SharedWith[0] != (launcher.Grant{User: "two", Right: launcher.Read}) {
		t.Errorf("%+v, %v", k, err)
	}
	if k.SharedToUse {
		t.Error("the kernel was shared to read only")
	}
	conflicts.Store(1000)
	if err := add("three"); !errors.Is(err, launcher.ErrUnavailable) {
		t.Errorf("with a conflict at each attempt: %v", err)
	}
	own := errors.New("mine")
	_, err = l.UpdateNotes(t.Context(), idA, func(n launcher.Notes) (launcher.Notes, error) { return n, own })
	if !errors.Is(err, own) {
		t.Errorf("got %v", err)
	}
}
