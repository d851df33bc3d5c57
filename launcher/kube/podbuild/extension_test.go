package podbuild

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

// Any metadata.ekg gives an error for its author or a harmless pod, and never a panic.
func FuzzExtension(f *testing.F) {
	for _, name := range []string{"smallest", "fullest"} {
		text, err := os.ReadFile(filepath.Join("testdata", name, "kernel.json"))
		if err != nil {
			f.Fatal(err)
		}
		var spec struct {
			Metadata struct {
				Ekg json.RawMessage `json:"ekg"`
			} `json:"metadata"`
		}
		if err := json.Unmarshal(text, &spec); err != nil {
			f.Fatal(err)
		}
		f.Add(string(spec.Metadata.Ekg))
	}
	f.Add(`{"image": "x", "pod": {"spec": {"containers": [{"name": "kernel", "$patch": "delete"}]}}}`)
	f.Add(`{"image": "x", "volumes": [{"name": "v", "hostPath": {"path": "/"}}]}`)
	f.Add(`{"image": "x", "pod": {"metadata": {"labels": null}, "spec": {"hostNetwork": true}}}`)
	f.Add(`{"image": "x", "resources": {"limits": {"nvidia.com/gpu": "1e30"}}}`)
	f.Add(`{"image": "x", "containers": [{"name": "a", "image": "x", "livenessProbe": {"httpGet": {"port": 1, "host": ""}}}],
		"initContainers": [{"name": "b", "image": "x", "restartPolicy": "Always", "resources": {"limits": {"cpu": 1}}}],
		"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}, "ports": [{"containerPort": 7078}]}`)
	f.Add(`{"image": "x", "serviceAccountName": "a", "serviceAccountToken": true, "volumes": [{"name": "v", "emptyDir": {}}],
		"containers": [{"name": "a", "image": "x", "securityContext": {"privileged": true},
		"volumeMounts": [{"name": "v", "mountPath": "/v"}]}], "profiles": [{"name": "a", "env": {"A": "b"}}]}`)
	f.Add(`{"image": "x", "nodeSelector": {"$patch": "nonsense"}}`)
	f.Add(`{"image": "x", "pod": {"spec": {"nodeSelector": {"$retainKeys": "x"}}}}`)
	f.Fuzz(func(t *testing.T, ekg string) {
		req := launcher.Request{ID: testID, Spec: specOf(ekg),
			Env: map[string]string{"KERNEL_CPUS": "1", "KERNEL_GPUS": "1", "KERNEL_UID": "5"}}
		pod, err := Build(testOptions(), req, testRecord("test"))
		if err != nil {
			wantUserError(t, err)
			return
		}
		checkHarmless(t, pod)
		for _, v := range pod.Spec.Volumes {
			if v.Secret != nil && v.Name != podspec.VolumeSecret { // which nothing allows
				t.Errorf("volume %+v", v)
			}
		}
	})
}

// TestBuild_Job: the pods of jobs have a priority class of their own, unless the kernelspec has one.
func TestBuild_Job(t *testing.T) {
	o := testOptions()
	o.Policy = policyOf(t, "{kernelspecs: {priorityClasses: [high]}, jobPriorityClass: filler}")
	for _, c := range []struct {
		spec string
		job  bool
		want string
	}{
		{`{"image": "x"}`, true, "filler"}, {`{"image": "x"}`, false, ""},
		{`{"image": "x", "priorityClassName": "high"}`, true, "high"},
	} {
		pod, err := Build(o, launcher.Request{ID: testID, Spec: specOf(c.spec), Job: c.job}, testRecord("test"))
		if err != nil || pod.Spec.PriorityClassName != c.want {
			t.Errorf("%s, of a job: %v: the class is %q, want %q; %v", c.spec, c.job, pod.Spec.PriorityClassName, c.want, err)
		}
	}
}

// The image of Enterprise Gateway's part of a kernelspec is used unless metadata.ekg names one. The policy holds for
// it, and a restart has the same image and launch timeout.
func TestBuild_ImageName(t *testing.T) {
	spec := kernelspecs.Spec{Name: "test", Argv: []string{"prog", "{connection_file}"}, Image: "registry.example/a:1",
		LaunchTimeout: 90 * time.Second}
	pod, err := Build(testOptions(), launcher.Request{ID: testID, Spec: spec}, testRecord("test"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := ReadRequest(pod, testRecord("test"))
	if err != nil {
		t.Fatal(err)
	}
	if again.Spec.Image != spec.Image || again.Timeout() != 90*time.Second {
		t.Errorf("got %q, %v", again.Spec.Image, again.Timeout())
	}
	if got := podspec.KernelOf(pod).Image; got != spec.Image || pod.Annotations[podspec.AnnotationLaunchTimeout] != "90" {
		t.Errorf("got %q, %v", got, pod.Annotations)
	}
	o := testOptions()
	o.Policy = wish.DefaultPolicy()
	o.Policy.Kernelspecs.Images = wish.Patterns{"registry.example/b:*"}
	if problems := o.Check(nil)(spec); len(problems) != 1 || problems[0].Key != kernelspecs.ImageNamePath {
		t.Errorf("got %v", problems)
	}
	o.Policy.Kernelspecs.Images = wish.Patterns{"*"}
	o.Policy.Kernelspecs.Allow = []string{"resources"}
	if problems := o.Check(nil)(spec); len(problems) != 1 || problems[0].Key != kernelspecs.ImageNamePath {
		t.Errorf("a policy without images: got %v", problems)
	}
	own := specOf(`{"image": "registry.example/own:1"}`)
	own.Image = spec.Image
	if pod, err = Build(testOptions(), launcher.Request{ID: testID, Spec: own}, testRecord("test")); err != nil {
		t.Fatal(err)
	}
	if got := podspec.KernelOf(pod).Image; got != "registry.example/own:1" {
		t.Errorf("got %q", got)
	}
}
