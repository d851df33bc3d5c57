package podbuild

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Pod and secret are equal to the reviewed files, which Kubernetes' types decode without loss.
func TestBuild_Golden(t *testing.T) {
	for name, env := range map[string]map[string]string{
		"smallest": nil,
		"fullest": {"KERNEL_USERNAME": "ann", "KERNEL_ID": testID, "KERNEL_TEAM": "/teams/$(TEAM)", "KERNEL_CPUS": "2",
			"KERNEL_MEMORY_LIMIT": "16Gi",
			"KERNEL_GPUS":         "2", "KERNEL_UID": "1234", "KERNEL_GID": "100", "KERNEL_WORKING_DIR": "/home/ann/$$work",
			"KERNEL_LAUNCH_TIMEOUT": "39.5",
			"KERNEL_IMAGE":          "registry.example/kernels/torch:2.10", "KERNEL_NAMESPACE": "vision",
			"KERNEL_SERVICE_ACCOUNT_NAME": "kernel-ann",
			"KERNEL_POD_NAME":             "ann-notebook",
			"KERNEL_VOLUMES":              "- name: home\n  persistentVolumeClaim: {claimName: home-ann}\n",
			"KERNEL_VOLUME_MOUNTS":        `[{"name": "home", "mountPath": "/home/ann"}]`, "EKG_TOKEN": "not for kernels"},
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions()
			if name == "fullest" {
				env["KERNEL_VOLUMES"] = strings.ReplaceAll(env["KERNEL_VOLUMES"], "name: home\n", "name: mine\n")
				env["KERNEL_VOLUME_MOUNTS"] = strings.ReplaceAll(env["KERNEL_VOLUME_MOUNTS"], `"home"`, `"mine"`)
				o.Supervisor.PullPolicy, o.Supervisor.PullSecrets = "IfNotPresent", []string{"ekg-registry"}
				o.Supervisor.CPU, o.Supervisor.Memory, o.Supervisor.MemoryLimit = "200m", "1Gi", "1Gi"
				o.ClusterChoosesUser, o.Architectures = true, []string{"amd64", "arm64"}
				var err error
				if o.Policy, err = wish.ReadPolicy("testdata/fullest/policy.yaml"); err != nil {
					t.Fatal(err)
				}
			}
			req := launcher.Request{ID: testID, Owner: "ann", Spec: readSpec(t, name, o), Env: env}
			if err := req.ParseEnv(); err != nil {
				t.Fatal(err)
			}
			pod, err := Build(o, req, testRecord(name))
			if err != nil {
				t.Fatal(err)
			}
			pod.UID = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
			secret := podspec.BuildSecret(pod,
				podspec.Keys{TLSSeed: []byte(strings.Repeat("\x01", 32)), Token: "token", KernelKey: "key", Identity: "me"})
			golden(t, name+".pod.yaml", pod, &corev1.Pod{})
			golden(t, name+".secret.yaml", secret, &corev1.Secret{})
		})
	}
}

// Bad options are named. A limit that is not given is at least the request.
func TestOptions_Validate(t *testing.T) {
	for _, tt := range []struct {
		change func(*Options)
		want   string
	}{
		{func(*Options) {}, ""},
		{func(o *Options) { o.Supervisor.Memory = "2Gi" }, ""},
		{func(o *Options) { o.Supervisor.Memory = "-1" }, `supervisor.memory: "-1" is not a quantity like 500m or 128Mi`},
		{func(o *Options) { o.Supervisor.Memory, o.Supervisor.MemoryLimit = "2Gi", "1Gi" },
			"supervisor.memoryLimit: 1Gi is less than the request, 2Gi"},
		{func(o *Options) { o.Supervisor.PullPolicy = "never" },
			`supervisor.pullPolicy: "never" is not Always, IfNotPresent or Never`},
		{func(o *Options) { o.Supervisor.PullSecrets = []string{"a/b"} },
			`supervisor.pullSecrets: "a/b" is not a valid Kubernetes name`},
		{func(o *Options) { o.Architectures = []string{"x y"} }, `Architectures: "x y" is not a valid label value`},
	} {
		o := testOptions()
		tt.change(&o)
		got := ""
		if err := o.Validate(); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

func TestBuild_AnyValueArrives(t *testing.T) {
	if got := expand("$(A) $$(A) $$$(A) $(B) $ $", map[string]string{"A": "x"}); got != "x $(A) $x $(B) $ $" {
		t.Fatalf("the test's own kubelet says %q", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		piece := rapid.OneOf(rapid.SampledFrom([]string{"$", "$$", "$(", "$(KERNEL_A)", "$(KUBERNETES_SERVICE_HOST)", ")",
			"\n", `"`, `\`, "${HOME}"}), rapid.String())
		value := strings.ReplaceAll(strings.Join(rapid.SliceOf(piece).Draw(t, "value"), ""), "\x00", "")
		req := launcher.Request{ID: testID, Spec: specOf(`{"image": "x"}`),
			Env: map[string]string{"KERNEL_A": "a", "KERNEL_B": value}, WorkingDir: "/" + value}
		req.Spec.Argv = append(req.Spec.Argv, value)
		pod, err := Build(testOptions(), req, testRecord("test"))
		if err != nil {
			t.Fatal(err)
		}
		vars := map[string]string{"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
		for _, e := range podspec.KernelOf(pod).Env {
			vars[e.Name] = expand(e.Value, vars)
		}
		if vars["KERNEL_B"] != value {
			t.Fatalf("got %q, want %q", vars["KERNEL_B"], value)
		}
		cfg := configOf(t, pod)
		if cfg.Argv[2] != value && !strings.Contains(value, "{") || cfg.WorkingDir != "/"+value {
			t.Fatalf("got argv %q and directory %q, want %q", cfg.Argv[2], cfg.WorkingDir, value)
		}
	})
}

// The supervisor accepts the configuration in the pod, with the files of the secret.
func TestBuild_SupervisorUnderstands(t *testing.T) {
	o := testOptions()
	o.Policy = policyOf(t, strictPolicy)
	for _, ekg := range []string{`{"image": "ok/x"}`,
		`{"image": "ok/x", "imageKernelspec": "ir", "terminationGracePeriodSeconds": 10}`} {
		req := launcher.Request{ID: testID, Spec: specOf(ekg), WorkingDir: "/work"}
		pod, err := Build(o, req, testRecord("test"))
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		keys := podspec.Keys{TLSSeed: []byte(strings.Repeat("s", 32)), Token: strings.Repeat("t", 64),
			KernelKey: strings.Repeat("k", 64), Identity: strings.Repeat("i", 64)}
		for name, content := range podspec.BuildSecret(pod, keys).Data {
			if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		text, err := json.Marshal(configOf(t, pod))
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := api.ParseConfig([]byte(strings.Replace(string(text), podspec.SecretDir, dir, 1)))
		if err != nil || len(cfg.Ignored) > 0 || cfg.Token != keys.Token ||
			string(cfg.TLSSeed) != string(keys.TLSSeed) || cfg.WorkingDir != "/work" {
			t.Errorf("%s: got %+v, %v", ekg, cfg, err)
		}
	}
}

// Keys of a kernelspec have these effects, which no golden file shows.
func TestBuild_Consequences(t *testing.T) {
	build := func(t *testing.T, ekg string, env map[string]string) *corev1.Pod {
		t.Helper()
		pod, err := Build(testOptions(), launcher.Request{ID: testID, Spec: specOf(ekg), Env: env}, testRecord("test"))
		if err != nil {
			t.Fatal(err)
		}
		return pod
	}
	devices := func(pod *corev1.Pod) string {
		for _, e := range podspec.KernelOf(pod).Env {
			if e.Name == podspec.VisibleDevices {
				return e.Value
			}
		}
		return "unset"
	}
	shm := func(pod *corev1.Pod) string {
		for _, v := range pod.Spec.Volumes {
			if v.Name == podspec.VolumeShm {
				return v.EmptyDir.SizeLimit.String() + " " + string(v.EmptyDir.Medium)
			}
		}
		return "none"
	}
	for _, tt := range []struct{ name, ekg, devices, shm string }{
		{"no GPU", `{"image": "x"}`, "void", "none"},
		{"another device", `{"image": "x", "resources": {"limits": {"rdma/hca": "1"}}}`, "void", "none"},
		{"a GPU", `{"image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}`, "unset", "1Gi Memory"},
		{"none of them", `{"image": "x", "resources": {"limits": {"nvidia.com/gpu": "0"}}}`, "void", "none"},
		{"a slice of one", `{"image": "x", "resources": {"limits": {"nvidia.com/mig-1g.5gb": 1}}}`, "unset", "1Gi Memory"},
		{"memory of one, as a request", `{"image": "x", "resources": {"requests": {"aliyun.com/gpu-mem": 3}}}`, "unset",
			"1Gi Memory"},
		{"a claim", `{"image": "x", "resourceClaims": [{"name": "g", "resourceClaimName": "g"}]}`, "void", "1Gi Memory"},
		{"no shared memory", `{"image": "x", "shmSize": "0", "resources": {"limits": {"nvidia.com/gpu": "1"}}}`, "unset",
			"none"},
		{"much shared memory", `{"image": "x", "shmSize": "3Gi"}`, "void", "3Gi Memory"},
		{"all devices by the operator's wish", `{"image": "x", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}`,
			"all", "none"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := build(t, tt.ekg, nil)
			if got := devices(pod); got != tt.devices {
				t.Errorf("%s is %s, want %s", podspec.VisibleDevices, got, tt.devices)
			}
			if got := shm(pod); got != tt.shm {
				t.Errorf("shared memory is %s, want %s", got, tt.shm)
			}
			k := podspec.KernelOf(pod)
			for name, q := range k.Resources.Requests {
				if limit := k.Resources.Limits[name]; wish.IsWholeOnly(string(name)) && limit.Cmp(q) != 0 {
					t.Errorf("%s: the limit is %s, the request %s", name, limit.String(), q.String())
				}
			}
			if len(pod.Spec.ResourceClaims) != len(k.Resources.Claims) {
				t.Errorf("the kernel has %v of the claims %v", k.Resources.Claims, pod.Spec.ResourceClaims)
			}
		})
	}
	t.Run("a short grace", func(t *testing.T) {
		pod := build(t, `{"image": "x", "terminationGracePeriodSeconds": 10}`, nil)
		cfg := configOf(t, pod)
		if grace := time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second; 2*cfg.StopGrace+
			2*time.Second > grace || cfg.TerminationGrace != grace || cfg.StopGrace <= 0 {
			t.Errorf("the pod's grace is %s, the supervisor's %s, its stop grace %s", grace, cfg.TerminationGrace, cfg.StopGrace)
		}
	})
	t.Run("capabilities stay dropped", func(t *testing.T) {
		pod := build(t, `{"image": "x", "securityContext": {"capabilities": {"drop": ["NET_RAW"]}}}`, nil)
		if drop := podspec.KernelOf(pod).SecurityContext.Capabilities.Drop; !slices.Contains(drop, "ALL") {
			t.Errorf("only %v are dropped", drop)
		}
	})
	t.Run("the image's own kernelspec", func(t *testing.T) {
		req := launcher.Request{ID: testID, Spec: specOf(`{"image": "x", "imageKernelspec": "ir"}`)}
		req.Spec.Argv = nil
		pod, err := Build(testOptions(), req, testRecord("test"))
		if err != nil {
			t.Fatal(err)
		}
		if cfg := configOf(t, pod); len(cfg.Argv) != 0 || cfg.ImageKernelspec != "ir" {
			t.Errorf("got %v of %q", cfg.Argv, cfg.ImageKernelspec)
		}
	})
	t.Run("python3 is the image's", func(t *testing.T) {
		req := launcher.Request{ID: testID, Spec: specOf(`{"image": "x"}`)}
		req.Spec.Argv, req.Spec.Prefix = []string{"python3", "-f", "{connection_file}"}, "/usr"
		pod, err := Build(testOptions(), req, testRecord("test"))
		if err != nil {
			t.Fatal(err)
		}
		if cfg := configOf(t, pod); !slices.Equal(cfg.Argv, req.Spec.Argv) {
			t.Errorf("got %q", cfg.Argv)
		}
	})
	t.Run("no root anywhere", func(t *testing.T) {
		o := testOptions()
		o.Policy = wish.DefaultPolicy()
		o.Policy.NonRoot = true
		pod, err := Build(o, launcher.Request{ID: testID, Spec: specOf(`{"image": "x"}`)}, testRecord("test"))
		if err != nil {
			t.Fatal(err)
		}
		if nonRoot := podspec.KernelOf(pod).SecurityContext.RunAsNonRoot; nonRoot == nil || !*nonRoot {
			t.Error("runAsNonRoot is not set")
		}
	})
}

// A kernelspec that lacks something for a pod gives a FailedError, not a RefusedError.
func TestBuild_Failures(t *testing.T) {
	for _, tt := range []struct {
		name string
		spec kernelspecs.Spec
		want string
	}{
		{"no image", kernelspecs.Spec{Name: "a", Argv: []string{"x"}},
			"kernelspec a has no image: metadata.ekg.image is missing"},
		{"no argv", kernelspecs.Spec{Name: "a", Metadata: []byte(`{"ekg": {"image": "x"}}`)},
			"kernelspec a has no command: it has neither argv nor metadata.ekg.imageKernelspec"},
	} {
		_, err := Build(testOptions(), launcher.Request{ID: testID, Spec: tt.spec}, testRecord("a"))
		var f *launcher.FailedError
		if !errors.As(err, &f) || f.Reason != tt.want {
			t.Errorf("%s: got %v, want %s", tt.name, err, tt.want)
		}
	}
	o := testOptions()
	o.KernelImage = "default"
	if pod, err := Build(o, launcher.Request{ID: testID, Spec: kernelspecs.Spec{Name: "a", Argv: []string{"x"}}},
		testRecord("a")); err != nil || podspec.KernelOf(pod).Image != "default" {
		t.Errorf("the default image is not used: %v", err)
	}
}

// The same arguments give the same pod, although maps have no order.
func TestBuild_Deterministic(t *testing.T) {
	o := testOptions()
	o.Policy, _ = wish.ReadPolicy("testdata/fullest/policy.yaml")
	req := launcher.Request{ID: testID, Spec: readSpec(t, "fullest", o),
		Env: map[string]string{"KERNEL_A": "1", "KERNEL_B": "2", "KERNEL_C": "3"}}
	var first string
	for range 20 {
		req.Env = maps.Clone(req.Env)
		pod, err := Build(o, req, testRecord("fullest"))
		if err != nil {
			t.Fatal(err)
		}
		text, err := yaml.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = string(text)
		}
		if string(text) != first {
			t.Fatal("two pods of one request differ")
		}
	}
}

// The kernelspec's cull settings replace the operator's, and reach the supervisor.
func TestBuild_Cull(t *testing.T) {
	o := testOptions()
	o.KernelImage = "kernel:1"
	o.Cull = api.Cull{IdleTimeout: time.Hour, MaxAge: 24 * time.Hour, Warning: 5 * time.Minute}
	for ekg, want := range map[string]api.Cull{
		`{}`: {IdleTimeout: time.Hour, MaxAge: 24 * time.Hour, Warning: 5 * time.Minute},
		`{"cull": {"idleTimeout": "9h", "maxAge": "12h", "warning": "1m"}}`: {IdleTimeout: 9 * time.Hour,
			MaxAge: 12 * time.Hour, Warning: time.Minute},
	} {
		pod, err := Build(o, launcher.Request{ID: testID, Spec: specOf(ekg)}, testRecord("test"))
		if err != nil {
			t.Fatal(err)
		}
		var cfg api.Config
		if err := json.Unmarshal([]byte(pod.Spec.Containers[0].Env[0].Value), &cfg); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(cfg.Cull, want) {
			t.Errorf("%s: got %+v, want %+v", ekg, cfg.Cull, want)
		}
	}
	// Only a pod that may have a GPU has a limit for idle GPUs, and samples.
	o.Cull.GPU = 0.1
	for ekg, want := range map[string]string{`{}`: "", `{"resources": {"limits": {"nvidia.com/gpu": 1}}}`: gpuProgram,
		`{"resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}}}`:                  gpuProgram,
		`{"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}`: gpuProgram} {
		pod, err := Build(o, launcher.Request{ID: testID, Spec: specOf(ekg)}, testRecord("test"))
		if err != nil {
			t.Fatal(err)
		}
		var cfg api.Config
		if err := json.Unmarshal([]byte(pod.Spec.Containers[0].Env[0].Value), &cfg); err != nil || cfg.GPUProgram != want ||
			(cfg.Cull.GPU > 0) != (want != "") || (cfg.GPUSamples.Every > 0) != (want != "") {
			t.Errorf("%s: the supervisor gets %q, %g and samples %+v, %v", ekg, cfg.GPUProgram, cfg.Cull.GPU,
				cfg.GPUSamples, err)
		}
	}
}
