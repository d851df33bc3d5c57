package gpuview

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// TestTally_ClockBack: a clock that goes back for a while counts no time twice.
func TestTally_ClockBack(t *testing.T) {
	began := time.Unix(1000, 0)
	pod := gpuTestPod("p", "n", map[string]string{"nvidia.com/gpu": "1"}, func(pod *corev1.Pod) {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(began)}}
	})
	var tally Tally
	var c Counted
	for _, s := range []int{100, 40, 120} {
		tally.Hold(&c, launcher.GPULabels{}, pod, began, began.Add(time.Duration(s)*time.Second))
	}
	if got := held(&tally); got != 120 {
		t.Errorf("%v seconds", got)
	}
}

// TestTally_Warm: the time for which a kernel was warm is not its owner's.
func TestTally_Warm(t *testing.T) {
	began := time.Unix(1000, 0)
	pod := gpuTestPod("p", "n", map[string]string{"nvidia.com/gpu": "1"}, func(pod *corev1.Pod) {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(began)}}
		pod.Annotations = map[string]string{podspec.AnnotationWarm: "x", // and when it was taken
			podspec.Domain + "created": began.Add(time.Hour).UTC().Format(time.RFC3339Nano)}
	})
	var tally Tally
	tally.Hold(new(Counted), launcher.GPULabels{}, pod, began, began.Add(time.Hour+time.Minute))
	if got := held(&tally); got != 60 {
		t.Errorf("%v seconds", got)
	}
}

// held returns for how many seconds GPUs were held.
func held(t *Tally) float64 {
	var m launcher.Measures
	t.Measure(&m)
	return m.GPUSeconds[launcher.GPULabels{}]
}

// TestTally_Use: what GPUs had computed before this gateway began is not counted, and a kernel that was started again
// begins at zero.
func TestTally_Use(t *testing.T) {
	for created, want := range map[int64]float64{100: 2 * (5 + 3), 2000: 2 * (20 + 5 + 3)} {
		pod := gpuTestPod("p", "n", map[string]string{"nvidia.com/gpu": "2"}, func(pod *corev1.Pod) {
			pod.CreationTimestamp = metav1.Unix(created, 0)
		})
		var tally Tally
		var c Counted
		for _, busy := range []int{20, 25, 25, 3} {
			tally.Use(&c, launcher.GPULabels{}, pod, time.Unix(1000, 0), time.Duration(busy)*time.Second)
		}
		var m launcher.Measures
		tally.Measure(&m)
		if got := m.GPUBusy[launcher.GPULabels{}]; got != want {
			t.Errorf("created at %d: %v seconds, want %v", created, got, want)
		}
	}
}
