package podbuild

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// TestShared: every kernel can read the shared volumes. What a kernelspec mounts in their place stays.
func TestShared(t *testing.T) {
	o := testOptions()
	o.Policy = policyOf(t, "shared: [{claim: datasets, mountPath: /data}, {claim: models, mountPath: /models}]\n")
	spec := specOf(`{"image": "x", "volumes": [{"name": "v", "emptyDir": {}}],
		"volumeMounts": [{"name": "v", "mountPath": "/models/"}]}`)
	pod, err := Build(o, launcher.Request{ID: testID, Spec: spec}, testRecord("test"))
	if err != nil {
		t.Fatal(err)
	}
	mounts := func(name string) []corev1.VolumeMount {
		return slices.DeleteFunc(slices.Clone(podspec.KernelOf(pod).VolumeMounts), func(m corev1.VolumeMount) bool {
			return m.Name != name
		})
	}
	if got := mounts("ekg-shared-0"); len(got) != 1 || got[0].MountPath != "/data" || !got[0].ReadOnly {
		t.Errorf("mounts: %+v", got)
	}
	if got := mounts("ekg-shared-1"); len(got) > 0 {
		t.Errorf("the kernelspec has its own volume there: %+v", got)
	}
	i := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "ekg-shared-0" })
	if i < 0 || pod.Spec.Volumes[i].PersistentVolumeClaim.ClaimName != "datasets" ||
		!pod.Spec.Volumes[i].PersistentVolumeClaim.ReadOnly {
		t.Errorf("volumes: %+v", pod.Spec.Volumes)
	}
	spec = specOf(`{"image": "x", "volumes": [{"name": "ekg-shared-0", "emptyDir": {}}]}`)
	if _, err := Build(o, launcher.Request{ID: testID, Spec: spec}, testRecord("test")); err == nil ||
		!strings.Contains(err.Error(), "ekg's own volumes") {
		t.Errorf("a kernelspec with a volume of that name: %v", err)
	}
}
