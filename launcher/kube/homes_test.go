package kube

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// withHomes gives kernels a home of their owner, with more keys of the policy's home.
func withHomes(t *testing.T, more string) func(*Options, *timing) {
	t.Helper()
	text := "home: {claim: 'home-{owner}', mountPath: /home/jovyan, size: 1Gi" + more + "}\n"
	return withPolicy(t, text)
}

// TestHomes: an owner's claim is created for the first kernel, and stays.
func TestHomes(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, withHomes(t, ""))
	for n, owner := range []string{"ann", "ann", "bob", "Bob"} {
		req := testRequest(idOf(n))
		req.Owner = owner
		if _, _, err := l.Start(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Stop(t.Context(), idOf(2), "enough"); err != nil {
		t.Fatal(err)
	}
	list, err := c.CoreV1().PersistentVolumeClaims("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owners := map[string]string{}
	for _, claim := range list.Items {
		owners[claim.Name] = claim.Annotations[podspec.AnnotationOwner]
	}
	if len(owners) != 3 || owners["home-ann"] != "ann" || owners["home-bob"] != "bob" || owners["home--42ob"] != "Bob" {
		t.Errorf("%v", owners)
	}
}

// TestHomes_Refused: a start without its home fails with the reason, and leaves no pod.
func TestHomes_Refused(t *testing.T) {
	claim := func(owner string, deleted bool) *corev1.PersistentVolumeClaim {
		made := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "home-ann",
			Annotations: map[string]string{podspec.AnnotationOwner: owner}}}
		if deleted {
			now := metav1.Now()
			made.DeletionTimestamp, made.Finalizers = &now, []string{"kubernetes.io/pvc-protection"}
		}
		return made
	}
	claims := corev1.Resource("persistentvolumeclaims")
	for name, test := range map[string]struct {
		there *corev1.PersistentVolumeClaim
		verb  string
		err   error
		want  string // "": it starts
	}{
		"it is the operator's":  {there: claim("", false)},
		"it is another owner's": {there: claim("bob", false), want: "belongs to another user"},
		"it is of another user of KubeSpawner": {want: "belongs to another user",
			there: &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "home-ann",
				Annotations: map[string]string{"hub.jupyter.org/username": "ann.x"}}}},
		"it is being deleted": {there: claim("ann", true), want: "is being deleted"},
		"a quota": {verb: "create", err: apierrors.NewForbidden(claims, "home-ann", errors.New("exceeded quota: homes")),
			want: "exceeded quota"},
		"no right":  {verb: "get", err: apierrors.NewForbidden(claims, "home-ann", errors.New("no")), want: "home-ann"},
		"no answer": {verb: "get", err: errors.New("connection refused"), want: "not known"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestCluster(t)
			l := openTest(t, c, withHomes(t, ""))
			if test.there != nil {
				if err := c.Tracker().Add(test.there); err != nil {
					t.Fatal(err)
				}
			}
			if test.verb != "" {
				c.refuse(test.verb, "persistentvolumeclaims", test.err)
			}
			_, _, err := l.Start(t.Context(), testRequest(idA))
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
			if err != nil && !errors.As(err, new(*launcher.FailedError)) && !errors.Is(err, launcher.ErrUnavailable) {
				t.Errorf("its kind: %v", err)
			}
			if c.podThere(t, idA+"-1") != (err == nil) {
				t.Error("a pod is left, or missing")
			}
		})
	}
}
