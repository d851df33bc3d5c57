package deploy_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/google/uuid"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// shippedPod returns the pod of a plain start of the shipped kernelspec python3.
func shippedPod(t *testing.T) *corev1.Pod {
	t.Helper()
	text, err := os.ReadFile("../kernelspecs/examples/python3/kernel.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Argv     []string        `json:"argv"`
		Language string          `json:"language"`
		Metadata json.RawMessage `json:"metadata"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	spec := kernelspecs.Spec{Name: "python3", Argv: file.Argv, Language: file.Language, Metadata: file.Metadata}
	id := uuid.Nil.String()
	pod, err := podbuild.Build(podbuild.Options{Namespace: "ekg-kernels", SupervisorImage: "ekg"},
		launcher.Request{ID: id, Spec: spec}, podspec.Record{ID: id, Generation: 1, SpecName: spec.Name})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// shippedImage returns the image of that pod's kernel.
func shippedImage(t *testing.T) string {
	t.Helper()
	for _, c := range shippedPod(t).Spec.Containers {
		if c.Name == podspec.ContainerKernel {
			return c.Image
		}
	}
	t.Fatal("the pod has no kernel")
	panic("unreachable")
}

// checkWaits checks that a container runs only ekg's own program, as a user without rights.
func checkWaits(t *testing.T, c corev1.Container, program ...string) {
	t.Helper()
	s := c.SecurityContext
	if !slices.Equal(c.Command, program) || len(c.Args) > 0 || s == nil || !*s.RunAsNonRoot || *s.RunAsUser == 0 ||
		*s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || s.Capabilities == nil ||
		!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || s.SeccompProfile == nil ||
		s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("%s: %v, %+v", c.Name, c.Command, s)
	}
}

// checkNoKernel checks a template of pods that are no kernel's: no rule for kernels selects one, none has a token, and
// the selector of its owner fits.
func checkNoKernel(t *testing.T, pod corev1.PodTemplateSpec, selector map[string]string) {
	t.Helper()
	for _, label := range []string{podspec.LabelKernel, podspec.LabelManagedBy} {
		if pod.Labels[label] != "" {
			t.Errorf("the pods have the label %s", label)
		}
	}
	for key, value := range selector {
		if pod.Labels[key] != value {
			t.Errorf("the selector %v does not fit %v", selector, pod.Labels)
		}
	}
	if token := pod.Spec.AutomountServiceAccountToken; token == nil || *token || pod.Spec.ServiceAccountName != "" ||
		pod.Annotations[podspec.AnnotationSafeToEvict] != "true" {
		t.Errorf("%+v", pod)
	}
}

// A placeholder asks for what the scheduler reserves for a kernel of the shipped kernelspec. Every kernel displaces it:
// its priority is negative, and not below -10, for which Cluster Autoscaler adds no node.
func TestManifests_Placeholders(t *testing.T) {
	class := find[*schedulingv1.PriorityClass](t, places, "ekg-placeholder")
	if class.Value >= 0 || class.Value < -10 || class.GlobalDefault || *class.PreemptionPolicy != corev1.PreemptNever {
		t.Errorf("%+v", class)
	}
	room := find[*appsv1.Deployment](t, places, "ekg-placeholder-python3")
	pod := room.Spec.Template
	checkNoKernel(t, pod, room.Spec.Selector.MatchLabels)
	if room.Namespace != "ekg-kernels" || room.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType ||
		pod.Spec.PriorityClassName != class.Name || *pod.Spec.TerminationGracePeriodSeconds > 1 ||
		len(pod.Spec.Containers) != 1 {
		t.Errorf("%+v", room)
	}
	c := pod.Spec.Containers[0]
	checkWaits(t, c, "/usr/bin/ekg-supervisor", "wait")
	if gateway := find[*appsv1.Deployment](t, places, "ekg").Spec.Template.Spec.Containers[0].Image; c.Image != gateway {
		t.Errorf("its image is %s, the gateway's is %s", c.Image, gateway)
	}
	kernel := shippedPod(t).Spec
	if len(kernel.InitContainers) > 0 {
		t.Error("the pod of a kernel has init containers, which may request more")
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		var want resource.Quantity
		for _, k := range kernel.Containers {
			want.Add(k.Resources.Requests[name])
		}
		if got := c.Resources.Requests[name]; got.Cmp(want) != 0 {
			t.Errorf("it requests %s of %s, and a kernel's pod %s", got.String(), name, want.String())
		}
	}
}

// The DaemonSet pulls the image of the shipped kernelspec. No program of that image runs.
func TestManifests_PrePull(t *testing.T) {
	set := find[*appsv1.DaemonSet](t, prePull, "ekg-pre-pull-python3")
	pod := set.Spec.Template
	checkNoKernel(t, pod, set.Spec.Selector.MatchLabels)
	if set.Namespace != "ekg-kernels" || len(pod.Spec.InitContainers) != 1 || len(pod.Spec.Containers) != 1 ||
		len(pod.Spec.Volumes) != 1 || pod.Spec.Volumes[0].EmptyDir == nil {
		t.Fatalf("%+v", set)
	}
	install, pulls := pod.Spec.InitContainers[0], pod.Spec.Containers[0]
	checkWaits(t, install, "/usr/bin/ekg-supervisor", "install", "/ekg/bin/ekg-supervisor")
	checkWaits(t, pulls, "/ekg/bin/ekg-supervisor", "wait")
	gateway := find[*appsv1.Deployment](t, prePull, "ekg").Spec.Template.Spec.Containers[0].Image
	if install.Image != gateway || pulls.Image != shippedImage(t) {
		t.Errorf("the images are %s and %s", install.Image, pulls.Image)
	}
	void := corev1.EnvVar{Name: "NVIDIA_VISIBLE_DEVICES", Value: "void"}
	if mount := pulls.VolumeMounts[0]; !mount.ReadOnly || !slices.Contains(pulls.Env, void) ||
		!regexp.MustCompile(`^\d+Mi$`).MatchString(pulls.Resources.Limits.Memory().String()) {
		t.Errorf("%+v", pulls)
	}
}
