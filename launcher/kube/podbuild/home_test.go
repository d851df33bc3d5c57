package podbuild

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

const homePolicy = `home:
  claim: home-{owner}
  mountPath: /home/jovyan
  size: 10Gi
  storageClass: fast
  accessModes: [ReadWriteMany]
  fsGroup: 100
`

// TestHome: each owner's kernels have the owner's home. What kernelspecs and clients choose for its place stays.
func TestHome(t *testing.T) {
	o := testOptions()
	o.Policy = policyOf(t, homePolicy)
	built := func(owner, ekg string, env map[string]string) *corev1.Pod {
		rec := testRecord("python3")
		rec.Owner = owner
		pod, err := Build(o, launcher.Request{ID: rec.ID, Owner: owner, Env: env, Spec: kernelspecs.Spec{Name: "python3",
			Argv: []string{"python3"}, Metadata: []byte(`{"ekg": {"image": "kernel:1"` + ekg + `}}`)}}, rec)
		if err != nil {
			t.Fatal(err)
		}
		return pod
	}
	home := func(pod *corev1.Pod) (claim, path, env string) {
		for _, v := range pod.Spec.Volumes {
			if v.Name == podspec.VolumeOwnerHome {
				claim = v.PersistentVolumeClaim.ClaimName
			}
		}
		for _, m := range podspec.KernelOf(pod).VolumeMounts {
			if m.Name == podspec.VolumeOwnerHome {
				path = m.MountPath
			}
		}
		for _, e := range podspec.KernelOf(pod).Env {
			if e.Name == "HOME" {
				env = e.Value
			}
		}
		return claim, path, env
	}
	pod := built("Ann@x", "", nil)
	if claim, path, env := home(pod); claim != "home--41nn-40x" || path != "/home/jovyan" || env != path ||
		pod.Spec.SecurityContext.FSGroup == nil || *pod.Spec.SecurityContext.FSGroup != 100 {
		t.Errorf("claim %q at %q, HOME %q, %+v", claim, path, env, pod.Spec.SecurityContext)
	}
	class := "fast"
	want := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kernels", Name: "home--41nn-40x",
			Labels:      map[string]string{podspec.LabelManagedBy: podspec.Manager, LabelKernelsOf: "kernels"},
			Annotations: map[string]string{podspec.AnnotationOwner: "Ann@x"}},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class,
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: resource.MustParse("10Gi")}}},
	}
	if got := HomeClaim(o, pod); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for name, pod := range map[string]*corev1.Pod{
		"no owner": built("", "", nil),
		"its own volume there": built("ann", `, "volumes": [{"name": "v", "emptyDir": {}}],
			"volumeMounts": [{"name": "v", "mountPath": "/home/jovyan"}]`, nil),
		"its own volume there, with a slash": built("ann", `, "volumes": [{"name": "v", "emptyDir": {}}],
			"volumeMounts": [{"name": "v", "mountPath": "/home/jovyan/"}]`, nil),
	} {
		if claim, path, _ := home(pod); claim != "" || path != "" || HomeClaim(o, pod) != nil {
			t.Errorf("%s: claim %q at %q", name, claim, path)
		}
	}
	elsewhere := built("ann", `, "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "home-{owner}"}}],
		"volumeMounts": [{"name": "v", "mountPath": "/home/jovyan"}], "pod": {"spec": {"containers": [{"name": "kernel",
		"env": [{"name": "HOME", "value": "/work"}]}]}}`, nil)
	if claim, _, env := home(elsewhere); claim != "" || env != "/work" || HomeClaim(o, elsewhere) == nil {
		t.Errorf("claim %q, HOME %q", claim, env)
	}
	_, err := Build(o, launcher.Request{ID: testID, Owner: strings.Repeat("@", 90), Spec: kernelspecs.Spec{Name: "p",
		Argv: []string{"p"}, Metadata: []byte(`{"ekg": {"image": "k:1"}}`)}}, testRecord("p"))
	if err == nil || !strings.Contains(err.Error(), "longer than 253 bytes") {
		t.Errorf("a long name: %v", err)
	}
	if rules := o.Policy.OwnerRules(); !slices.Equal(rules, []string{`home.claim: "home-{owner}"`}) {
		t.Errorf("%q", rules)
	}
}

// TestOwnerNames: the policy says how owners are written, also for homes and namespaces.
func TestOwnerNames(t *testing.T) {
	o := testOptions()
	o.Policy = policyOf(t, "ownerNames: safe\nownerNamespace: {name: 'k-{owner}'}\n"+homePolicy)
	rec := testRecord("python3")
	rec.Owner = "Ann"
	spec := specOf(`{"image": "x", "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data-{owner}"}}],
		"volumeMounts": [{"name": "v", "mountPath": "/data", "subPath": "{owner}"}]}`)
	pod, err := Build(o, launcher.Request{ID: rec.ID, Owner: rec.Owner, Spec: spec}, rec)
	if err != nil {
		t.Fatal(err)
	}
	const want = "ann---17239b6e"
	if claim := HomeClaim(o, pod); claim == nil || claim.Name != "home-"+want {
		t.Errorf("home: %+v", claim)
	}
	if pod.Namespace != "k-"+want {
		t.Errorf("namespace: %s", pod.Namespace)
	}
	var claim, folder string
	for _, v := range pod.Spec.Volumes {
		if v.Name == "v" {
			claim = v.PersistentVolumeClaim.ClaimName
		}
	}
	for _, m := range podspec.KernelOf(pod).VolumeMounts {
		if m.Name == "v" {
			folder = m.SubPath
		}
	}
	if claim != "data-"+want || folder != want {
		t.Errorf("claim %q, folder %q", claim, folder)
	}
}
