//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

const kernelObjectsPolicy = `kernelspecs:
  objects: [ConfigMap, PersistentVolumeClaim, Secret, Service]
  ports: [7078]
`

// objectsWorker is a pod that connects to the Service of a kernel, as the kernel's workers do.
const objectsWorker = `
apiVersion: v1
kind: Pod
metadata:
  name: worker
  namespace: %[1]s
  labels: {elastic-kernel-gateway.github.io/worker-of: %[2]s}
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  containers:
    - name: worker
      image: localhost/kernel-py:dev
      command: [python3, -c, 'import socket; socket.create_connection(("%[3]s", 80), 50).sendall(b"I work")']
`

// specWithObjects writes the kernelspec pod with an object of each kind.
func (k *inCluster) specWithObjects() {
	object := func(kind, name string, more map[string]any) map[string]any {
		more["apiVersion"], more["kind"], more["metadata"] = "v1", kind, map[string]any{"name": name}
		return more
	}
	type keys = map[string]any
	k.podSpec("pod", keys{
		"image": "localhost/kernel-py:dev",
		"ports": []any{keys{"name": "driver", "containerPort": 7078}},
		"env": []any{keys{"name": "DRIVER", "value": "{service.driver}"}, keys{"name": "WORD", "valueFrom": keys{
			"secretKeyRef": keys{"name": "word", "key": "word"}}}},
		"volumes": []any{keys{"name": "scratch", "persistentVolumeClaim": keys{"claimName": "scratch"}},
			keys{"name": "settings", "configMap": keys{"name": "settings"}}},
		"volumeMounts": []any{keys{"name": "scratch", "mountPath": "/scratch"},
			keys{"name": "settings", "mountPath": "/settings"}},
		"objects": []any{
			object("Service", "driver", keys{"spec": keys{"ports": []any{keys{"port": 80, "targetPort": "driver"}}}}),
			object("ConfigMap", "settings", keys{"data": keys{"text": "{service.driver} {kernel_id} {namespace}"}}),
			object("Secret", "word", keys{"stringData": keys{"word": "hunter2"}}),
			object("PersistentVolumeClaim", "scratch", keys{"spec": keys{"storageClassName": "",
				"accessModes": []any{"ReadWriteMany"}, "resources": keys{"requests": keys{"storage": "1Gi"}}}}),
		},
	})
}

// newObjectsGateway prepares a gateway with no more rights than those of the base and of two components, and
// returns the id of a kernel for whose claim there is a volume.
func newObjectsGateway(t *testing.T, c *cluster, component bool) (k *inCluster, id string) {
	t.Helper()
	ns := c.newNamespace(t)
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, []byte(kernelObjectsPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	c.applyRights(t, ns, "base")
	c.applyRights(t, ns, "components/driver-ports") // for the kernelspec's ports
	if component {
		c.applyRights(t, ns, "components/objects")
	}
	// The gateway of the test runs outside the cluster, and reaches pods by port-forward.
	c.kubectl(t, "", "-n", ns, "create", "role", "forward", "--verb", "create,get", "--resource", "pods/portforward")
	c.kubectl(t, "", "-n", ns, "create", "rolebinding", "forward", "--role", "forward", "--serviceaccount", ns+":ekg")
	k = c.newGateway(t, ns, c.accountKubeconfig(t, ns), "--kube-policy", policy)
	k.specWithObjects()
	id = uuid.NewString()
	c.home(t, ns, "ekg-"+id+"-scratch")
	return k, id
}

// kernelObjects lists the objects of kernelspecs in the namespace, each with its kind, name and UID.
func (k *inCluster) kernelObjects() []string {
	k.t.Helper()
	out := k.cluster.kubectl(k.t, "", "-n", k.namespace, "get", "services,configmaps,secrets,pvc", "-l",
		"elastic-kernel-gateway.github.io/object", "-o",
		"jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.uid}{\"\\n\"}{end}")
	lines := strings.FieldsFunc(out, func(r rune) bool { return r == '\n' })
	slices.Sort(lines)
	return lines
}

// noObjectsLeft waits until the kernels are gone with their objects.
func (k *inCluster) noObjectsLeft() {
	k.t.Helper()
	k.nothingLeft()
	k.eventually(time.Minute, "no object is left", func() error {
		if left := k.kernelObjects(); len(left) > 0 {
			return fmt.Errorf("%q", left)
		}
		return nil
	})
}

// TestE2E_KubeObjects: a kernel has a Service that its worker reaches, a config map and a Secret that it reads, and a
// claim with its files. A restart keeps them, also in a new pod. They are gone with the kernel, also if a gateway was
// killed while it created them. A gateway without the rights says so.
func TestE2E_KubeObjects(t *testing.T) {
	t.Parallel() // it mostly waits
	c := theCluster(t)
	c.needsOwn(t, "its volumes are folders of this machine")
	t.Run("life", func(t *testing.T) { objectsLive(t, c) })
	for _, resource := range []string{"services", "configmaps", "persistentvolumeclaims", "secrets"} {
		t.Run("the gateway is killed before it creates "+resource, func(t *testing.T) {
			t.Parallel()
			objectsKilled(t, c, resource)
		})
	}
	t.Run("no rights", func(t *testing.T) {
		t.Parallel()
		k, id := newObjectsGateway(t, c, false)
		k.start()
		status, answer := k.ask("POST", "/api/kernels", fmt.Sprintf(`{"name": "pod", "kernel_id": %q}`, id))
		if status/100 == 2 || !strings.Contains(string(answer),
			"its Service driver could not be created: the gateway may not create services in the namespace") {
			t.Errorf("%d %s", status, answer)
		}
		k.noObjectsLeft()
	})
}

func objectsLive(t *testing.T, c *cluster) {
	k, id := newObjectsGateway(t, c, true)
	k.start()
	k.want(http.StatusCreated, "POST", "/api/kernels", fmt.Sprintf(`{"name": "pod", "kernel_id": %q}`, id), nil)
	k.state(id, "idle", time.Minute)
	name := "ekg-" + id + "-driver"
	const reads = "import os\nprint(open('/settings/text').read(), os.environ['DRIVER'], os.environ['WORD'])"
	k.dial(t, id, "s", true).says(reads, fmt.Sprintf("%s %s %s %s hunter2\n", name, id, k.namespace, name))
	k.dial(t, id, "s", true).says("import socket\nlistener = socket.create_server(('0.0.0.0', 7078))\n"+
		"listener.settimeout(60)\nopen('/scratch/kept', 'w').close()", "")
	address := c.kubectl(t, "", "-n", k.namespace, "get", "service", name, "-o", "jsonpath={.spec.clusterIP}")
	c.kubectl(t, fmt.Sprintf(objectsWorker, k.namespace, id, address), "apply", "-f", "-")
	k.dial(t, id, "s", true).says("print(listener.accept()[0].recv(100).decode())", "I work\n")
	c.kubectl(t, "", "-n", k.namespace, "delete", "pod", "worker", "--wait=false")

	before := k.kernelObjects()
	if len(before) != 4 {
		t.Fatalf("its objects are %q", before)
	}
	k.want(http.StatusOK, "POST", "/api/kernels/"+id+"/restart", "", nil)
	k.state(id, "idle", time.Minute)
	if after := k.kernelObjects(); !slices.Equal(after, before) {
		t.Errorf("a restart has changed %q to %q", before, after)
	}
	// The pod ends, and is still there.
	c.kubectl(t, "", "-n", k.namespace, "patch", "pod", id+"-1", "-p", `{"spec": {"activeDeadlineSeconds": 1}}`)
	k.state(id, "dead", time.Minute)
	k.want(http.StatusOK, "POST", "/api/kernels/"+id+"/restart", "", nil)
	k.state(id, "idle", time.Minute)
	k.eventually(time.Minute, "the first pod is gone", func() error {
		if pods := k.podsOf(id); len(pods) != 1 || pods[0].Metadata.Name != id+"-2" {
			return fmt.Errorf("%+v", pods)
		}
		return nil
	})
	k.dial(t, id, "t", true).says(reads+"\nprint(os.listdir('/scratch'))",
		fmt.Sprintf("%s %s %s %s hunter2\n['kept']\n", name, id, k.namespace, name))
	k.eventually(time.Minute, "the objects are the same, but for the Secret", func() error {
		after := k.kernelObjects()
		same := slices.DeleteFunc(slices.Clone(after), func(o string) bool { return !slices.Contains(before, o) })
		if len(after) != 4 || len(same) != 3 {
			return fmt.Errorf("%q became %q", before, after)
		}
		return nil
	})
	k.want(http.StatusNoContent, "DELETE", "/api/kernels/"+id, "", nil)
	k.noObjectsLeft()
}

// objectsKilled kills the gateway when it creates an object of this resource. Another gateway completes the kernel.
func objectsKilled(t *testing.T, c *cluster, resource string) {
	k, id := newObjectsGateway(t, c, true)
	k.killedBefore(id, resource)
	k.state(id, "idle", time.Minute)
	if objects := k.kernelObjects(); len(objects) != 4 {
		t.Errorf("its objects are %q", objects)
	}
	k.want(http.StatusNoContent, "DELETE", "/api/kernels/"+id, "", nil)
	k.noObjectsLeft()
}
