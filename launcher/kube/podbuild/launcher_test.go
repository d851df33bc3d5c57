package podbuild

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// The pod of a launcher of Enterprise Gateway has its variables. The supervisor knows where it answers, also in the
// kernel's next pod.
func TestBuild_Launcher(t *testing.T) {
	spec := specOf(`{"image": "x"}`)
	spec.Argv = []string{"python", "launch_kubernetes.py", "{response_address}"}
	spec.Env = map[string]string{"EG_ALTERNATE_SIGINT": "SIGUSR2", "KERNEL_CLASS_NAME": "mine"}
	spec.Launcher = &kernelspecs.Launcher{Argv: []string{"/boot", "{kernel_id}", "{public_key}", "{port_range}"},
		Env: map[string]string{"KERNEL_LANGUAGE": "r", "KERNEL_CLASS_NAME": "theirs"}}
	req := launcher.Request{ID: testID, Owner: "ann", Spec: spec, LaunchTimeout: 90 * time.Second,
		Env: map[string]string{"KERNEL_GATEWAY": "0", "KERNEL_SPARK_CONTEXT_INIT_MODE": "lazy"}}
	for range 2 {
		pod, err := Build(testOptions(), req, testRecord("test"))
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{"KERNEL_ID": testID, "KERNEL_GATEWAY": "1", "KERNEL_LANGUAGE": "r",
			"KERNEL_SPARK_CONTEXT_INIT_MODE": "lazy", "KERNEL_USERNAME": "ann", "KERNEL_CLASS_NAME": "mine",
			"EG_LOG_LEVEL": "20", "PORT_RANGE": "0..0", "KERNEL_IMAGE": "x"} {
			at := slices.IndexFunc(podspec.KernelOf(pod).Env, func(e corev1.EnvVar) bool { return e.Name == name })
			if at < 0 || podspec.KernelOf(pod).Env[at].Value != want {
				t.Errorf("%s is not %q: %v", name, want, podspec.KernelOf(pod).Env)
			}
		}
		var cfg api.Config
		config := pod.Spec.Containers[0].Env[slices.IndexFunc(pod.Spec.Containers[0].Env,
			func(e corev1.EnvVar) bool { return e.Name == api.PodConfigVariable })].Value
		if err := json.Unmarshal([]byte(unescapeDollars(config)), &cfg); err != nil {
			t.Fatal(err)
		}
		if err := cfg.Validate(); err != nil {
			t.Error(err)
		}
		if !slices.Equal(cfg.Argv, []string{"/boot", testID, "{public_key}", "0..0"}) ||
			cfg.ResponseAddress != "127.0.0.1:8877" ||
			cfg.LaunchLimit != 90*time.Second || cfg.Env["EG_ALTERNATE_SIGINT"] != "SIGUSR2" {
			t.Errorf("the supervisor's configuration is %+v", cfg)
		}
		if req, err = ReadRequest(pod, testRecord("test")); err != nil {
			t.Fatal(err)
		}
		req.LaunchTimeout = 90 * time.Second // a client's own, which is not repeated
		req.Env = map[string]string{"KERNEL_GATEWAY": "0", "KERNEL_SPARK_CONTEXT_INIT_MODE": "lazy"}
	}
}

// A launcher starts the kernel by itself, so the image's kernelspec cannot be used. The problem has its line.
func TestBuild_LauncherOfImageKernelspec(t *testing.T) {
	for _, file := range []string{`{"display_name": "x", "language": "r", "argv": ["/boot", "{response_address}"],
		"metadata": {"ekg": {"launcher": "enterprise-gateway", "image": "x",
		"imageKernelspec": "ir"}}}`, `{"display_name": "x", "language": "r", "argv": ["/boot", "{response_address}"],
		"metadata": {"process_proxy": {"class_name": "x.KubernetesProcessProxy"}, "ekg": {"image": "x",
		"imageKernelspec": "ir"}}}`} {
		dir := filepath.Join(t.TempDir(), "r")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "kernel.json"), []byte(file), 0o644); err != nil {
			t.Fatal(err)
		}
		problems := slices.DeleteFunc(kernelspecs.Check(dir, "", testOptions().Check(nil)),
			func(p kernelspecs.Problem) bool { return p.Warning })
		if len(problems) != 1 || problems[0].Line != 3 || problems[0].Key != "metadata.ekg.imageKernelspec" ||
			problems[0].Message != "cannot be used with a launcher of Enterprise Gateway, which starts the kernel by itself" {
			t.Errorf("got %v", problems)
		}
	}
}
