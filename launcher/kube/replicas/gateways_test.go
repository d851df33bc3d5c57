package replicas

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// TestGateways checks that a gateway shows its replicas' pods, and asks those that it reaches for their version.
func TestGateways(t *testing.T) {
	n := newNetwork(t)
	own, _ := n.join(ip1)
	n.join(ip2)
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	pod := func(ip string, ready corev1.ConditionStatus, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "gateways", Name: "ekg-" + ip},
			Status: corev1.PodStatus{Phase: phase, PodIP: ip,
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}},
				ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{
					Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(began)}}}}}}
	}
	for _, one := range []*corev1.Pod{pod("10.0.0.1", corev1.ConditionTrue, corev1.PodRunning),
		pod("10.0.0.2", corev1.ConditionTrue, corev1.PodRunning), pod("10.0.0.3", corev1.ConditionTrue, corev1.PodRunning),
		pod("10.0.0.4", corev1.ConditionFalse, corev1.PodRunning), pod("10.0.0.5", corev1.ConditionFalse, corev1.PodFailed),
		pod("10.0.0.6", corev1.ConditionFalse, corev1.PodPending)} {
		if err := own.store.Add(one); err != nil {
			t.Fatal(err)
		}
	}
	got := own.Gateways(t.Context())
	want := []launcher.Gateway{
		{Name: "ekg-10.0.0.1", Self: true, Started: began, Ready: true},
		{Name: "ekg-10.0.0.2", Version: "1.2", Started: began, Ready: true},
		{Name: "ekg-10.0.0.3", Started: began, Ready: true, Problem: "It does not answer this gateway."},
		{Name: "ekg-10.0.0.4", Started: began, Problem: "It is not ready."},
		{Name: "ekg-10.0.0.6", Started: began, Problem: "Its pod is not running yet."},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}
