package replicas

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// onReplica returns the handler for changes of the gateways' pods. A replica that was seen once stays known until
// forgetEnded has made sure that no kernel of it is unknown.
func (rs *Replicas) onReplica() cache.ResourceEventHandler {
	changed := func(o any) {
		switch pod, ok := o.(*corev1.Pod); {
		case !ok:
		case hasEnded(pod):
			rs.forgetInBackground()
		case pod.Status.Phase == corev1.PodRunning:
			rs.meet(replicaName(pod))
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    changed,
		UpdateFunc: func(_, o any) { changed(o) },
		DeleteFunc: func(any) { rs.forgetInBackground() },
	}
}

// forgetInBackground calls forgetEnded, unless another goroutine does. The next Maintain makes up for a call that is
// left out.
func (rs *Replicas) forgetInBackground() {
	if !rs.forgetting.CompareAndSwap(false, true) {
		return
	}
	if !rs.opts.Goroutines.Go(func() {
		defer rs.forgetting.Store(false)
		rs.forgetEnded(rs.life)
	}) {
		rs.forgetting.Store(false)
	}
}

// forgetEnded forgets replicas whose pods are gone or have ended. Such a replica may have created kernels that no other
// one knows, so all kernels are read from the quorum first.
func (rs *Replicas) forgetEnded(ctx context.Context) {
	rs.mu.Lock()
	met := maps.Clone(rs.met) // taken before the request: a replica that is met meanwhile does not seem to be gone
	rs.mu.Unlock()
	for _, o := range rs.store.List() {
		if pod, ok := o.(*corev1.Pod); ok && !hasEnded(pod) {
			delete(met, replicaName(pod))
		}
	}
	if len(met) == 0 {
		return
	}
	pods, err := rs.opts.Pods(ctx)
	if err != nil {
		rs.log.Debug("the gateways' pods could not be listed", logkey.Err, err)
		return
	}
	// Names are not compared: the name of a pod's machine may differ from the pod's.
	for i := range pods {
		if ip := pods[i].Status.PodIP; !hasEnded(&pods[i]) {
			maps.DeleteFunc(met, func(_, other string) bool { return other == ip })
		}
	}
	if len(met) == 0 {
		return
	}
	rs.kernels.Doubt()
	if err := rs.kernels.Prove(ctx); err != nil {
		rs.log.Debug("replicas that have ended are still asked: the cluster's pods could not be listed", logkey.Err, err)
		return
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for name := range met {
		delete(rs.met, name)
		delete(rs.greeted, name)
	}
}

// Introduce makes this gateway and all others know each other. Afterwards this gateway may create kernels, and may
// answer lists without the API server. It does not wait longer than greetTime for replicas that do not answer.
func (rs *Replicas) Introduce(ctx context.Context) error {
	seen, err := rs.greetListed(ctx)
	if err != nil {
		return err
	}
	// Replicas that have ended before they could be greeted have created no kernel after this.
	rs.kernels.Doubt()
	if err := rs.kernels.Prove(ctx); err != nil {
		return err
	}
	rs.listed.Store(true)
	rs.introduced.Store(seen)
	return nil
}

// greetListed greets the replicas that the cluster has. seen says that later ones can find this gateway.
func (rs *Replicas) greetListed(ctx context.Context) (seen bool, err error) {
	waiting, cancel := context.WithTimeout(ctx, greetTime)
	defer cancel()
	for {
		replicas, ownSeen, err := rs.listReplicas(ctx)
		if err != nil {
			return false, err
		}
		var unmet []string
		for name, r := range replicas {
			err := rs.greet(ctx, name, r.ip)
			if err == nil || r.running {
				rs.meet(name)
			}
			if err != nil && r.ready { // others are not waited for
				unmet = append(unmet, name)
			}
		}
		if ownSeen && len(unmet) == 0 {
			return true, nil
		}
		if goroutines.Sleep(waiting, greetRetry) != nil {
			if ctx.Err() != nil {
				return false, context.Cause(ctx)
			}
			if !ownSeen {
				rs.log.Warn("the cluster does not know the address of this gateway's pod; lists need the API server",
					logkey.Replica, rs.self)
				return false, nil
			}
			rs.log.Warn("replicas that are ready do not answer", logkey.Replica, unmet)
			return true, nil
		}
	}
}

// listedReplica is a pod of another gateway.
type listedReplica struct {
	ip             string
	running, ready bool
}

// listReplicas reads the other gateways' pods from the quorum, by NAME/IP. ownSeen says that they can find this one.
func (rs *Replicas) listReplicas(ctx context.Context) (all map[string]listedReplica, ownSeen bool, err error) {
	pods, err := rs.opts.Pods(ctx)
	if err != nil {
		return nil, false, err
	}
	all = map[string]listedReplica{}
	for i := range pods {
		pod := &pods[i]
		switch {
		case pod.Status.PodIP == rs.opts.IP:
			ownSeen = true
		case pod.Status.PodIP != "" && !hasEnded(pod):
			all[replicaName(pod)] = listedReplica{pod.Status.PodIP, pod.Status.Phase == corev1.PodRunning, isReady(pod)}
		}
	}
	return all, ownSeen, nil
}

// isReady reports whether the cluster sends requests to a gateway's pod.
func isReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions,
		func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
}

// greet introduces this gateway to a replica that has not answered it yet. An answer of an earlier version of ekg
// counts: that version answers no lists without the API server.
func (rs *Replicas) greet(ctx context.Context, name, ip string) error {
	rs.mu.Lock()
	done := rs.greeted[name]
	rs.mu.Unlock()
	if done {
		return nil
	}
	resp, err := rs.ask(ctx, ip, "/kernels?have="+rs.view().digest())
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode == http.StatusForbidden {
		return fmt.Errorf("it answers %s", resp.Status) // it has not recorded this gateway
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.greeted[name] = true
	return nil
}

// greetRest introduces this gateway to replicas that could not be reached before.
func (rs *Replicas) greetRest(ctx context.Context) {
	var asked sync.WaitGroup
	for name, ip := range rs.known() {
		asked.Go(func() {
			if err := rs.greet(ctx, name, ip); err != nil {
				rs.log.Debug("a replica does not answer", logkey.Replica, name, logkey.Err, err)
			}
		})
	}
	asked.Wait()
}
