package kube

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// Replicas tell each other which kernels they have made, changed or ended, before they answer their client: a watch may be
// late, and the client's next request may reach another replica. The one that is told asks the cluster for that kernel alone.
//
//	POST https://POD_IP:8890/kernels/{id}   with the bearer token that follows from the master key; 204 when it knows
const (
	// PeerPort is where a gateway in the cluster hears from its replicas.
	PeerPort = 8890

	peerTime  = time.Second // for all peers to be told; one that does not answer will learn by its watch
	peerName  = "ekg-peers" // what keys are derived for, and the name in the certificate
	peerAsks  = 64          // peers' requests that are answered at one time
	peerReads = 5 * time.Second
)

// Peers says how a gateway in the cluster finds its replicas.
type Peers struct {
	Namespace string // of the gateways' pods
	Selector  string // of labels that all replicas have and nothing else
	IP        string // of this gateway's own pod
}

// peers is the part of a launcher that speaks with other replicas.
type peers struct {
	l      *Launcher
	own    string
	keys   keyMaterial
	server *http.Server
	client *http.Client
	store  cache.Store // of gateways' pods
	asking chan struct{}
}

// startPeers listens for peers and begins to watch which there are.
func (l *Launcher) startPeers(o Peers) (*peers, error) {
	keys, err := deriveKeys(l.opts.MasterKey, peerName, keyVersion)
	if err != nil {
		return nil, err
	}
	trust, err := supervisor.PinnedTLS(keys.tlsSeed, peerName)
	if err != nil {
		return nil, err
	}
	p := &peers{l: l, own: o.IP, keys: keys, asking: make(chan struct{}, peerAsks),
		client: &http.Client{Timeout: peerTime, Transport: &http.Transport{TLSClientConfig: trust, MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute}}}
	certificate, err := supervisor.Certificate(keys.tlsSeed, peerName)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", ":"+strconv.Itoa(PeerPort))
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /kernels/{id}", p.told)
	p.server = &http.Server{Handler: mux, ReadTimeout: peerReads, WriteTimeout: peerReads, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13}}
	l.own(func() {
		if err := p.server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			l.log.Error("other replicas cannot be heard any more", "err", err)
		}
	})
	pods := informers.NewSharedInformerFactoryWithOptions(l.client, 0, informers.WithNamespace(o.Namespace),
		informers.WithTweakListOptions(func(lo *metav1.ListOptions) { lo.LabelSelector = o.Selector })).Core().V1().Pods().Informer()
	if err := pods.SetTransform(slim); err != nil {
		return nil, errors.Join(err, p.server.Close())
	}
	p.store = pods.GetStore()
	l.own(func() { pods.Run(l.ctx.Done()) })
	return p, nil
}

func (p *peers) close() {
	p.server.Close() //nolint:errcheck // its peers learn by their watches
	p.client.CloseIdleConnections()
}

// told answers a peer that has changed something about a kernel.
func (p *peers) told(w http.ResponseWriter, r *http.Request) {
	token := "Bearer " + p.keys.token
	id := r.PathValue("id")
	switch {
	case subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte(token)) != 1:
		w.WriteHeader(http.StatusForbidden)
		return
	case !launcher.ValidID(id):
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	select {
	case p.asking <- struct{}{}:
		defer func() { <-p.asking }()
	default:
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	if err := p.l.ask(r.Context(), id); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// tellPeers has every other replica look at a kernel, and returns when they have or their time is over.
func (l *Launcher) tellPeers(ctx context.Context, id string) {
	if l.peers == nil {
		return
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
			if err := l.peers.tell(ctx, pod.Status.PodIP, id); err != nil {
				l.log.Info("a replica could not be told of a kernel; its watch will", "replica", pod.Name, "kernel", id, "err", err)
			}
		})
	}
	wg.Wait()
}

func (p *peers) tell(ctx context.Context, ip, id string) error {
	url := "https://" + net.JoinHostPort(ip, strconv.Itoa(PeerPort)) + "/kernels/" + id
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+p.keys.token)
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // there is nothing in it
	if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<10)); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusNoContent {
		return fmt.Errorf("it answers %s", resp.Status)
	}
	return nil
}
