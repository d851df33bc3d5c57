package podbuild

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// A trimmed pod tells the same about its kernel as the whole pod, and has nothing that is large and unused.
func TestTrimmed(t *testing.T) {
	rec := testRecord("python3")
	pod, err := Build(testOptions(), launcher.Request{
		ID: rec.ID, Owner: rec.Owner,
		Env: map[string]string{"KERNEL_TEAM": "a $(B) c", "KERNEL_EMPTY": ""},
		Spec: kernelspecs.Spec{
			Name: "python3", Argv: []string{"python3"}, Env: map[string]string{"MODE": "fast"},
			Metadata: []byte(`{"ekg": {"image": "kernel:2", "resources": {"limits": {"nvidia.com/gpu": "2"}}}}`),
		},
	}, rec)
	if err != nil {
		t.Fatal(err)
	}
	pod.Spec.NodeName = "node-1"
	pod.Spec.NodeSelector = map[string]string{"gpu": "t4"}
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: podspec.GateLimits}}
	pod.Spec.InitContainers = []corev1.Container{{Name: "istio-init", Image: "proxyv2"}}
	pod.Status.PodIP = "10.0.0.1"
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "large"}}
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].Env = append(pod.Spec.Containers[i].Env, corev1.EnvVar{Name: "INJECTED", Value: "large"})
		pod.Spec.Containers[i].VolumeMounts = []corev1.VolumeMount{{Name: "large"}}
	}
	before := pod.DeepCopy()
	small := Trimmed(pod)
	if !apiequality.Semantic.DeepEqual(pod, before) {
		t.Error("the whole pod has changed")
	}
	wholeRecord, err1 := podspec.ReadRecord(pod)
	smallRecord, err2 := podspec.ReadRecord(small)
	wholeRequest, err3 := ReadRequest(pod, wholeRecord)
	smallRequest, err4 := ReadRequest(small, smallRecord)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(wholeRecord, smallRecord) {
		t.Errorf("record %+v, want %+v", smallRecord, wholeRecord)
	}
	if !reflect.DeepEqual(wholeRequest, smallRequest) || smallRequest.Env["KERNEL_TEAM"] != "a $(B) c" {
		t.Errorf("request %+v, want %+v", smallRequest, wholeRequest)
	}
	if podspec.GPUs(small) != podspec.GPUs(pod) || small.Spec.NodeName != "node-1" ||
		small.Spec.NodeSelector["gpu"] != "t4" ||
		len(small.Spec.SchedulingGates) != 1 ||
		small.Status.PodIP != "10.0.0.1" || small.Spec.InitContainers[0].Image != "proxyv2" {
		t.Errorf("%+v", small)
	}
	if text, err := small.Marshal(); err != nil || strings.Contains(string(text), "large") ||
		small.Spec.Volumes != nil {
		t.Errorf("%v, %+v", err, small)
	}
	if Trimmed(small) != small {
		t.Error("a trimmed pod is copied")
	}

	t.Run("without a stored request", func(t *testing.T) {
		delete(pod.Annotations, annotationRequest)
		small := Trimmed(pod)
		if !apiequality.Semantic.DeepEqual(small.Spec, pod.Spec) || small.ManagedFields != nil {
			t.Errorf("%+v", small)
		}
	})
}
