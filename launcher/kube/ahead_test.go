package kube

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// Placeholders are counted for each flavor and kernelspec, also those without GPUs, with the reason for which one
// waits.
func TestAhead(t *testing.T) {
	c := newTestCluster(t)
	add := func(name, room, node string) {
		t.Helper()
		pod := gpuTestPod(name, node, map[string]string{"cpu": "1"}, func(pod *corev1.Pod) {
			pod.Labels = map[string]string{podspec.LabelComponent: podspec.ComponentPlaceholder, podspec.LabelPlaceholder: room}
		})
		if node == "" {
			pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
				LastTransitionTime: metav1.Now(), Message: "0/1 nodes are available: 1 Insufficient cpu."}}}
		}
		if _, err := c.CoreV1().Pods("ns").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	add("a", "ekg-placeholder-t4", "node-1")
	add("b", "ekg-placeholder-t4", "")
	add("c", "ekg-placeholder-spec--python3", "node-1")
	add("d", "ekg-placeholder-old", "node-1")
	l := openTest(t, c, func(o *Options, _ *timing) {
		o.Pods.PlaceholderClass = "low"
		o.Flavors = func() []flavor.Flavor {
			return []flavor.Flavor{{Name: "t4", GPU: &flavor.Devices{}, Placeholders: 2},
				{Name: "none", GPU: &flavor.Devices{}}}
		}
		o.Rooms = func() []podspec.Room {
			return []podspec.Room{{Start: testRequest(uuid.Nil.String()), Count: 3}}
		}
	})
	want := []launcher.Ahead{
		{Kind: launcher.AheadPlaceholder, SpecName: "python3", Wanted: 3, Ready: 1, Reason: missingAhead},
		{Kind: launcher.AheadPlaceholder, Flavor: "t4", Wanted: 2, Ready: 1, Waiting: 1},
	}
	var got []launcher.Ahead
	eventually(t, "the pods are known", func() bool {
		view, err := l.ViewGPUs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got = view.Ahead
		return len(got) == 2 && got[0].Ready+got[1].Ready == 2
	})
	for i := range got {
		if reason := got[i].Reason; got[i].Waiting > 0 {
			if !strings.Contains(reason, "Insufficient cpu") {
				t.Errorf("it waits because %q", reason)
			}
			got[i].Reason = ""
		}
	}
	byName := map[string]launcher.Ahead{}
	for _, a := range got {
		byName[a.SpecName+" "+a.Flavor] = a
	}
	for _, a := range want {
		if !reflect.DeepEqual(byName[a.SpecName+" "+a.Flavor], a) {
			t.Errorf("%+v, want %+v", byName[a.SpecName+" "+a.Flavor], a)
		}
	}
	if n := len(l.Measure().Placeholders); n != 2 {
		t.Errorf("%d are measured", n)
	}
}
