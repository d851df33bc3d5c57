package podbuild

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

// Containers beside the kernel's are sidecars of Kubernetes, with the policy's rules for security. Restarts keep them.
func TestBuild_Extras(t *testing.T) {
	o := testOptions()
	o.Policy = policyOf(t, "nonRoot: true")
	spec := specOf(`{"image": "x", "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "home-{owner}"}}],
		"initContainers": [{"name": "a", "image": "init"}, {"name": "b", "image": "side", "restartPolicy": "Always"}],
		"containers": [{"name": "c", "image": "side", "env": [{"name": "X", "value": "$(Y) $$"}],
			"securityContext": {"capabilities": {"drop": ["KILL"]}, "readOnlyRootFilesystem": true},
			"volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "of/{owner}"}]}],
		"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}`)
	pod, err := Build(o, launcher.Request{ID: testID, Owner: "ann@x", Spec: spec}, testRecord("test"))
	if err != nil {
		t.Fatal(err)
	}
	if got := len(pod.Spec.Containers); got != 2 {
		t.Errorf("the pod has %d containers that keep it alive", got)
	}
	for i, want := range []struct {
		name string
		goes bool
	}{{"a", false}, {"b", true}, {"c", true}} {
		c := pod.Spec.InitContainers[i]
		s := c.SecurityContext
		if c.Name != want.name || (c.RestartPolicy != nil) != want.goes ||
			want.goes && *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			t.Errorf("container %d is %s with %v", i, c.Name, c.RestartPolicy)
		}
		if !*s.RunAsNonRoot || *s.AllowPrivilegeEscalation || s.Capabilities.Drop[len(s.Capabilities.Drop)-1] != "ALL" ||
			s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("container %s may too much: %+v", c.Name, s)
		}
		if last := c.Env[len(c.Env)-1]; last.Name != podspec.VisibleDevices || last.Value != podspec.VisibleNone {
			t.Errorf("container %s may see GPUs of other pods: %v", c.Name, c.Env)
		}
	}
	c := pod.Spec.InitContainers[2]
	if c.Env[0].Value != "$(Y) $$" || c.VolumeMounts[0].SubPath != "of/ann-40x" ||
		!*c.SecurityContext.ReadOnlyRootFilesystem {
		t.Errorf("got %+v", c)
	}
	if podspec.KernelOf(pod).Lifecycle.PreStop.Sleep.Seconds != 1 {
		t.Errorf("the hook is %v", podspec.KernelOf(pod).Lifecycle)
	}
	req, err := ReadRequest(pod, testRecord("test"))
	if err != nil {
		t.Fatal(err)
	}
	next, err := Build(o, req, testRecord("test"))
	if err != nil || len(next.Spec.InitContainers) != 3 {
		t.Errorf("the next pod: %v, %v", next, err)
	}
}

// What the containers beside the kernel's ask for counts toward a client's maximum. What the kernelspec asks for itself
// is always allowed.
func TestClient_BesideKernel(t *testing.T) {
	o := testOptions()
	o.Policy = policyOf(t, "clients: {allow: [KERNEL_MEMORY, KERNEL_MEMORY_LIMIT], maxima: {memory: 4Gi}}")
	const ekg = `{"image": "x", "resources": {"limits": {"memory": "2Gi"}}, "initContainers": [{"name": "a", "image": "x",
		"resources": {"limits": {"memory": "4Gi"}}}], "containers": [{"name": "b", "image": "x",
		"resources": {"requests": {"memory": "512Mi"}, "limits": {"memory": "SIZE"}}}]}`
	for _, tt := range []struct{ size, memory, want string }{
		{"1Gi", "3Gi", ""},
		{"1Gi", "3073Mi",
			"KERNEL_MEMORY: 3073Mi, and 1Gi of the kernelspec's other containers, are more than the allowed 4Gi"},
		{"1Gi", "5Gi", "KERNEL_MEMORY: 5Gi is more than the allowed 4Gi"},
		{"3Gi", "2Gi", ""},
		{"3Gi", "2049Mi",
			"KERNEL_MEMORY: 2049Mi, and 3Gi of the kernelspec's other containers, are more than the allowed 4Gi"},
	} {
		_, err := Build(o, launcher.Request{ID: testID, Spec: specOf(strings.Replace(ekg, "SIZE", tt.size, 1)),
			Env: map[string]string{"KERNEL_MEMORY": tt.memory}}, testRecord("test"))
		got := ""
		if r := (*launcher.RefusedError)(nil); errors.As(err, &r) {
			got = r.Reason
		} else if err != nil {
			t.Error(err)
		}
		if got != tt.want {
			t.Errorf("%s beside %s: got %q, want %q", tt.memory, tt.size, got, tt.want)
		}
	}
}

// A gateway without users reports {owner} in the mounts of other containers too.
func TestCheckNoOwner_Extras(t *testing.T) {
	problems := wish.CheckNoOwner(specOf(`{"image": "x", "volumes": [{"name": "v", "emptyDir": {}}],
		"containers": [{"name": "b", "image": "x", "volumeMounts": [{"name": "v", "mountPath": "/{owner}"}]}]}`))
	want := kernelspecs.Problem{Key: "metadata.ekg.containers[0].volumeMounts[0].mountPath", Message: withoutUsers}
	if len(problems) != 1 || problems[0].Key != want.Key || problems[0].Message != want.Message {
		t.Errorf("got %v", problems)
	}
}
