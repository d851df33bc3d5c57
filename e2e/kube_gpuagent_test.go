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

// TestE2E_KubeGPUAgent: the shipped DaemonSet runs the agent of GPUs. Its programs are of ekg's image, and its
// container is of another. Without a driver it says so, and it reads the kubelet's list of devices. The test replaces
// only names that differ in the development cluster.
func TestE2E_KubeGPUAgent(t *testing.T) {
	t.Parallel() // it mostly waits
	c := theCluster(t)
	c.needsOwn(t, "the folder of its kubelet is not the usual one")
	ns := c.newNamespace(t)
	c.kubectl(t, "", "label", "namespace", ns, "--overwrite", "pod-security.kubernetes.io/enforce=privileged")
	text, err := os.ReadFile(filepath.Join(theInstallation(t).repository,
		"deploy/kubernetes/components/gpu-agent/agent.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	set := string(text)
	for _, r := range []struct{ from, to string }{
		{"namespace: ekg-gpu-agent", "namespace: " + ns},
		{"image: ekg\n", "image: localhost/ekg:dev\n"},
		{"image: quay.io/jupyter/pytorch-notebook:", "image: localhost/kernel-py:dev # "},
		{`{nvidia.com/gpu.present: "true"}`, "{kubernetes.io/os: linux}"},
		{"hostPath: {path: /var/lib/kubelet/", "hostPath: {path: " + filepath.Dir(filepath.Dir(c.kubeconfig)) + "/kubelet/"},
	} {
		if n := strings.Count(set, r.from); n != 1 {
			t.Fatalf("%q stands in the DaemonSet %d times", r.from, n)
		}
		set = strings.Replace(set, r.from, r.to, 1)
	}
	c.kubectl(t, set, "create", "-f", "-")
	c.kubectl(t, "", "-n", ns, "rollout", "status", "daemonset/ekg-gpu-agent", "--timeout=90s")
	ip := c.kubectl(t, "", "-n", ns, "get", "pods", "-o", "jsonpath={.items[0].status.podIP}")
	client := http.Client{Timeout: 10 * time.Second}
	var report struct {
		Node      string
		Pods      []any
		Error     string
		PodsError string `json:"pods_error"`
	}
	eventually(t, 30*time.Second, "the agent has asked for the driver", func() error {
		resp, err := client.Get("http://" + strings.TrimSpace(ip) + ":9402/gpus")
		if err != nil {
			return err
		}
		defer resp.Body.Close() //nolint:errcheck // it was only read
		if err := json.NewDecoder(resp.Body).Decode(&report); err != nil {
			return err
		}
		if report.Node != "node1" || report.Pods == nil || report.PodsError != "" ||
			!strings.Contains(report.Error, "there is no driver") {
			return fmt.Errorf("%+v", report)
		}
		return nil
	})
}
