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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/sleep"
)

// While the API server does not answer, a list of kernels is made from memory and from the replicas' memories. It lacks
// no kernel, because of the following:
//
//   - Only gateways create kernels. A gateway knows the kernels that it has created, before it answers their clients.
//   - A gateway that has read all pods from the quorum once knows all kernels, but those that other gateways have
//     created since and that its watch has not reported. Each of these gateways knows its own.
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

// forget removes a replica whose pod is gone or has ended.
func (p *peers) forget(pod *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.met, replicaName(pod))
	delete(p.greeted, replicaName(pod))
}

func replicaName(pod *corev1.Pod) string { return pod.Name + "/" + pod.Status.PodIP }

// forgetEnded returns the handler that makes p forget replicas.
func (p *peers) forgetEnded() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, o any) {
			if pod, ok := o.(*corev1.Pod); ok && hasEnded(pod) {
				p.forget(pod)
			}
		},
		DeleteFunc: func(o any) {
			if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = d.Obj
			}
			if pod, ok := o.(*corev1.Pod); ok {
				p.forget(pod)
			}
		},
	}
}

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

// introduce makes this gateway and all others know each other. Afterwards this gateway may create kernels, and may
// answer lists without the API server. It does not wait longer than greetTime for replicas that do not answer.
func (p *peers) introduce(ctx context.Context) error {
	if err := p.l.proveFresh(ctx); err != nil { // it asks the quorum, because of the mark of startPeers
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, greetTime)
	defer cancel()
	for {
		replicas, ownSeen, err := p.listReplicas(ctx)
		if err != nil {
			return err
		}
		var unmet []string
		for name, r := range replicas {
			// A replica that is not ready and does not answer will introduce itself.
			if err := p.greet(ctx, name, r.ip); err == nil || r.ready {
				p.meet(name)
				if err != nil {
					unmet = append(unmet, name)
				}
			}
		}
		if ownSeen && len(unmet) == 0 {
			break
		}
		if sleep.For(waiting, greetRetry) != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if !ownSeen {
				p.l.log.Warn("the cluster does not know the address of this gateway's pod; lists need the API server",
					logkey.Replica, p.self)
				return nil
			}
			p.l.log.Warn("replicas that are ready do not answer", logkey.Replica, unmet)
			break
		}
	}
	p.introduced.Store(true)
	return nil
}

// listedReplica is a pod of another gateway.
type listedReplica struct {
	ip    string
	ready bool
}

// listReplicas reads the other gateways' pods from the quorum, by NAME/IP. ownSeen says that they can find this one.
func (p *peers) listReplicas(ctx context.Context) (all map[string]listedReplica, ownSeen bool, err error) {
	asking, cancel := p.l.apiContext(ctx)
	defer cancel()
	pods, err := p.l.client.CoreV1().Pods(p.namespace).List(asking, metav1.ListOptions{LabelSelector: p.selector})
	if err != nil {
		return nil, false, err
	}
	all = map[string]listedReplica{}
	for i := range pods.Items {
		pod := &pods.Items[i]
		switch {
		case pod.Status.PodIP == p.own:
			ownSeen = true
		case pod.Status.PodIP != "" && !hasEnded(pod):
			ready := pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions,
				func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
			all[replicaName(pod)] = listedReplica{pod.Status.PodIP, ready}
		}
	}
	return all, ownSeen, nil
}

// greet introduces this gateway to a replica that has not answered it yet. An answer of an earlier version of ekg
// counts: that version answers no lists without the API server.
func (p *peers) greet(ctx context.Context, name, ip string) error {
	p.mu.Lock()
	done := p.greeted[name]
	p.mu.Unlock()
	if done {
		return nil
	}
	resp, err := p.ask(ctx, ip, "/kernels?have="+p.view().digest())
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.greeted[name] = true
	return nil
}

// greetRest introduces this gateway to replicas that could not be reached before.
func (p *peers) greetRest(ctx context.Context) {
	var asked sync.WaitGroup
	for name, ip := range p.known() {
		asked.Go(func() {
			if err := p.greet(ctx, name, ip); err != nil {
				p.l.log.Debug("a replica does not answer", logkey.Replica, name, logkey.Err, err)
			}
		})
	}
	asked.Wait()
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
