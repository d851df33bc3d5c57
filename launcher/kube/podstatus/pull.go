package podstatus

import (
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// pullTook is the time in a kubelet's message: Successfully pulled image "x" in 1.5s (1.5s including waiting).
var pullTook = regexp.MustCompile(`" in ([0-9a-zµ.]+)`)

// Pull returns the last pull of an image for the kernel's container, or nil. An image that was on the node already was
// not pulled. The cluster keeps events for an hour.
func Pull(pod *corev1.Pod, events []corev1.Event) *api.Pull {
	e := explanation{pod: pod}
	for i := range slices.Backward(events) {
		event := &events[i]
		if event.Reason != "Pulled" || event.InvolvedObject.UID != pod.UID ||
			!e.ofContainer(event, podspec.ContainerKernel) || !strings.HasPrefix(event.Message, "Successfully pulled") {
			continue
		}
		p := &api.Pull{Image: e.pulledImage(event, podspec.ContainerKernel), At: EventTime(event)}
		if m := pullTook.FindStringSubmatch(event.Message); m != nil {
			if took, err := time.ParseDuration(m[1]); err == nil {
				p.Took = took
			}
		}
		return p
	}
	return nil
}
