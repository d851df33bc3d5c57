package podbuild

import (
	"slices"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

const profileSpec = `{"image": "ok/x", "resources": {"limits": {"memory": "1Gi", "cpu": 1}},
	"env": [{"name": "A", "value": "ekg"}, {"name": "B", "value": "ekg"}],
	"profiles": [{"name": "big", "image": "ok/big", "memory": "2Gi", "cpu": "2", "env": {"A": "profile $(B)"}}]}`

// A kernel with a profile has its pod, and so has the kernel's next pod, without the kernelspec.
func TestBuild_Profile(t *testing.T) {
	spec := specOf(profileSpec)
	with, ok, err := spec.WithProfile("big")
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	req, rec := launcher.Request{ID: testID, Spec: with}, testRecord("test")
	for _, when := range []string{"first", "next"} {
		pod, err := Build(testOptions(), req, rec)
		if err != nil {
			t.Fatal(err)
		}
		k := podspec.KernelOf(pod)
		got := k.Image
		for _, q := range []string{k.Resources.Requests.Memory().String(), k.Resources.Limits.Memory().String(),
			k.Resources.Requests.Cpu().String(), k.Resources.Limits.Cpu().String()} {
			got += " " + q
		}
		for _, e := range k.Env {
			got += " " + e.Name + "=" + expand(e.Value, map[string]string{"B": "wrong"})
		}
		if want := "ok/big 2Gi 2Gi 2 2 A=profile $(B) B=ekg NVIDIA_VISIBLE_DEVICES=void"; got != want {
			t.Errorf("the %s pod: got  %s\nwant %s", when, got, want)
		}
		if rec, err = podspec.ReadRecord(pod); err != nil || rec.Profile != "big" || rec.SpecName != "test" {
			t.Errorf("the record: %+v, %v", rec, err)
		}
		if req, err = ReadRequest(pod, rec); err != nil {
			t.Fatal(err)
		}
	}
	pod, err := Build(testOptions(), launcher.Request{ID: testID, Spec: spec}, rec)
	if err != nil || podspec.KernelOf(pod).Image != "ok/x" || pod.Annotations[podspec.Domain+"profile"] != "" {
		t.Errorf("without a profile: %v, %v", pod, err)
	}
}

// The policy holds for each profile. The problem names the profile, and has its line.
func TestCheck_Profiles(t *testing.T) {
	for policy, want := range map[string]string{
		`kernelspecs: {images: [ok/x]}`: `metadata.ekg.profiles[0]: with this profile, metadata.ekg.image: "ok/big" is not ` +
			`allowed; allowed: ok/x`,
		`kernelspecs: {maxima: {memory: 1500Mi}}`: `metadata.ekg.profiles[0]: with this profile, ` +
			`metadata.ekg.resources.limits.memory: 2Gi is more than the allowed 1500Mi`,
		`kernelspecs: {images: [other]}`:  `metadata.ekg.image: "ok/x" is not allowed; allowed: other`,
		`kernelspecs: {images: ["ok/*"]}`: "",
	} {
		o := testOptions()
		o.Policy = policyOf(t, policy)
		var got []string
		for _, p := range o.Check(nil)(specOf(profileSpec)) {
			if p.Line == 0 {
				continue // it has the line of a file, which this kernelspec has not
			}
			got = append(got, p.Key+": "+p.Message)
		}
		if want == "" && len(got) > 0 || want != "" && !slices.Contains(got, want) {
			t.Errorf("%s: got %s, want %s", policy, strings.Join(got, "\n"), want)
		}
	}
}
