package podbuild

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// testFlavors returns the flavors of testdata by name.
func testFlavors(t *testing.T) map[string]*flavor.Flavor {
	t.Helper()
	file, err := flavor.Open(filepath.Join("testdata", "flavors", "flavors.yaml"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]*flavor.Flavor{}
	for _, f := range file.List() {
		byName[f.Name] = &f
	}
	return byName
}

// buildFlavored returns the pod of the kernelspec in testdata/flavors, which asks for GPUs of another kind.
func buildFlavored(t *testing.T, f *flavor.Flavor, env map[string]string) (*corev1.Pod, error) {
	t.Helper()
	o := testOptions()
	all := map[string]string{}
	maps.Copy(all, env)
	return Build(o, launcher.Request{ID: testID, Owner: "ann", Spec: readSpec(t, "flavors", o), Env: all, Flavor: f},
		testRecord("flavors"))
}

// Each kind gives a pod, and where needed a claim template, that is equal to the reviewed file.
func TestBuild_Flavors(t *testing.T) {
	for name, f := range testFlavors(t) {
		t.Run(name, func(t *testing.T) {
			pod, err := buildFlavored(t, f, nil)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, filepath.Join("flavors", name+".pod.yaml"), pod, &corev1.Pod{})
			if template := podspec.ClaimTemplate(f, "kernels"); template != nil {
				golden(t, filepath.Join("flavors", name+".claim.yaml"), template, &resourcev1.ResourceClaimTemplate{})
			}
			rec, err := podspec.ReadRecord(pod)
			if err != nil || rec.Flavor != name {
				t.Errorf("record %+v, %v", rec, err)
			}
			// A restart gives the same flavor, even if the operator's file has changed.
			req, err := ReadRequest(pod, rec)
			if err != nil {
				t.Fatal(err)
			}
			next, err := Build(testOptions(), req, rec)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, filepath.Join("flavors", name+".pod.yaml"), next, &corev1.Pod{})
		})
	}
	if podspec.ClaimTemplate(nil, "kernels") != nil {
		t.Error("a claim template without a flavor")
	}
}

// The pod does not say who may choose its flavor: the names of many users would not fit in an annotation.
func TestBuild_FlavorOfMany(t *testing.T) {
	f := *testFlavors(t)["whole"]
	for i := range 20_000 {
		f.Users = append(f.Users, fmt.Sprintf("user-%d@example.org", i))
	}
	f.Groups = []string{"canary"}
	pod, err := buildFlavored(t, &f, nil)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, filepath.Join("flavors", "whole.pod.yaml"), pod, &corev1.Pod{})
	if len(f.Users) != 20_000 || len(f.Groups) != 1 {
		t.Error("the flavor was changed")
	}
}

// KERNEL_GPUS changes the amount of the flavor's own resource and never adds another kind.
func TestBuild_FlavorAndGPUs(t *testing.T) {
	flavors := testFlavors(t)
	for _, tt := range []struct {
		flavor, gpus string
		resource     corev1.ResourceName // "" if all of it is given up
		amount       int64
		size         gpu.Amount
		refused      bool
	}{
		{"whole", "1", "nvidia.com/gpu", 1, gpu.One, false},
		{"whole", "2", "", 0, 0, true}, // the policy's maximum
		{"whole", "0", "", 0, 0, false},
		{"mig-mixed", "1", "nvidia.com/mig-1g.10gb", 1, 143, false},
		{"mig-mixed", "0", "", 0, 0, false},
		{"hami", "1", "nvidia.com/gpu", 1, 250, false},
		{"hami", "0", "", 0, 0, false},
		{"other", "1", "amd.com/gpu", 1, gpu.One, false},
		{"other", "2", "amd.com/gpu", 2, 2 * gpu.One, false},
		{"replica", "1", "nvidia.com/gpu.shared", 1, 250, false},
		{"replica", "2", "", 0, 0, true},
		{"gpu-mem", "1", "aliyun.com/gpu-mem", 4, 285, false},
		{"gpu-mem", "2", "", 0, 0, true},
		{"gpu-mem", "0", "", 0, 0, false},
		{"claim", "0", "", 0, 0, false},
		{"claim", "2", "", 0, 0, true},
		{"cpu", "0", "", 0, 0, false},
		{"cpu", "1", "", 0, 0, true},
	} {
		name := tt.flavor + " with " + tt.gpus
		pod, err := buildFlavored(t, flavors[tt.flavor], map[string]string{"KERNEL_GPUS": tt.gpus})
		var refusal *launcher.RefusedError
		if tt.refused != errors.As(err, &refusal) || !tt.refused && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			continue
		}
		asked := podspec.GPURequestOf(pod)
		kinds := map[corev1.ResourceName]int64{}
		maps.Copy(kinds, asked.Devices)
		maps.Copy(kinds, asked.Shares)
		if tt.resource == "" && (len(kinds) > 0 || len(asked.Claims) > 0) || kinds[tt.resource] != tt.amount ||
			len(asked.Devices) > 1 {
			t.Errorf("%s asks for %v and claims %v", name, kinds, asked.Claims)
		}
		if got := podspec.GPUs(pod); got != tt.size {
			t.Errorf("%s counts as %v GPUs, want %v", name, got, tt.size)
		}
	}
}

// A client's number of devices does not overflow what limits count, where the policy has no maximum.
func TestBuild_FlavorAndManyGPUs(t *testing.T) {
	o := testOptions()
	o.Policy = wish.DefaultPolicy()
	o.Policy.Clients.Maxima = nil
	for _, f := range []*flavor.Flavor{
		{Name: "two", GPU: &flavor.Devices{}, Units: &flavor.Units{Amount: gpu.Whole(2)}},
		{Name: "other", Resource: &flavor.Extended{Name: "example.com/accelerator"}}, // no name of a GPU that ekg knows
		nil,
	} {
		const most = "9223372036854775" // a greater number is rejected
		pod, err := Build(o, launcher.Request{ID: testID, Spec: readSpec(t, "flavors", o), Flavor: f,
			Env: map[string]string{"KERNEL_GPUS": most}}, testRecord("flavors"))
		if err != nil {
			t.Fatal(err)
		}
		if got := podspec.GPUs(pod); got != gpu.Whole(1_000_000) {
			t.Errorf("%+v counts as %v GPUs", f, got)
		}
	}
}

// The template's name follows its content, which cannot change in the cluster.
func TestClaimTemplate_Name(t *testing.T) {
	f := *testFlavors(t)["claim"]
	before := podspec.ClaimTemplate(&f, "kernels").Name
	f.Label, f.Spot = "another label", true
	if now := podspec.ClaimTemplate(&f, "kernels").Name; now != before {
		t.Errorf("%s, was %s", now, before)
	}
	claim := *f.DRA
	claim.Count = 2
	f.DRA = &claim
	if now := podspec.ClaimTemplate(&f, "kernels").Name; now == before {
		t.Errorf("another content has the name %s", now)
	}
}

// Only the flavor says whether a kernel takes turns at its GPU. The operator's settings say when it gives the GPU back.
func TestBuild_FlavorParks(t *testing.T) {
	turns := &flavor.Flavor{Name: "turns", Replica: &flavor.Replica{Replicas: 4}, Park: true}
	other := &flavor.Flavor{Name: "other", Replica: &flavor.Replica{Replicas: 4}}
	set := api.Park{Idle: time.Hour, After: 2 * time.Hour, IdleMemory: 1, Memory: 1}
	build := func(f *flavor.Flavor, set api.Park, change func(*launcher.Request)) api.Park {
		t.Helper()
		o := testOptions()
		o.Park = set
		req := launcher.Request{ID: testID, Owner: "ann", Spec: readSpec(t, "flavors", o), Flavor: f,
			Env: map[string]string{}}
		if change != nil {
			change(&req)
		}
		pod, err := Build(o, req, testRecord("flavors"))
		if err != nil {
			t.Fatal(err)
		}
		cfg := configOf(t, pod)
		if got := cfg.GPUSamples; (got.Park != api.Park{}) && (got.Every == 0 || cfg.GPUProgram == "") {
			t.Errorf("its GPU is not sampled: %+v", got)
		}
		return cfg.GPUSamples.Park
	}
	shared := set
	shared.Shared, shared.Memory = true, 0
	job := shared
	job.Never, job.Last = true, true
	for _, c := range []struct {
		got, want api.Park
	}{
		{build(other, set, nil), api.Park{}},
		{build(turns, api.Park{}, nil), api.Park{Shared: true, Idle: time.Minute}},
		{build(turns, set, nil), shared},
		{build(turns, set, func(r *launcher.Request) { r.Job = true }), job},
	} {
		if c.got != c.want {
			t.Errorf("%+v, want %+v", c.got, c.want)
		}
	}
}
