//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// ownVolumesPolicy lets clients mount their own claims.
const ownVolumesPolicy = `clients:
  allow: [KERNEL_VOLUMES, KERNEL_VOLUME_MOUNTS]
  persistentVolumeClaims: ["home-{owner}"]
  volumes: [persistentVolumeClaim]
`

// claimOn is a claim with a volume that is a folder of the node.
const claimOn = homeVolume + `---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: ""
  volumeName: %[1]s-%[2]s
  resources: {requests: {storage: 1Gi}}
`

// TestE2E_KubeOwnVolumes: a kernelspec gives each user a volume of their own and a folder of a common one. No user gets
// another user's, also not by a restart of a dead kernel that the user shares.
func TestE2E_KubeOwnVolumes(t *testing.T) {
	t.Parallel()
	c := theCluster(t)
	c.needsOwn(t, "its volumes are folders of this machine")
	ns := c.newNamespace(t)
	name := func(account string) string { return "system:serviceaccount:" + ns + ":" + account }
	claim := func(account string) string {
		return "home-" + strings.NewReplacer(":", "-3a", "-", "-2d").Replace(name(account))
	}
	homes, common := map[string]string{}, t.TempDir()
	volume := func(claim, dir string) {
		c.kubectl(t, fmt.Sprintf(claimOn, ns, claim, dir), "apply", "-f", "-")
		t.Cleanup(func() { c.kubectl(t, "", "delete", "persistentvolume", ns+"-"+claim, "--wait=false") })
	}
	volume("common", common)
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, []byte(ownVolumesPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	g := c.newGateway(t, ns, c.kubeconfig, "--auth-token-review", "--auth-token-audience", "ekg", "--kube-policy", policy)
	g.podSpec("own", map[string]any{
		"image": "localhost/kernel-py:dev",
		"volumes": []any{
			map[string]any{"name": "mine", "persistentVolumeClaim": map[string]any{"claimName": "home-{owner}"}},
			map[string]any{"name": "common", "persistentVolumeClaim": map[string]any{"claimName": "common"}},
		},
		"volumeMounts": []any{
			map[string]any{"name": "mine", "mountPath": "/mine"},
			map[string]any{"name": "common", "mountPath": "/part", "subPath": "users/{owner}"},
		},
	})
	g.token = ""
	g.start()
	users := map[string]*inCluster{}
	for _, account := range []string{"ann", "bob"} {
		homes[account] = t.TempDir()
		volume(claim(account), homes[account])
		users[account] = g.account(account)
	}
	ann, bob := users["ann"], users["bob"]
	const look = "import os\nprint(sorted(os.listdir('/mine')), os.listdir('/part'))"
	kernels := map[string]string{}
	for account, user := range users {
		kernels[account] = user.kernel("own")
		user.dial(t, kernels[account], "s", true).says(fmt.Sprintf(
			"for d in '/mine', '/part': open(d + '/%[1]s', 'w').close()\n%[2]s", account, look),
			fmt.Sprintf("['%[1]s'] ['%[1]s']\n", account))
	}
	for account := range users {
		part := filepath.Join(common, "users", strings.TrimPrefix(claim(account), "home-"), account)
		for _, file := range []string{filepath.Join(homes[account], account), part} {
			if _, err := os.Stat(file); err != nil {
				t.Error(err)
			}
		}
	}

	status, answer := bob.ask("POST", "/api/kernels", fmt.Sprintf(`{"name": "pod", "env": {"KERNEL_VOLUMES":
		"[{\"name\": \"v\", \"persistentVolumeClaim\": {\"claimName\": \"%s\"}}]"}}`, claim("ann")))
	if status != http.StatusForbidden || !strings.Contains(string(answer), "allowed: "+claim("bob")) {
		t.Errorf("bob asks for ann's volume: %d %s", status, answer)
	}

	route := "/api/kernels/" + kernels["ann"]
	ann.want(http.StatusOK, "PATCH", route,
		fmt.Sprintf(`{"shared_with": [{"user": %q, "right": "use"}]}`, name("bob")), nil)
	c.kubectl(t, "", "-n", ns, "delete", "pod", kernels["ann"]+"-1")
	ann.state(kernels["ann"], "dead", 30*time.Second)
	bob.want(http.StatusOK, "POST", route+"/restart", "", nil)
	ann.state(kernels["ann"], "idle", 30*time.Second)
	ann.dial(t, kernels["ann"], "again", true).says(look, "['ann'] ['ann']\n")
	for account, user := range users {
		user.want(http.StatusNoContent, "DELETE", "/api/kernels/"+kernels[account], "", nil)
	}
}

// account returns the gateway for a new service account, which is a user.
func (k *inCluster) account(name string) *inCluster {
	k.t.Helper()
	k.cluster.kubectl(k.t, "", "-n", k.namespace, "create", "serviceaccount", name)
	user := k.in(k.t)
	user.token = strings.TrimSpace(
		k.cluster.kubectl(k.t, "", "-n", k.namespace, "create", "token", name, "--audience", "ekg"))
	return user
}

// homesPolicy gives each user a home.
const homesPolicy = `home:
  claim: home-{owner}
  mountPath: /home/jovyan
  size: 1Gi
  storageClass: ""
  accessModes: [ReadWriteMany]
  deleteAfter: 240h
shared: [{claim: datasets, mountPath: /data}]
`

// sharedClaim asks for a folder that exists.
const sharedClaim = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: datasets, namespace: %s}
spec: {accessModes: [ReadWriteMany], storageClassName: "", resources: {requests: {storage: 1Gi}}}
`

// homeVolume is a folder of the node, kept for a claim that does not exist yet.
const homeVolume = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s-%[2]s}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  storageClassName: ""
  claimRef: {namespace: %[1]s, name: %[2]s}
  hostPath: {path: %[3]q}
`

// TestE2E_KubeHomes: each user has a home, which the gateway makes at the first start. It outlives the kernel, and all
// kernels of the user have it. A home that was not used for long is deleted, and no other is. All users read the shared
// volume, and none writes it.
func TestE2E_KubeHomes(t *testing.T) {
	t.Parallel()
	c := theCluster(t)
	c.needsOwn(t, "its volumes are folders of this machine")
	ns := c.newNamespace(t)
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, []byte(homesPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	g := c.newGateway(t, ns, c.kubeconfig, "--auth-token-review", "--auth-token-audience", "ekg", "--kube-policy", policy)
	g.token = ""
	g.start()
	datasets := t.TempDir()
	if err := os.WriteFile(filepath.Join(datasets, "numbers"), []byte("42"), 0o644); err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, fmt.Sprintf(homeVolume+"---"+sharedClaim, ns, "datasets", datasets, ns), "apply", "-f", "-")
	t.Cleanup(func() { c.kubectl(t, "", "delete", "persistentvolume", ns+"-datasets", "--wait=false") })
	claimOf := func(account string) string {
		return "home-" + strings.NewReplacer(":", "-3a", "-", "-2d").Replace("system:serviceaccount:"+ns+":"+account)
	}
	for _, account := range []string{"ann", "bob"} {
		user, claim := g.account(account), claimOf(account)
		dir := t.TempDir()
		c.kubectl(t, fmt.Sprintf(homeVolume, ns, claim, dir), "apply", "-f", "-")
		t.Cleanup(func() { c.kubectl(t, "", "delete", "persistentvolume", ns+"-"+claim, "--wait=false") })
		first := user.kernel("pod")
		user.dial(t, first, "s", true).says(fmt.Sprintf(
			"import os; open(os.path.expanduser('~/%s'), 'w').close(); print(os.environ['HOME'])", account), "/home/jovyan\n")
		user.want(http.StatusNoContent, "DELETE", "/api/kernels/"+first, "", nil)
		second := user.kernel("pod")
		user.dial(t, second, "s", true).says(
			"import os; print([f for f in os.listdir('/home/jovyan') if f[0] != '.'])", "['"+account+"']\n")
		user.dial(t, second, "t", true).says("print(open('/data/numbers').read(), os.access('/data', os.W_OK))", "42 False\n")
		user.want(http.StatusNoContent, "DELETE", "/api/kernels/"+second, "", nil)
		if _, err := os.Stat(filepath.Join(dir, account)); err != nil {
			t.Error(err)
		}
		owner := c.kubectl(t, "", "-n", ns, "get", "pvc", claim, "-o",
			`jsonpath={.metadata.annotations.elastic-kernel-gateway\.github\.io/owner}`)
		if owner != "system:serviceaccount:"+ns+":"+account {
			t.Errorf("%s belongs to %q", claim, owner)
		}
	}

	const notes = "elastic-kernel-gateway.github.io/home-unused-"
	c.kubectl(t, "", "-n", ns, "annotate", "--overwrite", "pvc", claimOf("ann"),
		notes+"since="+time.Now().UTC().AddDate(0, 0, -11).Format(time.RFC3339),
		notes+"seen="+time.Now().UTC().Format(time.RFC3339))
	g.kill()
	g.start() // it looks for such homes when it has become the reaper
	eventually(t, time.Minute, "the home of ann is deleted", func() error {
		if left := c.kubectl(t, "", "-n", ns, "get", "pvc", "-o", "name"); strings.Contains(left, claimOf("ann")) {
			return errors.New(left)
		}
		return nil
	})
	if left := c.kubectl(t, "", "-n", ns, "get", "pvc", "-o", "name"); !strings.Contains(left, claimOf("bob")) ||
		!strings.Contains(left, "datasets") {
		t.Errorf("left: %s", left)
	}
}
