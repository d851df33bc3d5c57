package kube

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// The real cluster is what proves this package; see cmd/ekg's end to end tests. Here is what a cluster cannot be made to do at will.

const (
	idA = "aaaaaaaa-0000-4000-8000-000000000001"
	idB = "bbbbbbbb-0000-4000-8000-000000000002"
)

// What deriveKeys makes of testKey for idA's first pod.
const (
	wantSeed  = "c9014e823ff0adc22dc3761663c3a5c229da6ade50750f407b45875ef690eace"
	wantToken = "70c3e55ffca75e308e56d5dbf44721de042d71bbe21745daa0819f1d46a4dd60"
)

var testKey = []byte("0123456789abcdef0123456789abcdef")

// testCluster is client-go's fake with what it lacks: resource versions that grow, and uids.
type testCluster struct {
	*fake.Clientset
	version atomic.Int64
	broken  atomic.Bool // it answers nothing
}

func newTestCluster(t *testing.T) *testCluster {
	t.Helper()
	c := &testCluster{Clientset: fake.NewClientset()}
	c.version.Store(100)
	c.PrependReactor("*", "*", func(a k8stesting.Action) (bool, runtime.Object, error) {
		if c.broken.Load() && a.GetVerb() != "watch" {
			return true, nil, errors.New("connection refused")
		}
		var o runtime.Object
		switch a := a.(type) {
		case k8stesting.CreateActionImpl:
			o = a.GetObject()
		case k8stesting.UpdateActionImpl:
			o = a.GetObject()
		}
		if pod, ok := o.(*corev1.Pod); ok {
			pod.ResourceVersion = strconv.FormatInt(c.version.Add(1), 10)
			if pod.UID == "" {
				pod.UID = types.UID("uid-" + pod.ResourceVersion)
				pod.CreationTimestamp = metav1.Now()
			}
		}
		return false, nil, nil
	})
	return c
}

// noDialer reaches no pod.
type noDialer struct{}

func (noDialer) dial(context.Context, *corev1.Pod) (net.Conn, error) {
	return nil, errors.New("nobody is there")
}
func (noDialer) forget(string) {}
func (noDialer) close()        {}

func openTest(t *testing.T, c *testCluster, change func(*Options, *timing)) *Launcher {
	t.Helper()
	o := Options{Cluster: &Cluster{client: c.Clientset, Namespace: "ns"}, MasterKey: testKey,
		Pods: PodOptions{Namespace: "ns", SupervisorImage: "ekg:1", KernelImage: "kernel:1"}}
	tm := realTiming()
	tm.firstRedial, tm.lastRedial = time.Hour, time.Hour
	if change != nil {
		change(&o, &tm)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	l, err := open(ctx, o, tm)
	if err != nil {
		t.Fatal(err)
	}
	l.dialer = noDialer{}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func testRequest(id string) launcher.Request {
	return launcher.Request{ID: id, Owner: "ann", Spec: kernelspecs.Spec{Name: "python3", Argv: []string{"python3", "-f", "{connection_file}"}, Language: "python"}}
}

func TestMain(m *testing.M) {
	LogTo(slog.New(slog.DiscardHandler))
	goleak.VerifyTestMain(m)
}

func TestDeriveKeys(t *testing.T) {
	// RFC 5869's construction over a label, computed with another implementation (Python's hashlib and hmac).
	k, err := deriveKeys(testKey, idA+"-1", 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(k.tlsSeed); got != wantSeed || k.token != wantToken {
		t.Errorf("seed %s, token %s", got, k.token)
	}
	all := []string{hex.EncodeToString(k.tlsSeed), k.token, k.kernelKey, k.identity}
	next, err := deriveKeys(testKey, idA+"-2", 1)
	if err != nil {
		t.Fatal(err)
	}
	all = append(all, hex.EncodeToString(next.tlsSeed), next.token, next.kernelKey, next.identity)
	slices.Sort(all)
	if len(slices.Compact(all)) != 8 {
		t.Error("keys are equal")
	}
	if _, err := deriveKeys(testKey, idA+"-1", 2); err == nil {
		t.Error("an unknown version was derived")
	}
}

func TestStart(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, nil)
	k, created, err := l.Start(t.Context(), testRequest(idA))
	if err != nil || !created || k.State != launcher.Starting || k.Owner != "ann" || k.SpecName != "python3" {
		t.Fatalf("%+v, %v, %v", k, created, err)
	}
	secret, err := c.CoreV1().Secrets("ns").Get(t.Context(), "ekg-"+idA+"-1", metav1.GetOptions{})
	if err != nil || len(secret.OwnerReferences) != 1 || secret.OwnerReferences[0].Name != idA+"-1" || len(secret.Data) != 4 {
		t.Errorf("secret: %+v, %v", secret, err)
	}
	t.Run("again", func(t *testing.T) {
		if again, created, err := l.Start(t.Context(), testRequest(idA)); err != nil || created || again.ID != idA {
			t.Errorf("%+v, %v, %v", again, created, err)
		}
		other := testRequest(idA)
		other.Owner = "bob"
		if _, _, err := l.Start(t.Context(), other); !errors.Is(err, launcher.ErrConflict) {
			t.Errorf("another owner: %v", err)
		}
	})
	t.Run("of many at once by two gateways one makes the kernel", func(t *testing.T) {
		second := openTest(t, c, nil)
		var wg sync.WaitGroup
		var made atomic.Int32
		for i := range 10 {
			wg.Go(func() {
				_, created, err := []*Launcher{l, second}[i%2].Start(t.Context(), testRequest(idB))
				if err != nil {
					t.Error(err)
				}
				if created {
					made.Add(1)
				}
			})
		}
		wg.Wait()
		if made.Load() != 1 {
			t.Errorf("%d times made", made.Load())
		}
	})
	t.Run("refusals of the cluster", func(t *testing.T) {
		var refusal error
		c.PrependReactor("create", "pods", func(k8stesting.Action) (bool, runtime.Object, error) { return refusal != nil, nil, refusal })
		id := "cccccccc-0000-4000-8000-000000000003"
		var failed *launcher.FailedError
		refusal = apierrors.NewForbidden(corev1.Resource("pods"), id, errors.New("exceeded quota: q, requested: pods=1, used: pods=5, limited: pods=5"))
		if _, _, err := l.Start(t.Context(), testRequest(id)); !errors.As(err, &failed) {
			t.Errorf("quota: %v", err)
		}
		refusal = errors.New("connection refused")
		if _, _, err := l.Start(t.Context(), testRequest(id)); !errors.Is(err, launcher.ErrUnavailable) {
			t.Errorf("no cluster: %v", err)
		}
		refusal = nil
		if _, err := l.Kernel(t.Context(), id); !errors.Is(err, launcher.ErrNotFound) {
			t.Errorf("what was refused: %v", err)
		}
	})
	t.Run("a pod whose secret cannot be made is removed", func(t *testing.T) {
		refuse := atomic.Bool{}
		refuse.Store(true)
		c.PrependReactor("create", "secrets", func(k8stesting.Action) (bool, runtime.Object, error) {
			return refuse.Load(), nil, apierrors.NewForbidden(corev1.Resource("secrets"), "x", errors.New("no"))
		})
		defer refuse.Store(false)
		id := "dddddddd-0000-4000-8000-000000000004"
		var failed *launcher.FailedError
		if _, _, err := l.Start(t.Context(), testRequest(id)); !errors.As(err, &failed) {
			t.Errorf("got %v", err)
		}
		if _, err := c.CoreV1().Pods("ns").Get(t.Context(), id+"-1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the pod: %v", err)
		}
	})
}

// setPod changes a pod as the cluster does.
func (c *testCluster) setPod(t *testing.T, name string, change func(*corev1.Pod)) {
	t.Helper()
	pod, err := c.CoreV1().Pods("ns").Get(t.Context(), name, metav1.GetOptions{})
	if err == nil {
		pod = pod.DeepCopy()
		change(pod)
		_, err = c.CoreV1().Pods("ns").Update(t.Context(), pod, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func waitFor(t *testing.T, l *Launcher, id string, cond func(launcher.Kernel) bool) launcher.Kernel {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	k, err := l.Wait(ctx, id, cond)
	if err != nil {
		t.Fatalf("%v; it is %+v", err, k)
	}
	return k
}

// ended is what a pod is when its supervisor has ended and has said this.
func ended(message string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.Phase = corev1.PodSucceeded
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: containerSupervisor,
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: message, FinishedAt: metav1.Now()}}}}
	}
}

func TestEnding(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, nil)
	start := func(id string) {
		if _, _, err := l.Start(t.Context(), testRequest(id)); err != nil {
			t.Fatal(err)
		}
	}
	dead := func(k launcher.Kernel) bool { return k.State == launcher.Dead }
	start(idA)
	c.setPod(t, idA+"-1", ended(`{"kernel_id":"`+idA+`","reason":"it exited with 3","at":"`+time.Now().UTC().Format(time.RFC3339)+`"}`))
	if k := waitFor(t, l, idA, dead); k.Reason != "it exited with 3" {
		t.Errorf("died: %+v", k)
	}
	t.Run("a later gateway knows", func(t *testing.T) {
		k, err := openTest(t, c, nil).Kernel(t.Context(), idA)
		if err != nil || k.State != launcher.Dead || k.Reason != "it exited with 3" {
			t.Errorf("%+v, %v", k, err)
		}
	})
	t.Run("it is revived as its next generation", func(t *testing.T) {
		k, err := l.Revive(t.Context(), idA)
		if err != nil || k.State != launcher.Starting {
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
	t.Run("one that was stopped is gone, with its reason", func(t *testing.T) {
		start(idB)
		c.setPod(t, idB+"-1", ended(`{"kernel_id":"`+idB+`","reason":"shut down by ann","stopped":true,"at":"`+time.Now().UTC().Format(time.RFC3339)+`"}`))
		var gone *launcher.GoneError
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if _, err := l.Wait(ctx, idB, dead); !errors.As(err, &gone) || gone.Reason != "shut down by ann" {
			t.Errorf("got %v", err)
		}
	})
	t.Run("deleted behind our back", func(t *testing.T) {
		id := "cccccccc-0000-4000-8000-000000000003"
		start(id)
		if err := c.CoreV1().Pods("ns").Delete(t.Context(), id+"-1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if k := waitFor(t, l, id, dead); k.Reason == "" {
			t.Errorf("%+v", k)
		}
		if err := l.Stop(t.Context(), id, "x"); err != nil {
			t.Error(err)
		}
		if _, err := l.Kernel(t.Context(), id); !errors.Is(err, launcher.ErrNotFound) {
			t.Errorf("after it was stopped: %v", err)
		}
	})
	t.Run("one that could never run is ended, and can be started again", func(t *testing.T) {
		id := "dddddddd-0000-4000-8000-000000000004"
		start(id)
		c.setPod(t, id+"-1", func(pod *corev1.Pod) {
			pod.Status.Phase = corev1.PodPending
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: containerKernel, State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImageNeverPull"}}}}
		})
		if k := waitFor(t, l, id, dead); !strings.Contains(k.Reason, "image") {
			t.Errorf("%+v", k)
		}
		l.mu.Lock()
		k := l.kernels[id]
		l.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if !l.await(ctx, k, func() bool { return k.removed }) {
			t.Fatal("its pod is still there")
		}
		if k, err := l.Revive(t.Context(), id); err != nil || k.State != launcher.Starting {
			t.Errorf("%+v, %v", k, err)
		}
	})
	t.Run("somebody else's words are not believed", func(t *testing.T) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{LabelKernel: idA}}}
		ended(`{"kernel_id":"` + idB + `","reason":"x","stopped":true}`)(pod)
		if end := endOf(pod, time.Now()); end == nil || end.stopped {
			t.Errorf("%+v", end)
		}
	})
}

// TestLists: a list never lacks a kernel that exists; where that is not certain, there is none.
func TestLists(t *testing.T) {
	c := newTestCluster(t)
	now := atomic.Int64{}
	now.Store(time.Now().UnixNano())
	l := openTest(t, c, func(_ *Options, tm *timing) { tm.now = func() time.Time { return time.Unix(0, now.Load()) } })
	ids := func() ([]string, error) {
		all, err := l.Kernels(t.Context())
		var ids []string
		for _, k := range all {
			ids = append(ids, k.ID)
		}
		return ids, err
	}
	if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	if got, err := ids(); err != nil || !slices.Equal(got, []string{idA}) {
		t.Errorf("%v, %v", got, err)
	}
	c.broken.Store(true)
	if got, err := ids(); err != nil || len(got) != 1 {
		t.Errorf("with the watch fresh: %v, %v", got, err)
	}
	now.Add(int64(11 * time.Second))
	if got, err := ids(); !errors.Is(err, launcher.ErrUnavailable) {
		t.Errorf("without the cluster: %v, %v", got, err)
	}
	if k, err := l.Kernel(t.Context(), idA); err != nil || k.ID != idA {
		t.Errorf("a known kernel: %v, %v", k, err)
	}
	if _, err := l.Kernel(t.Context(), idB); !errors.Is(err, launcher.ErrUnavailable) {
		t.Errorf("an unknown kernel: %v", err)
	}
	before := len(c.Actions())
	for range 5 {
		if _, err := ids(); !errors.Is(err, launcher.ErrUnavailable) {
			t.Errorf("still without the cluster: %v", err)
		}
	}
	if n := len(c.Actions()) - before; n != 0 {
		t.Errorf("a cluster that does not answer was asked %d times more", n)
	}
	now.Add(int64(3 * time.Second))
	c.broken.Store(false)
	before = len(c.Actions())
	for range 5 {
		if got, err := ids(); err != nil || len(got) != 1 {
			t.Errorf("with the cluster again: %v, %v", got, err)
		}
	}
	if n := len(c.Actions()) - before; n != 1 {
		t.Errorf("five lists asked the cluster %d times", n)
	}
}

func TestUpdateSessions(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, nil)
	if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	add := func(name string) error {
		_, err := l.UpdateSessions(t.Context(), idA, func(s []launcher.Session) ([]launcher.Session, error) {
			return append(s, launcher.Session{ID: name, Path: name}), nil
		})
		return err
	}
	if err := add("one"); err != nil {
		t.Fatal(err)
	}
	var conflicts atomic.Int32
	conflicts.Store(3)
	c.PrependReactor("patch", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
		return conflicts.Add(-1) >= 0, nil, apierrors.NewConflict(corev1.Resource("pods"), "x", errors.New("changed meanwhile"))
	})
	if err := add("two"); err != nil {
		t.Fatal(err)
	}
	k, err := openTest(t, c, nil).Kernel(t.Context(), idA)
	if err != nil || len(k.Sessions) != 2 || k.Sessions[1].Path != "two" {
		t.Errorf("%+v, %v", k, err)
	}
	conflicts.Store(1000)
	if err := add("three"); !errors.Is(err, launcher.ErrUnavailable) {
		t.Errorf("for ever: %v", err)
	}
	own := errors.New("mine")
	if _, err := l.UpdateSessions(t.Context(), idA, func([]launcher.Session) ([]launcher.Session, error) { return nil, own }); !errors.Is(err, own) {
		t.Errorf("got %v", err)
	}
}

// TestEnterPod: news come from several sides in any order.
func TestEnterPod(t *testing.T) {
	l := openTest(t, newTestCluster(t), nil)
	pod := func(generation, version int, phase corev1.PodPhase) *corev1.Pod {
		p := &corev1.Pod{}
		record{id: idA, generation: generation, spec: "s", created: time.Now(), protocol: 1, keyVersion: 1}.write(p)
		p.Namespace, p.UID, p.ResourceVersion, p.Status.Phase = "ns", types.UID(strconv.Itoa(generation)), strconv.Itoa(version), phase
		return p
	}
	state := func() (int, launcher.State) {
		l.mu.Lock()
		k := l.kernels[idA]
		l.mu.Unlock()
		d, err := l.describe(k)
		if err != nil {
			t.Fatal(err)
		}
		return k.rec.generation, d.State
	}
	check := func(what string, generation int, want launcher.State) {
		t.Helper()
		if g, s := state(); g != generation || s != want {
			t.Errorf("%s: generation %d is %s", what, g, s)
		}
	}
	l.enterPod(pod(1, 10, corev1.PodPending))
	check("made", 1, launcher.Starting)
	l.enterPod(pod(1, 30, corev1.PodFailed))
	check("failed", 1, launcher.Dead)
	l.enterPod(pod(1, 20, corev1.PodRunning))
	check("old news", 1, launcher.Dead)
	l.enterPod(pod(2, 40, corev1.PodPending))
	check("the next", 2, launcher.Starting)
	l.enterPod(pod(1, 50, corev1.PodRunning))
	check("news of the one before", 2, launcher.Starting)
	l.enterRemoved(pod(1, 60, corev1.PodFailed))
	check("the one before is gone", 2, launcher.Starting)
	l.enterRemoved(pod(2, 70, corev1.PodRunning))
	check("gone", 2, launcher.Dead)
	l.enterPod(pod(2, 80, corev1.PodRunning))
	check("news of a pod that is gone", 2, launcher.Dead)
	broken := pod(3, 90, corev1.PodRunning)
	broken.Annotations[annotationGeneration] = "x"
	l.enterPod(broken)
	check("a pod that is no record", 2, launcher.Dead)
}

// TestTend: what nobody else does any more.
func TestTend(t *testing.T) {
	c := newTestCluster(t)
	now := atomic.Int64{}
	now.Store(time.Now().UnixNano())
	l := openTest(t, c, func(_ *Options, tm *timing) {
		tm.now = func() time.Time { return time.Unix(0, now.Load()) }
		tm.tend = time.Hour // the test does it
	})
	start := func(id string, env map[string]string) *kernel {
		req := testRequest(id)
		req.Env = env
		if _, _, err := l.Start(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		k, err := l.lookUp(id)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	k := start(idA, nil)
	c.setPod(t, idA+"-1", func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodPending })
	waitFor(t, l, idA, func(launcher.Kernel) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return k.pod.Status.Phase == corev1.PodPending
	})
	secrets := c.CoreV1().Secrets("ns")
	if err := secrets.Delete(t.Context(), "ekg-"+idA+"-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	now.Add(int64(6 * time.Second))
	l.tendKernel(k)
	if _, err := secrets.Get(t.Context(), "ekg-"+idA+"-1", metav1.GetOptions{}); err != nil {
		t.Errorf("a missing secret was not made: %v", err)
	}
	before := len(c.Actions())
	l.tendKernel(k)
	if n := len(c.Actions()) - before; n != 0 {
		t.Errorf("a kernel that waits costs %d requests", n)
	}
	patient := start(idB, map[string]string{"KERNEL_LAUNCH_TIMEOUT": "7200"})
	now.Add(int64(31 * time.Minute))
	l.tendKernel(k)
	l.tendKernel(patient)
	if k := waitFor(t, l, idA, func(k launcher.Kernel) bool { return k.State == launcher.Dead }); k.Reason != "its start made no progress for 30m0s: it waits for the scheduler" {
		t.Errorf("%+v", k)
	}
	if k, err := l.Kernel(t.Context(), idB); err != nil || k.State != launcher.Starting {
		t.Errorf("one that may take longer: %+v, %v", k, err)
	}
}

// TestManyKernels: what a list costs does not grow with the number of kernels, nor does what a gateway asks meanwhile.
func TestManyKernels(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, nil)
	const n = 200
	for i := range n {
		if _, _, err := l.Start(t.Context(), testRequest(fmt.Sprintf("aaaaaaaa-0000-4000-8000-%012d", i))); err != nil {
			t.Fatal(err)
		}
	}
	l.freshness.proved(time.Now())
	before := len(c.Actions())
	took := make([]time.Duration, 100)
	for i := range took {
		began := time.Now()
		all, err := l.Kernels(t.Context())
		if err != nil || len(all) != n {
			t.Fatalf("%d kernels, %v", len(all), err)
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	t.Logf("a list of %d kernels: median %v, p99 %v", n, took[50], took[98])
	if took[50] > 50*time.Millisecond { // on a busy machine some take longer for other reasons
		t.Errorf("a list takes %v", took[50])
	}
	if asked := len(c.Actions()) - before; asked > 1 {
		t.Errorf("100 lists asked the cluster %d times", asked)
	}
}

// TestPeers: who is told of a kernel knows it at once, however late its watch is.
func TestPeers(t *testing.T) {
	c := newTestCluster(t)
	first := openTest(t, c, nil)
	c.PrependWatchReactor("pods", func(k8stesting.Action) (bool, watch.Interface, error) { return true, watch.NewFake(), nil }) // it says nothing
	late := openTest(t, c, nil)
	keys, err := deriveKeys(testKey, peerName, keyVersion)
	if err != nil {
		t.Fatal(err)
	}
	p := &peers{l: late, keys: keys, asking: make(chan struct{}, 1)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /kernels/{id}", p.told)
	tell := func(id, token string) int {
		w, r := httptest.NewRecorder(), httptest.NewRequest("POST", "/kernels/"+id, nil)
		r.Header.Set("Authorization", "Bearer "+token)
		mux.ServeHTTP(w, r)
		return w.Code
	}
	listed := func() bool {
		all, err := late.Kernels(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(all, func(k launcher.Kernel) bool { return k.ID == idA })
	}
	if _, _, err := first.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	if listed() {
		t.Fatal("its watch is not late; the test proves nothing")
	}
	for _, bad := range []struct {
		id, token string
		want      int
	}{{idA, "wrong", 403}, {idA, "", 403}, {"x", keys.token, 400}} {
		if got := tell(bad.id, bad.token); got != bad.want {
			t.Errorf("%q with %q: %d", bad.id, bad.token, got)
		}
	}
	if listed() {
		t.Error("somebody without the token was believed")
	}
	if got := tell(idA, keys.token); got != 204 || !listed() {
		t.Errorf("told of a kernel: %d, listed %v", got, listed())
	}
	if err := first.Stop(t.Context(), idA, "not needed"); err != nil {
		t.Fatal(err)
	}
	if !listed() {
		t.Fatal("its watch is not late; the test proves nothing")
	}
	if got := tell(idA, keys.token); got != 204 {
		t.Errorf("told of an end: %d", got)
	}
	k, err := late.Kernel(t.Context(), idA)
	if err == nil && k.State != launcher.Dead || err != nil && !errors.Is(err, launcher.ErrNotFound) {
		t.Errorf("after its end: %+v, %v", k, err)
	}
}

// refuse has the cluster refuse every request of a kind from now on.
func (c *testCluster) refuse(t *testing.T, verb, resource string, err error) {
	t.Helper()
	c.PrependReactor(verb, resource, func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, err })
}
