package podbuild

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// Every value that a client must not set is refused. The error has the variable, the value and what is allowed.
func TestClient_Refusals(t *testing.T) {
	strict := testOptions()
	strict.Policy = policyOf(t, strictPolicy)
	spec := specOf(`{"image": "ok/x", "resources": {"limits": {"memory": "2Gi", "nvidia.com/gpu": 1}},
		"volumes": [{"name": "v", "emptyDir": {}}],
		"volumeMounts": [{"name": "v", "mountPath": "/v"}]}`)
	free := "; of the variables that change a pod it allows: KERNEL_CPUS, KERNEL_CPUS_LIMIT, KERNEL_GID, KERNEL_GPUS,"
	for _, tt := range []struct {
		o                 Options
		name, value, want string
	}{
		{testOptions(), "KERNEL_IMAGE", "y", `KERNEL_IMAGE: the policy does not let clients set this ("y")` + free},
		{testOptions(), "KERNEL_NAMESPACE", "y", `KERNEL_NAMESPACE: the policy does not let clients set this ("y")` + free},
		{testOptions(), "KERNEL_SERVICE_ACCOUNT_NAME", "y",
			`KERNEL_SERVICE_ACCOUNT_NAME: the policy does not let clients set this ("y")` + free},
		{testOptions(), "KERNEL_POD_NAME", "y", `KERNEL_POD_NAME: the policy does not let clients set this ("y")` + free},
		{testOptions(), "KERNEL_VOLUMES", "[]", `KERNEL_VOLUMES: the policy does not let clients set this ("[]")` + free},
		{testOptions(), "KERNEL_VOLUME_MOUNTS", "[]",
			`KERNEL_VOLUME_MOUNTS: the policy does not let clients set this ("[]")` + free},
		{testOptions(), "KERNEL_UID", "0", `KERNEL_UID: 0 is not allowed; allowed: 1-2147483647`},
		{testOptions(), "KERNEL_GID", "0", `KERNEL_GID: 0 is not allowed; allowed: 1-2147483647`},
		{testOptions(), "KERNEL_CPUS", "5", `KERNEL_CPUS: 5 is more than the allowed 4`},
		{testOptions(), "KERNEL_CPUS_LIMIT", "5", `KERNEL_CPUS_LIMIT: 5 is more than the allowed 4`},
		{testOptions(), "KERNEL_MEMORY", "17Gi", `KERNEL_MEMORY: 17Gi is more than the allowed 16Gi`},
		{testOptions(), "KERNEL_MEMORY_LIMIT", "17Gi", `KERNEL_MEMORY_LIMIT: 17Gi is more than the allowed 16Gi`},
		{testOptions(), "KERNEL_GPUS", "2", `KERNEL_GPUS: 2 is more than the allowed 1`},
		{testOptions(), "KERNEL_GPUS_LIMIT", "2", `KERNEL_GPUS_LIMIT: 2 is more than the allowed 1`},
		{testOptions(), "NVIDIA_VISIBLE_DEVICES", "all", `NVIDIA_VISIBLE_DEVICES: cannot be set by clients`},
		{strict, "KERNEL_POD_NAME", "y", `KERNEL_POD_NAME: the policy does not let clients set this ("y")`},
		{strict, "KERNEL_IMAGE", "bad/x", `KERNEL_IMAGE: "bad/x" is not allowed; allowed: ok/*`},
		{strict, "KERNEL_IMAGE", "ok/$(X)", `KERNEL_IMAGE: "ok/$(X)" is not a valid image name`},
		{strict, "KERNEL_NAMESPACE", "kube-system", `KERNEL_NAMESPACE: "kube-system" is not allowed; allowed: listed`},
		{strict, "KERNEL_NAMESPACE", "a/b", `KERNEL_NAMESPACE: "a/b" is not a valid Kubernetes name`},
		{strict, "KERNEL_SERVICE_ACCOUNT_NAME", "admin",
			`KERNEL_SERVICE_ACCOUNT_NAME: "admin" is not allowed; allowed: listed`},
		{strict, "KERNEL_UID", "0", `KERNEL_UID: 0 is root; the policy does not let kernels run as root`},
		{strict, "KERNEL_UID", "00", `KERNEL_UID: "00" is not a user id`},
		{strict, "KERNEL_UID", " 0", `KERNEL_UID: " 0" is not a user id`},
		{strict, "KERNEL_UID", "0x0", `KERNEL_UID: "0x0" is not a user id`},
		{strict, "KERNEL_UID", "+1000", `KERNEL_UID: "+1000" is not a user id`},
		{strict, "KERNEL_UID", "-1", `KERNEL_UID: "-1" is not a user id`},
		{strict, "KERNEL_UID", "1_000", `KERNEL_UID: "1_000" is not a user id`},
		{strict, "KERNEL_UID", "1e3", `KERNEL_UID: "1e3" is not a user id`},
		{strict, "KERNEL_UID", "2147483648", `KERNEL_UID: "2147483648" is not a user id`},
		{strict, "KERNEL_UID", "4294967296", `KERNEL_UID: "4294967296" is not a user id`},
		{strict, "KERNEL_UID", "18446744073709551616", `KERNEL_UID: "18446744073709551616" is not a user id`},
		{strict, "KERNEL_UID", "65532", `KERNEL_UID: 65532 is the supervisor's user`},
		{strict, "KERNEL_UID", "999", `KERNEL_UID: 999 is not allowed; allowed: 0, 1000-70000`},
		{strict, "KERNEL_GID", "x", `KERNEL_GID: "x" is not a group id`},
		{strict, "KERNEL_CPUS", "two", `KERNEL_CPUS: "two" is not a quantity like 2, 0.5 or 500m`},
		{strict, "KERNEL_CPUS", "-1", `KERNEL_CPUS: "-1" is not a quantity like 2, 0.5 or 500m`},
		{strict, "KERNEL_CPUS", "1e" + strings.Repeat("9", 60), `KERNEL_CPUS: "1e999`},
		{strict, "KERNEL_CPUS", "1e2147483647", `KERNEL_CPUS: "1e2147483647" is not a quantity like`},
		// comparing it would use all memory
		{strict, "KERNEL_CPUS", "1e-2147483647", `KERNEL_CPUS: "1e-2147483647" is not a quantity like`},
		{strict, "KERNEL_MEMORY", "3Gi", `KERNEL_MEMORY: 3Gi is more than the allowed 2Gi`},
		// the kernelspec's own amount is above the maximum
		{strict, "KERNEL_GPUS", "0.5", `KERNEL_GPUS: 500m is not a whole number, as this resource requires`},
		{strict, "KERNEL_WORKING_DIR", "/" + strings.Repeat("x", 5000), `KERNEL_WORKING_DIR: is longer than 4096 bytes`},
		{strict, "KERNEL_VOLUMES", "{", `KERNEL_VOLUMES: is neither YAML nor JSON`},
		{strict, "KERNEL_VOLUMES", "name: x", `KERNEL_VOLUMES: is an object, not an array`},
		{strict, "KERNEL_VOLUMES", "- {name: x, name: y}", `KERNEL_VOLUMES: is neither YAML nor JSON`},
		{strict, "KERNEL_VOLUMES", "- {name: x, hostPath: {path: /}}",
			`KERNEL_VOLUMES[0].hostPath: volumes of this kind are not allowed; allowed: persistentVolumeClaim, secret`},
		{strict, "KERNEL_VOLUMES", "- {name: x, hostpath: {path: /}}",
			`KERNEL_VOLUMES[0].hostpath: cannot be set; valid keys:`},
		{strict, "KERNEL_VOLUMES", "- {name: x, emptyDir: {}}",
			`KERNEL_VOLUMES[0].emptyDir: volumes of this kind are not allowed`},
		{strict, "KERNEL_VOLUMES", "- {name: x, persistentVolumeClaim: {claimName: yours}}",
			`KERNEL_VOLUMES[0].persistentVolumeClaim.claimName: "yours" is not allowed; allowed: listed`},
		{strict, "KERNEL_VOLUMES", "- {name: x, secret: {secretName: ekg-x}}",
			`KERNEL_VOLUMES[0].secret.secretName: "ekg-x" is one of ekg's own secrets`},
		{strict, "KERNEL_VOLUMES", "- {name: secret, secret: {secretName: listed}}",
			`KERNEL_VOLUMES[0].name: "secret" is one of ekg's own volumes`},
		{strict, "KERNEL_VOLUMES", "- {name: v, secret: {secretName: listed}}",
			`KERNEL_VOLUMES[0].name: the kernelspec already has a volume "v"`},
		{strict, "KERNEL_VOLUMES", "[" + strings.Repeat("{name: x},", 40) + "]",
			`KERNEL_VOLUMES: there are more than 32 volumes or mounts`},
		{strict, "KERNEL_VOLUME_MOUNTS", "- {name: v, mountPath: /x}",
			`KERNEL_VOLUME_MOUNTS[0].name: no volume is named "v"`},
		{strict, "KERNEL_VOLUME_MOUNTS", "- {name: secret, mountPath: /x}",
			`KERNEL_VOLUME_MOUNTS[0].name: "secret" is one of ekg's own volumes`},
		{strict, "KERNEL_VOLUME_MOUNTS", "- {name: v, mountPath: /v/}",
			`KERNEL_VOLUME_MOUNTS[0].mountPath: the kernelspec already has a mount at "/v/"`},
	} {
		_, err := Build(tt.o, launcher.Request{ID: testID, Spec: spec, Env: map[string]string{tt.name: tt.value}},
			testRecord("test"))
		var r *launcher.RefusedError
		if !errors.As(err, &r) || !strings.HasPrefix(r.Reason, tt.want) {
			t.Errorf("%s=%s:\ngot  %v\nwant %s", tt.name, tt.value, err, tt.want)
		}
	}
	_, err := Build(strict, launcher.Request{ID: testID, Spec: spec,
		Env: map[string]string{"KERNEL_CPUS": "2", "KERNEL_CPUS_LIMIT": "1"}}, testRecord("test"))
	if want := "KERNEL_CPUS: 2 does not fit KERNEL_CPUS_LIMIT, which is 1"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	_, err = Build(strict, launcher.Request{ID: testID, Spec: spec,
		Env: map[string]string{"KERNEL_A": strings.Repeat("x", maxEnvironment)}}, testRecord("test"))
	if err == nil || !strings.HasPrefix(err.Error(), "the kernel's variables have 10") {
		t.Errorf("got %v for an environment that is too large", err)
	}
	long := spec
	long.Argv = append(long.Argv, strings.Repeat("x", maxConfig))
	if _, err = Build(strict, launcher.Request{ID: testID, Spec: long}, testRecord("test")); err == nil ||
		!strings.HasPrefix(err.Error(), "the kernel's command line has 9") {
		t.Errorf("got %v for a command line that is too long", err)
	}
}

// The name of the owner, which the gateway sets, needs no permission.
func TestClient_Username(t *testing.T) {
	strict := testOptions()
	strict.Policy = policyOf(t, strictPolicy) // it does not allow KERNEL_USERNAME
	for _, owner := range []string{"ann", ""} {
		pod, err := Build(strict, launcher.Request{ID: testID, Owner: owner, Spec: specOf(`{"image": "ok/x"}`),
			Env: map[string]string{"KERNEL_USERNAME": "ann"}}, testRecord("test"))
		var r *launcher.RefusedError
		switch {
		case owner == "" && !errors.As(err, &r):
			t.Errorf("a client's name: got %v", err)
		case owner != "" && err != nil:
			t.Errorf("the owner's name: got %v", err)
		case owner != "" && !slices.Contains(podspec.KernelOf(pod).Env, corev1.EnvVar{Name: "KERNEL_USERNAME", Value: "ann"}):
			t.Errorf("the kernel has not got it: %v", podspec.KernelOf(pod).Env)
		}
	}
}

// A client's amount of a resource changes the kernelspec's request and limit.
func TestClient_Sizes(t *testing.T) {
	for _, tt := range []struct {
		name, resources string
		env             map[string]string
		of              string
		request, limit  string
	}{
		{"request alone", `{}`, map[string]string{"KERNEL_CPUS": "0.5"}, "cpu", "500m", "0"},
		{"request over the limit", `{"limits": {"cpu": 1}}`, map[string]string{"KERNEL_CPUS": "2"}, "cpu", "2", "2"},
		{"limit under the request", `{"requests": {"memory": "4Gi"}}`, map[string]string{"KERNEL_MEMORY_LIMIT": "1Gi"},
			"memory", "1Gi", "1Gi"},
		{"both", `{"limits": {"memory": "4Gi"}}`, map[string]string{"KERNEL_MEMORY": "1G", "KERNEL_MEMORY_LIMIT": "2G"},
			"memory", "1G", "2G"},
		{"as much as the kernelspec has", `{"limits": {"memory": "64Gi"}}`, map[string]string{"KERNEL_MEMORY": "64Gi"},
			"memory", "64Gi", "64Gi"},
		{"empty says nothing", `{"limits": {"memory": "1Gi"}}`, map[string]string{"KERNEL_MEMORY_LIMIT": ""}, "memory", "0",
			"1Gi"},
		{"GPUs by request", `{}`, map[string]string{"KERNEL_GPUS": "1"}, "nvidia.com/gpu", "1", "1"},
		{"GPUs by limit", `{}`, map[string]string{"KERNEL_GPUS_LIMIT": "1"}, "nvidia.com/gpu", "1", "1"},
		{"another vendor's GPUs", `{"limits": {"amd.com/gpu": 4}}`, map[string]string{"KERNEL_GPUS": "2"}, "amd.com/gpu", "2",
			"2"},
		{"GPUs of another name", `{"limits": {"nvidia.com/gpu.large": 1}}`, map[string]string{"KERNEL_GPUS": "1"},
			"nvidia.com/gpu.large", "1", "1"},
		{"no second kind beside GPUs of another name", `{"limits": {"nvidia.com/gpu.large": 1}}`,
			map[string]string{"KERNEL_GPUS": "1"}, "nvidia.com/gpu", "0", "0"},
		{"a share stays a share", `{"limits": {"aliyun.com/gpu-mem": 8}}`, map[string]string{"KERNEL_GPUS": "1"},
			"aliyun.com/gpu-mem", "0", "8"},
		{"no GPU beside a share", `{"limits": {"aliyun.com/gpu-mem": 8}}`,
			map[string]string{"KERNEL_GPUS": "1", "KERNEL_GPUS_LIMIT": "1"}, "nvidia.com/gpu", "0", "0"},
		{"no share", `{"limits": {"aliyun.com/gpu-mem": 8}}`, map[string]string{"KERNEL_GPUS": "0"},
			"aliyun.com/gpu-mem", "0", "0"},
		{"no share of a GPU that is given up", `{"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8000}}`,
			map[string]string{"KERNEL_GPUS": "0"}, "nvidia.com/gpumem", "0", "0"},
		{"its share of one GPU", `{"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8000}}`,
			map[string]string{"KERNEL_GPUS": "1"}, "nvidia.com/gpumem", "0", "8000"},
		{"no GPU", `{"limits": {"nvidia.com/gpu": 1}}`, map[string]string{"KERNEL_GPUS": "0"}, "nvidia.com/gpu", "0", "0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod, err := Build(testOptions(),
				launcher.Request{ID: testID, Spec: specOf(`{"image": "x", "resources": ` + tt.resources + `}`), Env: tt.env},
				testRecord("test"))
			if err != nil {
				t.Fatal(err)
			}
			request := podspec.KernelOf(pod).Resources.Requests[corev1.ResourceName(tt.of)]
			if request.Cmp(resource.MustParse(tt.request)) != 0 {
				t.Errorf("request of %s %s, want %s", request.String(), tt.of, tt.request)
			}
			limit := podspec.KernelOf(pod).Resources.Limits[corev1.ResourceName(tt.of)]
			if limit.Cmp(resource.MustParse(tt.limit)) != 0 {
				t.Errorf("limit of %s %s, want %s", limit.String(), tt.of, tt.limit)
			}
		})
	}
}

// A variable with the present value needs no permission.
func TestClient_PresentValues(t *testing.T) {
	pod, err := Build(testOptions(),
		launcher.Request{ID: testID, Spec: specOf(`{"image": "x", "serviceAccountName": "a"}`),
			Env: map[string]string{"KERNEL_IMAGE": "x", "KERNEL_NAMESPACE": "kernels", "KERNEL_SERVICE_ACCOUNT_NAME": "a"}},
		testRecord("test"))
	if err != nil || pod.Namespace != "kernels" {
		t.Errorf("got %v, %v", pod, err)
	}
	if _, err := Build(testOptions(), launcher.Request{ID: testID, Spec: specOf(`{"image": "x"}`),
		Env: map[string]string{"KERNEL_SERVICE_ACCOUNT_NAME": "default"}}, testRecord("test")); err != nil {
		t.Errorf("the default service account: %v", err)
	}
}

// No number of GPUs stands for what these kernelspecs ask for.
func TestClient_GPUsOfNoNumber(t *testing.T) {
	for resources, want := range map[string]string{
		`{"aliyun.com/gpu-mem": 8}`: `KERNEL_GPUS: the kernelspec asks for aliyun.com/gpu-mem, whose`,
		`{"nvidia.com/mig-1g.5gb": 1, "nvidia.com/mig-2g.10gb": 1}`: `KERNEL_GPUS: the kernelspec asks for ` +
			`nvidia.com/mig-1g.5gb, nvidia.com/mig-2g.10gb, whose amount this variable cannot change`,
	} {
		_, err := Build(testOptions(), launcher.Request{ID: testID, Env: map[string]string{"KERNEL_GPUS": "2"},
			Spec: specOf(`{"image": "x", "resources": {"limits": ` + resources + `}}`)}, testRecord("test"))
		var r *launcher.RefusedError
		if !errors.As(err, &r) || !strings.HasPrefix(r.Reason, want) {
			t.Errorf("%s:\ngot  %v\nwant %s", resources, err, want)
		}
	}
}
