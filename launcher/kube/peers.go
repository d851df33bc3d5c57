package kube

import (
	"bytes"
	"cmp"
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
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
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

	peerName        = "ekg-peers" // name from which the keys are derived
	maxPeerRequests = 64          // requests of peers that are served at one time
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
	self      string // NAME/IP of its pod
	namespace string
	selector  string
	keys      []peerKey // one for each master key
	server    *http.Server
	store     cache.Store // of gateways' pods
	answering chan struct{}

	listed     atomic.Bool   // this gateway has read all kernels from the quorum
	introduced atomic.Bool   // all gateways can know this one, and it has listed
	forgetting atomic.Bool   // forgetEnded runs in the background
	rounds     atomic.Uint64 // how often complete has begun to ask all replicas

	completing sync.Mutex // held while all replicas are asked
	last       struct {   // guarded by completing; the last time
		round uint64
		err   error
	}

	mu      sync.Mutex
	met     map[string]string // addresses of replicas by NAME/IP; the store may not have them yet
	greeted map[string]bool   // replicas that know this gateway
	silent  map[string]*silentPeer
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
		keys, err := podspec.DeriveKeys(master.secret, "", peerName, podspec.KeyVersionName)
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
	p := l.newPeers(o, keys)
	listener, err := net.Listen("tcp", ":"+strconv.Itoa(PeerPort))
	if err != nil {
		return nil, err
	}
	p.server = &http.Server{
		Handler:        p.routes(),
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
	l.freshness.markStale() // the informers' first lists may be old
	if err := p.watchReplicas(); err != nil {
		return nil, errors.Join(err, p.server.Close())
	}
	return p, nil
}

// newPeers returns a peers that does not listen, watch or send yet.
func (l *Launcher) newPeers(o Peers, keys []peerKey) *peers {
	host, err := os.Hostname()
	if err != nil {
		l.log.Debug("this machine has no name", logkey.Err, err)
	}
	return &peers{
		l:         l,
		own:       o.IP,
		self:      cmp.Or(host, "ekg") + "/" + o.IP,
		namespace: o.Namespace,
		selector:  o.Selector,
		keys:      keys,
		answering: make(chan struct{}, maxPeerRequests),
		store:     cache.NewStore(cache.MetaNamespaceKeyFunc),
		met:       map[string]string{},
		greeted:   map[string]bool{},
		silent:    map[string]*silentPeer{},
	}
}

// routes is the handler for requests of peers.
func (p *peers) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /kernels/{id}", p.serveKernel)
	mux.HandleFunc("GET /version", p.serveVersion)
	mux.HandleFunc("GET /kernels", p.serveView)
	mux.HandleFunc("GET /kernels/{id}", p.serveKnown)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !p.believes(r) {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		p.meet(r.Header.Get(replicaHeader))
		mux.ServeHTTP(w, r)
	})
}

// watchReplicas begins to watch the gateways' pods.
func (p *peers) watchReplicas() error {
	l := p.l
	replicas := l.client.CoreV1().Pods(p.namespace)
	pods := cache.NewSharedIndexInformer(listThenWatch{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = p.selector
			return untilAnswered(ctx, l, func() (*corev1.PodList, error) { return replicas.List(ctx, o) })
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = p.selector
			return untilAnswered(ctx, l, func() (watch.Interface, error) { return replicas.Watch(ctx, o) })
		},
	}}, &corev1.Pod{}, 0, nil)
	_, err := pods.AddEventHandler(p.onReplica())
	if err := errors.Join(err, pods.SetTransform(dropManagedFields)); err != nil {
		return err
	}
	p.store = pods.GetStore()
	l.goroutines.Go(func() { pods.Run(l.ctx.Done()) })
	return nil
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
	if !launcher.ValidID(id) {
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

func peerAddress(ip string) string { return net.JoinHostPort(ip, strconv.Itoa(PeerPort)) }

// do sends a request to the peer at an address. A peer that has other keys is asked with each key in turn. The caller
// closes the body.
func (p *peers) do(ctx context.Context, method, address, path string, body []byte) (*http.Response, error) {
	var last error
	for _, k := range p.keys {
		req, err := http.NewRequestWithContext(ctx, method, "https://"+address+path, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+k.token)
		req.Header.Set(replicaHeader, p.self)
		resp, err := k.client.Do(req)
		if !errors.Is(err, api.ErrOtherKey) {
			return resp, err
		}
		last = err
	}
	return nil, fmt.Errorf("it has no master key of this gateway: %w", last)
}
