package kube

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/cluster"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// TestCountGPUTime_ClockBack: a clock that goes back for a while counts no time twice.
func TestCountGPUTime_ClockBack(t *testing.T) {
	began := time.Unix(1000, 0)
	pod := gpuTestPod("p", "n", map[string]string{"nvidia.com/gpu": "1"}, func(pod *corev1.Pod) {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(began)}}
	})
	l := &Launcher{gpuSeconds: map[launcher.GPULabels]float64{}, gpuBusy: map[launcher.GPULabels]float64{}}
	k := &kernel{pod: pod, gpusCountedUntil: began}
	for _, s := range []int{100, 40, 120} {
		l.countGPUTimeLocked(k, began.Add(time.Duration(s)*time.Second))
	}
	if got := l.gpuSeconds[k.gpuLabelsLocked()]; got != 120 {
		t.Errorf("%v seconds", got)
	}
}

// TestCountGPUTime_Warm: the time for which a kernel was warm is not its owner's.
func TestCountGPUTime_Warm(t *testing.T) {
	began := time.Unix(1000, 0)
	pod := gpuTestPod("p", "n", map[string]string{"nvidia.com/gpu": "1"}, func(pod *corev1.Pod) {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(began)}}
		pod.Annotations = map[string]string{podspec.AnnotationWarm: "x", // and when it was taken
			podspec.Domain + "created": began.Add(time.Hour).UTC().Format(time.RFC3339Nano)}
	})
	l := &Launcher{gpuSeconds: map[launcher.GPULabels]float64{}, gpuBusy: map[launcher.GPULabels]float64{}, opened: began,
		opts: Options{Cluster: &cluster.Cluster{}}}
	k := &kernel{pod: pod}
	l.countGPUTimeLocked(k, began.Add(time.Hour+time.Minute))
	if got := l.gpuSeconds[k.gpuLabelsLocked()]; got != 60 {
		t.Errorf("%v seconds", got)
	}
}
