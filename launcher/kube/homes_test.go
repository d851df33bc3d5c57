package kube

import (
	"errors"
	"os"
	"path/filepath"
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
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// withHomes gives kernels a home of their owner, with more keys of the policy's home.
func withHomes(t *testing.T, more string) func(*Options, *timing) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	text := "home: {claim: 'home-{owner}', mountPath: /home/jovyan, size: 1Gi" + more + "}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	policy, err := podspec.ReadPolicy(file)
	if err != nil {
		t.Fatal(err)
	}
	return func(o *Options, _ *timing) { o.Pods.Policy = policy }
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

// TestHomes_Deleted: a home is deleted when no pod has had it for as long as the policy says, and no other claim is.
func TestHomes_Deleted(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, withHomes(t, ", deleteAfter: 240h"))
	claims := c.CoreV1().PersistentVolumeClaims("ns")
	now := l.clusterNow().UTC()
	add := func(name, owner, manager string, days int) {
		t.Helper()
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
			UID: types.UID("uid-" + name), ResourceVersion: "7", Labels: map[string]string{podspec.LabelManagedBy: manager},
			Annotations: map[string]string{podspec.AnnotationOwner: owner}}}
		if days >= 0 {
			claim.Annotations[podspec.AnnotationHomeUsed] = now.AddDate(0, 0, -days).Format(time.RFC3339)
		}
		if err := c.Tracker().Add(claim); err != nil {
			t.Fatal(err)
		}
	}
	add("home-old", "old", podspec.Manager, 11)
	add("home-new", "new", podspec.Manager, 9)
	add("home-ann", "ann", podspec.Manager, 11)         // has a kernel
	add("home-lab", "lab", podspec.Manager, 11)         // a pod of another program has it
	add("home-before", "before", podspec.Manager, -1)   // older than the key deleteAfter
	add("home-theirs", "theirs", "another", 11)         // not created by ekg
	add("data-old", "old", podspec.Manager, 11)         // not a home
	add("home-operator", "", podspec.Manager, 11)       // of no owner
	add("home-changed", "changed", podspec.Manager, 11) // written by somebody meanwhile
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
		if d.Name == "home-changed" {
			return true, nil, apierrors.NewConflict(corev1.Resource("persistentvolumeclaims"), d.Name, errors.New("changed"))
		}
		return false, nil, nil
	})
	if err := l.sweepHomes(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, err := claims.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]time.Time{}
	for i := range list.Items {
		left[list.Items[i].Name], _ = homeUsed(&list.Items[i])
	}
	if _, there := left["home-old"]; there || len(left) != 8 {
		t.Errorf("left: %v", left)
	}
	for _, used := range []string{"home-ann", "home-lab", "home-before"} {
		if now.Sub(left[used]) > time.Minute {
			t.Errorf("%s was used at %v", used, left[used])
		}
	}
}

// TestHomes_DeletedMeanwhile: a start notes first that it uses the home. If the home is being deleted, it is refused.
func TestHomes_DeletedMeanwhile(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, withHomes(t, ", deleteAfter: 240h"))
	if err := c.Tracker().Add(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "home-ann",
		Labels:      map[string]string{podspec.LabelManagedBy: podspec.Manager},
		Annotations: map[string]string{podspec.AnnotationOwner: "ann"}}}); err != nil {
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
	if err != nil || claim.Annotations[podspec.AnnotationHomeUsed] != "" {
		t.Errorf("%v, %v", claim, err)
	}
}
