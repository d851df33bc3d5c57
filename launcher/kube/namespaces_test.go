package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/objects"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const namespacePolicy = `ownerNamespace:
  name: kernels-{owner}
  labels: {pod-security.kubernetes.io/enforce: baseline}
  objects:
    - apiVersion: rbac.authorization.k8s.io/v1
      kind: RoleBinding
      metadata: {name: owner}
      roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
      subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: "{owner}"}]
    - apiVersion: v1
      kind: ResourceQuota
      metadata: {name: kernels}
      spec: {hard: {pods: 2}}
home: {claim: "home-{owner}", mountPath: /home/jovyan, size: 1Gi}
`

// withNamespaces gives each owner a namespace.
func withNamespaces(t testing.TB, policy string) func(*Options, *timing) {
	t.Helper()
	return withPolicy(t, policy)
}

func startOf(t *testing.T, l *Launcher, id, owner string) error {
	t.Helper()
	req := testRequest(id)
	req.Owner = owner
	_, _, err := l.Start(t.Context(), req)
	return err
}

func textOf(t *testing.T, o *unstructured.Unstructured) string {
	t.Helper()
	text, err := o.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// podsIn returns the names of the pods in a namespace.
func (c *testCluster) podsIn(t *testing.T, ns string) (names []string) {
	t.Helper()
	list, err := c.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// TestNamespaces: each owner's kernels have a namespace with its objects and homes. Another gateway finds all of them,
// and a kernel of the common namespace from before. Endings stay in the common namespace.
func TestNamespaces(t *testing.T) {
	c := newTestCluster(t)
	before := openTest(t, c, nil)
	if err := startOf(t, before, idOf(0), "ann"); err != nil {
		t.Fatal(err)
	}
	policy := withNamespaces(t, namespacePolicy)
	l := openTest(t, c, policy)
	for n, owner := range []string{"ann", "bob", "Bob", "bob"} {
		if err := startOf(t, l, idOf(n+1), owner); err != nil {
			t.Fatal(err)
		}
	}
	for ns, want := range map[string][]string{"ns": {idOf(0) + "-1"}, "kernels-ann": {idOf(1) + "-1"},
		"kernels-bob": {idOf(2) + "-1", idOf(4) + "-1"}, "kernels--42ob": {idOf(3) + "-1"}} {
		if got := c.podsIn(t, ns); !slices.Equal(got, want) {
			t.Errorf("%s has %v, want %v", ns, got, want)
		}
	}
	made, err := c.CoreV1().Namespaces().Get(t.Context(), "kernels--42ob", metav1.GetOptions{})
	if err != nil || made.Labels[podbuild.LabelKernelsOf] != "ns" || made.Annotations[podspec.AnnotationOwner] != "Bob" ||
		made.Labels["pod-security.kubernetes.io/enforce"] != "baseline" ||
		made.Annotations[podbuild.AnnotationContent] == "" {
		t.Errorf("%v %v", made, err)
	}
	claims, err := c.CoreV1().PersistentVolumeClaims("kernels-bob").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(claims.Items) != 1 || claims.Items[0].Name != "home-bob" {
		t.Errorf("homes of bob: %v %v", claims, err)
	}
	bindings := schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"}
	bound, err := c.objects.Resource(bindings).Namespace("kernels--42ob").Get(t.Context(), "owner", metav1.GetOptions{})
	if err != nil || !strings.Contains(textOf(t, bound), `"name":"Bob"`) {
		t.Errorf("%v %v", bound, err)
	}
	if n := len(c.objects.Actions()); n != 10 { // two objects and the namespace, for three users, and the Get above
		t.Errorf("%d requests for objects", n)
	}

	second := openTest(t, c, policy)
	all, err := second.Kernels(t.Context())
	if err != nil || len(all) != 5 {
		t.Errorf("another gateway has %d kernels, want 5: %v", len(all), err)
	}
	if err := second.Stop(t.Context(), idOf(0), "enough"); err != nil {
		t.Error(err)
	}
	if got := c.podsIn(t, "ns"); len(got) != 0 {
		t.Errorf("the kernel of before was stopped, and its pod is there: %v", got)
	}
	failed, err := c.CoreV1().Pods("kernels-bob").Get(t.Context(), idOf(2)+"-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	failed = failed.DeepCopy()
	failed.Status.Phase = corev1.PodFailed
	if _, err := c.CoreV1().Pods("kernels-bob").Update(t.Context(), failed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, second, idOf(2), func(k launcher.Kernel) bool { return k.State == "dead" })
	writeEndings(t, second)
	maps, err := c.CoreV1().ConfigMaps(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(maps.Items) == 0 {
		t.Fatalf("no endings: %v", err)
	}
	for i := range maps.Items {
		if maps.Items[i].Namespace != "ns" {
			t.Errorf("an ending is in %s", maps.Items[i].Namespace)
		}
	}
}

// TestNamespaces_Events: events that come before their pod are kept, and events of other namespaces are ignored.
func TestNamespaces_Events(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, withNamespaces(t, namespacePolicy))
	event := func(ns, pod string, uid types.UID) {
		e := corev1.Event{Reason: "FailedScheduling", Message: "0/1 nodes are available", Type: "Warning"}
		e.Namespace, e.UID = ns, "event-of-"+uid
		e.InvolvedObject = corev1.ObjectReference{Kind: "Pod", Name: pod, Namespace: ns, UID: uid}
		l.handleEvent(&e)
	}
	event("elsewhere", idOf(9)+"-1", "of another system")
	if n := len(l.events.Of("of another system")); n != 0 {
		t.Errorf("%d events are kept, of another system", n)
	}
	event("kernels-ann", idA+"-1", "early") // as if its informer were faster than that of the pods
	c.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		pod := a.(k8stesting.CreateAction).GetObject().(*corev1.Pod)
		if pod.Name == idA+"-1" {
			pod.UID = "early"
		}
		return false, nil, nil
	})
	if err := startOf(t, l, idA, "ann"); err != nil {
		t.Fatal(err)
	}
	if err := startOf(t, l, idB, "ann"); err != nil {
		t.Fatal(err)
	}
	late, err := c.CoreV1().Pods("kernels-ann").Get(t.Context(), idB+"-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	event("kernels-ann", late.Name, late.UID)
	for _, id := range []string{idA, idB} {
		k, err := l.lookUp(id)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.events.Of(k.pod.UID); len(got) != 1 {
			t.Errorf("of %s there are %d events", id, len(got))
		}
	}
	if err := c.CoreV1().Pods("kernels-ann").Delete(t.Context(), late.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, l, idB, func(k launcher.Kernel) bool { return k.State == api.Dead })
	if got := l.events.Of(late.UID); len(got) != 0 {
		t.Errorf("of a removed pod there are %d events", len(got))
	}
}

// TestNamespaces_UncountedRound: a namespace whose quota the cluster does not count uses up no maintenance round.
func TestNamespaces_UncountedRound(t *testing.T) {
	c := newTestCluster(t)
	change := withNamespaces(t, namespacePolicy)
	l := openTest(t, c, func(o *Options, tm *timing) {
		change(o, tm)
		tm.maintenance = time.Hour // the test calls maintainKernel
		tm.secretOverdue = 0
	})
	if err := startOf(t, l, idA, "ann"); err != nil {
		t.Fatal(err)
	}
	c.refuse("create", "secrets", apierrors.NewForbidden(corev1.Resource("secrets"), "x",
		errors.New("status unknown for quota: kernels, resources: secrets")))
	k, err := l.lookUp(idA)
	if err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	k.secretCreated = time.Time{}
	pod := k.pod.DeepCopy()
	pod.Status.Phase, pod.CreationTimestamp = corev1.PodPending, metav1.NewTime(time.Now().Add(-time.Hour))
	k.pod = pod
	l.mu.Unlock()
	attempts := func() (n int) {
		for _, a := range c.Actions() {
			if a.Matches("create", "secrets") {
				n++
			}
		}
		return n
	}
	before := attempts()
	round, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l.maintainKernel(round, k)
	if n := attempts() - before; n != 1 || round.Err() != nil {
		t.Errorf("a round tries %d times: %v", n, round.Err())
	}
}

// TestNamespaces_Refused: a namespace that is not the owner's is never used, a missing right is named, and a pod that
// claims another owner is not a kernel.
func TestNamespaces_Refused(t *testing.T) {
	made := func(of, owner string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kernels-ann",
			Labels:      map[string]string{podbuild.LabelKernelsOf: of},
			Annotations: map[string]string{podspec.AnnotationOwner: owner}}}
	}
	forbidden := apierrors.NewForbidden(corev1.Resource("namespaces"), "kernels-ann",
		errors.New(`User "ekg" cannot create resource "namespaces" in API group "" at the cluster scope`))
	for name, test := range map[string]struct {
		there *corev1.Namespace
		err   error
		want  string
	}{
		"somebody's":             {there: made("", ""), want: "this gateway has not made it"},
		"another installation's": {there: made("other", "ann"), want: "this gateway has not made it"},
		"another user's":         {there: made("ns", "bob"), want: "belongs to another user"},
		"no right":               {err: forbidden, want: "the gateway may not create namespaces in the cluster"},
		"no answer":              {err: errors.New("connection refused"), want: "not known"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestCluster(t)
			l := openTest(t, c, withNamespaces(t, namespacePolicy))
			if test.there != nil {
				if err := c.Tracker().Add(test.there); err != nil {
					t.Fatal(err)
				}
			}
			if test.err != nil {
				c.refuse("create", "namespaces", test.err)
			}
			err := startOf(t, l, idA, "ann")
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
			if len(c.podsIn(t, metav1.NamespaceAll)) > 0 || len(c.objects.Actions()) > 0 {
				t.Error("something was created")
			}
		})
	}
	c := newTestCluster(t)
	l := openTest(t, c, withNamespaces(t, namespacePolicy))
	if err := startOf(t, l, idA, "ann"); err != nil {
		t.Fatal(err)
	}
	// A gateway that learns of ann's kernel while it creates bob's pod removes that one, and not ann's.
	req := testRequest(idA)
	req.Owner = "bob"
	pod, err := podbuild.Build(l.opts.Pods, req, podspec.Record{ID: idA, Generation: 1, Owner: "bob",
		SpecName: req.Spec.Name, Created: l.clusterNow().UTC().Round(0), Protocol: api.ProtocolVersion,
		MasterKey: l.keys[0].Fingerprint})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.createPod(t.Context(), pod, nil); !errors.Is(err, launcher.ErrConflict) {
		t.Errorf("bob's pod gets the id of ann's kernel: %v", err)
	}
	if anns, bobs := c.podsIn(t, "kernels-ann"), c.podsIn(t, "kernels-bob"); len(anns) != 1 || len(bobs) > 0 {
		t.Errorf("ann has %v, bob has %v", anns, bobs)
	}
	forged, err := c.CoreV1().Pods("kernels-ann").Get(t.Context(), idA+"-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	forged = forged.DeepCopy()
	forged.Name, forged.UID, forged.Labels[podspec.LabelKernel] = idB+"-1", "", idB
	forged.Annotations[podspec.AnnotationOwner] = "bob"
	if _, err := c.CoreV1().Pods("kernels-ann").Create(t.Context(), forged, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Kernel(t.Context(), idB); !errors.Is(err, launcher.ErrNotFound) {
		t.Errorf("a pod that ann has made is a kernel of bob: %v", err)
	}
}

// TestNamespaces_SameID: an id is one kernel in all namespaces. No user gets or replaces another user's kernel by its
// id, even if the gateway does not know of it yet.
func TestNamespaces_SameID(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, withNamespaces(t, namespacePolicy))
	silent := c.silence()
	silent.Store(true)
	unaware := openTest(t, c, withNamespaces(t, namespacePolicy))
	if err := startOf(t, l, idA, "ann"); err != nil {
		t.Fatal(err)
	}
	if err := startOf(t, unaware, idA, "bob"); !errors.Is(err, launcher.ErrConflict) {
		t.Errorf("bob starts a kernel with the id of ann's: %v", err)
	}
	if left := c.podsIn(t, "kernels-bob"); len(left) > 0 {
		t.Errorf("bob has %v", left)
	}
	forged, err := c.CoreV1().Pods("kernels-ann").Get(t.Context(), idA+"-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	forged = forged.DeepCopy()
	forged.Namespace, forged.Name, forged.UID = "kernels-bob", idA+"-2", ""
	forged.Annotations[podspec.AnnotationOwner], forged.Annotations[podspec.AnnotationGeneration] = "bob", "2"
	if _, err := c.CoreV1().Pods("kernels-bob").Create(t.Context(), forged, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := l.refresh(t.Context(), idA); err != nil {
		t.Fatal(err)
	}
	if k, err := l.Kernel(t.Context(), idA); err != nil || k.Owner != "ann" {
		t.Errorf("the kernel's owner is %q: %v", k.Owner, err)
	}
}

// TestNamespaces_Many: the requests of a gateway do not grow with the number of users.
func TestNamespaces_Many(t *testing.T) {
	opened := func(users int) int {
		c := newTestCluster(t)
		first := openTest(t, c, withNamespaces(t, namespacePolicy))
		for n := range users {
			if err := startOf(t, first, idOf(n), fmt.Sprintf("user-%d", n)); err != nil {
				t.Fatal(err)
			}
		}
		before := c.requests()
		l := openTest(t, c, withNamespaces(t, namespacePolicy))
		if all, err := l.Kernels(t.Context()); err != nil || len(all) != users {
			t.Errorf("%d kernels: %v", len(all), err)
		}
		return c.requests() - before
	}
	one, many := opened(1), opened(50)
	t.Logf("%d requests with one user, %d with 50", one, many)
	if many > one+2 { // the first gateway goes on
		t.Errorf("%d requests with one user, %d with 50", one, many)
	}
}

// TestNamespaces_Quota: the first home, pod and secret of a namespace wait until the cluster has counted its quota.
func TestNamespaces_Quota(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, withNamespaces(t, namespacePolicy))
	for _, kind := range []string{"persistentvolumeclaims", "pods", "secrets"} {
		left := 3
		c.PrependReactor("create", kind, func(k8stesting.Action) (bool, runtime.Object, error) {
			left--
			return left >= 0, nil, apierrors.NewForbidden(corev1.Resource(kind), "x",
				errors.New("status unknown for quota: kernels, resources: "+kind))
		})
	}
	if err := startOf(t, l, idA, "ann"); err != nil {
		t.Error(err)
	}
}

// TestNamespaces_Warm: no warm kernels are kept, because they have no owner and so no namespace.
func TestNamespaces_Warm(t *testing.T) {
	c := newTestCluster(t)
	change := withNamespaces(t, namespacePolicy)
	l := openTest(t, c, func(o *Options, tm *timing) {
		change(o, tm)
		o.Warm = func() []launcher.Warm { return []launcher.Warm{{Start: testRequest(""), Count: 2}} }
	})
	if got := l.opts.Warm(); len(got) != 0 {
		t.Errorf("%d are wanted", len(got))
	}
}

// TestNamespaces_Keys: pods of one name in two namespaces have different keys. A pod that a user has made there, with
// the record of an earlier release, gets no secret: it would have the keys of another user's pod of that time.
func TestNamespaces_Keys(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, withNamespaces(t, namespacePolicy))
	if err := startOf(t, l, idA, "ann"); err != nil {
		t.Fatal(err)
	}
	pod, err := c.CoreV1().Pods("kernels-ann").Get(t.Context(), idA+"-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want, err := podspec.DeriveKeys(testKey, "kernels-ann", pod.Name, podspec.KeyVersionNamespace)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := c.CoreV1().Secrets("kernels-ann").Get(t.Context(), podspec.SecretName(pod.Name), metav1.GetOptions{})
	if err != nil || string(secret.Data["token"]) != want.Token || l.Token(idA) != want.Token {
		t.Errorf("the keys of ann's pod are not those of its namespace: %v", err)
	}
	forged := pod.DeepCopy()
	forged.Namespace, forged.Annotations[podspec.AnnotationOwner] = "kernels-bob", "bob"
	forged.Annotations[podspec.Domain+"key-version"] = "1"
	if part, err := l.objects.Create(t.Context(), forged); part != "secret" || !errors.Is(err, objects.ErrForeignKeys) {
		t.Errorf("bob's pod: %q %v", part, err)
	}
	secrets, err := c.CoreV1().Secrets("kernels-bob").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(secrets.Items) > 0 {
		t.Errorf("bob has %d secrets, %v", len(secrets.Items), err)
	}
}
