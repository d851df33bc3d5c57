package podbuild

import (
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// warmSpec is a kernelspec of Python with this metadata.ekg.
func warmSpec(ekg string) kernelspecs.Spec {
	spec := specOf(ekg)
	spec.Language = "python"
	return spec
}

// A start fits if it differs from a plain one in its owner and in variables that a running kernel can get. Its request
// is stored with their values, so that the kernel's next pod has them.
func TestWarmKind_Fit(t *testing.T) {
	o := testOptions()
	spec := warmSpec(`{"image": "py:1", "warm": 2}`)
	kind, err := NewWarmKind(o, launcher.Request{ID: testID, Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	const other = "7b0c6c1e-2f55-4f0e-9a55-3a0d3d8f2b11"
	fit := func(spec kernelspecs.Spec, env map[string]string) (api.Assignment, bool) {
		req := launcher.Request{ID: other, Owner: "ann", Spec: spec, Env: env}
		rec := podspec.Record{ID: other, Generation: 1, Owner: "ann", SpecName: spec.Name, Created: time.Now(),
			Protocol: api.ProtocolVersion}
		pod, a, ok := kind.Fit(o, req, rec)
		if !ok {
			return a, false
		}
		again, err := ReadRequest(pod, rec)
		if err != nil || again.Env["KERNEL_USERNAME"] != env["KERNEL_USERNAME"] {
			t.Errorf("the stored request has %v, %v", again.Env, err)
		}
		return a, true
	}
	a, ok := fit(spec, map[string]string{"KERNEL_USERNAME": "ann", "KERNEL_NOTE": "$(x) $$"})
	if !ok || a.Owner != "ann" || a.Env["KERNEL_NOTE"] != "$(x) $$" {
		t.Errorf("%v %+v", ok, a)
	}
	lower := warmSpec(`{"image": "py:1", "warm": 1}`)
	again, err := NewWarmKind(o, launcher.Request{ID: other, Spec: lower})
	if err != nil || again.Content != kind.Content {
		t.Errorf("another number or id makes another kind: %v", err)
	}
	again, err = NewWarmKind(o, launcher.Request{ID: testID, Spec: warmSpec(`{"image": "py:2", "warm": 2}`)})
	if err != nil || again.Content == kind.Content {
		t.Errorf("another image makes the same kind: %v", err)
	}
	uses := warmSpec(`{"image": "py:1", "env": [{"name": "NOTE", "value": "of $(KERNEL_NOTE)"}]}`)
	for what, ok := range map[string]bool{
		"another image":        second(fit(warmSpec(`{"image": "py:2"}`), map[string]string{})),
		"an early variable":    second(fit(spec, map[string]string{"PYTHONPATH": "/x"})),
		"a variable in others": second(fit(uses, map[string]string{"KERNEL_NOTE": "x"})),
		"other resources": second(fit(warmSpec(`{"image": "py:1", "resources": {"requests": {"cpu": "3"}}}`),
			map[string]string{})),
	} {
		if ok {
			t.Errorf("%s fits", what)
		}
	}
}

func second(_ api.Assignment, ok bool) bool { return ok }

// The pod of a warm kernel is no kernel's pod: its label is another, it has no owner, and its supervisor knows it.
func TestWarmKind_Build(t *testing.T) {
	o := testOptions()
	kind, err := NewWarmKind(o, launcher.Request{ID: testID, Spec: warmSpec(`{"image": "py:1", "warm": 2}`)})
	if err != nil {
		t.Fatal(err)
	}
	pod, err := kind.Build(o, podspec.Record{ID: testID, Created: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := supervisorConfig(pod)
	if err != nil || cfg.Warm != api.WarmProcess || cfg.Owner != "" || cfg.Validate() != nil {
		t.Errorf("%+v, %v, %v", cfg, err, cfg.Validate())
	}
	if pod.Annotations[podspec.AnnotationSafeToEvict] != "true" ||
		pod.Labels[podspec.LabelManagedBy] != podspec.ManagerWarm ||
		pod.Annotations[podspec.AnnotationOwner] != "" ||
		pod.Annotations[podspec.AnnotationWarm] != kind.Content {
		t.Errorf("%v %v", pod.Labels, pod.Annotations)
	}
}

// With the policy's permission, kernelspecs with GPUs have warm kernels. A start fits if it asks for the same GPUs.
func TestWarmKind_GPUs(t *testing.T) {
	o := testOptions()
	o.Policy = wish.DefaultPolicy()
	o.Policy.Kernelspecs.WarmGPUs = true
	spec := func(gpus string) kernelspecs.Spec {
		return warmSpec(`{"image": "py:1", "warm": 1, "resources": {"limits": {"nvidia.com/gpu": "` + gpus + `"}}}`)
	}
	kind, err := NewWarmKind(o, launcher.Request{ID: testID, Spec: spec("1")})
	if err != nil || len(kind.GPUs) != 1 || kind.GPUs[0] != "nvidia.com/gpu" {
		t.Fatal(kind.GPUs, err)
	}
	if problems := o.Check(nil)(spec("1")); len(problems) > 0 {
		t.Errorf("%v", problems)
	}
	if problems := o.Check(nil)(warmSpec(`{"image": "py:1", "warm": 1, "flavor": "t4"}`)); len(problems) > 0 {
		t.Errorf("%v", problems)
	}
	for gpus, want := range map[string]bool{"1": true, "2": false} {
		rec := podspec.Record{ID: testID, Generation: 1, Owner: "ann", SpecName: "s", Created: time.Now()}
		if _, _, ok := kind.Fit(o, launcher.Request{ID: testID, Owner: "ann", Spec: spec(gpus)}, rec); ok != want {
			t.Errorf("%s GPUs: %v", gpus, ok)
		}
	}
	claim := &flavor.Flavor{Name: "claim", DRA: &flavor.DRA{Request: flavor.Request{DeviceClass: "gpu.nvidia.com"}}}
	if _, err := NewWarmKind(o, launcher.Request{ID: testID, Spec: spec("1"), Flavor: claim}); err == nil ||
		!strings.Contains(err.Error(), "resource claim") {
		t.Errorf("with a claim: %v", err)
	}
}

// Kernelspecs whose pods belong to an owner or hold GPUs have no warm kernels, and the check says why.
func TestWarmKind_None(t *testing.T) {
	o := testOptions()
	for ekg, want := range map[string]string{
		`{"image": "py:1", "warm": 1, "resources": {"limits": {"nvidia.com/gpu": "1"}}}`: "GPU",
		`{"image": "py:1", "warm": 1, "flavor": "t4"}`:                                   "GPU",
		`{"image": "py:1", "warm": 1, "env": [{"name": "OWNER", "valueFrom": {"fieldRef":
			{"fieldPath": "metadata.annotations['` + podspec.AnnotationOwner + `']"}}}]}`: "reads metadata.annotations['",
		`{"image": "py:1", "warm": 1, "env": [{"name": "OWNER", "valueFrom": {"fieldRef": {"fieldPath":
			"metadata.labels['x']"}}}]}`: "reads metadata.labels['",
		`{"image": "py:1", "warm": 1, "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath":
			"metadata.name"}}}]}`: "",
		`{"image": "py:1", "warm": 1}`: "",
	} {
		problems := o.Check(nil)(warmSpec(ekg))
		if (len(problems) > 0) != (want != "") || want != "" && (!problems[0].Warning ||
			!strings.Contains(problems[0].Message, want)) {
			t.Errorf("%s: %v", ekg, problems)
		}
	}
}

// Kernelspecs with GPUs have no warm kernels if nothing says that a pod lacks those GPUs.
func TestWarmKind_CannotGiveWay(t *testing.T) {
	o := testOptions()
	o.Policy = wish.DefaultPolicy()
	o.Policy.Kernelspecs.WarmGPUs = true
	const queue = `"labels": {"kueue.x-k8s.io/queue-name": "notebooks"}`
	limits := func(text string) string { return `"resources": {"limits": {` + text + `}}` }
	one := limits(`"nvidia.com/gpu": "1"`)
	for ekg, want := range map[string]string{
		one: "", queue: "", `"schedulerName": "own"`: "", one + `, "schedulerName": "default-scheduler"`: "",
		one + ", " + queue:                                           "a queue of Kueue (label kueue.x-k8s.io/queue-name)",
		one + `, "schedulerName": "own"`:                             "the scheduler own",
		limits(`"nvidia.com/gpu": "1", "amd.com/gpu": "1"`):          "several resources",
		limits(`"aliyun.com/gpu-mem": "4"`):                          "share GPUs",
		limits(`"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"`): "share GPUs",
		limits(`"nvidia.com/mig-1g.5gb": "1"`):                       "",
	} {
		_, err := NewWarmKind(o, launcher.Request{ID: testID, Spec: warmSpec(`{"image": "py:1", "warm": 1, ` + ekg + `}`)})
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", ekg, err)
		}
	}
}
