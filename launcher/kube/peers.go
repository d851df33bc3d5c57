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
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// Replicas tell each other which kernels they have made, changed or ended, before they answer their client: a watch may be
// late, and the client's next request may reach another replica. The one that is told asks the cluster for that kernel alone.
//
//	POST https://POD_IP:8890/kernels/{id}   with the bearer token that follows from the master key; 204 when it knows
//	{"pod": UID, "reason": "...", "at": "...", "stopped": true}   the body, a toldEnding, only of a kernel that has ended
const (
	// PeerPort is where a gateway in the cluster hears from its replicas.
	PeerPort = 8890

	peerTime  = 2 * time.Second // for all peers to be told; one that does not answer will learn by its watch
	peerName  = "ekg-peers"     // what keys are derived for, and the name in the certificate
	peerAsks  = 64              // peers' requests that are answered at one time
	peerReads = 5 * time.Second
	peerBody  = 32 << 10 // bytes of how a kernel ended
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
	settled := p.l.freshness.doubt() // whatever happens to this request now, its kernel is in the next list
	select {
	case p.asking <- struct{}{}:
		defer func() { <-p.asking }()
	default:
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	var end toldEnding
	switch err := json.NewDecoder(http.MaxBytesReader(w, r.Body, peerBody)).Decode(&end); {
	case err == nil:
		p.l.enterTold(id, end)
	case !errors.Is(err, io.EOF): // it is empty where nothing has ended
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if err := p.l.ask(r.Context(), id); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	settled()
	w.WriteHeader(http.StatusNoContent)
}

// toldEnding is how a kernel has ended, as one replica tells it to another: the pod that would show it is gone.
type toldEnding struct {
	Pod types.UID `json:"pod"`
	ending
}

// endingToTell is how a kernel has ended, nil if it has not.
func (l *Launcher) endingToTell(id string) *toldEnding {
	l.mu.Lock()
	defer l.mu.Unlock()
	end, ended := l.endings.known.Get(id)
	if k := l.kernels[id]; !ended || k != nil && (k.end == nil || k.pod.UID != end.pod) {
		return nil
	}
	return &toldEnding{end.pod, *end}
}

// enterTold enters how a kernel has ended that another replica has ended.
func (l *Launcher) enterTold(id string, told toldEnding) {
	end := told.ending
	end.Reason, end.At, end.pod = quote(end.Reason, maxReason), end.At.UTC(), told.Pod
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kernels[id]
	switch {
	case k == nil:
		if before, ok := l.endings.known.Get(id); !ok || before.pod != told.Pod {
			l.remember(id, &end) // what a late watch tells of its pod is no news then
		}
	case k.pod.UID == told.Pod && (k.end == nil || end.Stopped):
		l.enterEnd(k, &end)
		if end.Stopped {
			l.enterGone(k)
		}
		k.touch()
	}
}

// tellPeers has every other replica look at a kernel, and returns when they have or their time is over.
func (l *Launcher) tellPeers(ctx context.Context, id string) {
	if l.peers == nil {
		return
	}
	var body []byte
	if end := l.endingToTell(id); end != nil {
		var err error
		if body, err = json.Marshal(end); err != nil {
			panic("kube: the time of an end cannot be written: " + err.Error()) // it was read or comes from this machine's clock
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
			if err := l.peers.tell(ctx, pod.Status.PodIP, id, body); err != nil {
				l.log.Info("a replica could not be told of a kernel; its watch will", "replica", pod.Name, "kernel", id, "err", err)
			}
		})
	}
	wg.Wait()
}

func (p *peers) tell(ctx context.Context, ip, id string, body []byte) error {
	url := "https://" + net.JoinHostPort(ip, strconv.Itoa(PeerPort)) + "/kernels/" + id
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
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
