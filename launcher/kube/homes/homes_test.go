package homes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/cluster"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

// The tests of package kube start kernels with homes, and in namespaces of their owners.

// newHomes makes a cluster in which kernels have a home of their owner, with more keys of the policy's home.
func newHomes(t *testing.T, more string) (*fake.Clientset, *Homes) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	text := "home: {claim: 'home-{owner}', mountPath: /home/jovyan, size: 1Gi" + more + "}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	policy, err := wish.ReadPolicy(file)
	if err != nil {
		t.Fatal(err)
	}
	c := fake.NewSimpleClientset()
	return c, New(Options{
		Cluster:     &cluster.Cluster{Client: c},
		Pods:        podbuild.Options{Namespace: "ns", SupervisorImage: "ekg:1", KernelImage: "kernel:1", Policy: policy},
		Watched:     []string{"ns"},
		Bound:       context.WithCancel,
		Unavailable: func(_ context.Context, what string, err error) error { return fmt.Errorf("%s: %w", what, err) },
		Now:         time.Now,
		Log:         slog.New(slog.DiscardHandler),
	})
}

// podOf returns the pod of a kernel of ann.
func podOf(t *testing.T, h *Homes) *corev1.Pod {
	t.Helper()
	req := launcher.Request{ID: "aaaaaaaa-0000-4000-8000-000000000001", Owner: "ann",
		Spec: kernelspecs.Spec{Name: "python3", Argv: []string{"python3", "-f", "{connection_file}"}, Language: "python"}}
	pod, err := podbuild.Build(h.o.Pods, req, podspec.Record{ID: req.ID, Generation: 1, Owner: req.Owner,
		SpecName: req.Spec.Name, Created: time.Now(), Protocol: 1})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// refuse makes the cluster reject every request of a kind for claims from now on.
func refuse(c *fake.Clientset, verb string, err error) {
	c.PrependReactor(verb, "persistentvolumeclaims", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, err
	})
}

// TestHomes_Deleted: a home is deleted when gateways have seen no pod with it for as long as the policy says. No other
// claim is.
func TestHomes_Deleted(t *testing.T) {
	c, h := newHomes(t, ", deleteAfter: 240h")
	now := time.Now().UTC()
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
	pod := podOf(t, h)
	if err := h.Make(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if err := c.Tracker().Add(pod); err != nil {
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
	if err := h.Sweep(t.Context()); err == nil || !strings.Contains(err.Error(), "a webhook") {
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
	c, h := newHomes(t, "")
	if err := c.Tracker().Add(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "home-ann", Annotations: map[string]string{podspec.AnnotationOwner: "ann",
			podbuild.AnnotationHomeUnused: "2026-01-01T00:00:00Z"}}}); err != nil {
		t.Fatal(err)
	}
	claims := corev1.Resource("persistentvolumeclaims")
	refuse(c, "patch", apierrors.NewNotFound(claims, "home-ann"))
	err := h.Make(t.Context(), podOf(t, h))
	if err == nil || !strings.Contains(err.Error(), "is being deleted") {
		t.Errorf("%v", err)
	}
	refuse(c, "patch", apierrors.NewForbidden(claims, "home-ann", errors.New("no")))
	if err := h.Make(t.Context(), podOf(t, h)); err != nil {
		t.Errorf("without the right: %v", err)
	}
}

// TestHomes_Kept: without the key nothing is written into claims, and none is deleted.
func TestHomes_Kept(t *testing.T) {
	c, h := newHomes(t, "")
	if err := h.Make(t.Context(), podOf(t, h)); err != nil {
		t.Fatal(err)
	}
	refuse(c, "list", errors.New("a gateway without the key needs no such right"))
	if err := h.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	claim, err := c.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "home-ann", metav1.GetOptions{})
	if err != nil || claim.Annotations[podbuild.AnnotationHomeUnused] != "" {
		t.Errorf("%v, %v", claim, err)
	}
}
