package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// applyDeployments lets the fake apply Deployments, which it cannot by itself. It refuses while denied.
func (c *testCluster) applyDeployments(denied *atomic.Bool, applied *atomic.Int64) {
	c.PrependReactor("patch", "deployments", func(a k8stesting.Action) (bool, runtime.Object, error) {
		patch := a.(k8stesting.PatchActionImpl)
		if patch.PatchType != types.ApplyPatchType || patch.PatchOptions.FieldManager != fieldManager {
			return true, nil, errors.New("this is no apply of the gateways")
		}
		if denied.Load() {
			return true, nil, apierrors.NewForbidden(appsv1.Resource("deployments"), "", errors.New("no right"))
		}
		applied.Add(1)
		set := &appsv1.Deployment{}
		if err := json.Unmarshal(patch.Patch, set); err != nil {
			return true, nil, err
		}
		err := c.Tracker().Create(a.GetResource(), set, a.GetNamespace())
		if apierrors.IsAlreadyExists(err) {
			err = c.Tracker().Update(a.GetResource(), set, a.GetNamespace())
		}
		return true, set, err
	})
}

// The reaper keeps a Deployment for each flavor and kernelspec with placeholders, follows their changes, repairs what
// others change, and writes nothing while nothing changes. A gateway without the setting removes those of ekg.
func TestPlaceholders(t *testing.T) {
	c := newTestCluster(t)
	var denied atomic.Bool
	var applied, now atomic.Int64
	c.applyDeployments(&denied, &applied)
	denied.Store(true)
	deployments := c.AppsV1().Deployments("ns")
	if _, err := deployments.Create(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "other"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var flavors atomic.Pointer[[]flavor.Flavor]
	write := func(t4, h100 int) {
		flavors.Store(&[]flavor.Flavor{{Name: "t4", GPU: &flavor.Devices{}, Placeholders: t4}, {Name: "cpu", None: true},
			{Name: "h100", GPU: &flavor.Devices{Count: 2}, Placeholders: h100}})
	}
	follows := func(want ...string) {
		t.Helper()
		eventually(t, fmt.Sprint("the Deployments are ", want), func() bool {
			list, err := deployments.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for i := range list.Items {
				if set := &list.Items[i]; set.Spec.Replicas != nil {
					got = append(got, fmt.Sprintf("%s %d", set.Name, *set.Spec.Replicas))
				}
			}
			slices.Sort(got)
			return slices.Equal(got, want) && len(list.Items) == len(want)+1
		})
	}
	var rooms atomic.Pointer[[]podspec.Room]
	wantRooms := func(image string, count int) {
		spec := kernelspecs.Spec{Name: "torch", Argv: []string{"x"}, Metadata: json.RawMessage(`{"ekg": {` + image + `}}`)}
		rooms.Store(&[]podspec.Room{{Start: launcher.Request{ID: uuid.Nil.String(), Spec: spec}, Count: count}})
	}
	rooms.Store(&[]podspec.Room{})
	write(1, 0)
	l := openTest(t, c, func(o *Options, tm *timing) {
		fastReaper(&now)(o, tm)
		o.Pods.PlaceholderClass = "low"
		o.Flavors = func() []flavor.Flavor { return *flavors.Load() }
		o.Rooms = func() []podspec.Room { return *rooms.Load() }
	})
	eventually(t, "it was tried without a right", func() bool {
		return slices.ContainsFunc(c.Actions(), func(a k8stesting.Action) bool { return a.Matches("patch", "deployments") })
	})
	denied.Store(false)
	now.Add(int64(prePullLook))
	follows("ekg-placeholder-t4 1")
	write(3, 2)
	follows("ekg-placeholder-h100 2", "ekg-placeholder-t4 3")
	write(0, 2)
	follows("ekg-placeholder-h100 2")
	set, err := deployments.Get(t.Context(), "ekg-placeholder-h100", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	set = set.DeepCopy()
	set.Spec.Replicas = new(int32(9))
	if _, err := deployments.Update(t.Context(), set, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	now.Add(int64(prePullLook))
	follows("ekg-placeholder-h100 2")
	if n := applied.Load(); n != 4 {
		t.Errorf("%d writes, want 4", n)
	}
	wantRooms(`"image": "a"`, 2)
	follows("ekg-placeholder-h100 2", "ekg-placeholder-spec--torch 2")
	wantRooms(`"image": "a"`, 1)
	follows("ekg-placeholder-h100 2", "ekg-placeholder-spec--torch 1")
	before := applied.Load()
	wantRooms(`"image": "a", "nodeSelector": {"gpu": "t4"}`, 1)
	eventually(t, "the Deployment follows the kernelspec", func() bool { return applied.Load() == before+1 })
	wantRooms(`"image": "a", "resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}]`, 1)
	follows("ekg-placeholder-h100 2")
	wantRooms(`"image": "a"`, 1)
	follows("ekg-placeholder-h100 2", "ekg-placeholder-spec--torch 1")
	rooms.Store(&[]podspec.Room{})
	follows("ekg-placeholder-h100 2")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	openTest(t, c, fastReaper(&now))
	follows()
}

// Placeholders are no holders of GPUs: what they keep is free. Those that wait for a node keep nothing.
func TestGPUs_Placeholders(t *testing.T) {
	pod := func(name, node, label string) gpuPod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name),
			Labels: map[string]string{podspec.LabelComponent: podspec.ComponentPlaceholder, podspec.LabelPlaceholder: label}}}
		p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
		p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
			Limits: amounts(map[string]string{"nvidia.com/gpu": "1"})}}}
		small, err := trimForGPUs(p)
		if err != nil {
			t.Fatal(err)
		}
		return gpuPod{pod: small.(*corev1.Pod)}
	}
	has := map[string]string{"nvidia.com/gpu": "4"}
	nodes := gpuNodes(seenMachines{nodes: []*corev1.Node{gpuTestNode("a", nil, has, has)}}, []gpuPod{
		pod("kept", "a", "ekg-placeholder-t4"), pod("waits", "", "ekg-placeholder-t4"), pod("other", "a", "")})
	if len(nodes) != 1 || len(nodes[0].Pools) != 1 {
		t.Fatalf("%+v", nodes)
	}
	if p := nodes[0].Pools[0]; p.Held() != 1 || p.Kept != 1 || len(p.Holders) != 1 || p.Holders[0].Pod != "other" {
		t.Errorf("%+v", p)
	}
}
