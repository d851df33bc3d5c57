package podbuild

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

const driverPolicy = `
kernelspecs:
  ports: [7078-7079]
  serviceAccountTokens: ["spark-{owner}"]
clients:
  allow: [KERNEL_SERVICE_ACCOUNT_NAME, KERNEL_NAMESPACE]
  serviceAccounts: ["*"]
  namespaces: [other]
`

const driverSpec = `{"image": "x", "serviceAccountName": "spark-{owner}", "serviceAccountToken": true,
	"ports": [{"name": "driver", "containerPort": 7078}, {"containerPort": 7079, "protocol": "UDP"}],
	"containers": [{"name": "beside", "image": "x"}]}`

// Only the kernel's container gets the token, and only if the policy lists the owner's account. A client cannot make it
// another account's.
func TestBuild_Token(t *testing.T) {
	o := testOptions()
	o.Policy = policyOf(t, driverPolicy)
	build := func(owner string, env map[string]string) (*corev1.Pod, error) {
		return Build(o, launcher.Request{ID: testID, Owner: owner, Spec: specOf(driverSpec), Env: env}, testRecord("test"))
	}
	pod, err := build("ann", map[string]string{"KERNEL_SERVICE_ACCOUNT_NAME": "spark-ann"})
	if err != nil {
		t.Fatal(err)
	}
	if pod.Spec.ServiceAccountName != "spark-ann" || *pod.Spec.AutomountServiceAccountToken {
		t.Errorf("the account is %s, mounted everywhere: %v", pod.Spec.ServiceAccountName,
			*pod.Spec.AutomountServiceAccountToken)
	}
	for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
		has := false
		for _, m := range c.VolumeMounts {
			has = has || m.Name == podspec.VolumeToken && m.MountPath == podspec.TokenDir && m.ReadOnly
		}
		if has != (c.Name == podspec.ContainerKernel) {
			t.Errorf("container %s has the token: %v", c.Name, has)
		}
	}
	for _, env := range []map[string]string{
		{"KERNEL_SERVICE_ACCOUNT_NAME": "admin"}, {"KERNEL_NAMESPACE": "other"},
	} {
		_, err := build("ann", env)
		if r := (*launcher.RefusedError)(nil); !errors.As(err, &r) || !strings.Contains(r.Reason, ": cannot be changed: ") {
			t.Errorf("%v: got %v", env, err)
		}
	}
	o.Policy = policyOf(t, strings.ReplaceAll(driverPolicy, "spark-{owner}", "spark-bob"))
	if _, err := build("ann", nil); err == nil {
		t.Error("ann gets the token of an account that is not listed")
	}
	o.Policy = policyOf(t, "")
	if _, err := build("ann", nil); err == nil {
		t.Error("a kernel gets a token without a policy")
	}
}

// A pod that gets a token by any way but the kernelspec's key is rejected at last.
func TestCheckInvariants_Token(t *testing.T) {
	o := testOptions()
	o.Policy = policyOf(t, driverPolicy)
	for _, ekg := range []string{driverSpec, `{"image": "x", "containers": [{"name": "beside", "image": "x"}]}`} {
		req := launcher.Request{ID: testID, Owner: "ann", Spec: specOf(ekg)}
		ext, problems := o.Policy.Read(req.Spec, req.Owner, o.KernelImage)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		b := builder{o: o, req: req, ext: ext}
		pod, err := Build(o, req, testRecord("test"))
		if err != nil {
			t.Fatal(err)
		}
		if err := b.checkInvariants(pod, pod); err != nil {
			t.Error(err)
		}
		beside := pod.DeepCopy()
		beside.Spec.InitContainers[0].VolumeMounts = []corev1.VolumeMount{{Name: podspec.VolumeToken}}
		more := pod.DeepCopy()
		more.Spec.Volumes = append(more.Spec.Volumes, corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{
			Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "t"}}}}}})
		for _, bad := range []*corev1.Pod{beside, more} {
			if err := b.checkInvariants(bad, pod); err == nil || !strings.Contains(err.Error(), "token") {
				t.Errorf("got %v", err)
			}
		}
	}
}

// The network policy lets a kernel's own workers connect to the ports of the kernelspec, and to no other one.
func TestPortsPolicy(t *testing.T) {
	o := testOptions()
	o.Policy = policyOf(t, driverPolicy)
	req := launcher.Request{ID: testID, Owner: "ann", Spec: specOf(driverSpec)}
	pod, err := Build(o, req, testRecord("test"))
	if err != nil {
		t.Fatal(err)
	}
	pod.UID = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
	k := podspec.KernelOf(pod)
	k.Ports = append(k.Ports, corev1.ContainerPort{ContainerPort: 1}) // a webhook's
	policy, err := PortsPolicy(pod)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "ports.yaml", policy, &networkingv1.NetworkPolicy{})
	trimmed, err := PortsPolicy(Trimmed(pod))
	if err != nil || len(trimmed.Spec.Ingress[0].Ports) != 2 {
		t.Errorf("of the trimmed pod: %v, %v", trimmed, err)
	}
	for text, want := range map[string]bool{"": true, "[": false} {
		pod.Annotations[annotationPorts] = text
		if policy, err := PortsPolicy(pod); policy != nil || (err == nil) != want {
			t.Errorf("%q: got %v, %v", text, policy, err)
		}
	}
}
