package podspec

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
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
		return slices.DeleteFunc(slices.Clone(kernelOf(pod).VolumeMounts), func(m corev1.VolumeMount) bool {
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

// TestPolicy_Shared: each bad value is reported with its line.
func TestPolicy_Shared(t *testing.T) {
	const start = "home: {claim: 'h-{owner}', mountPath: /home, size: 1Gi}\nshared:\n  - {claim: a, mountPath: /a}\n  - "
	for text, want := range map[string]string{
		"{claim: b, mountPath: /home/b}": "",
		"{claim: B, mountPath: /b}":      `4: shared[1].claim: "B" is not the name of a claim`,
		"{mountPath: /b}":                `4: shared[1].claim: "" is not the name of a claim`,
		"{claim: b}":                     `4: shared[1].mountPath: "" is not the path of a folder`,
		"{claim: b, mountPath: /a}":      `4: shared[1].mountPath: "/a" is the folder of another volume`,
		"{claim: b, mountPath: /home}":   `4: shared[1].mountPath: "/home" is the folder of another volume`,
		"{claim: b, mountPath: /proc/b}": `4: shared[1].mountPath: "/proc/b" is ekg's own or the system's`,
		"{claim: b, path: /b}":           "4: ",
	} {
		_, problems := parsePolicy([]byte(start + text + "\n"))
		if (want == "") != (len(problems) == 0) || want != "" && !strings.HasPrefix(problems[0], want) {
			t.Errorf("%s: got %q, want %q", text, problems, want)
		}
	}
}
