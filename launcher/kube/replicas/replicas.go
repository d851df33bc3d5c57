// Package replicas makes the gateways of one cluster find and tell each other. A Replicas knows the other gateways'
// pods, tells them of kernels that this gateway has changed, and asks them which kernels they know. It decides nothing
// about kernels: those are behind the interface Kernels, which package kube implements.
//
// Begin with New, then Serve, Watch and Introduce. Its goroutines belong to the group that its options name: the
// server, the watch of the gateways' pods, one for each replica that has missed a notification, and one that forgets
// replicas which have ended. Close ends the server.
//
// Locks: Replicas.completing is held while all replicas are asked; Replicas.mu is taken last, and never held during a
// request or a call of Kernels.
package replicas

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
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
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
// The request has the bearer token that is derived from the master key. Its body says how the kernel ended, and is
// empty if it has not ended. The answer is 204 once the kernel is up to date.
//
// Two replicas that share a master key believe each other, whichever is the first of each. A client tries its keys in
// turn. The server name that it asks for names the key, so that the server shows the certificate of that key.
const (
	// Selector selects the pods of gateways by the labels that manifests and chart give them.
	Selector = "app.kubernetes.io/name=ekg,app.kubernetes.io/component=gateway"
	// Port is the port on which a gateway in the cluster receives its replicas' notifications.
	Port = 8890

	keyName     = "ekg-peers" // name from which the keys are derived
	maxRequests = 64          // requests of replicas that are served at one time
	readTime    = 5 * time.Second
	maxBody     = 32 << 10 // bytes
)

// Kernels is what a gateway knows of the cluster's kernels. All methods may be called concurrently.
type Kernels interface {
	// List returns all kernels that this gateway knows, in any order.
	List() []Entry
	// Known returns what this gateway knows of a kernel.
	Known(id string) (k Kernel, ok bool)
	// Lacks reports whether a replica knows more of a kernel than this gateway.
	Lacks(e Entry) bool
	// Enter records what a replica knows of a kernel. The error says that it cannot be read.
	Enter(id string, k Kernel) error
	// Ending returns how a kernel has ended, with its pod, for EnterEnding of a replica. It is nil if the kernel has not
	// ended.
	Ending(id string) []byte
	// EnterEnding records how a kernel has ended, as a replica's Ending says. The error says that it cannot be read.
	EnterEnding(id string, ending []byte) error
	// Refresh reads a kernel from the cluster.
	Refresh(ctx context.Context, id string) error
	// Doubt makes lists of kernels wait for the next Prove, until settled is called.
	Doubt() (settled func())
	// Prove reads from the cluster which kernels there are, unless that was done just now and there is no doubt.
	Prove(ctx context.Context) error
}

// Entry is one kernel that a replica knows.
type Entry struct {
	ID         string    `json:"id"`
	Pod        types.UID `json:"pod"`
	Generation int       `json:"generation"`
	Ended      bool      `json:"ended,omitempty"`
}

// Kernel is a kernel as a replica knows it.
type Kernel struct {
	Pod     *corev1.Pod     `json:"pod"`
	Removed bool            `json:"removed,omitempty"` // the pod is no longer in the cluster
	End     json.RawMessage `json:"end,omitempty"`     // how it ended, without its pod; empty if it has not
}

// Options configures a Replicas.
type Options struct {
	Name    string              // of this gateway's pod
	IP      string              // of this gateway's pod
	Version string              // of this program
	Keys    []podspec.MasterKey // at least one
	Kernels Kernels

	// Pods reads the gateways' pods from the quorum.
	Pods func(ctx context.Context) ([]corev1.Pod, error)
	// Watched lists and watches the gateways' pods. It may wait while the API server does not answer.
	Watched cache.ListerWatcher

	Goroutines *goroutines.Group
	Log        *slog.Logger

	// Transport carries the requests to replicas. nil: TLS, which accepts the certificates of Keys.
	Transport http.RoundTripper
}

// Replicas is what a gateway knows of the others. A nil Replicas has none. All methods may be called concurrently.
type Replicas struct {
	// Fixed.
	opts    Options
	life    context.Context
	self    string // NAME/IP of its pod
	kernels Kernels
	log     *slog.Logger
	keys    []key // one for each master key
	server  *http.Server
	pods    cache.SharedIndexInformer // of gateways
	store   cache.Store               // of pods

	answering  chan struct{} // has one element for each notification that is served
	listed     atomic.Bool   // this gateway has read all kernels from the quorum
	introduced atomic.Bool   // all gateways can know this one, and it has listed
	forgetting atomic.Bool   // forgetEnded runs in the background
	rounds     atomic.Uint64 // how often Complete has begun to ask all replicas

	completing sync.Mutex // held while all replicas are asked
	last       struct {   // guarded by completing; the last time
		round uint64
		err   error
	}

	mu      sync.Mutex
	met     map[string]string // addresses of replicas by NAME/IP; the store may not have them yet
	greeted map[string]bool   // replicas that know this gateway
	silent  map[string]*silentReplica
}

// key is what replicas with a common master key believe each other by.
type key struct {
	name        string // server name that selects the certificate
	token       string
	certificate tls.Certificate
	client      *http.Client // of replicas that have the key
}

// New returns a Replicas that does not listen, watch or send yet. life is the gateway's own.
func New(life context.Context, o Options) (*Replicas, error) {
	rs := &Replicas{
		opts:      o,
		life:      life,
		self:      o.Name + "/" + o.IP,
		kernels:   o.Kernels,
		log:       o.Log,
		pods:      cache.NewSharedIndexInformer(o.Watched, &corev1.Pod{}, 0, nil),
		answering: make(chan struct{}, maxRequests),
		met:       map[string]string{},
		greeted:   map[string]bool{},
		silent:    map[string]*silentReplica{},
	}
	rs.store = rs.pods.GetStore()
	_, err := rs.pods.AddEventHandler(rs.onReplica())
	if err := errors.Join(err, rs.pods.SetTransform(dropManagedFields)); err != nil {
		return nil, err
	}
	for _, master := range o.Keys {
		k, err := newKey(master, o.Transport)
		if err != nil {
			return nil, err
		}
		rs.keys = append(rs.keys, k)
	}
	rs.server = &http.Server{
		Handler:        rs.Handler(),
		ReadTimeout:    readTime,
		WriteTimeout:   readTime,
		IdleTimeout:    2 * time.Minute,
		MaxHeaderBytes: 16 << 10,
		ErrorLog:       slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug), // a replica may try its second key next
		TLSConfig:      rs.tlsConfig(),
	}
	return rs, nil
}

// newKey derives the key for replicas from a master key.
func newKey(master podspec.MasterKey, transport http.RoundTripper) (key, error) {
	derived, err := podspec.DeriveKeys(master.Secret, "", keyName, podspec.KeyVersionName)
	if err != nil {
		return key{}, err
	}
	k := key{name: keyName + "-" + master.Fingerprint, token: derived.Token}
	trust, err := api.PinnedTLS(derived.TLSSeed, k.name)
	if err != nil {
		return key{}, err
	}
	if k.certificate, err = api.Certificate(derived.TLSSeed, k.name); err != nil {
		return key{}, err
	}
	if transport == nil {
		transport = &http.Transport{TLSClientConfig: trust, MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute}
	}
	k.client = &http.Client{Timeout: answerTime, Transport: transport}
	return k, nil
}

// certificate returns the certificate of the key that a client asks for. Gateways of earlier releases name no key, and
// get the first one.
func (rs *Replicas) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	for i := range rs.keys {
		if rs.keys[i].name == hello.ServerName {
			return &rs.keys[i].certificate, nil
		}
	}
	return &rs.keys[0].certificate, nil
}

func (rs *Replicas) tlsConfig() *tls.Config {
	return &tls.Config{GetCertificate: rs.certificate, MinVersion: tls.VersionTLS13}
}

// believes reports whether a request has a token that is derived from a master key of this gateway.
func (rs *Replicas) believes(r *http.Request) bool {
	sent, ok := []byte(r.Header.Get("Authorization")), 0
	for _, k := range rs.keys {
		ok |= subtle.ConstantTimeCompare(sent, []byte("Bearer "+k.token))
	}
	return ok == 1
}

// Serve answers replicas until Close. It does not wait.
func (rs *Replicas) Serve(listener net.Listener) {
	rs.opts.Goroutines.Go(func() {
		if err := rs.server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			rs.log.Error("notifications of other replicas are no longer received", logkey.Err, err)
		}
	})
}

// Handler answers the requests of replicas.
func (rs *Replicas) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /kernels/{id}", rs.serveKernel)
	mux.HandleFunc("GET /version", rs.serveVersion)
	mux.HandleFunc("GET /kernels", rs.serveView)
	mux.HandleFunc("GET /kernels/{id}", rs.serveKnown)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !rs.believes(r) {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		rs.meet(r.Header.Get(replicaHeader))
		mux.ServeHTTP(w, r)
	})
}

// Watch begins to watch the gateways' pods. It puts all that this gateway has learned of kernels before in doubt.
func (rs *Replicas) Watch() {
	rs.kernels.Doubt()
	rs.opts.Goroutines.Go(func() { rs.pods.Run(rs.life.Done()) })
}

// dropManagedFields leaves out what is large and unused of a pod.
func dropManagedFields(o any) (any, error) {
	if pod, ok := o.(*corev1.Pod); ok {
		pod.ManagedFields = nil
	}
	return o, nil
}

// Maintain does what is due at intervals: it forgets replicas that have ended, and reaches those that could not be
// reached before.
func (rs *Replicas) Maintain(ctx context.Context) {
	if rs == nil {
		return
	}
	rs.forgetEnded(ctx)
	rs.greetRest(ctx)
	rs.notifyAllSilent()
}

// Close ends the server. Goroutines of the group may still run.
func (rs *Replicas) Close() {
	if rs == nil {
		return
	}
	_ = rs.server.Close() // its replicas rely on their watches
	for _, k := range rs.keys {
		k.client.CloseIdleConnections()
	}
}

// serveKernel answers a replica that has changed a kernel.
func (rs *Replicas) serveKernel(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if !launcher.ValidID(id) {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	settled := rs.kernels.Doubt() // even if this request fails, the next list has the kernel
	select {
	case rs.answering <- struct{}{}:
		defer func() { <-rs.answering }()
	default:
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	ending, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil && len(ending) > 0 {
		err = rs.kernels.EnterEnding(id, ending)
	}
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if err := rs.kernels.Refresh(r.Context(), id); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	settled()
	w.WriteHeader(http.StatusNoContent)
}

func address(ip string) string { return net.JoinHostPort(ip, strconv.Itoa(Port)) }

// do sends a request to the replica at an address. A replica that has other keys is asked with each key in turn. The
// caller closes the body.
func (rs *Replicas) do(ctx context.Context, method, address, path string, body []byte) (*http.Response, error) {
	var last error
	for _, k := range rs.keys {
		req, err := http.NewRequestWithContext(ctx, method, "https://"+address+path, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+k.token)
		req.Header.Set(replicaHeader, rs.self)
		resp, err := k.client.Do(req)
		if !errors.Is(err, api.ErrOtherKey) {
			return resp, err
		}
		last = err
	}
	return nil, fmt.Errorf("it has no master key of this gateway: %w", last)
}
