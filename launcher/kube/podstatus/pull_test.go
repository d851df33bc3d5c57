package podstatus

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestPull: only a real pull for the kernel's own container counts.
func TestPull(t *testing.T) {
	pod := gpuPod(nil, 3, -1)
	pod.UID = "1"
	pulled := func(container, message string, second float64) corev1.Event {
		return corev1.Event{Reason: "Pulled", Message: message, LastTimestamp: metav1.NewTime(at(second)),
			InvolvedObject: corev1.ObjectReference{UID: "1", FieldPath: "spec.containers{" + container + "}"}}
	}
	const message = `Successfully pulled image "lab/image:2" in 1m20.25s (1m30s including waiting). Image size: 5 bytes.`
	supervisor := pulled(podspec.ContainerSupervisor, message, 5)
	present := pulled(podspec.ContainerKernel, `Container image "lab/image:2" already present on machine`, 6)
	own := pulled(podspec.ContainerKernel, message, 61)
	other := own
	other.InvolvedObject.UID = "2"
	if got := Pull(pod, []corev1.Event{supervisor, present, other}); got != nil {
		t.Errorf("without a pull: got %+v", got)
	}
	want := api.Pull{Image: "lab/image:2", At: at(61), Took: 80*time.Second + 250*time.Millisecond}
	if got := Pull(pod, []corev1.Event{supervisor, own, present}); got == nil || *got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	own.Message = `Successfully pulled image "lab/image:2"`
	want.Took = 0
	if got := Pull(pod, []corev1.Event{own}); got == nil || *got != want {
		t.Errorf("without a time: got %+v, want %+v", got, want)
	}
}
