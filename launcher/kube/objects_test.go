package kube

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// objectsExtension is a metadata.ekg with an object of each kind.
const objectsExtension = `{"ekg": {"image": "k:1", "ports": [{"containerPort": 7000}], "objects": [
	{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [{"port": 7000}]}},
	{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"owner": "{owner}"}},
	{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "scratch"}, "spec": {
		"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}},
	{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "word"}, "stringData": {"word": "hunter2"}}]}}`

// withKernelObjects allows kernelspecs to create objects.
func withKernelObjects(t *testing.T) func(*Options, *timing) {
	t.Helper()
	text := "kernelspecs: {objects: [ConfigMap, PersistentVolumeClaim, Secret, Service], ports: [7000]}\n"
	return withPolicy(t, text)
}

func requestWithObjects(id, owner string) launcher.Request {
	req := testRequest(id)
	req.Owner = owner
	req.Spec.Metadata = []byte(objectsExtension)
	return req
}

// objectsThere returns the objects of kernelspecs in the cluster.
func (c *testCluster) objectsThere(t testing.TB) (all []unstructured.Unstructured) {
	t.Helper()
	for _, resource := range []string{"configmaps", "persistentvolumeclaims", "secrets", "services"} {
		list, err := c.objects.Resource(corev1.SchemeGroupVersion.WithResource(resource)).Namespace("ns").List(t.Context(),
			metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, list.Items...)
	}
	return all
}

func namesOf(objects []unstructured.Unstructured) (names []string) {
	for i := range objects {
		names = append(names, objects[i].GetName())
	}
	slices.Sort(names)
	return names
}

// collect deletes what has owners, none of which exists, as the cluster's garbage collector does.
func (c *testCluster) collect(t testing.TB) {
	t.Helper()
	pods, err := c.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	lives := func(r metav1.OwnerReference) bool {
		return slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return p.UID == r.UID })
	}
	for _, o := range c.objectsThere(t) {
		if owners := o.GetOwnerReferences(); len(owners) == 0 {
			t.Errorf("%s has no owner", o.GetName())
		} else if !slices.ContainsFunc(owners, lives) {
			of, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
			if err := c.objects.Tracker().Delete(of, "ns", o.GetName()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// wantNoObjects checks that no object is left without its owner.
func (c *testCluster) wantNoObjects(t testing.TB) {
	t.Helper()
	c.collect(t)
	if left := c.objectsThere(t); len(left) > 0 {
		t.Errorf("left: %q", namesOf(left))
	}
}

// TestObjects: a kernel's objects are created before its secret, with which its containers start. They are gone with
// its pod. The pod does not show the content of a Secret to who may read pods.
func TestObjects(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, withKernelObjects(t))
	c.PrependReactor("create", "secrets", func(k8stesting.Action) (bool, runtime.Object, error) {
		if n := len(c.objectsThere(t)); n != 4 {
			t.Errorf("the pod gets its secret with %d objects", n)
		}
		return false, nil, nil
	})
	if _, _, err := l.Start(t.Context(), requestWithObjects(idA, "ann")); err != nil {
		t.Fatal(err)
	}
	if got, want := namesOf(c.objectsThere(t)), []string{"ekg-" + idA + "-1-word", "ekg-" + idA + "-scratch",
		"ekg-" + idA + "-settings", "ekg-" + idA + "-web"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	pod, err := c.CoreV1().Pods("ns").Get(t.Context(), idA+"-1", metav1.GetOptions{})
	if err != nil || strings.Contains(fmt.Sprint(pod), "hunter2") ||
		pod.Annotations[podspec.AnnotationKernelObjects] == "" {
		t.Errorf("the pod shows the Secret: %v, %+v", err, pod)
	}
	if err := l.Stop(t.Context(), idA, "enough"); err != nil {
		t.Fatal(err)
	}
	c.wantNoObjects(t)
}

// TestObjects_Refused: a start whose object cannot be created fails with the reason, and leaves no pod.
func TestObjects_Refused(t *testing.T) {
	forbidden := func(resource, why string) error {
		return apierrors.NewForbidden(corev1.Resource(resource), "x", errors.New(why))
	}
	const noRight = `User "system:serviceaccount:ekg:ekg" cannot create resource "services" in API group "" in the ` +
		`namespace "ns"`
	for name, test := range map[string]struct {
		resource string
		err      error
		there    *unstructured.Unstructured
		want     string
	}{
		"no right": {resource: "services", err: forbidden("services", noRight),
			want: `its Service web could not be created: the gateway may not create services in the namespace`},
		"a quota": {resource: "persistentvolumeclaims", want: "its PersistentVolumeClaim scratch could not be created",
			err: forbidden("persistentvolumeclaims", "exceeded quota: q, requested: persistentvolumeclaims=1, used: "+
				"persistentvolumeclaims=1, limited: persistentvolumeclaims=1")},
		"an object of another kernel that had the id": {there: objectOf("ConfigMap", "settings", "bob", nil),
			want: "its ConfigMap settings could not be created: an object of its name is still being removed"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestCluster(t)
			l := openTest(t, c, withKernelObjects(t))
			if test.err != nil {
				c.objects.PrependReactor("create", test.resource, func(k8stesting.Action) (bool, runtime.Object, error) {
					return true, nil, test.err
				})
			}
			if test.there != nil {
				if err := c.objects.Tracker().Create(corev1.SchemeGroupVersion.WithResource("configmaps"), test.there,
					"ns"); err != nil {
					t.Fatal(err)
				}
			}
			_, _, err := l.Start(t.Context(), requestWithObjects(idA, "ann"))
			if failed := (*launcher.FailedError)(nil); !errors.As(err, &failed) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
			pods, err := c.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(pods.Items) > 0 {
				t.Errorf("%d pods are left: %v", len(pods.Items), err)
			}
		})
	}
}

// objectOf returns an object of a kernel in the cluster.
func objectOf(kind, name, owner string, owners []metav1.OwnerReference) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
	o.SetNamespace("ns")
	o.SetName("ekg-" + idA + "-" + name)
	o.SetLabels(map[string]string{podspec.LabelKernel: idA, podspec.LabelManagedBy: podspec.Manager})
	o.SetAnnotations(map[string]string{podspec.AnnotationOwner: owner})
	o.SetOwnerReferences(owners)
	return o
}

// TestObjects_Revive: the kernel's next pod has the same objects, which stay when the earlier pod is gone. Its Secret
// is another one, because gateways read none.
func TestObjects_Revive(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, withKernelObjects(t))
	if _, _, err := l.Start(t.Context(), requestWithObjects(idA, "ann")); err != nil {
		t.Fatal(err)
	}
	uids := map[string]types.UID{}
	for _, o := range c.objectsThere(t) {
		uids[o.GetName()] = o.GetUID()
	}
	c.setPod(t, idA+"-1", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
	waitFor(t, l, idA, func(k launcher.Kernel) bool { return k.State == "dead" })
	if _, err := l.Revive(t.Context(), idA); err != nil {
		t.Fatal(err)
	}
	c.collect(t)
	got := c.objectsThere(t)
	if want := []string{"ekg-" + idA + "-2-word", "ekg-" + idA + "-scratch", "ekg-" + idA + "-settings",
		"ekg-" + idA + "-web"}; !slices.Equal(namesOf(got), want) {
		t.Errorf("got %q, want %q", namesOf(got), want)
	}
	if err := l.Stop(t.Context(), idA, "enough"); err != nil {
		t.Fatal(err)
	}
	c.wantNoObjects(t)
}

// TestObjects_GatewayEnds: a gateway dies before or after any request of a start, or of a restart in a new pod. At no
// moment is there an object without an owner. Another gateway completes the kernel or removes it, and after the kernel
// nothing is left.
func TestObjects_GatewayEnds(t *testing.T) {
	for _, restart := range []bool{false, true} {
		for _, answered := range []bool{false, true} {
			for n := 1; ; n++ {
				name := fmt.Sprintf("restart %v, request %d, executed %v", restart, n, answered)
				more := true
				t.Run(name, func(t *testing.T) { more = gatewayEnds(t, restart, n, answered) })
				if !more {
					if n < 6 {
						t.Errorf("a start has only %d requests", n-1)
					}
					break
				}
			}
		}
	}
}

// gatewayEnds lets a gateway die at its nth request that changes the cluster, which is executed or not. It returns
// false if there are fewer requests.
func gatewayEnds(t *testing.T, restart bool, n int, executed bool) bool {
	c := newTestCluster(t)
	c.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		a.(k8stesting.CreateAction).GetObject().(*corev1.Pod).Status.Phase = corev1.PodPending
		return false, nil, nil
	})
	first := openTest(t, c, withKernelObjects(t))
	if restart {
		if _, _, err := first.Start(t.Context(), requestWithObjects(idA, "ann")); err != nil {
			t.Fatal(err)
		}
		first.Claim(idA)
		c.setPod(t, idA+"-1", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
		waitFor(t, first, idA, func(k launcher.Kernel) bool { return k.State == "dead" })
	}
	died := make(chan struct{})
	var mu sync.Mutex // guards done and dying
	done, dying := 0, false
	count := func(a k8stesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		if a.GetVerb() == "get" || a.GetVerb() == "list" || a.GetResource().Resource == "leases" ||
			strings.HasPrefix(nameOf(a), "ekg-endings") {
			return dying, nil, errors.New("connection refused")
		}
		if done++; done == n && !dying {
			dying = true
			close(died)
			return !executed, nil, errors.New("connection refused")
		}
		return dying, nil, errors.New("connection refused")
	}
	c.PrependReactor("*", "*", count)
	c.objects.PrependReactor("*", "*", count)
	started := make(chan error, 1)
	go func() {
		var err error
		if restart {
			_, err = first.Revive(t.Context(), idA)
		} else {
			_, _, err = first.Start(t.Context(), requestWithObjects(idA, "ann"))
		}
		started <- err
	}()
	var err error
	select {
	case <-died:
		err = errClosed
	case err = <-started:
		if err != nil {
			t.Fatal(err)
		}
	}
	if cerr := first.Close(); cerr != nil {
		t.Fatal(cerr)
	}
	if err != nil {
		t.Logf("the gateway that died has answered: %v", <-started)
	}
	mu.Lock()
	dying, n = false, -1
	mu.Unlock()
	c.collect(t) // each object has an owner at this moment

	second := openTest(t, c, func(o *Options, tm *timing) {
		withKernelObjects(t)(o, tm)
		tm.maintenance, tm.secretOverdue = 10*time.Millisecond, 0
	})
	k, lerr := second.lookUp(idA)
	if lerr != nil && !errors.Is(lerr, launcher.ErrNotFound) {
		t.Fatal(lerr)
	}
	if k != nil && err != nil && restart { // the client asks again
		if _, err := second.Revive(t.Context(), idA); err != nil {
			t.Fatal(err)
		}
	}
	if k != nil {
		eventually(t, "the kernel is complete", func() bool {
			secrets, err := c.CoreV1().Secrets("ns").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			c.collect(t)
			return len(secrets.Items) > 0 && len(c.objectsThere(t)) >= 4
		})
		pods, err := c.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range pods.Items {
			if err := second.deletePod(t.Context(), &pods.Items[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.eventuallyEmpty(t)
	return err != nil
}

// TestObjects_Leftover: the kernel's earlier pod is kept until the next one owns the claim, however long that takes.
// The cluster would delete the claim with the earlier pod.
func TestObjects_Leftover(t *testing.T) {
	c := newTestCluster(t)
	c.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		a.(k8stesting.CreateAction).GetObject().(*corev1.Pod).Status.Phase = corev1.PodPending
		return false, nil, nil
	})
	c.objects.PrependReactor("create", "*", func(a k8stesting.Action) (bool, runtime.Object, error) {
		a.(k8stesting.CreateAction).GetObject().(*unstructured.Unstructured).SetUID(types.UID(uuid.NewString()))
		return false, nil, nil
	})
	first := openTest(t, c, withKernelObjects(t))
	if _, _, err := first.Start(t.Context(), requestWithObjects(idA, "ann")); err != nil {
		t.Fatal(err)
	}
	first.Claim(idA)
	c.setPod(t, idA+"-1", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
	waitFor(t, first, idA, func(k launcher.Kernel) bool { return k.State == "dead" })
	claim := func() types.UID {
		t.Helper()
		c.collect(t)
		for _, o := range c.objectsThere(t) {
			if o.GetName() == "ekg-"+idA+"-scratch" {
				return o.GetUID()
			}
		}
		return ""
	}
	before := claim()
	if before == "" {
		t.Fatal("there is no claim")
	}
	var dying, refuses atomic.Bool
	var refused atomic.Int64
	died := make(chan struct{})
	die := func(a k8stesting.Action) (bool, runtime.Object, error) {
		if a.Matches("create", "pods") && nameOf(a) == idA+"-2" && dying.CompareAndSwap(false, true) {
			close(died)
			return false, nil, nil // this one is executed
		}
		return dying.Load() && a.GetResource().Resource != "leases", nil, errors.New("connection refused")
	}
	c.PrependReactor("*", "*", die)
	c.objects.PrependReactor("*", "*", die)
	c.objects.PrependReactor("patch", "persistentvolumeclaims", func(k8stesting.Action) (bool, runtime.Object, error) {
		if refuses.Load() {
			refused.Add(1)
		}
		return refuses.Load(), nil, apierrors.NewTooManyRequests("later", 1)
	})
	revived := make(chan error, 1)
	go func() {
		_, err := first.Revive(t.Context(), idA)
		revived <- err
	}()
	<-died
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-revived; err == nil {
		t.Fatal("the restart has succeeded")
	}
	refuses.Store(true)
	dying.Store(false)
	second := openTest(t, c, func(o *Options, tm *timing) {
		withKernelObjects(t)(o, tm)
		tm.maintenance, tm.secretOverdue, tm.grace = 10*time.Millisecond, 0, 0
	})
	eventually(t, "the second gateway removes leftovers", second.reaper.active.Load)
	from := refused.Load()
	eventually(t, "it has often tried to keep the claim", func() bool { return refused.Load() > from+20 })
	if _, err := c.CoreV1().Pods("ns").Get(t.Context(), idA+"-1", metav1.GetOptions{}); err != nil || claim() != before {
		t.Fatalf("the earlier pod: %v; the claim is %s, and was %s", err, claim(), before)
	}
	refuses.Store(false)
	eventually(t, "the earlier pod is gone", func() bool {
		_, err := c.CoreV1().Pods("ns").Get(t.Context(), idA+"-1", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	if after := claim(); after != before {
		t.Errorf("the claim is %s, and was %s", after, before)
	}
}

// nameOf returns the name of the object that a request changes, or "".
func nameOf(a k8stesting.Action) string {
	switch a := a.(type) {
	case k8stesting.CreateActionImpl:
		if m, err := meta.Accessor(a.GetObject()); err == nil {
			return m.GetName()
		}
	case k8stesting.PatchActionImpl:
		return a.GetName()
	}
	return ""
}

// eventuallyEmpty waits until the gateways have removed all pods, and checks that no object is left then.
func (c *testCluster) eventuallyEmpty(t *testing.T) {
	t.Helper()
	eventually(t, "no pod is left", func() bool {
		pods, err := c.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return len(pods.Items) == 0
	})
	c.wantNoObjects(t)
}
