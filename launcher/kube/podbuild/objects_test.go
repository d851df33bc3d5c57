package podbuild

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

const objectsPolicy = `kernelspecs:
  objects: [ConfigMap, PersistentVolumeClaim, Secret, Service]
  persistentVolumeClaims: ["data-{owner}"]
  configMaps: [common]
  storageClasses: [fast]
  maxima: {storage: 10Gi}
  ports: [7000-7999]
labels: {team: research}
`

// objectsOptions returns the options with a policy that allows all kinds of objects.
func objectsOptions(t *testing.T) Options {
	t.Helper()
	o := testOptions()
	o.Policy = policyOf(t, objectsPolicy)
	return o
}

// builtWithObjects returns the pod of the kernelspec in testdata/objects, as the cluster has it, and its objects.
func builtWithObjects(t *testing.T, owner string, generation int) (*corev1.Pod, []Object) {
	t.Helper()
	o := objectsOptions(t)
	spec := readSpec(t, "objects", o)
	rec := testRecord(spec.Name)
	rec.Owner, rec.Generation = owner, generation
	pod, err := Build(o, launcher.Request{ID: rec.ID, Owner: owner, Spec: spec,
		Env: map[string]string{"KERNEL_X": "{service.web} {owner}"}}, rec)
	if err != nil {
		t.Fatal(err)
	}
	pod.UID = "uid-of-the-pod"
	objects, err := Objects(o, Trimmed(pod))
	if err != nil {
		t.Fatal(err)
	}
	return pod, objects
}

// TestObjects: the objects of a kernelspec are as the reviewed file says. They are named for the kernel, labelled as
// its pod, and owned by the pod. A mark stands for the escaped owner. The pod refers to them by their real names.
func TestObjects(t *testing.T) {
	pod, objects := builtWithObjects(t, "Ann/../x", 1)
	var text bytes.Buffer
	for _, o := range objects {
		b, err := yaml.Marshal(o.Object.Object)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, "---\n%s", b)
	}
	file := filepath.Join("testdata", "objects", "want.yaml")
	if *update {
		if err := os.WriteFile(file, text.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || text.String() != string(want) {
		t.Errorf("%s differs; run with -update and read the difference: %v, got:\n%s", file, err, &text)
	}
	spec, err := json.Marshal(pod.Spec)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"persistentVolumeClaim":{"claimName":"ekg-` + testID + `-scratch"}`,
		`"configMap":{"name":"ekg-` + testID + `-settings"}`,
		`"secret":{"secretName":"ekg-` + testID + `-1-password"}`,
		`"secretKeyRef":{"name":"ekg-` + testID + `-1-password","key":"word"}`,
		`"configMapRef":{"name":"ekg-` + testID + `-settings"}`,
		`"configMapKeyRef":{"name":"common","key":"a"}`,
		`"value":"http://ekg-` + testID + `-web:7000/"`,
		`"value":"{service.web} {owner}"`, // a client's text is no mark
	} {
		if !strings.Contains(string(spec), want) {
			t.Errorf("the pod lacks %s:\n%s", want, spec)
		}
	}
	if strings.Contains(pod.Annotations[annotationRequest], "hunter2") ||
		!strings.Contains(pod.Annotations[podspec.AnnotationKernelObjects], "hunter2") {
		t.Errorf("the Secret is in the wrong annotation: %s", pod.Annotations[annotationRequest])
	}
}

// TestObjects_Restart: the next pod of a kernel has the same objects, but for Secrets, and is built from the stored
// request.
func TestObjects_Restart(t *testing.T) {
	first, before := builtWithObjects(t, "ann", 1)
	rec, err := podspec.ReadRecord(first)
	if err != nil {
		t.Fatal(err)
	}
	req, err := ReadRequest(Trimmed(first), rec)
	if err != nil {
		t.Fatal(err)
	}
	rec.Generation++
	second, err := Build(objectsOptions(t), req, rec)
	if err != nil {
		t.Fatal(err)
	}
	second.UID = "uid-of-the-second"
	after, err := Objects(objectsOptions(t), second)
	if err != nil {
		t.Fatal(err)
	}
	for i := range before {
		same := before[i].Object.GetName() == after[i].Object.GetName()
		if same != before[i].Kept() || same == (before[i].Kind == "Secret") {
			t.Errorf("%s: %s, then %s", before[i], before[i].Object.GetName(), after[i].Object.GetName())
		}
	}
	if !IsObjectOf(before[0].Object, second) {
		t.Error("the second pod does not know an object of its kernel")
	}
	second.Annotations[podspec.AnnotationOwner] = "bob"
	if IsObjectOf(before[0].Object, second) {
		t.Error("a pod of another owner takes the object")
	}
}

// TestObjects_Refused: each value that a kernelspec cannot have is reported with its key and line.
func TestObjects_Refused(t *testing.T) {
	const (
		service = `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {%s}}`
		claim   = `{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": {
"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}%s}}`
		config = `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "conf"%s}, "data": {}}`
		port   = `"ports": [{"port": 7000}]`
	)
	for name, tt := range map[string]struct{ policy, object, more, want string }{
		"a kind that the policy does not allow": {
			policy: "kernelspecs: {objects: [Service]}",
			object: fmt.Sprintf(config, ""),
			want:   "[0].kind: the policy does not let kernelspecs create a ConfigMap; it allows: Service"},
		"no policy": {policy: "nonRoot: false", object: fmt.Sprintf(config, ""),
			want: "[0].kind: the policy does not let kernelspecs create a ConfigMap; it allows: nothing"},
		"a key that the policy does not allow": {policy: "kernelspecs: {objects: [ConfigMap], allow: [image]}",
			object: fmt.Sprintf(config, ""), want: ": the policy does not let kernelspecs set this; it allows: image"},
		"another kind": {object: `{"apiVersion": "v1", "kind": "Pod"}`,
			want: `[0].kind: "Pod" is not a kind that is created with a pod; valid: ConfigMap, PersistentVolumeClaim, ` +
				`Secret, Service`},
		"no kind": {
			object: `{"apiVersion": "v1"}`,
			want:   `[0].kind: "" is not a kind`,
		},
		"another version": {
			object: `{"apiVersion": "v2", "kind": "Service"}`,
			want:   `[0].kind: Service has the apiVersion v1, not "v2"`,
		},
		"no object": {
			object: `"x"`,
			want:   "[0]: is a string, not an object",
		},
		"an unknown key": {object: `{"apiVersion": "v1", "kind": "ConfigMap", "dat": {}}`,
			want: "[0].dat: cannot be set; valid keys: apiVersion, binaryData, data, immutable, kind, metadata"},
		"a wrong type": {
			object: fmt.Sprintf(service, `"ports": [{"port": "x"}]`),
			want:   "[0].spec.ports[0].port: is a string, not a number",
		},
		"a number as data": {
			object: `{"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": 1}}`,
			want:   "[0].data.a: is a number, not a string",
		},
		"no base64": {
			object: `{"apiVersion": "v1", "kind": "Secret", "data": {"a": "%"}}`,
			want:   `[0].data.a: "%" is not base64`,
		},
		"a long name": {
			object: strings.Replace(fmt.Sprintf(config, ""), "conf", "a123456789012345678901x", 1),
			want:   `[0].metadata.name: "a123456789012345678901x" is not at most 22`,
		},
		"a mark in a name": {
			object: strings.Replace(fmt.Sprintf(config, ""), "conf", "a{owner}", 1),
			want:   `[0].metadata.name: "a{owner}" is not at most 22`,
		},
		"a namespace": {
			object: fmt.Sprintf(config, `, "namespace": "other"`),
			want:   "[0].metadata.namespace: cannot be set: the object is in the namespace of its kernel",
		},
		"finalizers": {
			object: fmt.Sprintf(config, `, "finalizers": ["x/y"]`),
			want:   "[0].metadata.finalizers: cannot be set: the object would stay",
		},
		"owners": {
			object: fmt.Sprintf(config, `, "ownerReferences": []`),
			want:   "[0].metadata.ownerReferences: cannot be set: the kernel's pod owns the object",
		},
		"ekg's label": {
			object: fmt.Sprintf(config, `, "labels": {"app.kubernetes.io/managed-by": "x"}`),
			want:   "[0].metadata.labels.app.kubernetes.io/managed-by: is reserved for ekg",
		},
		"the policy's": {
			object: fmt.Sprintf(config, `, "labels": {"team": "x"}`),
			want:   "[0].metadata.labels.team: is set by the operator's policy",
		},
		"a key of data": {
			object: `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"../x": ""}}`,
			want:   "[0].data.../x: is not a valid key",
		},
		"twice": {
			object: fmt.Sprintf(config, "") + ",\n" + fmt.Sprintf(config, ""),
			want:   `[1].metadata.name: "conf" is given twice`,
		},
		"too many": {
			object: strings.Repeat(fmt.Sprintf(config, "")+",", 16) + fmt.Sprintf(config, ""),
			want:   ": has 17 objects; at most 16 are allowed",
		},
		"NodePort": {
			object: fmt.Sprintf(service, `"type": "NodePort", `+port),
			want:   `[0].spec.type: "NodePort" is not allowed; allowed: ClusterIP`,
		},
		"LoadBalancer": {
			object: fmt.Sprintf(service, `"type": "LoadBalancer", `+port),
			want:   `[0].spec.type: "LoadBalancer" is not allowed; allowed: ClusterIP`,
		},
		"ExternalName": {
			object: fmt.Sprintf(service, `"type": "ExternalName", `+port),
			want:   `[0].spec.type: "ExternalName" is not allowed; allowed: ClusterIP`,
		},
		"external name": {
			object: fmt.Sprintf(service, `"externalName": "x", `+port),
			want:   "[0].spec.externalName: cannot be set: the Service leads to the kernel's pod",
		},
		"external address": {
			object: fmt.Sprintf(service, `"externalIPs": ["1.1.1.1"], `+port),
			want:   "[0].spec.externalIPs: cannot be set: a Service could take the traffic of other addresses",
		},
		"an address": {
			object: fmt.Sprintf(service, `"clusterIP": "10.0.0.9", `+port),
			want:   "[0].spec.clusterIP: can only be None",
		},
		"a selector": {
			object: fmt.Sprintf(service, `"selector": {"a": "b"}, `+port),
			want:   "[0].spec.selector: cannot be set: ekg sets it to the kernel's pod",
		},
		"a port of nodes": {
			object: fmt.Sprintf(service, `"ports": [{"port": 7000, "nodePort": 30000}]`),
			want:   "[0].spec.ports[0].nodePort: cannot be set",
		},
		"a closed port": {
			object: fmt.Sprintf(service, `"ports": [{"port": 80}]`),
			want:   "[0].spec.ports[0]: leads to 80, which is not a port in metadata.ekg.ports",
		},
		"ekg's port": {
			object: fmt.Sprintf(service, `"ports": [{"port": 80, "targetPort": "supervisor"}]`),
			want:   "[0].spec.ports[0]: leads to supervisor, which is not a port",
		},
		"another protocol": {
			object: fmt.Sprintf(service, `"ports": [{"port": 7000, "protocol": "UDP"}]`),
			want:   "[0].spec.ports[0]: leads to 7000, which is not a port",
		},
		"no port": {
			object: fmt.Sprintf(service, ""),
			want:   "[0].spec.ports: is missing",
		},
		"a status": {
			object: strings.Replace(fmt.Sprintf(service, port), `"spec"`,
				`"status": {"loadBalancer": {"ingress": []}}, "spec"`, 1),
			want: "[0].status: cannot be set",
		},
		"a token": {
			object: `{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"},
				"type": "kubernetes.io/service-account-token"}`,
			want: `[0].type: "kubernetes.io/service-account-token" is not a type that is created`,
		},
		"a bootstrap token": {
			object: `{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"},
				"type": "bootstrap.kubernetes.io/token"}`,
			want: `[0].type: "bootstrap.kubernetes.io/token" is not a type`,
		},
		"a class": {
			object: fmt.Sprintf(claim, `, "storageClassName": "slow"`),
			want:   `[0].spec.storageClassName: "slow" is not allowed; allowed: fast`,
		},
		"a class in an annotation": {
			object: strings.Replace(fmt.Sprintf(claim, ""), `"metadata": {`,
				`"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "slow"}, `, 1),
			want: "[0].metadata.annotations.volume.beta.kubernetes.io/storage-class: cannot be set: Kubernetes reads it",
		},
		"a volume": {
			object: fmt.Sprintf(claim, `, "volumeName": "x"`),
			want:   "[0].spec.volumeName: cannot be set: the claim could take a volume of others",
		},
		"volumes by labels": {
			object: fmt.Sprintf(claim, `, "selector": {}`),
			want:   "[0].spec.selector: cannot be set",
		},
		"a large volume": {
			object: strings.Replace(fmt.Sprintf(claim, ""), "1Gi", "11Gi", 1),
			want:   "[0].spec.resources.requests.storage: 11Gi is more than the allowed 10Gi",
		},
		"no size": {
			object: strings.Replace(fmt.Sprintf(claim, ""), "storage", "space", 1),
			want:   "[0].spec.resources.requests.storage: is missing",
		},
		"no mode": {
			object: strings.Replace(fmt.Sprintf(claim, ""), `"ReadWriteOnce"`, "", 1),
			want:   "[0].spec.accessModes: is missing",
		},
		"a copy of another": {
			object: fmt.Sprintf(claim, `, "dataSource": {"kind": "PersistentVolumeClaim", "name": "data-bob"}`),
			want:   `[0].spec.dataSource.name: "data-bob" is not allowed; allowed: data-owner`,
		},
		"a snapshot": {
			object: fmt.Sprintf(claim, `, "dataSource": {"apiGroup": "snapshot.storage.k8s.io",
				"kind": "VolumeSnapshot", "name": "s"}`),
			want: "[0].spec.dataSource: can only be a PersistentVolumeClaim",
		},
		"another namespace": {
			object: fmt.Sprintf(claim, `, "dataSourceRef": {"kind": "PersistentVolumeClaim",
				"name": "data-owner", "namespace": "x"}`),
			want: "[0].spec.dataSourceRef.namespace: cannot be set",
		},
		"a mark of no Service": {
			object: strings.Replace(fmt.Sprintf(config, ""), `"data": {}`, `"data": {"a": "{service.x}"}`, 1),
			want:   `[0].data.a: no Service among the objects is named "x"`},
	} {
		t.Run(name, func(t *testing.T) {
			o := objectsOptions(t)
			if tt.policy != "" {
				o.Policy = policyOf(t, tt.policy)
			}
			problems := o.Check(nil)(specOf(`{"image": "x", "ports": [{"containerPort": 7000}],
"objects": [
` + tt.object + `]}`))
			var got []string
			for _, p := range problems {
				if p.Line < 2 && !strings.HasPrefix(p.Key, "metadata.ekg.ports") && p.Key != "metadata.ekg.image" {
					t.Errorf("no line: %+v", p)
				}
				got = append(got, p.Key+": "+p.Message)
			}
			if !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, "metadata.ekg.objects"+tt.want) }) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

// TestObjects_OthersOnly: no kernelspec and no client names an object of another kernel, also if the policy's patterns
// match.
func TestObjects_OthersOnly(t *testing.T) {
	o := testOptions()
	o.Policy = policyOf(t, `clients: {allow: [KERNEL_VOLUMES], volumes: [persistentVolumeClaim, configMap, ephemeral],
  persistentVolumeClaims: ["*"], configMaps: ["*"]}`)
	const other = "ekg-bbbbbbbb-0000-4000-8000-000000000002-data"
	for what, volume := range map[string]string{
		"is an object of one kernel": `{"persistentVolumeClaim": {"claimName": "` + other + `"}, "name": "v"}`,
		"one kernel":                 `{"configMap": {"name": "` + other + `"}, "name": "v"}`,
		"an object of":               `{"projected": {"sources": [{"configMap": {"name": "` + other + `"}}]}, "name": "v"}`,
		"which a kernelspec": `{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"],
			"dataSource": {"kind": "PersistentVolumeClaim", "name": "` + other + `"}}}}}`,
	} {
		problems := o.Check(nil)(specOf(`{"image": "x", "volumes": [` + volume + `]}`))
		if len(problems) != 1 || !strings.Contains(problems[0].Message, what) {
			t.Errorf("a kernelspec with %s: %v", volume, problems)
		}
		if strings.Contains(volume, "projected") {
			continue
		}
		_, err := Build(o, launcher.Request{ID: testID, Owner: "ann", Spec: specOf(`{"image": "x"}`),
			Env: map[string]string{"KERNEL_VOLUMES": "[" + volume + "]"}}, testRecord("test"))
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("a client with %s: %v", volume, err)
		}
	}
}

// TestObjects_EphemeralCopies: a client's volume is no copy of another user's claim or of a snapshot.
func TestObjects_EphemeralCopies(t *testing.T) {
	o := testOptions()
	o.Policy = policyOf(t, `clients: {allow: [KERNEL_VOLUMES], volumes: [ephemeral],
  persistentVolumeClaims: ["home-{owner}"]}`)
	for source, want := range map[string]string{
		`{"kind": "PersistentVolumeClaim", "name": "home-ann"}`:                      "",
		`{"kind": "PersistentVolumeClaim", "name": "home-bob"}`:                      `"home-bob" is not allowed`,
		`{"kind": "VolumeSnapshot", "apiGroup": "storage.example", "name": "bob-1"}`: "can only be a PersistentVolumeClaim",
	} {
		_, err := Build(o, launcher.Request{ID: testID, Owner: "ann", Spec: specOf(`{"image": "x"}`),
			Env: map[string]string{"KERNEL_VOLUMES": `[{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {
				"accessModes": ["ReadWriteOnce"], "dataSource": ` + source + `}}}}]`}}, testRecord("test"))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", source, err, want)
		}
	}
}

// TestObjects_EphemeralClass: the policy's classes hold for the volumes of clients and kernelspecs that a pod creates,
// and these cannot take a volume of others.
func TestObjects_EphemeralClass(t *testing.T) {
	o := testOptions()
	o.Policy = policyOf(t, `kernelspecs: {storageClasses: [fast]}
clients: {allow: [KERNEL_VOLUMES], volumes: [ephemeral]}`)
	for template, want := range map[string]string{
		`"spec": {"storageClassName": "fast"}`: "",
		`"spec": {"storageClassName": "slow"}`: `"slow" is not allowed`,
		`"spec": {"volumeName": "pv-1"}`:       "could take a volume of others",
		`"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "slow"}}, "spec": {}`: "Kubernetes reads it",
	} {
		volume := `{"name": "v", "ephemeral": {"volumeClaimTemplate": {` + template + `}}}`
		_, err := Build(o, launcher.Request{ID: testID, Owner: "ann", Spec: specOf(`{"image": "x"}`),
			Env: map[string]string{"KERNEL_VOLUMES": "[" + volume + "]"}}, testRecord("test"))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("a client with %s: %v, want %q", template, err, want)
		}
		problems := o.Check(nil)(specOf(`{"image": "x", "volumes": [` + volume + `]}`))
		if (len(problems) == 0) != (want == "") || want != "" && !strings.Contains(problems[0].Message, want) {
			t.Errorf("a kernelspec with %s: %v, want %q", template, problems, want)
		}
	}
}

// TestObjects_Size: a kernelspec whose objects do not fit into the pod's annotations is refused, and not cut.
func TestObjects_Size(t *testing.T) {
	o := objectsOptions(t)
	for n, fits := range map[int]bool{80 << 10: true, 90 << 10: false} {
		spec := specOf(`{"image": "x", "objects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"},
			"data": {"a": "` + strings.Repeat("x", n) + `"}}]}`)
		_, err := Build(o, launcher.Request{ID: testID, Owner: "ann", Spec: spec}, testRecord("test"))
		if (err == nil) != fits {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// TestObjects_Warm: a kernelspec with objects has no warm kernels, and says why.
func TestObjects_Warm(t *testing.T) {
	o := objectsOptions(t)
	problems := o.Check(nil)(specOf(`{"image": "x", "warm": 1, "objects": [{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": {"name": "c"}}]}`))
	if len(problems) != 1 || !problems[0].Warning || !strings.Contains(problems[0].Message, "objects of their own") {
		t.Errorf("%+v", problems)
	}
}

// TestObjects_NoUsers: a gateway without users refuses a kernelspec whose objects name the owner.
func TestObjects_NoUsers(t *testing.T) {
	problems := wish.CheckNoOwner(specOf(`{"image": "x", "objects": [{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": {"name": "c"}, "data": {"a": "{owner}"}}]}`))
	if len(problems) != 1 || problems[0].Key != "metadata.ekg.objects[0].data.a" {
		t.Errorf("%+v", problems)
	}
}

// TestRender_Objects: objects are printed, without a value of a Secret.
func TestRender_Objects(t *testing.T) {
	o := objectsOptions(t)
	text, err := Render(o, launcher.Request{ID: testID, Owner: "ann", Spec: readSpec(t, "objects", o)}, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"kind: PersistentVolumeClaim", "kind: Service", "word: <redacted>",
		"uid: <of the pod>"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("it lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "hunter2") {
		t.Errorf("it has the Secret:\n%s", text)
	}
}

var _ kernelspecs.Chooser = (*wish.SpecObject)(nil)
