//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// namespacesPolicy gives each user a namespace. Its mark stands for the beginning of the namespaces' names.
const namespacesPolicy = `ownerNamespace:
  name: "%[1]s-{owner}"
  labels: {pod-security.kubernetes.io/enforce: baseline}
  objects:
    - apiVersion: v1
      kind: ResourceQuota
      metadata: {name: kernels}
      spec: {hard: {pods: 2, persistentvolumeclaims: 1, secrets: 9}}
    - apiVersion: rbac.authorization.k8s.io/v1
      kind: RoleBinding
      metadata: {name: owner}
      roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
      subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: "{owner}"}]
` + namespacesPolicyRest + `home: {claim: "home-{owner}", mountPath: /home/jovyan, size: 1Gi, storageClass: "",
  accessModes: [ReadWriteMany]}
`

// namespacesPolicyRest is the part that the changed policy lacks, and namespacesPolicyAdded what it has in its place.
const (
	namespacesPolicyRest = `    - apiVersion: networking.k8s.io/v1
      kind: NetworkPolicy
      metadata: {name: kernels}
      spec: {podSelector: {}, policyTypes: [Ingress]}
`
	namespacesPolicyAdded = `    - apiVersion: v1
      kind: ConfigMap
      metadata: {name: added}
`
)

// TestE2E_KubeNamespaces: with no more than the component's rights, a gateway makes a namespace for each of two users
// with similar names. The namespace's quota refuses a third pod, its home is there, and a kernel of the common
// namespace from before is served. A gateway that was killed finds all kernels.
func TestE2E_KubeNamespaces(t *testing.T) {
	t.Parallel()
	c := theCluster(t)
	ns := c.newNamespace(t)
	prefix := "e2eo" + ns[strings.LastIndexByte(ns, '-')+1:]
	const ann, other = "ann@x", "Ann@x"
	spaces := map[string]string{ann: prefix + "-ann-40x", other: prefix + "--41nn-40x"}
	t.Cleanup(func() {
		for _, space := range spaces {
			c.kubectl(t, "", "delete", "namespace", space, "--wait=false", "--ignore-not-found")
		}
	})
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, fmt.Appendf(nil, namespacesPolicy, prefix), 0o600); err != nil {
		t.Fatal(err)
	}
	g := c.newGateway(t, ns, c.ownerNamespaces(t, ns))
	g.users("{name: ann@x, tokens: [%q]}", "token-ann", "{name: Ann@x, tokens: [%q]}", "token-other")
	g.token = ""
	g.start()
	as := map[string]*inCluster{ann: g.in(t), other: g.in(t)}
	as[ann].token, as[other].token = "token-ann", "token-other"
	before := as[ann].kernel("pod")
	g.kill()
	g.args = append(g.args, "--kube-policy", policy)
	g.start()

	kernels := map[string]string{}
	for name, space := range spaces {
		c.home(t, space, "home-"+strings.TrimPrefix(space, prefix+"-"))
		kernels[name] = as[name].kernelSoon("pod")
		out := c.kubectl(t, "", "-n", space, "get", "pods,pvc,networkpolicies,resourcequotas", "-o", "name")
		for _, want := range []string{"pod/" + kernels[name] + "-1", "persistentvolumeclaim/home-",
			"networkpolicy.networking.k8s.io/kernels", "resourcequota/kernels"} {
			if !strings.Contains(out, want) {
				t.Errorf("%s lacks %s: %s", space, want, out)
			}
		}
	}
	for user, want := range map[string]string{ann: "yes", other: "no"} {
		if out, _ := c.tryKubectl("", "auth", "can-i", "get", "pods", "-n", spaces[ann], "--as", user); strings.TrimSpace(
			out) != want {
			t.Errorf("may %s read the pods of %s: %s", user, ann, out)
		}
	}
	second := as[ann].kernelSoon("pod")
	status, answer := as[ann].ask("POST", "/api/kernels", `{"name": "pod"}`)
	if status/100 == 2 || !strings.Contains(string(answer), "quota") ||
		!strings.Contains(string(answer), "2 of 2 are in use") {
		t.Errorf("a third pod: %d %s", status, answer)
	}

	g.kill()
	// The next start removes what the policy no longer has. It leaves what others have added.
	c.kubectl(t, "", "label", "namespace", spaces[ann], "others=label")
	c.kubectl(t, "", "-n", spaces[ann], "create", "configmap", "others")
	c.kubectl(t, "", "-n", spaces[ann], "label", "configmap", "others", "app.kubernetes.io/managed-by=ekg")
	text := strings.NewReplacer("{pods: 2, persistentvolumeclaims: 1, secrets: 9}", "{pods: 3}",
		"  labels: {pod-security.kubernetes.io/enforce: baseline}\n", "",
		namespacesPolicyRest, namespacesPolicyAdded).Replace(fmt.Sprintf(namespacesPolicy, prefix))
	if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	g.start()
	third := as[ann].kernelSoon("pod")
	if out := c.kubectl(t, "", "-n", spaces[ann], "get", "resourcequota", "kernels", "-o",
		"jsonpath={.spec.hard}"); strings.TrimSpace(out) != `{"pods":"3"}` {
		t.Errorf("the quota has %s", out)
	}
	if out := c.kubectl(t, "", "-n", spaces[ann], "get", "networkpolicies,configmaps,rolebindings", "-o",
		"name"); strings.Contains(out, "networkpolicy") || !strings.Contains(out, "configmap/others") ||
		!strings.Contains(out, "configmap/added") || !strings.Contains(out, "rolebinding.rbac.authorization.k8s.io/owner") {
		t.Errorf("after the policy has changed, there are %s", out)
	}
	if out := c.kubectl(t, "", "get", "namespace", spaces[ann], "-o", "jsonpath={.metadata.labels}"); strings.Contains(out,
		"pod-security") || !strings.Contains(out, `"others":"label"`) {
		t.Errorf("the namespace's labels are %s", out)
	}
	for name, want := range map[string][]string{ann: {before, kernels[ann], second, third}, other: {kernels[other]}} {
		var all []model
		as[name].want(http.StatusOK, "GET", "/api/kernels", "", &all)
		if len(all) != len(want) {
			t.Errorf("%s has %d kernels, want %d", name, len(all), len(want))
		}
		for _, id := range want {
			as[name].state(id, "idle", time.Minute)
			as[name].dial(t, id, "s", true).says("print(6*7)", "42\n")
			as[name].want(http.StatusNoContent, "DELETE", "/api/kernels/"+id, "", nil)
		}
	}
	for _, space := range append([]string{ns}, spaces[ann], spaces[other]) {
		k := g.in(t)
		k.namespace = space
		k.nothingLeft()
	}

	c.kubectl(t, "", "label", "namespace", spaces[other], "elastic-kernel-gateway.github.io/kernels-of-")
	status, answer = as[other].ask("POST", "/api/kernels", `{"name": "pod"}`)
	if status/100 == 2 || !strings.Contains(string(answer), "this gateway has not made it") {
		t.Errorf("a namespace that is not ekg's: %d %s", status, answer)
	}
}

// kernelSoon starts a kernel and waits until it runs.
func (k *inCluster) kernelSoon(spec string) string {
	k.t.Helper()
	id := k.kernel(spec)
	k.state(id, "idle", time.Minute)
	return id
}

// home offers a volume for a claim that is created later.
func (c *cluster) home(t *testing.T, ns, claim string) {
	t.Helper()
	c.needsOwn(t, "its volumes are folders of this machine")
	c.kubectl(t, fmt.Sprintf(homeVolume, ns, claim, t.TempDir()), "apply", "-f", "-")
	t.Cleanup(func() { c.kubectl(t, "", "delete", "persistentvolume", ns+"-"+claim, "--wait=false") })
}

// ownerNamespaces returns the kubeconfig of a service account with the rights of the base in a namespace and those of
// the component owner-namespaces. It may bind the ClusterRole view.
func (c *cluster) ownerNamespaces(t *testing.T, ns string) string {
	t.Helper()
	name := "ekg-" + ns
	c.applyRights(t, ns, "base")
	c.applyRights(t, ns, "components/owner-namespaces", "name: ekg-owner-namespaces", "name: "+name)
	bind, err := json.Marshal(map[string]any{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
		"metadata": map[string]any{"name": name + "-bind"}, "rules": []any{map[string]any{"verbs": []string{"bind"},
			"apiGroups": []string{"rbac.authorization.k8s.io"}, "resources": []string{"clusterroles"},
			"resourceNames": []string{"view"}}}})
	if err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, string(bind), "apply", "-f", "-")
	c.kubectl(t, "", "create", "clusterrolebinding", name+"-bind", "--clusterrole", name+"-bind", "--serviceaccount",
		ns+":ekg")
	// The gateway of the test runs outside the cluster, and reaches pods by port-forward.
	c.kubectl(t, "", "create", "clusterrole", name+"-forward", "--verb", "create,get", "--resource", "pods/portforward")
	c.kubectl(t, "", "create", "clusterrolebinding", name+"-forward", "--clusterrole", name+"-forward",
		"--serviceaccount", ns+":ekg")
	t.Cleanup(func() {
		for _, end := range []string{"", "-bind", "-forward"} {
			c.kubectl(t, "", "delete", "clusterrole,clusterrolebinding", name+end)
		}
	})
	return c.accountKubeconfig(t, ns)
}

// applyRights gives the service account ekg of a namespace what rbac.yaml of a folder in deploy/kubernetes gives the
// gateways, in that namespace. Further texts are replaced in pairs.
func (c *cluster) applyRights(t *testing.T, ns, folder string, replaced ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../deploy/kubernetes", folder, "rbac.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	pairs := append([]string{"namespace: ekg-kernels", "namespace: " + ns, "namespace: ekg\n", "namespace: " + ns + "\n"},
		replaced...)
	c.kubectl(t, strings.NewReplacer(pairs...).Replace(string(text)), "apply", "-f", "-")
}

// accountKubeconfig returns the kubeconfig of the service account ekg of a namespace.
func (c *cluster) accountKubeconfig(t *testing.T, ns string) string {
	t.Helper()
	token := strings.TrimSpace(c.kubectl(t, "", "-n", ns, "create", "token", "ekg", "--duration", "1h"))
	return c.writeKubeconfig(t, "https://"+nodeIP+":6443", fmt.Sprintf(`{"token": %q}`, token))
}
