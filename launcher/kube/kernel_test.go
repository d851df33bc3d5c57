package kube

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// ended makes a pod whose supervisor has ended with this ending.
func ended(message string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.Phase = corev1.PodSucceeded
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: podspec.ContainerSupervisor,
			State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{Message: message, FinishedAt: metav1.Now()},
			}}}
	}
}

func isDead(k launcher.Kernel) bool { return k.State == api.Dead }

// startTest starts a kernel.
func startTest(t testing.TB, l *Launcher, id string) {
	t.Helper()
	if _, _, err := l.Start(t.Context(), testRequest(id)); err != nil {
		t.Fatal(err)
	}
}

func TestEnding(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, nil)
	startTest(t, l, idA)
	c.setPod(t, idA+"-1",
		ended(`{"kernel_id":"`+idA+`","reason":"it exited with 3","at":"`+time.Now().UTC().Format(time.RFC3339)+`"}`))
	if k := waitFor(t, l, idA, isDead); k.Reason != "it exited with 3" {
		t.Errorf("died: %+v", k)
	}
	t.Run("a gateway that is opened later knows the ending", func(t *testing.T) {
		k, err := openTest(t, c, nil).Kernel(t.Context(), idA)
		if err != nil || k.State != api.Dead || k.Reason != "it exited with 3" {
			t.Errorf("%+v, %v", k, err)
		}
	})
	t.Run("it is revived as its next generation", func(t *testing.T) {
		k, err := l.Revive(t.Context(), idA)
		if err != nil || k.State != api.Starting {
			t.Fatalf("%+v, %v", k, err)
		}
		pod, err := c.CoreV1().Pods("ns").Get(t.Context(), idA+"-2", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range pod.Spec.Volumes {
			if v.Secret != nil && v.Secret.SecretName != "ekg-"+idA+"-2" {
				t.Errorf("its secret is %s", v.Secret.SecretName)
			}
		}
		if _, err := c.CoreV1().Pods("ns").Get(t.Context(), idA+"-1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the old pod: %v", err)
		}
	})
	t.Run("a stopped kernel is gone, with its reason", func(t *testing.T) {
		startTest(t, l, idB)
		now := time.Now().UTC().Format(time.RFC3339)
		c.setPod(t, idB+"-1", ended(`{"kernel_id":"`+idB+`","reason":"shut down by ann","stopped":true,"at":"`+now+`"}`))
		var gone *launcher.GoneError
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if _, err := l.Wait(ctx, idB, isDead); !errors.As(err, &gone) || gone.Reason != "shut down by ann" {
			t.Errorf("got %v", err)
		}
	})
}

// A kernel whose pod another client has deleted is dead with a reason.
func TestEnding_PodDeleted(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, nil)
	startTest(t, l, idA)
	if err := c.CoreV1().Pods("ns").Delete(t.Context(), idA+"-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if k := waitFor(t, l, idA, isDead); k.Reason == "" {
		t.Errorf("%+v", k)
	}
	if err := l.Stop(t.Context(), idA, "x"); err != nil {
		t.Error(err)
	}
	if _, err := l.Kernel(t.Context(), idA); !errors.Is(err, launcher.ErrNotFound) {
		t.Errorf("after it was stopped: %v", err)
	}
	other := testRequest(idA)
	other.Owner = "bob"
	eventually(t, "its end is written", func() bool { return len(c.endingsMaps(t)) == 1 })
	for name, l := range map[string]*Launcher{"the same gateway": l, "a later one": openTest(t, c, nil)} {
		if _, _, err := l.Start(t.Context(), other); !errors.Is(err, launcher.ErrConflict) {
			t.Errorf("%s: another owner has started a kernel with its id: %v", name, err)
		}
	}
	if _, created, err := l.Start(t.Context(), testRequest(idA)); err != nil || !created {
		t.Errorf("its owner: %v, %v", created, err)
	}
}

// A kernel that can never run is ended, and can be restarted.
func TestEnding_NeverRuns(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, nil)
	startTest(t, l, idA)
	c.setPod(t, idA+"-1", func(pod *corev1.Pod) {
		pod.Status.Phase = corev1.PodPending
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: podspec.ContainerKernel, State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImageNeverPull"}}}}
	})
	if k := waitFor(t, l, idA, isDead); !strings.Contains(k.Reason, "image") {
		t.Errorf("%+v", k)
	}
	l.mu.Lock()
	k := l.kernels[idA]
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if !l.follower.Await(ctx, &k.supervisor, func() bool { return k.removed }) {
		t.Fatal("its pod is still there")
	}
	if k, err := l.Revive(t.Context(), idA); err != nil || k.State != api.Starting {
		t.Errorf("%+v, %v", k, err)
	}
}

// A refused pull becomes final after a minute, although no event and no change of the pod follows.
func TestEnding_RefusedPull(t *testing.T) {
	c := newTestCluster(t)
	var now atomic.Int64
	l := openTest(t, c, fastReaper(&now))
	startTest(t, l, idA)
	c.setPod(t, idA+"-1", func(pod *corev1.Pod) {
		pod.Spec.NodeName = "n1"
		pod.Status.Phase = corev1.PodPending
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(time.Unix(0, now.Load()))}}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: podspec.ContainerKernel, State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff",
				Message: `Back-off pulling image "a": ErrImagePull: manifest unknown`}}}}
	})
	k := waitFor(t, l, idA, func(k launcher.Kernel) bool { return strings.Contains(k.Reason, "manifest unknown") })
	if k.State != api.Starting {
		t.Fatalf("the first failure ended it: %+v", k)
	}
	now.Add(int64(61 * time.Second))
	if k := waitFor(t, l, idA, isDead); !strings.Contains(k.Reason, "manifest unknown") {
		t.Errorf("%+v", k)
	}
}

// A pod's ending that names another kernel is ignored.
func TestEnding_OfAnotherKernel(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{podspec.LabelKernel: idA}}}
	ended(`{"kernel_id":"` + idB + `","reason":"x","stopped":true}`)(pod)
	if end := endOf(pod, time.Now()); end == nil || end.Stopped {
		t.Errorf("%+v", end)
	}
}

// TestEnterPod: versions of a pod come from several sources, in any order.
func TestEnterPod(t *testing.T) {
	l := openTest(t, newTestCluster(t), nil)
	pod := func(generation, version int, phase corev1.PodPhase) *corev1.Pod {
		p := &corev1.Pod{}
		podspec.Record{
			ID:         idA,
			Generation: generation,
			SpecName:   "s",
			Created:    time.Now(),
			Protocol:   1,
			KeyVersion: 1,
		}.Write(p)
		p.Namespace, p.UID = "ns", types.UID(strconv.Itoa(generation))
		p.ResourceVersion, p.Status.Phase = strconv.Itoa(version), phase
		return p
	}
	state := func() (int, api.State) {
		l.mu.Lock()
		k := l.kernels[idA]
		l.mu.Unlock()
		d, err := l.describe(k)
		if err != nil {
			t.Fatal(err)
		}
		return k.rec.Generation, d.State
	}
	check := func(what string, generation int, want api.State) {
		t.Helper()
		if g, s := state(); g != generation || s != want {
			t.Errorf("%s: generation %d is %s", what, g, s)
		}
	}
	l.updatePod(pod(1, 10, corev1.PodPending))
	check("made", 1, api.Starting)
	l.updatePod(pod(1, 30, corev1.PodFailed))
	check("failed", 1, api.Dead)
	l.updatePod(pod(1, 20, corev1.PodRunning))
	check("old news", 1, api.Dead)
	l.updatePod(pod(2, 40, corev1.PodPending))
	check("the next", 2, api.Starting)
	l.updatePod(pod(1, 50, corev1.PodRunning))
	check("news of the one before", 2, api.Starting)
	l.podRemoved(pod(1, 60, corev1.PodFailed))
	check("the one before is gone", 2, api.Starting)
	l.podRemoved(pod(2, 70, corev1.PodRunning))
	check("gone", 2, api.Dead)
	l.updatePod(pod(2, 80, corev1.PodRunning))
	check("news of a pod that is gone", 2, api.Dead)
	broken := pod(3, 90, corev1.PodRunning)
	broken.Annotations[podspec.AnnotationGeneration] = "x"
	l.updatePod(broken)
	check("a pod that is no record", 2, api.Dead)
}

// A pod without a mark says to the other gateways that somebody has deleted it. So the mark comes first, unless the API
// server refuses it.
func TestStop_Unmarked(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		gone bool
	}{
		"no answer":     {errors.New("connection reset by peer"), false},
		"it is away":    {apierrors.NewServiceUnavailable("etcd"), false},
		"it is refused": {apierrors.NewForbidden(corev1.Resource("pods"), "x", errors.New("no")), true},
		"a webhook":     {apierrors.NewInternalError(errors.New("failed calling webhook")), true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestCluster(t)
			l := openTest(t, c, nil)
			if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
				t.Fatal(err)
			}
			c.refuse("patch", "pods", test.err)
			err := l.Stop(t.Context(), idA, "x")
			if test.gone && err != nil || !test.gone && !errors.Is(err, launcher.ErrUnavailable) {
				t.Error(err)
			}
			if c.podThere(t, idA+"-1") == test.gone {
				t.Errorf("its pod is gone: %v, want %v", !test.gone, test.gone)
			}
		})
	}
}
