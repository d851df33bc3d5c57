package kube

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

func amounts(of map[string]string) corev1.ResourceList {
	all := corev1.ResourceList{}
	for name, text := range of {
		all[corev1.ResourceName(name)] = resource.MustParse(text)
	}
	return all
}

func gpuTestNode(name string, labels, capacity, allocatable map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Status: corev1.NodeStatus{Capacity: amounts(capacity), Allocatable: amounts(allocatable),
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}}}
}

func gpuTestPod(name, node string, limits map[string]string, change func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", CreationTimestamp: metav1.Unix(100, 0)},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
			Limits: amounts(limits)}}}}}
	pod.Status.Phase = corev1.PodRunning
	if change != nil {
		change(pod)
	}
	return pod
}

// TestGPUs: the view has kernels, other pods and nodes from informers, and makes no request.
func TestGPUs(t *testing.T) {
	c := newTestCluster(t)
	node := gpuTestNode("n", nil, map[string]string{"nvidia.com/gpu": "8"}, map[string]string{"nvidia.com/gpu": "8"})
	foreign := gpuTestPod("foreign", "n", map[string]string{"nvidia.com/gpu": "3"}, nil)
	foreign.Namespace = "other"
	if _, err := c.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().Pods("other").Create(t.Context(), foreign, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.allow("nodes", "pods")
	l := openTest(t, c, nil)
	req := testRequest(idA)
	req.Spec.Metadata = []byte(`{"ekg": {"resources": {"limits": {"nvidia.com/gpu": "2"}}}}`)
	if _, _, err := l.Start(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	c.setPod(t, idA+"-1", func(pod *corev1.Pod) { pod.Spec.NodeName = "n" })
	eventually(t, "the kernel is seen", func() bool {
		view, err := l.ViewGPUs(t.Context())
		return err == nil && len(view.Missing) == 0 && len(view.Nodes) == 1 && view.Nodes[0].Pools[0].Held() == 5
	})
	before := c.requests()
	view, err := l.ViewGPUs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n := c.requests() - before; n != 0 {
		t.Errorf("%d requests", n)
	}
	holders := view.Nodes[0].Pools[0].Holders
	at := slices.IndexFunc(holders, func(h launcher.GPUHolder) bool { return h.Kernel == idA })
	if len(holders) != 2 || at < 0 || holders[at].Owner != "ann" || holders[at].Amount != 2 {
		t.Errorf("%+v", holders)
	}
}

// TestGPUs_Missing: without a right, the view has the kernels and says what is missing. A right that is given or taken
// later is noticed.
func TestGPUs_Missing(t *testing.T) {
	c := newTestCluster(t)
	var log lockedBuffer
	l := openTest(t, c, func(o *Options, tm *timing) {
		tm.rights, o.Log = time.Millisecond, slog.New(slog.NewTextHandler(&log, nil))
	})
	missing := func(what string, sentences ...string) {
		t.Helper()
		eventually(t, what, func() bool {
			view, err := l.ViewGPUs(t.Context())
			return err == nil && slices.EqualFunc(view.Missing, sentences, strings.Contains)
		})
	}
	const nodes, pods = "may not list and watch nodes", "may not list and watch the pods of the cluster"
	missing("it may see nothing", nodes, pods)
	for _, a := range c.Actions() {
		if r := a.GetResource().Resource; r == "nodes" || r == "resourceslices" || r == "resourceclaims" ||
			r == "pods" && a.GetNamespace() == "" {
			t.Errorf("%s of %s without the right", a.GetVerb(), r)
		}
	}
	c.allow("nodes", "pods", "resourceslices", "resourceclaims")
	missing("it may see all")
	c.allow("pods")
	missing("it may no longer see nodes", nodes)
	if n := strings.Count(log.String(), "may no longer watch the nodes"); n != 1 || l.machines.SeesNodes() {
		t.Errorf("said %d times", n)
	}
	c.refuse("list", "nodes", apierrors.NewForbidden(corev1.Resource("nodes"), "", errors.New("no")))
	c.allow("nodes", "pods")
	missing("nodes cannot be listed", "cannot list the nodes: ")
}

// TestGPUs_Unknown: an API server that cannot say what the gateway may do has taken no right.
func TestGPUs_Unknown(t *testing.T) {
	c := newTestCluster(t)
	var log lockedBuffer
	c.refuse("create", "selfsubjectaccessreviews", apierrors.NewInternalError(errors.New("away")))
	l := openTest(t, c, func(o *Options, tm *timing) {
		tm.rights, o.Log = time.Millisecond, slog.New(slog.NewTextHandler(&log, nil))
	})
	missing := func(what string) (text string) {
		t.Helper()
		view, err := l.ViewGPUs(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		return strings.Join(view.Missing, "\n")
	}
	if text := missing("at first"); !strings.Contains(text, "does not say whether the gateway may watch the nodes: ") {
		t.Errorf("missing at first: %s", text)
	}
	c.allow("nodes", "pods", "resourceslices", "resourceclaims")
	eventually(t, "all is seen", func() bool { return missing("with all rights") == "" })
	reviews := new(atomic.Int64)
	c.PrependReactor("create", "selfsubjectaccessreviews", func(k8stesting.Action) (bool, runtime.Object, error) {
		reviews.Add(1)
		return true, &authorizationv1.SelfSubjectAccessReview{
			Status: authorizationv1.SubjectAccessReviewStatus{EvaluationError: "no roles are known yet"}}, nil
	})
	eventually(t, "all rights were looked at", func() bool { return reviews.Load() > 8 })
	if text := missing("at last"); text != "" || strings.Contains(log.String(), "may no longer watch") {
		t.Errorf("missing: %s; the log has %s", text, log.String())
	}
}
