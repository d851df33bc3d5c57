package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/cluster"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/endings"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// endingsMaps returns the config maps of endings by name.
func (c *testCluster) endingsMaps(t *testing.T) map[string]map[string]string {
	t.Helper()
	list, err := c.CoreV1().ConfigMaps("ns").List(t.Context(),
		metav1.ListOptions{LabelSelector: podspec.LabelComponent + "=endings"})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]map[string]string{}
	for _, m := range list.Items {
		all[m.Name] = m.Data
	}
	return all
}

// whyGone returns the reason why a kernel does not exist.
func whyGone(t *testing.T, l *Launcher, id string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := l.Kernel(ctx, id)
	var gone *launcher.GoneError
	if !errors.As(err, &gone) {
		t.Fatalf("%s: %v", id, err)
	}
	if gone.Owner != "ann" {
		t.Errorf("%s was %q's", id, gone.Owner)
	}
	return gone.Reason
}

// writeEndings writes all endings that wait.
func writeEndings(t *testing.T, l *Launcher) {
	t.Helper()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	l.endings.Write(ended)
}

// numberedID is a kernel id with a number in it.
func numberedID(n int) string { return fmt.Sprintf("cccccccc-0000-4000-8000-%012d", n) }

func TestEndings(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, nil)
	at := time.Date(2026, 11, 21, 23, 59, 59, 5, time.UTC)
	enter := func(id string, end *endings.Ending) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.recordEndingLocked(podspec.Record{ID: id, Owner: "ann", SpecName: "python3"},
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", UID: "u"}}, end)
	}
	for n := range 100 {
		enter(numberedID(n),
			&endings.Ending{Reason: fmt.Sprintf("its pod was deleted %d", n), At: at.Add(time.Duration(n%2) * time.Second)})
	}
	enter(numberedID(0), &endings.Ending{Reason: strings.Repeat("long ", 1000), At: at, Stopped: true})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	maps := c.endingsMaps(t)
	if len(maps) != 2 || len(maps["ekg-endings-2026112123"]) != 50 || len(maps["ekg-endings-2026112200"]) != 50 {
		t.Fatalf("%d config maps: %v", len(maps), maps)
	}
	var noted endings.Ending
	err := json.Unmarshal([]byte(maps["ekg-endings-2026112123"][numberedID(0)]), &noted)
	if err != nil || !noted.At.Equal(at) || !noted.Stopped || noted.Owner != "ann" ||
		noted.Spec != "python3" || len(noted.Reason) > 800 ||
		!strings.HasPrefix(noted.Reason, "long long") {
		t.Errorf("%+v, %v", noted, err)
	}

	t.Run("a gateway that is opened later knows the endings", func(t *testing.T) {
		l := openTest(t, c, nil)
		if why := whyGone(t, l, numberedID(99)); why != "its pod was deleted 99" {
			t.Errorf("%q", why)
		}
		if _, err := l.Kernel(t.Context(), numberedID(100)); !errors.Is(err, launcher.ErrNotFound) ||
			errors.As(err, new(*launcher.GoneError)) {
			t.Errorf("an ending that no gateway has seen: %v", err)
		}
	})
	t.Run("an unreadable entry hides no other", func(t *testing.T) {
		m, err := c.CoreV1().ConfigMaps("ns").Get(t.Context(), "ekg-endings-2026112123", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		m.Data[numberedID(2)], m.Data["x"], m.Data[numberedID(200)] = "{", "{}", `{"reason": ""}`
		if _, err := c.CoreV1().ConfigMaps("ns").Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		l := openTest(t, c, nil)
		if why := whyGone(t, l, numberedID(4)); why != "its pod was deleted 4" {
			t.Errorf("%q", why)
		}
		if _, err := l.Kernel(t.Context(), numberedID(2)); errors.As(err, new(*launcher.GoneError)) {
			t.Errorf("the damaged one: %v", err)
		}
	})
	t.Run("old endings are removed", func(t *testing.T) {
		now := at.Add(endings.Kept)
		l := openTest(t, c, func(_ *Options, tm *timing) {
			tm.now = func() time.Time { return now }
		})
		l.endings.Prune(t.Context(), "ns")
		if n := len(c.endingsMaps(t)); n != 2 {
			t.Errorf("after exactly that time %d are left", n)
		}
		now = now.Add(time.Minute)
		l.endings.Prune(t.Context(), "ns")
		if maps := c.endingsMaps(t); len(maps) != 1 || maps["ekg-endings-2026112200"] == nil {
			t.Errorf("%v", maps)
		}
	})
}

// mapsClient is a client whose patches of config maps take some time, as requests to an API server do.
type mapsClient struct{ kubernetes.Interface }

func (c mapsClient) CoreV1() coreclient.CoreV1Interface { return mapsCore{c.Interface.CoreV1()} }

type mapsCore struct{ coreclient.CoreV1Interface }

func (c mapsCore) ConfigMaps(ns string) coreclient.ConfigMapInterface {
	return slowMaps{c.CoreV1Interface.ConfigMaps(ns)}
}

type slowMaps struct{ coreclient.ConfigMapInterface }

func (m slowMaps) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions,
	sub ...string) (*corev1.ConfigMap, error) {
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(slowness):
		return m.ConfigMapInterface.Patch(ctx, name, pt, data, o, sub...)
	}
}

// TestEndings_LastWrite: the last write of a gateway that ends has time for its requests.
func TestEndings_LastWrite(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, func(o *Options, tm *timing) {
		o.Cluster = &cluster.Cluster{Client: mapsClient{c.Clientset}, Leases: c.Clientset, Namespace: "ns"}
		tm.gatherEndings = time.Hour
	})
	l.mu.Lock()
	l.recordEndingLocked(podspec.Record{ID: idA}, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}},
		&endings.Ending{Reason: "its pod was deleted", At: time.Now()})
	l.mu.Unlock()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if maps := c.endingsMaps(t); len(maps) != 1 {
		t.Errorf("%d config maps", len(maps))
	}
}

// TestEndings_Size: 1,600 kernels that end in one hour, each with a long reason, fit into a config map.
func TestEndings_Size(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, nil)
	ended := time.Date(2026, 11, 21, 23, 59, 59, 123456789, time.UTC)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", UID: "u"}}
	pod.Spec.Containers = []corev1.Container{{Name: podspec.ContainerKernel, Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}}}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
		LastTransitionTime: metav1.NewTime(ended.Add(-12 * time.Hour))}}
	l.mu.Lock()
	for n := range 1600 {
		rec := podspec.Record{ID: numberedID(n), Owner: "somebody@example.org", SpecName: "python3-gpu"}
		l.recordEndingLocked(rec, pod, &endings.Ending{
			Reason:    strings.Repeat("long ", 1000),
			At:        ended,
			Stopped:   true,
			Culled:    true,
			CulledFor: api.LimitIdle,
		})
	}
	l.mu.Unlock()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	maps := c.endingsMaps(t)
	size := 0
	for _, text := range maps["ekg-endings-2026112123"] {
		size += len(text)
	}
	if n := len(maps["ekg-endings-2026112123"]); n != 1600 || size > 1<<20 { // the API server counts the values
		t.Errorf("%d entries of %d bytes", n, size)
	}
}

// TestEndings_ByKernel: gateways that are opened later know how a kernel ended, for each way in which a kernel can end.
func TestEndings_ByKernel(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, func(_ *Options, tm *timing) { tm.gatherEndings = time.Millisecond })
	for id, end := range map[string]func(){
		idA: func() {
			if err := l.Stop(t.Context(), idA, "shut down by ann"); err != nil {
				t.Fatal(err)
			}
		},
		idB: func() {
			if err := c.CoreV1().Pods("ns").Delete(t.Context(), idB+"-1", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		if _, _, err := l.Start(t.Context(), testRequest(id)); err != nil {
			t.Fatal(err)
		}
		end()
	}
	waitFor(t, l, idB, func(k launcher.Kernel) bool { return k.State == api.Dead })
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	later := openTest(t, c, nil)
	if why := whyGone(t, later, idA); why != "shut down by ann" {
		t.Errorf("%q", why)
	}
	if why := whyGone(t, later, idB); why != "its pod was deleted" {
		t.Errorf("%q", why)
	}
	t.Run("a kernel that was started again lives", func(t *testing.T) {
		if _, created, err := later.Start(t.Context(), testRequest(idA)); err != nil || !created {
			t.Fatal(created, err)
		}
		if k, err := later.Kernel(t.Context(), idA); err != nil || k.State != api.Starting {
			t.Errorf("%+v, %v", k, err)
		}
	})
}

// TestEndings_RejectedByTheCluster: a failed write is repeated if that may help, and delays nothing else.
func TestEndings_RejectedByTheCluster(t *testing.T) {
	for name, test := range map[string]struct {
		err     error
		written bool
	}{
		"for a while": {apierrors.NewServiceUnavailable("soon"), true},
		"for good":    {apierrors.NewForbidden(corev1.Resource("configmaps"), "x", errors.New("no")), false},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestCluster(t)
			var asked atomic.Int64
			c.PrependReactor("patch", "configmaps", func(k8stesting.Action) (bool, runtime.Object, error) {
				if asked.Add(1) == 1 {
					return true, nil, test.err
				}
				return false, nil, nil
			})
			l := openTest(t, c, func(_ *Options, tm *timing) { tm.gatherEndings = time.Millisecond })
			l.mu.Lock()
			l.recordEndingLocked(podspec.Record{ID: idA}, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}},
				&endings.Ending{Reason: "killed", At: time.Now()})
			l.mu.Unlock()
			eventually(t, "the end is written, or given up", func() bool {
				return asked.Load() > 0 && (!test.written || len(c.endingsMaps(t)) == 1)
			})
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if got := len(c.endingsMaps(t)); (got == 1) != test.written {
				t.Errorf("%d config maps", got)
			}
		})
	}
}

// succeedWith makes a pod end with its supervisor's ending.
func succeedWith(t *testing.T, pod *corev1.Pod, end api.Ending) {
	t.Helper()
	text, err := json.Marshal(end)
	if err != nil {
		t.Error(err)
	}
	pod.Status.Phase = corev1.PodSucceeded
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: podspec.ContainerSupervisor,
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: string(text)}}}}
}

// scheduledFor sets a pod's scheduling time to some time before a moment, in whole seconds as in the cluster.
func scheduledFor(pod *corev1.Pod, until time.Time, took time.Duration) {
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
		LastTransitionTime: metav1.NewTime(until.Add(-took).Truncate(time.Second))}}
}

// TestEnded: a kernel that was culled or died stays on record, removed or not, here and at later gateways, until it is
// started again.
func TestEnded(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, func(_ *Options, tm *timing) { tm.gatherEndings = time.Millisecond })
	died := numberedID(1)
	ids := func(l *Launcher) (ids []string) {
		all, err := l.Ended(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range all {
			ids = append(ids, k.ID)
			if k.Culled != (k.ID != died) {
				t.Errorf("%s: culled is %v", k.ID, k.Culled)
			}
			if k.Reason != "it was idle for 1h0m0s" || k.Owner != "ann" || k.SpecName != "python3" || k.At.IsZero() {
				t.Errorf("on record is %+v", k)
			}
			if k.Started.IsZero() || k.Started.After(k.At.Add(-time.Hour)) || k.Seconds < 3600 || k.Seconds > 3601 ||
				k.GPUs != gpu.Whole(2) {
				t.Errorf("its usage is on record as %+v", k.Usage)
			}
		}
		return ids
	}
	for n, id := range []string{idA, idB, died} {
		if _, _, err := l.Start(t.Context(), testRequest(id)); err != nil {
			t.Fatal(err)
		}
		c.setPod(t, id+"-1", func(pod *corev1.Pod) {
			pod.Spec.Containers[len(pod.Spec.Containers)-1].Resources.Limits = corev1.ResourceList{
				"nvidia.com/gpu": resource.MustParse("2"),
			}
			scheduledFor(pod, time.Now().Add(time.Duration(n)*time.Second), time.Hour)
			end := api.Ending{
				KernelID: id,
				Reason:   "it was idle for 1h0m0s",
				At:       time.Now().Add(time.Duration(n) * time.Second).UTC(),
				Culled:   n < 2,
				GPUUse:   api.GPUUse{Measured: 30 * time.Minute, Busy: 10 * time.Minute},
			}
			succeedWith(t, pod, end)
		})
		waitFor(t, l, id, func(k launcher.Kernel) bool { return k.State == api.Dead })
	}
	if got := ids(l); fmt.Sprint(got) != fmt.Sprint([]string{died, idB, idA}) {
		t.Errorf("dead: %v", got)
	}
	// Each gateway says the same of what they have used.
	used := func(l *Launcher, living ...string) {
		t.Helper()
		all, err := l.Usage(t.Context(), "")
		if err != nil || len(all) != 3 {
			t.Errorf("usage is %+v, %v", all, err)
		}
		for _, u := range all {
			if slices.Contains(living, u.ID) {
				if !u.End.IsZero() || u.GPUUse != (api.GPUUse{}) {
					t.Errorf("a kernel that lives: %+v", u)
				}
				continue
			}
			if u.End.IsZero() || u.Owner != "ann" || u.SpecName != "python3" || u.GPUs != gpu.Whole(2) || u.Seconds < 3600 ||
				u.GPUUse != (api.GPUUse{Measured: 30 * time.Minute, Busy: 10 * time.Minute}) {
				t.Errorf("a kernel that has ended: %+v", u)
			}
		}
	}
	used(l)
	used(openTest(t, c, nil))
	if err := l.Stop(t.Context(), idA, "it was shut down on request"); err != nil {
		t.Fatal(err)
	}
	if why := whyGone(t, l, idA); why != "it was idle for 1h0m0s" {
		t.Errorf("removed: %q", why)
	}
	if err := l.Stop(t.Context(), died, "it was shut down on request"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Revive(t.Context(), idB); err != nil {
		t.Fatal(err)
	}
	if got := ids(l); fmt.Sprint(got) != fmt.Sprint([]string{died, idA}) {
		t.Errorf("two removed, one started again: %v", got)
	}
	used(l, idB)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got := ids(openTest(t, c, nil)); fmt.Sprint(got) != fmt.Sprint([]string{died, idA}) {
		t.Errorf("at a gateway that comes later: %v", got)
	}
	used(openTest(t, c, nil), idB)
	old := openTest(t, c, func(o *Options, tm *timing) {
		tm.now = func() time.Time { return time.Now().Add(endings.Kept + time.Minute) }
	})
	if got := ids(old); len(got) > 0 {
		t.Errorf("after their time: %v", got)
	}
}
