package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/cluster"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/poddial"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

// The end to end tests use a real cluster. The tests here cover situations that cannot be produced in a real cluster.

const (
	idA = "aaaaaaaa-0000-4000-8000-000000000001"
	idB = "bbbbbbbb-0000-4000-8000-000000000002"
)

var testKey = []byte("0123456789abcdef0123456789abcdef")

// testCluster is client-go's fake plus growing resource versions and uids.
type testCluster struct {
	*fake.Clientset
	objects *dynamicfake.FakeDynamicClient // what is made with namespaces
	version atomic.Int64
	broken  atomic.Bool    // it answers no request
	pods    poddial.Dialer // connects to supervisors
}

// newTestCluster makes a cluster whose pods cannot be dialled. It uses client-go's simple fake. The other fake tracks
// the owner of every field, which no test needs, and takes 25 ms for a kernel's start.
func newTestCluster(t testing.TB) *testCluster {
	t.Helper()
	c := &testCluster{Clientset: fake.NewSimpleClientset(), pods: noDialer{},
		objects: dynamicfake.NewSimpleDynamicClient(scheme.Scheme)}
	c.version.Store(100)
	c.objects.PrependReactor("patch", "*", c.apply)
	c.allow()
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
			switch o := o.(type) {
			case *coordinationv1.Lease, *corev1.ConfigMap:
				m := o.(metav1.Object)
				if err := c.mayChange(a, m.GetName(), "", m.GetResourceVersion()); err != nil {
					return true, nil, err
				}
			}
		case k8stesting.DeleteActionImpl:
			wanted := a.GetDeleteOptions().Preconditions
			if a.GetResource().Resource == "pods" && wanted != nil && wanted.UID != nil {
				if err := c.mayChange(a, a.GetName(), string(*wanted.UID), ""); err != nil {
					return true, nil, err
				}
			}
		case k8stesting.PatchActionImpl:
			if a.GetResource().Resource == "pods" {
				return c.patchPod(a)
			}
		}
		switch o := o.(type) {
		case *corev1.Namespace:
			o.ResourceVersion = strconv.FormatInt(c.version.Add(1), 10)
			o.UID = types.UID("uid-" + o.ResourceVersion)
		case *coordinationv1.Lease, *corev1.ConfigMap:
			m := o.(metav1.Object)
			m.SetResourceVersion(strconv.FormatInt(c.version.Add(1), 10))
			if created := m.GetCreationTimestamp(); created.IsZero() {
				m.SetCreationTimestamp(metav1.Now())
			}
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

// applied are the managed fields of an object that gateways have applied.
var applied = []metav1.ManagedFieldsEntry{{Manager: cluster.FieldManager, Operation: metav1.ManagedFieldsOperationApply,
	FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1("{}")}}

// apply is a simple server-side apply of an object that is made with a namespace, or of the namespace itself: all of
// the object is replaced. The end to end tests use the real one.
func (c *testCluster) apply(a k8stesting.Action) (bool, runtime.Object, error) {
	patch := a.(k8stesting.PatchActionImpl)
	if patch.PatchType == types.MergePatchType {
		return false, nil, nil // the fake does it
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(patch.Patch); err != nil || patch.PatchType != types.ApplyPatchType ||
		patch.PatchOptions.FieldManager != cluster.FieldManager {
		return true, nil, fmt.Errorf("this is no apply of the gateways: %w", err)
	}
	object.SetManagedFields(applied)
	tracker, now := c.objects.Tracker(), runtime.Object(object)
	if object.GetKind() == "Namespace" {
		err := c.mayChange(a, object.GetName(), string(object.GetUID()), object.GetResourceVersion())
		if apierrors.IsNotFound(err) {
			if err = nil; object.GetUID() != "" {
				err = apierrors.NewConflict(a.GetResource().GroupResource(), object.GetName(), errors.New("it does not exist"))
			}
		}
		if err != nil {
			return true, nil, err
		}
		object.SetResourceVersion(strconv.FormatInt(c.version.Add(1), 10))
		ns := &corev1.Namespace{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, ns); err != nil {
			return true, nil, err
		}
		tracker, now = c.Tracker(), ns
	}
	err := tracker.Create(a.GetResource(), now, a.GetNamespace())
	if apierrors.IsAlreadyExists(err) {
		err = tracker.Update(a.GetResource(), now, a.GetNamespace())
	}
	return true, object, err
}

// PrependReactor adds a reactor while launchers use the cluster. The fake's own method takes no lock, unlike the method
// for watches.
func (c *testCluster) PrependReactor(verb, resource string, reaction k8stesting.ReactionFunc) {
	c.Lock()
	defer c.Unlock()
	c.Clientset.PrependReactor(verb, resource, reaction)
}

// silence is called before the first watch. Watches of pods that begin while it is true report nothing.
func (c *testCluster) silence() *atomic.Bool {
	silent := new(atomic.Bool)
	c.PrependWatchReactor("pods", func(k8stesting.Action) (bool, watch.Interface, error) {
		return silent.Load(), watch.NewFake(), nil
	})
	return silent
}

// patchPod applies a patch as the fake does, rejects one for another version of the pod, and increases the version. The
// patches of this package all have metadata.
func (c *testCluster) patchPod(a k8stesting.PatchActionImpl) (bool, runtime.Object, error) {
	patch := map[string]any{}
	err := json.Unmarshal(a.Patch, &patch)
	if metadata, ok := patch["metadata"].(map[string]any); err == nil && ok {
		if err := c.mayChange(a, a.GetName(), metadata["uid"], metadata["resourceVersion"]); err != nil {
			return true, nil, err
		}
		metadata["resourceVersion"] = strconv.FormatInt(c.version.Add(1), 10)
		a.Patch, err = json.Marshal(patch)
	}
	if err != nil {
		return true, nil, err
	}
	return k8stesting.ObjectReaction(c.Tracker())(a)
}

// mayChange is the API server's check of preconditions.
func (c *testCluster) mayChange(a k8stesting.Action, name string, uid, version any) error {
	now, err := c.Tracker().Get(a.GetResource(), a.GetNamespace(), name)
	if err != nil {
		return err
	}
	m, err := meta.Accessor(now)
	if err != nil {
		return err
	}
	if version != nil && version != "" && version != m.GetResourceVersion() ||
		uid != nil && uid != "" && uid != string(m.GetUID()) {
		return apierrors.NewConflict(a.GetResource().GroupResource(), name, errors.New("it is another by now"))
	}
	return nil
}

// noDialer connects to no pod.
type noDialer struct{}

func (noDialer) Dial(context.Context, *corev1.Pod) (net.Conn, error) {
	return nil, errors.New("the pod has no supervisor")
}
func (noDialer) Close(error) {}

// testPods says how the tests' pods are built.
var testPods = podbuild.Options{Namespace: "ns", SupervisorImage: "ekg:1", KernelImage: "kernel:1"}

func openTest(t testing.TB, c *testCluster, change func(*Options, *timing)) *Launcher {
	t.Helper()
	of := &cluster.Cluster{Client: c.Clientset, Leases: c.Clientset, Objects: c.objects, Namespace: "ns"}
	o := Options{Cluster: of, MasterKey: testKey, Pods: testPods}
	tm := realTiming()
	tm.firstRedial, tm.lastRedial = time.Hour, time.Hour
	if change != nil {
		change(&o, &tm)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := open(ctx, o, tm, func(*cluster.Cluster) poddial.Dialer { return c.pods })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// withPolicy builds pods under a policy.
func withPolicy(t testing.TB, text string) func(*Options, *timing) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	policy, err := wish.ReadPolicy(file)
	if err != nil {
		t.Fatal(err)
	}
	return func(o *Options, _ *timing) { o.Pods.Policy = policy }
}

func testRequest(id string) launcher.Request {
	return launcher.Request{
		ID:    id,
		Owner: "ann",
		Spec:  kernelspecs.Spec{Name: "python3", Argv: []string{"python3", "-f", "{connection_file}"}, Language: "python"},
	}
}

func TestMain(m *testing.M) {
	cluster.LogTo(slog.New(slog.DiscardHandler))
	watch.DefaultChanSize = 10_000 // the fake's watches panic when their reader is so many events behind
	goleak.VerifyTestMain(m)
}

// refuse makes the cluster reject every request of a kind from now on.
func (c *testCluster) refuse(verb, resource string, err error) {
	c.PrependReactor(verb, resource, func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, err })
}

// allow lets gateways list and watch just these resources of the whole cluster.
func (c *testCluster) allow(resources ...string) {
	c.PrependReactor("create", "selfsubjectaccessreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
		review := a.(k8stesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview).DeepCopy()
		of := review.Spec.ResourceAttributes
		review.Status.Allowed = of.Namespace == "" && (of.Verb == "list" || of.Verb == "watch") &&
			slices.Contains(resources, of.Resource)
		return true, review, nil
	})
}

// requests counts the requests to the cluster. Requests for the reaper's lease are left out, because their number
// depends on the time.
func (c *testCluster) requests() (n int) {
	for _, a := range c.Actions() {
		if a.GetResource().Resource != "leases" {
			n++
		}
	}
	return n
}

// setPod changes a pod in the way the cluster would.
func (c *testCluster) setPod(t testing.TB, name string, change func(*corev1.Pod)) {
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

func waitFor(t testing.TB, l *Launcher, id string, cond func(launcher.Kernel) bool) launcher.Kernel {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	k, err := l.Wait(ctx, id, cond)
	if err != nil {
		t.Fatalf("%v; it is %+v", err, k)
	}
	return k
}
