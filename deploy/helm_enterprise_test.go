package deploy_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// enterpriseChanges has another value for values of Enterprise Gateway's chart, as YAML. The test changes other
// numbers, texts and booleans by their type.
var enterpriseChanges = map[string]string{
	"image":                                 "r/ekg:2",
	"global.imagePullSecrets":               "[a]",
	"global.commonLabels":                   "{a: b}",
	"imagePullSecretsCreate.annotations":    "{a: b}",
	"imagePullSecretsCreate.secrets":        "[{name: a, data: e30=}]",
	"imagePullPolicy":                       "Always",
	"service.type":                          "LoadBalancer",
	"service.externalIPs.k8sMasterPublicIP": "10.0.0.1",
	"deployment.annotations":                "{a: b}",
	"deployment.resources":                  "{limits: {cpu: 2}}",
	"deployment.tolerations":                "[{key: a, operator: Exists}]",
	"deployment.affinity":                   "{nodeAffinity: {}}",
	"deployment.nodeSelector":               "{a: b}",
	"deployment.extraEnv.EG_INHERITED_ENVS": "PATH,A",
	"logLevel":                              "ERROR",
	"authToken":                             "another",
	"kernel.allowedKernels":                 "[a]",
	"kernelspecs.image":                     "r/specs:2",
	"kernelspecs.imagePullPolicy":           "Never",
	"nfs.internalServerIPAddress":           "10.0.0.2",
	"kernelspecsPvc.name":                   "other",
	"ingress.ingressClassName":              "other",
	"ingress.pathType":                      "Exact",
	"ingress.path":                          "/b",
	"ingress.annotations":                   "{a: b}",
	"imagePullSecretsCreate.enabled":        "false",
	"ingress.enabled":                       "false",
	"kernelspecsPvc.enabled":                "false",
	"nfs.enabled":                           "false",
}

// enterpriseNeeds are the values without which others have no effect in Enterprise Gateway's chart either.
var enterpriseNeeds = map[string]string{
	"imagePullSecretsCreate": "imagePullSecretsCreate: {enabled: true, secrets: [{name: p, data: e30=}]}",
	"kernelspecs":            "kernelspecs: {image: r/specs:1}",
	"nfs":                    "nfs: {enabled: true, internalServerIPAddress: 10.0.0.1}",
	"kernelspecsPvc":         "kernelspecsPvc: {enabled: true, name: p}",
	"ingress":                "ingress: {enabled: true, hostName: a.example.com}\nsettings: {base-url: /b}",
}

// flatten returns the values that are not maps by their paths. An empty map is a value.
func flatten(path string, v any, into map[string]any) {
	m, ok := v.(map[string]any)
	if !ok || len(m) == 0 {
		into[path] = v
		return
	}
	for name, v := range m {
		flatten(strings.TrimPrefix(path+"."+name, "."), v, into)
	}
}

// nested returns YAML with one value.
func nested(path, value string) string {
	var b strings.Builder
	names := strings.Split(path, ".")
	for i, name := range names {
		fmt.Fprintf(&b, "%s%s: ", strings.Repeat("  ", i), name)
		if i < len(names)-1 {
			b.WriteString("\n")
		}
	}
	return b.String() + value + "\n"
}

// TestHelm_EnterpriseValues installs the chart with all values of Enterprise Gateway's chart but the image. Each of
// them is changed: the objects change, or the notes or the error name it. EKG_TEST_ENTERPRISE is what hack/env/peers
// prints.
func TestHelm_EnterpriseValues(t *testing.T) {
	peers := os.Getenv("EKG_TEST_ENTERPRISE")
	if peers == "" {
		t.Skip("EKG_TEST_ENTERPRISE is not set")
	}
	file := filepath.Join(peers, "eg-source/etc/kubernetes/helm/enterprise-gateway/values.yaml")
	text, err := os.ReadFile(file)
	var values map[string]any
	if err == nil {
		err = yaml.Unmarshal(text, &values)
	}
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	// install returns the objects, and the notes or the error. Nothing of them is random.
	install := func(more ...string) (objects, said string) {
		args := []string{"install", "ekg", "helm/ekg", "--namespace", "ekg", "--dry-run=client", "--values", file}
		for i, m := range append([]string{"image: r/ekg:1\nauthToken: a\nmasterKey: {existingSecret: m}"}, more...) {
			name := filepath.Join(dir, fmt.Sprint(i))
			if err := os.WriteFile(name, []byte(m), 0o600); err != nil {
				t.Fatal(err)
			}
			args = append(args, "--values", name)
		}
		out, err := helm(t, args...)
		if err != nil {
			return "", err.Error()
		}
		_, out, _ = strings.Cut(out, "HOOKS:") // the time comes before
		objects, said, _ = strings.Cut(out, "NOTES:")
		_, said, _ = strings.Cut(said, "Values without an effect:")
		return objects, said
	}
	if objects, said := install(); objects == "" || strings.Contains(objects, `- ""`) {
		t.Fatalf("Enterprise Gateway's values cannot be used, or an entry of a list is empty: %s\n%s", said, objects)
	}
	flat := map[string]any{}
	flatten("", values, flat)
	delete(flat, "service.ports") // the next test
	if len(flat) < 50 {
		t.Fatalf("there are only %d values", len(flat))
	}
	for _, path := range slices.Sorted(maps.Keys(flat)) {
		change := enterpriseChanges[path]
		switch v := flat[path].(type) {
		case bool:
			if change == "" {
				change = fmt.Sprint(!v)
			}
		case float64:
			change = fmt.Sprint(v + 1)
		case string:
			if change == "" {
				change = "other"
			}
		}
		if change == "" && !strings.HasPrefix(path, "kip.") {
			t.Errorf("%s: the test has no other value", path)
		}
		area, _, _ := strings.Cut(path, ".")
		before, remarks := install(enterpriseNeeds[area])
		after, said := install(enterpriseNeeds[area], nested(path, change))
		if before == "" {
			t.Fatalf("%s cannot be used", enterpriseNeeds[area])
		}
		named := strings.Contains(said, path+": ") || area == "kip" && strings.Contains(said, "kip: ")
		if before == after && remarks == said && !named {
			t.Errorf("%s: %s has no effect, and neither notes nor error name it:\n%s", path, change, said)
		}
		if after == "" && !named {
			t.Errorf("%s: %s is rejected without its name: %s", path, change, said)
		}
	}
}

// Ports and addresses of Enterprise Gateway's values.
func TestHelm_EnterpriseService(t *testing.T) {
	for _, tt := range []struct {
		values   string
		port     int32
		nodePort int32
		ips      []string
	}{
		{"{externalIPs: {k8sMasterPublicIP: ''}, type: NodePort, ports: [{name: http-response, port: 8877, " +
			"nodePort: 30481}, {name: http, port: 8888, targetPort: 8888, nodePort: 32652}]}", 8888, 32652, nil},
		{"{externalIPs: ['', 10.0.0.1], type: NodePort, nodePort: 30001, ports: [{name: http, port: 9, nodePort: 30002}]}",
			9, 30001, []string{"10.0.0.1"}},
		{"{externalIPs: {k8sMasterPublicIP: 10.0.0.2}}", 80, 0, []string{"10.0.0.2"}},
	} {
		s := object[corev1.Service](t, mustTemplate(t, "service: "+tt.values), "Service ekg/ekg").Spec
		if len(s.Ports) != 1 || s.Ports[0].Port != tt.port || s.Ports[0].NodePort != tt.nodePort ||
			!slices.Equal(s.ExternalIPs, tt.ips) {
			t.Errorf("%s: the service is %+v", tt.values, s)
		}
	}
}
