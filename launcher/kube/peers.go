package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/cluster"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/endings"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/gpuview"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/replicas"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// peers says where this gateway's replicas are.
type peers struct {
	namespace string // of the gateways' pods
	ip        string // of this gateway's own pod
}

// findPeers returns where this gateway's replicas are, or nil if this gateway has none.
func findPeers(ctx context.Context, c *cluster.Cluster,
	bound func(context.Context) (context.Context, context.CancelFunc), log *slog.Logger) (*peers, error) {
	if !c.Inside() {
		return nil, nil
	}
	ip, err := replicas.FindIP(ctx, bound, c.Client.CoreV1().Pods(c.Namespace), hostName(log), c.Host, log)
	if ip == "" || err != nil {
		return nil, err
	}
	return &peers{c.Namespace, ip}, nil
}

// join makes this gateway and its replicas know each other, and begins to receive their notifications.
func (s sharedKernels) join(ctx context.Context) error {
	l := s.l
	listener, err := net.Listen("tcp", ":"+strconv.Itoa(replicas.Port))
	if err != nil {
		return err
	}
	l.replicas.Serve(listener)
	l.replicas.Watch()
	return l.replicas.Introduce(ctx)
}

// newReplicas returns this gateway's replicas, which do not know it yet.
func (s sharedKernels) newReplicas(at *peers, o replicas.Options) (*replicas.Replicas, error) {
	l := s.l
	pods := l.client.CoreV1().Pods(at.namespace)
	o.IP, o.Version, o.Keys, o.Kernels = at.ip, l.opts.Version, l.keys, s
	o.Pods = func(ctx context.Context) ([]corev1.Pod, error) {
		asking, cancel := l.apiContext(ctx)
		defer cancel()
		list, err := pods.List(asking, metav1.ListOptions{LabelSelector: replicas.Selector})
		if err != nil {
			return nil, err
		}
		return list.Items, nil
	}
	o.Watched = l.watches.persistent(nil,
		gpuview.ListWatch(pods, func(o *metav1.ListOptions) { o.LabelSelector = replicas.Selector }))
	o.Goroutines, o.Log = &l.goroutines, l.log
	return replicas.New(l.ctx, o)
}

// hostName returns the name of this machine, which is the pod's in a cluster; "" if it has none.
func hostName(log *slog.Logger) string {
	host, err := os.Hostname()
	if err != nil {
		log.Debug("this machine has no name", logkey.Err, err)
	}
	return host
}

// ViewGateways returns the gateways' pods as this gateway's watch knows them, with the version that each reports. It
// returns none where this gateway has no replicas.
func (l *Launcher) ViewGateways(ctx context.Context) ([]launcher.Gateway, error) {
	return l.replicas.Gateways(ctx), nil
}

// sharedKernels tells the replicas what a launcher knows of kernels, and records what they know. It implements
// replicas.Kernels.
type sharedKernels struct{ l *Launcher }

// List returns all kernels that this gateway knows.
func (s sharedKernels) List() []replicas.Entry {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	all := make([]replicas.Entry, 0, len(s.l.kernels))
	for id, k := range s.l.kernels {
		all = append(all, replicas.Entry{ID: id, Pod: k.pod.UID, Generation: k.rec.Generation, Ended: k.end != nil})
	}
	return all
}

// Known returns what this gateway knows of a kernel.
func (s sharedKernels) Known(id string) (known replicas.Kernel, ok bool) {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	k := s.l.kernels[id]
	if k == nil {
		return known, false
	}
	known = replicas.Kernel{Pod: k.pod, Removed: k.removed}
	if k.end != nil {
		known.End = s.encode(id, k.end)
	}
	return known, true
}

// Lacks reports whether a replica knows more of a kernel than this gateway.
func (s sharedKernels) Lacks(e replicas.Entry) bool {
	l := s.l
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kernels[e.ID]
	switch {
	case k == nil:
		gone, ok := l.endings.Get(e.ID)
		return !ok || gone.Pod != e.Pod
	case k.pod.UID == e.Pod:
		return e.Ended && k.end == nil && !k.supervisor.Streaming
	}
	return e.Generation >= k.rec.Generation
}

// Enter records what a replica knows of a kernel.
func (s sharedKernels) Enter(id string, known replicas.Kernel) error {
	l := s.l
	if known.Pod == nil {
		return nil
	}
	if !l.namespaces.Serves(known.Pod) {
		return nil // the replica has other settings; this gateway could not tell when the pod is removed
	}
	if rec, err := podspec.ReadRecord(known.Pod); err != nil || rec.ID != id {
		l.log.Warn("a replica has sent a pod that is not the kernel's", logkey.Kernel, id, logkey.Err, err)
		return nil
	}
	end := peerEnding{Pod: known.Pod.UID}
	if len(known.End) > 0 {
		if err := json.Unmarshal(known.End, &end.Ending); err != nil {
			return fmt.Errorf("the end of kernel %s: %w", id, err)
		}
	}
	l.handlePod(known.Pod, l.updatePod)
	if len(known.End) > 0 {
		s.enterEnding(id, end)
	}
	if known.Removed {
		l.podRemoved(known.Pod)
	}
	return nil
}

// peerEnding tells another replica how a kernel ended, because the pod that would show it is gone.
type peerEnding struct {
	Pod types.UID `json:"pod"`
	endings.Ending
}

// encode returns an ending as JSON, nil if its time is beyond the year 9999.
func (s sharedKernels) encode(id string, end any) []byte {
	text, err := json.Marshal(end)
	if err != nil {
		s.l.log.Warn("the ending of a kernel cannot be encoded", logkey.Kernel, id, logkey.Err, err)
		return nil
	}
	return text
}

// Ending returns how a kernel has ended, nil if it has not.
func (s sharedKernels) Ending(id string) []byte {
	l := s.l
	l.mu.Lock()
	defer l.mu.Unlock()
	end, ended := l.endings.Get(id)
	if k := l.kernels[id]; !ended || k != nil && (k.end == nil || k.pod.UID != end.Pod) {
		return nil
	}
	return s.encode(id, peerEnding{end.Pod, *end})
}

// EnterEnding records an ending that another replica reports.
func (s sharedKernels) EnterEnding(id string, text []byte) error {
	var reported peerEnding
	if err := json.Unmarshal(text, &reported); err != nil {
		return err
	}
	s.enterEnding(id, reported)
	return nil
}

func (s sharedKernels) enterEnding(id string, reported peerEnding) {
	l := s.l
	end := reported.Ending
	end.Reason, end.At, end.Pod = endings.OneLine(end.Reason), end.At.UTC(), reported.Pod
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kernels[id]
	switch {
	case k == nil:
		if before, ok := l.endings.Get(id); !ok || before.Pod != reported.Pod {
			l.endings.Remember(id, &end) // then late events about its pod are ignored
		}
	case k.pod.UID == reported.Pod && (k.end == nil || end.Stopped):
		l.endLocked(k, &end)
		if end.Stopped {
			l.forgetLocked(k)
		}
		k.supervisor.ChangedLocked()
	}
}

// Refresh reads a kernel from the cluster.
func (s sharedKernels) Refresh(ctx context.Context, id string) error { return s.l.refresh(ctx, id) }

// Doubt makes the next lists prove their freshness.
func (s sharedKernels) Doubt() (settled func()) { return s.l.freshness.markStale() }

// Prove reads which pods the cluster has.
func (s sharedKernels) Prove(ctx context.Context) error { return s.l.proveFresh(ctx) }
