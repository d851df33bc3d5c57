package replicas

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

	"github.com/elastic-kernel-gateway/ekg/launcher"
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
//	GET https://POD_IP:8890/kernels?have=DIGEST   view, or 204 if the digest of the replica's view is the same
//	GET https://POD_IP:8890/kernels/{id}          Kernel
//
// Requests of replicas name their sender in replicaHeader, so each of them introduces it.
const (
	replicaHeader = "Ekg-Replica"    // NAME/IP of the pod that sends a request
	greetTime     = 20 * time.Second // for ready replicas to answer an introduction; after that they are not waited for
	greetRetry    = time.Second
	maxAnswer     = 64 << 20 // bytes
)

// view is what a replica knows.
type view struct {
	Kernels  []Entry  `json:"kernels"`
	Replicas []string `json:"replicas"` // NAME/IP, also its own
}

// view returns what this gateway knows, in a fixed order.
func (rs *Replicas) view() view {
	v := view{Kernels: rs.kernels.List(), Replicas: append(slices.Collect(maps.Keys(rs.known())), rs.self)}
	slices.SortFunc(v.Kernels, func(a, b Entry) int { return strings.Compare(a.ID, b.ID) })
	slices.Sort(v.Replicas)
	return v
}

// digest is the same for two gateways that know the same.
func (v view) digest() string {
	h := sha256.New()
	for _, k := range v.Kernels {
		_, _ = fmt.Fprintln(h, k.ID, k.Pod, k.Generation, k.Ended)
	}
	_, _ = fmt.Fprintln(h, v.Replicas)
	return hex.EncodeToString(h.Sum(nil))
}

// serveView answers a replica that asks what this gateway knows.
func (rs *Replicas) serveView(w http.ResponseWriter, r *http.Request) {
	if !rs.listed.Load() { // its container may have created kernels before it was restarted
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	v := rs.view()
	if r.URL.Query().Get("have") == v.digest() {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	rs.answer(w, v)
}

// serveKnown answers a replica that asks for a kernel which it does not know.
func (rs *Replicas) serveKnown(w http.ResponseWriter, r *http.Request) {
	known, ok := rs.kernels.Known(r.PathValue("id"))
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	rs.answer(w, known)
}

func (rs *Replicas) answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		rs.log.Debug("a replica could not be answered", logkey.Err, err)
	}
}

// meet records that a replica exists. name is the value of replicaHeader.
func (rs *Replicas) meet(name string) {
	_, ip, ok := strings.Cut(name, "/")
	if !ok || net.ParseIP(ip) == nil || ip == rs.opts.IP {
		return
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.met[name] = ip
}

func replicaName(pod *corev1.Pod) string { return pod.Name + "/" + pod.Status.PodIP }

func hasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// known returns the addresses of all replicas but this one, by NAME/IP.
func (rs *Replicas) known() map[string]string {
	rs.mu.Lock()
	all := maps.Clone(rs.met)
	rs.mu.Unlock()
	for _, o := range rs.store.List() {
		if pod, ok := o.(*corev1.Pod); ok && pod.Status.PodIP != "" && pod.Status.PodIP != rs.opts.IP &&
			pod.Status.Phase == corev1.PodRunning {
			all[replicaName(pod)] = pod.Status.PodIP
		}
	}
	return all
}

// ask sends a GET to a replica. The caller closes the body.
func (rs *Replicas) ask(ctx context.Context, ip, path string) (*http.Response, error) {
	return rs.do(ctx, http.MethodGet, address(ip), path, nil)
}

// get reads a replica's answer into v. found is false if the replica has nothing to say.
func (rs *Replicas) get(ctx context.Context, ip, path string, v any) (found bool, err error) {
	resp, err := rs.ask(ctx, ip, path)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	switch resp.StatusCode {
	case http.StatusOK:
		return true, json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(v)
	case http.StatusNoContent:
		return false, nil
	}
	return false, &statusError{resp.StatusCode}
}

// statusError is an answer of a replica that is no success.
type statusError struct{ code int }

func (e *statusError) Error() string { return fmt.Sprintf("it answers %d", e.code) }

// Complete reads from all replicas which kernels there are, and records them. The error says that some may be missing.
// Callers that wait at the same time share one round, which begins after all of them have called.
func (rs *Replicas) Complete(ctx context.Context) error {
	if rs == nil {
		return errors.New("this gateway has no replicas")
	}
	if !rs.introduced.Load() {
		return errors.New("this gateway has not introduced itself to its replicas yet")
	}
	before := rs.rounds.Load()
	rs.completing.Lock()
	defer rs.completing.Unlock()
	if rs.last.round > before { // it began after this call
		return rs.last.err
	}
	round := rs.rounds.Add(1)
	asking, cancel := context.WithTimeout(rs.life, answerTime) // of the launcher: other callers wait for the result
	defer cancel()
	rs.last.round, rs.last.err = round, rs.askAll(asking)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return rs.last.err
}

// askAll asks each known replica, also those that the answers name.
func (rs *Replicas) askAll(ctx context.Context) error {
	asked := map[string]bool{}
	for {
		have := rs.view().digest()
		var mu sync.Mutex
		var failed []error
		var answers sync.WaitGroup
		fresh := false
		for name, ip := range rs.known() {
			if asked[name] {
				continue
			}
			asked[name], fresh = true, true
			answers.Go(func() {
				if err := rs.readView(ctx, ip, have); err != nil {
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
func (rs *Replicas) readView(ctx context.Context, ip, have string) error {
	var v view
	differs, err := rs.get(ctx, ip, "/kernels?have="+have, &v)
	if err != nil || !differs {
		return err
	}
	for _, name := range v.Replicas {
		rs.meet(name)
	}
	for _, e := range v.Kernels {
		if !launcher.ValidID(e.ID) || !rs.kernels.Lacks(e) {
			continue
		}
		var known Kernel
		found, err := rs.get(ctx, ip, "/kernels/"+url.PathEscape(e.ID), &known)
		var status *statusError
		switch {
		case errors.As(err, &status) && status.code == http.StatusNotFound: // it has gone meanwhile
		case err != nil:
			return err
		case found:
			if err := rs.kernels.Enter(e.ID, known); err != nil {
				return err
			}
		}
	}
	return nil
}
