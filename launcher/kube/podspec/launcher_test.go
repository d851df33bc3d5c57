package podspec

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
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
			at := slices.IndexFunc(kernelOf(pod).Env, func(e corev1.EnvVar) bool { return e.Name == name })
			if at < 0 || kernelOf(pod).Env[at].Value != want {
				t.Errorf("%s is not %q: %v", name, want, kernelOf(pod).Env)
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
