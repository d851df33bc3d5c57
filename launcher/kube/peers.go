package kube

import (
	"bytes"
	"context"
	"crypto/subtle"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Replicas notify each other of kernels that they have created, changed or ended, before they answer their client: a
// replica's watch may be late, and the client's next request may reach that replica. A notified replica reads that
// kernel from the cluster.
//
//	POST https://POD_IP:8890/kernels/{id}
//	{"pod": UID, "reason": "...", "at": "...", "stopped": true}
//
// The request has the bearer token that is derived from the master key. Its body is a peerEnding, or empty if the
// kernel has not ended. The answer is 204 once the kernel is up to date.
//
// Two replicas that share a master key believe each other, whichever is the first of each. A client tries its keys in
// turn. The server name that it asks for names the key, so that the server shows the certificate of that key.
const (
	// PeerPort is the port on which a gateway in the cluster receives its replicas' notifications.
	PeerPort = 8890

	peerTime        = 2 * time.Second // for all peers to answer; a peer that does not answer relies on its watch
	peerName        = "ekg-peers"     // name from which the keys are derived
	maxPeerRequests = 64              // requests of peers that are served at one time
	peerReadTime    = 5 * time.Second
	maxPeerBody     = 32 << 10 // bytes
)

// Peers says how a gateway in the cluster finds its replicas.
type Peers struct {
	Namespace string // of the gateways' pods
	Selector  string // label selector that matches exactly the replicas
	IP        string // of this gateway's own pod
}

// peers is the part of a launcher that speaks with other replicas.
type peers struct {
	l         *Launcher
	own       string
	keys      []peerKey // one for each master key
	server    *http.Server
	store     cache.Store // of gateways' pods
	answering chan struct{}
}

// peerKey is what replicas with a common master key believe each other by.
type peerKey struct {
	name        string // server name that selects the certificate
	token       string
	certificate tls.Certificate
	client      *http.Client // of peers that have the key
}

// newPeerKeys derives the keys for peers from the master keys.
func newPeerKeys(masters []masterKey) ([]peerKey, error) {
	var all []peerKey
	for _, master := range masters {
		keys, err := podspec.DeriveKeys(master.secret, peerName, podspec.KeyVersion)
		if err != nil {
			return nil, err
		}
		k := peerKey{name: peerName + "-" + master.fingerprint, token: keys.Token}
		trust, err := api.PinnedTLS(keys.TLSSeed, k.name)
		if err != nil {
			return nil, err
		}
		if k.certificate, err = api.Certificate(keys.TLSSeed, k.name); err != nil {
			return nil, err
		}
		k.client = &http.Client{
			Timeout:   peerTime,
			Transport: &http.Transport{TLSClientConfig: trust, MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute},
		}
		all = append(all, k)
	}
	return all, nil
}

// certificate returns the certificate of the key that a client asks for. Gateways of earlier releases name no key, and
// get the first one.
func (p *peers) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	for i := range p.keys {
		if p.keys[i].name == hello.ServerName {
			return &p.keys[i].certificate, nil
		}
	}
	return &p.keys[0].certificate, nil
}

func (p *peers) tlsConfig() *tls.Config {
	return &tls.Config{GetCertificate: p.certificate, MinVersion: tls.VersionTLS13}
}

// believes reports whether a request has a token that is derived from a master key of this gateway.
func (p *peers) believes(r *http.Request) bool {
	sent, ok := []byte(r.Header.Get("Authorization")), 0
	for _, k := range p.keys {
		ok |= subtle.ConstantTimeCompare(sent, []byte("Bearer "+k.token))
	}
	return ok == 1
}

// startPeers listens for peers and begins to watch their pods.
func (l *Launcher) startPeers(o Peers) (*peers, error) {
	keys, err := newPeerKeys(l.keys)
	if err != nil {
		return nil, err
	}
	p := &peers{l: l, own: o.IP, keys: keys, answering: make(chan struct{}, maxPeerRequests)}
	listener, err := net.Listen("tcp", ":"+strconv.Itoa(PeerPort))
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /kernels/{id}", p.serveKernel)
	p.server = &http.Server{
		Handler:        mux,
		ReadTimeout:    peerReadTime,
		WriteTimeout:   peerReadTime,
		IdleTimeout:    2 * time.Minute,
		MaxHeaderBytes: 16 << 10,
		ErrorLog:       slog.NewLogLogger(l.log.Handler(), slog.LevelDebug), // a peer may try its second key next
		TLSConfig:      p.tlsConfig(),
	}
	l.goroutines.Go(func() {
		if err := p.server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			l.log.Error("notifications of other replicas are no longer received", logkey.Err, err)
		}
	})
	pods := informers.NewSharedInformerFactoryWithOptions(l.client, 0,
		informers.WithNamespace(o.Namespace),
		informers.WithTweakListOptions(func(lo *metav1.ListOptions) { lo.LabelSelector = o.Selector }),
	).Core().V1().Pods().Informer()
	if err := pods.SetTransform(dropManagedFields); err != nil {
		return nil, errors.Join(err, p.server.Close())
	}
	p.store = pods.GetStore()
	l.goroutines.Go(func() { pods.Run(l.ctx.Done()) })
	return p, nil
}

func (p *peers) close() {
	_ = p.server.Close() // its peers rely on their watches
	p.closeIdle()
}

func (p *peers) closeIdle() {
	for _, k := range p.keys {
		k.client.CloseIdleConnections()
	}
}

// serveKernel answers a peer that has changed a kernel.
func (p *peers) serveKernel(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	switch {
	case !p.believes(r):
		w.WriteHeader(http.StatusForbidden)
		return
	case !launcher.ValidID(id):
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	settled := p.l.freshness.markStale() // even if this request fails, the next list has the kernel
	select {
	case p.answering <- struct{}{}:
		defer func() { <-p.answering }()
	default:
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	var end peerEnding
	switch err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxPeerBody)).Decode(&end); {
	case err == nil:
		p.l.enterPeerEnding(id, end)
	case !errors.Is(err, io.EOF): // it is empty if the kernel has not ended
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if err := p.l.refresh(r.Context(), id); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	settled()
	w.WriteHeader(http.StatusNoContent)
}

// peerEnding tells another replica how a kernel ended, because the pod that would show it is gone.
type peerEnding struct {
	Pod types.UID `json:"pod"`
	storedEnding
}

// endingForPeers returns how a kernel has ended, nil if it has not.
func (l *Launcher) endingForPeers(id string) *peerEnding {
	l.mu.Lock()
	defer l.mu.Unlock()
	end, ended := l.endings.known.Get(id)
	if k := l.kernels[id]; !ended || k != nil && (k.end == nil || k.pod.UID != end.pod) {
		return nil
	}
	return &peerEnding{end.pod, *end}
}

// enterPeerEnding records an ending that another replica reports.
func (l *Launcher) enterPeerEnding(id string, reported peerEnding) {
	end := reported.storedEnding
	end.Reason, end.At, end.pod = podstatus.OneLine(end.Reason, maxReason), end.At.UTC(), reported.Pod
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kernels[id]
	switch {
	case k == nil:
		if before, ok := l.endings.known.Get(id); !ok || before.pod != reported.Pod {
			l.rememberEndingLocked(id, &end) // then late events about its pod are ignored
		}
	case k.pod.UID == reported.Pod && (k.end == nil || end.Stopped):
		l.endLocked(k, &end)
		if end.Stopped {
			l.forgetLocked(k)
		}
		k.supervisor.ChangedLocked()
	}
}

// notifyPeers makes every other replica read a kernel. It returns when all have done so, at the latest after peerTime.
func (l *Launcher) notifyPeers(ctx context.Context, id string) {
	if l.peers == nil {
		return
	}
	var body []byte
	if end := l.endingForPeers(id); end != nil {
		var err error
		if body, err = json.Marshal(end); err != nil {
			// it was parsed, or comes from this machine's clock
			panic("kube: the time of an ending cannot be encoded: " + err.Error())
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), peerTime)
	defer cancel()
	var wg sync.WaitGroup
	for _, o := range l.peers.store.List() {
		pod, ok := o.(*corev1.Pod)
		if !ok || pod.Status.PodIP == "" || pod.Status.PodIP == l.peers.own || pod.Status.Phase != corev1.PodRunning {
			continue
		}
		wg.Go(func() {
			address := net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(PeerPort))
			if err := l.peers.notify(ctx, address, id, body); err != nil {
				l.log.Info("a replica could not be notified of a kernel; it relies on its watch", logkey.Replica, pod.Name,
					logkey.Kernel, id, logkey.Err, err)
			}
		})
	}
	wg.Wait()
}

// notify makes the peer at an address read a kernel. A peer that has other keys is asked with each key in turn.
func (p *peers) notify(ctx context.Context, address, id string, body []byte) (err error) {
	for _, k := range p.keys {
		if err = k.notify(ctx, address, id, body); !errors.Is(err, api.ErrOtherKey) {
			return err
		}
	}
	return fmt.Errorf("it has no master key of this gateway: %w", err)
}

func (k *peerKey) notify(ctx context.Context, address, id string, body []byte) error {
	url := "https://" + address + "/kernels/" + id
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+k.token)
	resp, err := k.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // it is empty
	if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<10)); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusNoContent {
		return fmt.Errorf("it answers %s", resp.Status)
	}
	return nil
}
