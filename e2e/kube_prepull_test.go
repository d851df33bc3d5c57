//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestE2E_KubePrePull: the images of kernelspecs come to the node before any kernel is started, in a namespace that
// enforces the security standard "restricted". An image that cannot be pulled keeps no other waiting. The DaemonSet
// follows a changed kernelspec, and goes with the setting.
func TestE2E_KubePrePull(t *testing.T) {
	t.Parallel() // it mostly waits
	k := newKubeGateway(t, "--pre-pull")
	k.cluster.needsOwn(t, "its node pulls from a registry on this machine")
	k.cluster.kubectl(t, "", "label", "namespace", k.namespace, "--overwrite",
		"pod-security.kubernetes.io/enforce=restricted")
	first, second := k.cluster.newRegistry(t, "kernel-py"), k.cluster.newRegistry(t, "kernel-other")
	first.answer(http.StatusOK)
	second.answer(http.StatusOK)
	k.podSpec("pulled", map[string]any{"image": first.image})
	k.podSpec("broken", map[string]any{"image": "127.0.0.1:1/broken:dev"}) // the first one; no registry answers there
	k.podSpec("elsewhere", map[string]any{"image": "localhost/no-such-image:dev",
		"nodeSelector": map[string]string{"no-such": "node"}})
	k.start()
	pulled := func(image string) {
		t.Helper()
		k.eventually(120*time.Second, image+" is on the node", func() error {
			out, err := k.cluster.run("ctr", "images", "list", "-q", "name=="+image)
			if err == nil && strings.TrimSpace(out) != image {
				err = errors.New(k.cluster.kubectl(t, "", "-n", k.namespace, "describe", "pods"))
			}
			return err
		})
	}
	sets := func(want int, nodes string) {
		t.Helper()
		k.eventually(60*time.Second, fmt.Sprintf("%d DaemonSets", want), func() error {
			out, err := k.cluster.tryKubectl("", "-n", k.namespace, "get", "daemonsets",
				"-o", "jsonpath={range .items[*]}{.status.desiredNumberScheduled}/{.status.numberReady} {end}")
			if got := strings.Fields(out); err == nil && (len(got) != want || strings.Count(out, nodes) != min(want, 1)) {
				err = fmt.Errorf("they have %q", out)
			}
			return err
		})
	}
	pulled(first.image)
	k.podSpec("broken", map[string]any{"image": first.image})
	sets(2, "1/1") // the one that waits for another node has 0/0
	k.podSpec("pulled", map[string]any{"image": second.image})
	pulled(second.image)
	sets(2, "1/1")
	if pods := k.pods(); len(pods) != 1 {
		t.Errorf("%d pods: %+v", len(pods), pods)
	}
	var kernels []model
	if k.want(200, "GET", "/api/kernels", "", &kernels); len(kernels) != 0 {
		t.Errorf("kernels are listed: %+v", kernels)
	}
	k.kill()
	k.args = append(k.args, "--pre-pull=false")
	k.start()
	sets(0, "1/1")
}
