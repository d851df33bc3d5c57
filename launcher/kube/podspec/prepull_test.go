package podspec

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
)

// startOf returns a plain start of a kernelspec.
func startOf(name, ekg string, f *flavor.Flavor) launcher.Request {
	spec := specOf(ekg)
	spec.Name = name
	return launcher.Request{ID: testID, Spec: spec, Flavor: f}
}

// The DaemonSet is equal to the reviewed file.
func TestPrePull_Golden(t *testing.T) {
	o := testOptions()
	o.Architectures = []string{"amd64"}
	o.SupervisorPullSecrets = []string{"registry"}
	sets, left := PrePull(o, []launcher.Request{
		startOf("torch", `{"image": "torch:2", "imagePullSecrets": [{"name": "torch"}], "runtimeClassName": "nvidia",
			"nodeSelector": {"gpu": "yes"}, "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}`, nil),
	})
	if len(sets) != 1 || len(left) != 0 {
		t.Fatalf("%d, left out: %v", len(sets), left)
	}
	golden(t, filepath.Join("prepull", "daemonset.yaml"), sets[0], &appsv1.DaemonSet{})
}

// Images of one placement are in one DaemonSet, each once; other nodes, other runtimes and other accounts have their
// own. A flavor's nodes count. An image that may never be pulled is left alone.
func TestPrePull_Placements(t *testing.T) {
	gpu := &flavor.Flavor{Name: "t4", GPU: &flavor.Devices{}, NodeSelector: map[string]string{"gpu": "t4"}}
	starts := []launcher.Request{
		startOf("a", `{"image": "cpu:1"}`, nil),
		startOf("b", `{"image": "cpu:1", "imagePullPolicy": "Always"}`, nil),
		startOf("c", `{"image": "cpu:2", "resources": {"requests": {"cpu": "1"}}}`, nil),
		startOf("d", `{"image": "gpu:1"}`, gpu),
		startOf("e", `{"image": "gpu:2", "nodeSelector": {"gpu": "t4"}}`, nil),
		startOf("f", `{"image": "account:1", "serviceAccountName": "puller"}`, nil),
		startOf("g", `{"image": "local:1", "imagePullPolicy": "Never"}`, nil),
		startOf("h", `{}`, nil),
	}
	sets, left := PrePull(testOptions(), starts)
	if len(left) != 1 || !strings.Contains(left[0], "kernelspec h: ") || !strings.Contains(left[0], "image") {
		t.Errorf("left out: %v", left)
	}
	got := map[string]string{}
	for _, s := range sets {
		pod := s.Spec.Template.Spec
		got[strings.Join(PulledImages(s), " ")] = pod.NodeSelector["gpu"] + pod.ServiceAccountName
		for _, c := range pod.InitContainers {
			if c.Image == "cpu:1" && c.ImagePullPolicy != corev1.PullAlways {
				t.Errorf("cpu:1 is pulled %q", c.ImagePullPolicy)
			}
		}
	}
	if want := map[string]string{"cpu:1 cpu:2": "", "gpu:1 gpu:2": "t4", "account:1": "puller"}; !reflect.DeepEqual(got,
		want) {
		t.Errorf("got %v, want %v", got, want)
	}
	slices.Reverse(starts)
	if again, _ := PrePull(testOptions(), starts); !reflect.DeepEqual(again, sets) {
		t.Error("the order of the kernelspecs changes the DaemonSets")
	}
}

// An image that cannot be pulled keeps no other waiting: only ekg's own image is needed before the others.
func TestPrePull_NoOrder(t *testing.T) {
	o := testOptions()
	sets, _ := PrePull(o, []launcher.Request{startOf("a", `{"image": "a:1"}`, nil), startOf("b", `{"image": "b:1"}`, nil)})
	for _, c := range sets[0].Spec.Template.Spec.InitContainers {
		if c.Image != o.SupervisorImage {
			t.Errorf("image %s is needed before the others", c.Image)
		}
	}
	if got := PulledImages(sets[0]); !slices.Equal(got, []string{"a:1", "b:1"}) {
		t.Errorf("pulls %q", got)
	}
}

// What exceeds a limit is left out by name.
func TestPrePull_Limits(t *testing.T) {
	var images, places []launcher.Request
	for i := range MaxPulledImages + 1 {
		images = append(images, startOf(fmt.Sprintf("s%02d", i), fmt.Sprintf(`{"image": "i:%d"}`, i), nil))
	}
	for i := range MaxPulledPlacements + 1 {
		places = append(places, startOf(fmt.Sprintf("s%02d", i), fmt.Sprintf(`{"image": "i", "nodeSelector": {"n": "%d"}}`, i),
			nil))
	}
	sets, left := PrePull(testOptions(), images)
	if len(sets) != 1 || len(PulledImages(sets[0])) != MaxPulledImages || len(left) != 1 ||
		!strings.HasPrefix(left[0], "kernelspec s32: ") {
		t.Errorf("%d DaemonSets, left out: %v", len(sets), left)
	}
	if sets, left = PrePull(testOptions(), places); len(sets) != MaxPulledPlacements || len(left) != 1 ||
		!strings.HasPrefix(left[0], "kernelspec s16: ") {
		t.Errorf("%d DaemonSets, left out: %v", len(sets), left)
	}
}

// Every container satisfies the security standard "restricted", in clusters that choose users, too.
func TestPrePull_Restricted(t *testing.T) {
	for _, chooses := range []bool{false, true} {
		o := testOptions()
		o.ClusterChoosesUser = chooses
		sets, _ := PrePull(o, []launcher.Request{startOf("root", `{"image": "root:1", "securityContext": {"runAsUser": 0}}`,
			nil)})
		pod := sets[0].Spec.Template.Spec
		if pod.HostNetwork || pod.HostPID || pod.HostIPC || *pod.AutomountServiceAccountToken || *pod.EnableServiceLinks {
			t.Errorf("%+v", pod)
		}
		for _, v := range pod.Volumes {
			if v.EmptyDir == nil {
				t.Errorf("volume %+v", v)
			}
		}
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			s := c.SecurityContext
			if s == nil || !*s.RunAsNonRoot || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem ||
				s.Privileged != nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
				len(s.Capabilities.Add) != 0 || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault ||
				(s.RunAsUser == nil) != chooses || s.RunAsUser != nil && *s.RunAsUser == 0 {
				t.Errorf("%s: %+v", c.Name, s)
			}
		}
	}
}
