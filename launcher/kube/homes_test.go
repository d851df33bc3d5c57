package kube

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
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

// TestHomes_Deleted: a home is deleted when gateways have seen no pod with it for as long as the policy says. No other
// claim is.
func TestHomes_Deleted(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, withHomes(t, ", deleteAfter: 240h"))
	now := l.clusterNow().UTC()
	add := func(name, owner, kernels string, unused, seen time.Duration) {
		t.Helper()
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
			UID: types.UID("uid-" + name), ResourceVersion: "7",
			Labels:      map[string]string{podspec.LabelManagedBy: podspec.Manager, podbuild.LabelKernelsOf: kernels},
			Annotations: map[string]string{podspec.AnnotationOwner: owner}}}
		if unused > 0 {
			claim.Annotations[podbuild.AnnotationHomeUnused] = now.Add(-unused).Format(time.RFC3339)
			claim.Annotations[podbuild.AnnotationHomeSeen] = now.Add(-seen).Format(time.RFC3339)
		}
		if err := c.Tracker().Add(claim); err != nil {
			t.Fatal(err)
		}
	}
	const day, hour = 24 * time.Hour, time.Hour
	add("home-old", "old", "ns", 11*day, hour)
	add("home-new", "new", "ns", 9*day, hour)
	add("home-later", "later", "ns", 9*day, 5*hour)     // seen a while ago
	add("home-unseen", "unseen", "ns", 11*day, 13*hour) // a gateway has looked 13 hours ago
	add("home-first", "first", "ns", 0, 0)              // seen for the first time
	add("home-ann", "ann", "ns", 11*day, hour)          // gets a kernel
	add("home-lab", "lab", "ns", 11*day, hour)          // a pod of another program has it
	add("home-theirs", "theirs", "other", 11*day, hour) // another installation's
	add("data-old", "old", "ns", 11*day, hour)          // not a home
	add("home-operator", "", "ns", 11*day, hour)        // of no owner
	add("home-changed", "changed", "ns", 11*day, hour)  // written by somebody meanwhile
	add("home-broken", "broken", "ns", 11*day, hour)    // cannot be deleted, which keeps no other
	if err := c.Tracker().Add(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "jupyter-lab"},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "home", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "home-lab"}}}}}}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	c.PrependReactor("delete", "persistentvolumeclaims", func(a k8stesting.Action) (bool, runtime.Object, error) {
		d := a.(k8stesting.DeleteActionImpl)
		p := d.GetDeleteOptions().Preconditions
		if p == nil || p.UID == nil || *p.UID != types.UID("uid-"+d.Name) || p.ResourceVersion == nil ||
			*p.ResourceVersion != "7" {
			t.Errorf("%s is deleted with the preconditions %+v", d.Name, p)
		}
		claims := corev1.Resource("persistentvolumeclaims")
		switch d.Name {
		case "home-changed":
			return true, nil, apierrors.NewConflict(claims, d.Name, errors.New("changed"))
		case "home-broken":
			return true, nil, apierrors.NewForbidden(claims, d.Name, errors.New("a webhook"))
		}
		return false, nil, nil
	})
	c.PrependReactor("patch", "persistentvolumeclaims", func(a k8stesting.Action) (bool, runtime.Object, error) {
		patch := string(a.(k8stesting.PatchActionImpl).Patch)
		if strings.Contains(patch, "Z\"") != strings.Contains(patch, `"resourceVersion":"7"`) {
			t.Errorf("a mark, and only a mark, depends on the claim's version: %s", patch)
		}
		return false, nil, nil
	})
	if err := l.sweepHomes(t.Context()); err == nil || !strings.Contains(err.Error(), "a webhook") {
		t.Errorf("the sweep reports %v", err)
	}
	list, err := c.CoreV1().PersistentVolumeClaims("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]string{}
	for i := range list.Items {
		at, _ := time.Parse(time.RFC3339, list.Items[i].Annotations[podbuild.AnnotationHomeUnused])
		seen, _ := time.Parse(time.RFC3339, list.Items[i].Annotations[podbuild.AnnotationHomeSeen])
		left[list.Items[i].Name] = "used"
		if !at.IsZero() {
			left[list.Items[i].Name] = fmt.Sprintf("unused %v, seen %v", now.Sub(at).Round(hour),
				now.Sub(seen).Round(hour))
		}
	}
	want := map[string]string{
		"home-new": "unused 216h0m0s, seen 1h0m0s", "home-later": "unused 216h0m0s, seen 0s",
		"home-unseen": "unused 0s, seen 0s", "home-first": "unused 0s, seen 0s", "home-ann": "used", "home-lab": "used",
		"home-theirs": "unused 264h0m0s, seen 1h0m0s", "data-old": "unused 264h0m0s, seen 1h0m0s",
		"home-operator": "unused 264h0m0s, seen 1h0m0s", "home-changed": "unused 264h0m0s, seen 1h0m0s",
		"home-broken": "unused 264h0m0s, seen 1h0m0s",
	}
	if !maps.Equal(left, want) {
		t.Errorf("got  %v\nwant %v", left, want)
	}
}

// TestHomes_DeletedMeanwhile: a start takes the mark of an unused home away first. If the home is being deleted, it is
// refused.
func TestHomes_DeletedMeanwhile(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, withHomes(t, ""))
	if err := c.Tracker().Add(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "home-ann", Annotations: map[string]string{podspec.AnnotationOwner: "ann",
			podbuild.AnnotationHomeUnused: "2026-01-01T00:00:00Z"}}}); err != nil {
		t.Fatal(err)
	}
	claims := corev1.Resource("persistentvolumeclaims")
	c.refuse("patch", "persistentvolumeclaims", apierrors.NewNotFound(claims, "home-ann"))
	_, _, err := l.Start(t.Context(), testRequest(idA))
	if err == nil || !strings.Contains(err.Error(), "is being deleted") {
		t.Errorf("%v", err)
	}
	c.refuse("patch", "persistentvolumeclaims", apierrors.NewForbidden(claims, "home-ann", errors.New("no")))
	if _, _, err := l.Start(t.Context(), testRequest(idB)); err != nil {
		t.Errorf("without the right: %v", err)
	}
}

// TestHomes_Kept: without the key nothing is written into claims, and none is deleted.
func TestHomes_Kept(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, withHomes(t, ""))
	if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	c.refuse("list", "persistentvolumeclaims", errors.New("a gateway without the key needs no such right"))
	if err := l.sweepHomes(t.Context()); err != nil {
		t.Error(err)
	}
	claim, err := c.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "home-ann", metav1.GetOptions{})
	if err != nil || claim.Annotations[podbuild.AnnotationHomeUnused] != "" {
		t.Errorf("%v, %v", claim, err)
	}
}
