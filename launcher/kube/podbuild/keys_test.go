package podbuild

import (
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

// TestKeyVersion: the record of a pod outside the gateways' own namespace of kernels has the version with the
// namespace, also where the client has chosen it.
func TestKeyVersion(t *testing.T) {
	o := testOptions()
	spec := readSpec(t, "smallest", o)
	for _, tt := range []struct {
		change func(o *Options, req *launcher.Request)
		want   int
	}{
		{func(*Options, *launcher.Request) {}, podspec.KeyVersionName},
		{func(o *Options, req *launcher.Request) {
			o.Policy.Clients = wish.ClientRules{Allow: []string{"KERNEL_NAMESPACE"}, Namespaces: []string{"team"}}
			req.Env = map[string]string{"KERNEL_NAMESPACE": "team"}
		}, podspec.KeyVersionNamespace},
		{func(o *Options, _ *launcher.Request) {
			o.Policy.OwnerNamespace = &wish.OwnerNamespace{Name: "kernels-{owner}"}
		}, podspec.KeyVersionNamespace},
	} {
		o, req := testOptions(), launcher.Request{ID: testID, Owner: "ann", Spec: spec}
		o.Policy = wish.DefaultPolicy()
		tt.change(&o, &req)
		pod, err := Build(o, req, testRecord(spec.Name))
		if err != nil {
			t.Fatal(err)
		}
		rec, err := podspec.ReadRecord(pod)
		if err != nil || rec.KeyVersion != tt.want {
			t.Errorf("a pod in %s has version %d, %v", pod.Namespace, rec.KeyVersion, err)
		}
		if !o.MayGetKeys(pod, rec) {
			t.Errorf("a pod in %s gets no keys", pod.Namespace)
		}
		if rec.KeyVersion = podspec.KeyVersionName; o.MayGetKeys(pod, rec) != (pod.Namespace == o.Namespace) {
			t.Errorf("a pod in %s may get the keys of version 1: %v", pod.Namespace, o.MayGetKeys(pod, rec))
		}
	}
}
