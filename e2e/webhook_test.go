//go:build e2e

package e2e

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// injector is a mutating webhook of the cluster. It adds to each new pod of some namespaces what other parts of real
// clusters add: annotations, a label, a variable, and an ordinary container. An ordinary container runs on after the
// kernel has ended.
//
// It also sees each pod as ekg sends it. None of its additions may be in there: a pod that has them was made from an
// earlier pod.
type injector struct {
	t      *testing.T
	always bool // add everything to each pod, and not a random part; each container ends at SIGTERM

	mu     sync.Mutex
	random *rand.Rand // guarded by mu
	pods   int        // guarded by mu; how many pods it has changed
	beside int        // guarded by mu; how many of them have got a container
}

const (
	injectedContainer = "istio-proxy"
	injectedVariable  = "AWS_ROLE_ARN"
	injectedLabel     = "security.istio.io/tlsMode"
)

// injectedAnnotations holds annotations as the programs of real clusters write them. %d is the number of the pod. A
// second pod with the same values is refused there, or gets what belongs to the first.
var injectedAnnotations = map[string]string{
	"k8s.ovn.org/pod-networks":          `{"default":{"ip_addresses":["10.0.0.%d/24"]}}`, // OVN-Kubernetes
	"vpc.amazonaws.com/pod-eni":         `[{"eniId":"eni-%d","vlanID":1}]`,               // EKS
	"hami.io/vgpu-devices-allocated":    "GPU-%d,NVIDIA,3000,30:;",                       // HAMi
	"hami.io/bind-phase":                "success-%d",
	"sidecar.istio.io/status":           `{"containers":["istio-proxy"],"revision":"%d"}`, // Istio
	"ovn.kubernetes.io/ip_address":      "10.16.0.%d",                                     // Kube-OVN
	"cni.projectcalico.org/containerID": "%d",
}

// sidecar is the program of the added container. It waits until SIGTERM, or ignores that.
const sidecar = `import signal
signal.signal(signal.SIGTERM, (lambda *_: exit(0)) if %s else signal.SIG_IGN)
while True: signal.pause()`

// admitted holds the fields of a pod that the injector reads.
type admitted struct {
	Metadata struct {
		Name                string
		Labels, Annotations map[string]string
	}
	Spec struct {
		Containers []struct {
			Name string
			Env  []struct{ Name string }
		}
	}
}

// inject adds the webhook to the cluster, for new pods of these namespaces.
func (c *cluster) inject(t *testing.T, seed uint64, always bool, namespaces ...string) *injector {
	t.Helper()
	c.needsOwn(t, "its API server calls a webhook on this machine")
	i := &injector{t: t, always: always, random: rand.New(rand.NewPCG(seed, 7))}
	server := httptest.NewUnstartedServer(http.HandlerFunc(i.serve))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	name := namespaces[0]
	config, err := json.Marshal(map[string]any{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
		"metadata": map[string]any{"name": name},
		"webhooks": []any{map[string]any{
			"name": "inject.example.com",
			"clientConfig": map[string]any{"url": server.URL + "/",
				"caBundle": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})},
			"rules": []any{map[string]any{"apiGroups": []string{""}, "apiVersions": []string{"v1"},
				"operations": []string{"CREATE"}, "resources": []string{"pods"}}},
			"namespaceSelector": map[string]any{"matchExpressions": []any{map[string]any{
				"key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces}}},
			"sideEffects": "None", "failurePolicy": "Fail", "admissionReviewVersions": []string{"v1"},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.kubectl(t, "", "delete", "mutatingwebhookconfiguration", name)
		server.Close()
	})
	c.kubectl(t, string(config), "create", "-f", "-")
	return i
}

// serve answers an AdmissionReview with a patch.
func (i *injector) serve(w http.ResponseWriter, r *http.Request) {
	var review struct {
		Request struct {
			UID    string
			Object admitted
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	patch, err := json.Marshal(i.patch(&review.Request.Object))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
		"response": map[string]any{"uid": review.Request.UID, "allowed": true, "patchType": "JSONPatch", "patch": patch}})
}

// patch returns what is added to a pod, as a JSON patch.
func (i *injector) patch(pod *admitted) []any {
	i.mu.Lock()
	defer i.mu.Unlock()
	if found := pod.injected(); len(found) > 0 {
		i.t.Errorf("the new pod %s has what was added to an earlier one: %q", pod.Metadata.Name, found)
	}
	i.pods++
	var patch []any
	add := func(path string, value any) {
		patch = append(patch, map[string]any{"op": "add", "path": path, "value": value})
	}
	chosen := func() bool { return i.always || i.random.IntN(4) > 0 }
	escape := strings.NewReplacer("~", "~0", "/", "~1").Replace
	names := make([]string, 0, len(injectedAnnotations))
	for name := range injectedAnnotations {
		names = append(names, name)
	}
	slices.Sort(names) // the same random numbers give the same pods
	for _, name := range names {
		if chosen() {
			add("/metadata/annotations/"+escape(name), fmt.Sprintf(injectedAnnotations[name], i.pods))
		}
	}
	if chosen() {
		add("/metadata/labels/"+escape(injectedLabel), "istio")
	}
	if chosen() {
		variable := map[string]any{"name": injectedVariable, "value": fmt.Sprint("arn:aws:iam::1:role/", i.pods)}
		for n, container := range pod.Spec.Containers {
			path := fmt.Sprintf("/spec/containers/%d/env", n)
			if len(container.Env) == 0 {
				add(path, []any{variable})
			} else {
				add(path+"/-", variable)
			}
		}
	}
	if chosen() {
		i.beside++
		ends, place := "True", "/spec/containers/-"
		if i.random.IntN(2) == 0 {
			place = "/spec/containers/0" // as Istio does to start before the others
		}
		if !i.always && i.random.IntN(2) == 0 { // its pod ends with the grace period
			ends = "False"
		}
		add(place, map[string]any{"name": injectedContainer, "image": "localhost/kernel-py:dev",
			"imagePullPolicy": "IfNotPresent", "command": []string{"python3", "-c", fmt.Sprintf(sidecar, ends)}})
	}
	return patch
}

// injected returns the names of what an injector has added to a pod.
func (p *admitted) injected() (found []string) {
	for name := range p.Metadata.Annotations {
		if _, ok := injectedAnnotations[name]; ok {
			found = append(found, name)
		}
	}
	if _, ok := p.Metadata.Labels[injectedLabel]; ok {
		found = append(found, injectedLabel)
	}
	for _, container := range p.Spec.Containers {
		if container.Name == injectedContainer {
			found = append(found, injectedContainer)
		}
		for _, v := range container.Env {
			if v.Name == injectedVariable {
				found = append(found, injectedVariable)
			}
		}
	}
	return found
}

// count returns how many pods were changed, and how many of them have got a container.
func (i *injector) count() (pods, beside int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.pods, i.beside
}
