//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// driverPolicy gives kernels the token of one account, a port, and labels.
const driverPolicy = `kernelspecs:
  serviceAccountTokens: [driver]
  ports: [7078]
labels: {cost: "{spec}/{namespace}"}
`

// driverRights let the account of a kernel create pods in another namespace.
const driverRights = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: driver, namespace: %[1]s}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: driver, namespace: %[2]s}
rules:
  - {apiGroups: [""], resources: [pods], verbs: [create, get, delete]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: driver, namespace: %[2]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: driver}
subjects:
  - {kind: ServiceAccount, name: driver, namespace: %[1]s}
`

// drives is a cell that does what a driver of Spark does: it creates a worker with its token, and the worker connects
// to the driver's port.
const drives = `
import json, os, socket, ssl, urllib.error, urllib.request
home = '/var/run/secrets/kubernetes.io/serviceaccount/'
def ask(method, path, body=None):
    host = os.environ['KUBERNETES_SERVICE_HOST'] + ':' + os.environ['KUBERNETES_SERVICE_PORT']
    request = urllib.request.Request('https://' + host + '/api/v1/namespaces/' + path,
        json.dumps(body).encode() if body else None, method=method, headers={
        'Authorization': 'Bearer ' + open(home + 'token').read(), 'Content-Type': 'application/json'})
    trust = ssl.create_default_context(cafile=home + 'ca.crt')
    try:
        return urllib.request.urlopen(request, context=trust, timeout=20).status
    except urllib.error.HTTPError as e:
        return e.code
listener = socket.create_server(('0.0.0.0', 7078))
listener.settimeout(60)
print(open(home + 'namespace').read(), ask('GET', '%[1]s/secrets'), ask('POST', '%[2]s/pods', {
    'apiVersion': 'v1', 'kind': 'Pod',
    'metadata': {'name': 'worker', 'labels': {
        'elastic-kernel-gateway.github.io/worker-of': os.environ['EKG_KERNEL_ID']}},
    'spec': {'restartPolicy': 'Never', 'automountServiceAccountToken': False, 'containers': [{
        'name': 'worker', 'image': 'localhost/kernel-py:dev', 'command': ['python3', '-c',
        'import socket; socket.create_connection(("' + os.environ['POD_IP'] + '", 7078), 50).sendall(b"I work")']}]}}))
print(listener.accept()[0].recv(100).decode(), ask('DELETE', '%[2]s/pods/worker'))
`

// TestE2E_KubeDriver: a kernel creates a pod with its service account's token, which connects back to the kernel. The
// kernel's network policy lives as long as its pod. The policy's labels are on the pod.
func TestE2E_KubeDriver(t *testing.T) {
	t.Parallel() // it mostly waits
	c := theCluster(t)
	ns, workers := c.newNamespace(t), c.newNamespace(t)
	c.kubectl(t, fmt.Sprintf(driverRights, ns, workers), "apply", "-f", "-")
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, []byte(driverPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	k := c.newGateway(t, ns, c.kubeconfig, "--kube-policy", policy)
	k.podSpec("driver", map[string]any{
		"image":               "localhost/kernel-py:dev",
		"serviceAccountName":  "driver",
		"serviceAccountToken": true,
		"ports":               []any{map[string]any{"name": "driver", "containerPort": 7078}},
		"env": []any{map[string]any{"name": "POD_IP",
			"valueFrom": map[string]any{"fieldRef": map[string]any{"fieldPath": "status.podIP"}}}},
	})
	k.start()
	id, plain := k.kernel("driver"), k.kernel("pod")
	k.dial(t, id, "s", true).says(fmt.Sprintf(drives, ns, workers), ns+" 403 201\nI work 200\n")
	k.dial(t, plain, "s", true).says("import os\nprint(os.path.exists('/var/run/secrets/kubernetes.io'))", "False\n")

	policies := func() string {
		return c.kubectl(t, "", "-n", ns, "get", "networkpolicies", "-o",
			"jsonpath={range .items[*]}{.metadata.ownerReferences[0].name} {.spec.ingress[0].ports[*].port}{end}")
	}
	if got, want := policies(), id+"-1 7078"; got != want {
		t.Errorf("the network policies are %q, want %q", got, want)
	}
	for kernel, spec := range map[string]string{id: "driver", plain: "pod"} {
		got := c.kubectl(t, "", "-n", ns, "get", "pod", kernel+"-1", "-o", "jsonpath={.metadata.labels.cost}")
		if !strings.HasPrefix(got, spec+"-"+ns[:3]) {
			t.Errorf("the label of %s is %q", spec, got)
		}
	}
	for _, kernel := range []string{id, plain} {
		k.want(204, "DELETE", "/api/kernels/"+kernel, "", nil)
	}
	k.eventually(time.Minute, "the network policy is gone", func() error {
		if got := policies(); got != "" {
			return fmt.Errorf("%s is there", got)
		}
		return nil
	})
	k.nothingLeft()
}
