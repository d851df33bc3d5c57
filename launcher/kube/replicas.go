package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// While the API server does not answer, a list of kernels is made from memory and from the replicas' memories. It lacks
// no kernel, because of the following:
//
//   - Only gateways create kernels. A gateway knows the kernels that it has created, before it answers their clients.
//   - A gateway that has read all pods from the quorum once knows all kernels of that time. It lacks only kernels that
//     other gateways have created since and that its watch has not reported. Each of these gateways knows its own. A
//     gateway that has not read them since its process started answers no replica.
//   - A gateway that has ended is asked in vain, and lists fail, until all pods have been read from the quorum again:
//     it may have created kernels that no other gateway knows.
//   - Gateways know each other. A gateway lists the gateways' pods when it opens, after its own address can be read
//     there, and introduces itself to each. So of two gateways the one that lists later knows the other, which then
//     knows it, too. A gateway creates no kernel before that.
//   - For each list, every known replica is asked which kernels and replicas it knows. If one does not answer, the list
//     fails.
//
// A kernel may be listed that has ended meanwhile, because a kubelet can end a pod alone. Its status stream is broken
// then, and the kernel is shown as stale.
//
//	GET https://POD_IP:8890/kernels?have=DIGEST   peerView, or 204 if the digest of the peer's view is the same
//	GET https://POD_IP:8890/kernels/{id}          peerKernel
//
// Requests of peers name their sender in replicaHeader, so each of them introduces it.
const (
	replicaHeader = "Ekg-Replica"    // NAME/IP of the pod that sends a request
	greetTime     = 20 * time.Second // for ready replicas to answer an introduction; after that they are not waited for
	greetRetry    = time.Second
	maxPeerAnswer = 64 << 20 // bytes
)

// peerView is what a replica knows.
type peerView struct {
	Kernels  []peerEntry `json:"kernels"`
	Replicas []string    `json:"replicas"` // NAME/IP, also its own
}

// peerEntry is one kernel that a replica knows.
type peerEntry struct {
	ID         string    `json:"id"`
	Pod        types.UID `json:"pod"`
	Generation int       `json:"generation"`
	Ended      bool      `json:"ended,omitempty"`
}

// peerKernel is a kernel as a replica knows it.
type peerKernel struct {
	Pod     *corev1.Pod   `json:"pod"`
	Removed bool          `json:"removed,omitempty"` // the pod is no longer in the cluster
	End     *storedEnding `json:"end,omitempty"`
}

// view returns what this gateway knows, in a fixed order.
func (p *peers) view() peerView {
	v := peerView{Kernels: []peerEntry{}, Replicas: append(slices.Collect(maps.Keys(p.known())), p.self)}
	p.l.mu.Lock()
	for id, k := range p.l.kernels {
		v.Kernels = append(v.Kernels, peerEntry{id, k.pod.UID, k.rec.Generation, k.end != nil})
	}
	p.l.mu.Unlock()
	slices.SortFunc(v.Kernels, func(a, b peerEntry) int { return strings.Compare(a.ID, b.ID) })
	slices.Sort(v.Replicas)
	return v
}

// digest is the same for two gateways that know the same.
func (v peerView) digest() string {
	h := sha256.New()
	for _, k := range v.Kernels {
		_, _ = fmt.Fprintln(h, k.ID, k.Pod, k.Generation, k.Ended)
	}
	_, _ = fmt.Fprintln(h, v.Replicas)
	return hex.EncodeToString(h.Sum(nil))
}

// serveView answers a peer that asks what this gateway knows.
func (p *peers) serveView(w http.ResponseWriter, r *http.Request) {
	if !p.listed.Load() { // its container may have created kernels before it was restarted
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	v := p.view()
	if r.URL.Query().Get("have") == v.digest() {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	p.answer(w, v)
}

// serveKnown answers a peer that asks for a kernel which it does not know.
func (p *peers) serveKnown(w http.ResponseWriter, r *http.Request) {
	p.l.mu.Lock()
	k := p.l.kernels[r.PathValue("id")]
	if k == nil {
		p.l.mu.Unlock()
		w.WriteHeader(http.StatusNotFound)
		return
	}
	known := peerKernel{Pod: k.pod, Removed: k.removed, End: k.end}
	p.l.mu.Unlock()
	p.answer(w, known)
}

func (p *peers) answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		p.l.log.Debug("a replica could not be answered", logkey.Err, err)
	}
}

// meet records that a replica exists. name is the value of replicaHeader.
func (p *peers) meet(name string) {
	_, ip, ok := strings.Cut(name, "/")
	if !ok || net.ParseIP(ip) == nil || ip == p.own {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.met[name] = ip
}

func replicaName(pod *corev1.Pod) string { return pod.Name + "/" + pod.Status.PodIP }

func hasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// known returns the addresses of all replicas but this one, by NAME/IP.
func (p *peers) known() map[string]string {
	p.mu.Lock()
	all := maps.Clone(p.met)
	p.mu.Unlock()
	for _, o := range p.store.List() {
		if pod, ok := o.(*corev1.Pod); ok && pod.Status.PodIP != "" && pod.Status.PodIP != p.own &&
			pod.Status.Phase == corev1.PodRunning {
			all[replicaName(pod)] = pod.Status.PodIP
		}
	}
	return all
}

// ask sends a GET to a peer. The caller closes the body.
func (p *peers) ask(ctx context.Context, ip, path string) (*http.Response, error) {
	return p.do(ctx, http.MethodGet, peerAddress(ip), path, nil)
}

// get reads a peer's answer into v. found is false if the peer has nothing to say.
func (p *peers) get(ctx context.Context, ip, path string, v any) (found bool, err error) {
	resp, err := p.ask(ctx, ip, path)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	switch resp.StatusCode {
	case http.StatusOK:
		return true, json.NewDecoder(io.LimitReader(resp.Body, maxPeerAnswer)).Decode(v)
	case http.StatusNoContent:
		return false, nil
	}
	return false, &peerStatusError{resp.StatusCode}
}

// peerStatusError is an answer of a peer that is no success.
type peerStatusError struct{ code int }

func (e *peerStatusError) Error() string { return fmt.Sprintf("it answers %d", e.code) }

// complete reads from all replicas which kernels there are, and records them. The error says that some may be missing.
// Callers that wait at the same time share one round, which begins after all of them have called.
func (p *peers) complete(ctx context.Context) error {
	if !p.introduced.Load() {
		return errors.New("this gateway has not introduced itself to its replicas yet")
	}
	before := p.rounds.Load()
	p.completing.Lock()
	defer p.completing.Unlock()
	if p.last.round > before { // it began after this call
		return p.last.err
	}
	round := p.rounds.Add(1)
	asking, cancel := context.WithTimeout(p.l.ctx, peerTime) // of the launcher: other callers wait for the result
	defer cancel()
	p.last.round, p.last.err = round, p.askAll(asking)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return p.last.err
}

// askAll asks each known replica, also those that the answers name.
func (p *peers) askAll(ctx context.Context) error {
	asked := map[string]bool{}
	for {
		have := p.view().digest()
		var mu sync.Mutex
		var failed []error
		var answers sync.WaitGroup
		fresh := false
		for name, ip := range p.known() {
			if asked[name] {
				continue
			}
			asked[name], fresh = true, true
			answers.Go(func() {
				if err := p.readView(ctx, ip, have); err != nil {
					mu.Lock()
					defer mu.Unlock()
					failed = append(failed, fmt.Errorf("replica %s: %w", name, err))
				}
			})
		}
		answers.Wait()
		if !fresh || len(failed) > 0 {
			return errors.Join(failed...)
		}
	}
}

// readView records what a replica knows and this gateway does not.
func (p *peers) readView(ctx context.Context, ip, have string) error {
	var v peerView
	differs, err := p.get(ctx, ip, "/kernels?have="+have, &v)
	if err != nil || !differs {
		return err
	}
	for _, name := range v.Replicas {
		p.meet(name)
	}
	for _, e := range v.Kernels {
		if !launcher.ValidID(e.ID) || !p.l.lacks(e) {
			continue
		}
		var known peerKernel
		found, err := p.get(ctx, ip, "/kernels/"+url.PathEscape(e.ID), &known)
		var status *peerStatusError
		switch {
		case errors.As(err, &status) && status.code == http.StatusNotFound: // it has gone meanwhile
		case err != nil:
			return err
		case found:
			p.l.enterPeerKernel(e.ID, known)
		}
	}
	return nil
}

// lacks reports whether a replica knows more of a kernel than this gateway.
func (l *Launcher) lacks(e peerEntry) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kernels[e.ID]
	switch {
	case k == nil:
		gone, ok := l.endings.known.Get(e.ID)
		return !ok || gone.pod != e.Pod
	case k.pod.UID == e.Pod:
		return e.Ended && k.end == nil && !k.supervisor.Streaming
	}
	return e.Generation >= k.rec.Generation
}

// enterPeerKernel records a kernel that a replica knows.
func (l *Launcher) enterPeerKernel(id string, known peerKernel) {
	if known.Pod == nil {
		return
	}
	if !l.serves(known.Pod) {
		return // the replica has other settings; this gateway could not tell when the pod is removed
	}
	if rec, err := podspec.ReadRecord(known.Pod); err != nil || rec.ID != id {
		l.log.Warn("a replica has sent a pod that is not the kernel's", logkey.Kernel, id, logkey.Err, err)
		return
	}
	l.handlePod(known.Pod, l.updatePod)
	if known.End != nil {
		l.enterPeerEnding(id, peerEnding{known.Pod.UID, *known.End})
	}
	if known.Removed {
		l.podRemoved(known.Pod)
	}
}

// ensureComplete makes sure that a list of kernels lacks none: by the API server, or without it by the replicas. While
// the API server does not answer, lists do not wait for it.
func (l *Launcher) ensureComplete(ctx context.Context) error {
	if l.peers == nil {
		return l.proveFresh(ctx)
	}
	if l.freshness.failing.Load() && l.peers.complete(ctx) == nil {
		l.proveInBackground()
		return nil
	}
	err := l.proveFresh(ctx)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if cerr := l.peers.complete(ctx); cerr != nil {
		l.log.Info("kernels cannot be listed without the API server", logkey.Err, cerr)
		return err
	}
	return nil
}

// proveInBackground asks the API server whether it answers again, unless another goroutine does.
func (l *Launcher) proveInBackground() {
	if !l.freshness.proving.CompareAndSwap(false, true) {
		return
	}
	if !l.goroutines.Go(func() {
		defer l.freshness.proving.Store(false)
		if err := l.proveFresh(l.ctx); err != nil {
			l.log.Debug("the API server does not answer yet", logkey.Err, err)
		}
	}) {
		l.freshness.proving.Store(false)
	}
}
