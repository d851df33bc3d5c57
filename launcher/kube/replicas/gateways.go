package replicas

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// versionTime bounds the time that replicas have to answer.
const versionTime = 3 * time.Second

// versionAnswer is a replica's answer to GET /version. Gateways of earlier releases answer 404.
type versionAnswer struct {
	Version string `json:"version"`
}

// serveVersion answers a replica that asks for this program's version.
func (rs *Replicas) serveVersion(w http.ResponseWriter, _ *http.Request) {
	rs.answer(w, versionAnswer{rs.opts.Version})
}

// Gateways returns the gateways' pods as this gateway's watch knows them, with the version that each reports. It
// returns none where this gateway has no replicas.
func (rs *Replicas) Gateways(ctx context.Context) []launcher.Gateway {
	if rs == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, versionTime)
	defer cancel()
	var pods []*corev1.Pod
	for _, o := range rs.store.List() {
		if pod, ok := o.(*corev1.Pod); ok && !hasEnded(pod) {
			pods = append(pods, pod)
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	all := make([]launcher.Gateway, len(pods))
	var asked sync.WaitGroup
	for i, pod := range pods {
		all[i] = launcher.Gateway{Name: pod.Name, Self: pod.Status.PodIP == rs.opts.IP, Started: startedAt(pod),
			Ready: isReady(pod), Problem: unready(pod)}
		if !all[i].Self && pod.Status.PodIP != "" {
			asked.Go(func() { rs.askVersion(ctx, pod.Status.PodIP, &all[i]) })
		}
	}
	asked.Wait()
	return all
}

// askVersion sets a replica's version.
func (rs *Replicas) askVersion(ctx context.Context, ip string, g *launcher.Gateway) {
	var v versionAnswer
	_, err := rs.get(ctx, ip, "/version", &v)
	var status *statusError
	switch {
	case err == nil:
		g.Version = v.Version
	case g.Problem != "":
	case errors.As(err, &status) && status.code == http.StatusNotFound:
		g.Problem = "It is of an earlier release, which does not report its version."
	default:
		g.Problem = "It does not answer this gateway."
	}
}

// startedAt returns when the newest container of a gateway's pod was started; zero: not known.
func startedAt(pod *corev1.Pod) (at time.Time) {
	for i := range pod.Status.ContainerStatuses {
		if run := pod.Status.ContainerStatuses[i].State.Running; run != nil && run.StartedAt.After(at) {
			at = run.StartedAt.UTC()
		}
	}
	return at
}

// unready says why a gateway's pod takes no requests; "" if it does.
func unready(pod *corev1.Pod) string {
	switch {
	case isReady(pod):
		return ""
	case pod.DeletionTimestamp != nil:
		return "It is being stopped."
	case pod.Status.Phase == corev1.PodRunning:
		return "It is not ready."
	}
	return "Its pod is not running yet."
}
