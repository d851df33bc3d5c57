package kube

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// fakeSupervisors are the supervisors of all pods, in this process. They are also the launcher's dialer, which connects
// to them. One server answers for all of them, with the keys of the dialled pod and the part of the real REST API that
// a launcher needs.
type fakeSupervisors struct {
	pipe   func() (net.Conn, net.Conn, error)
	conns  chan net.Conn // dialled, to be accepted
	closed chan struct{}
	asked  sync.WaitGroup // requests that are being answered

	mu  sync.Mutex
	all map[string]*fakeSupervisor // by the names of their pods
}

// fakeSupervisor is the supervisor of one pod.
type fakeSupervisor struct {
	id    string
	token string
	tls   *tls.Config

	mu      sync.Mutex
	status  api.Status
	changed chan struct{}
	over    chan struct{} // closed when it is stopped
	reason  string        // the reason for which it was stopped
	request string        // id of the request that stopped it
	asked   int           // requests that had the token
	updates []api.Waiting
	notices []string // about its node

	assigned api.Assignment // zero: none

	hold chan struct{} // not nil: updates are accepted once this is closed
}

func newSupervisors(t testing.TB) *fakeSupervisors {
	f := &fakeSupervisors{
		pipe:   connPair,
		conns:  make(chan net.Conn),
		closed: make(chan struct{}),
		all:    map[string]*fakeSupervisor{},
	}
	mux := http.NewServeMux()
	for pattern, h := range map[string]func(*fakeSupervisor, http.ResponseWriter, *http.Request) error{
		"GET /api/kernels/{id}/status":      (*fakeSupervisor).getStatus,
		"PUT /api/kernels/{id}/waiting":     (*fakeSupervisor).putWaiting,
		"PUT /api/kernels/{id}/assignment":  (*fakeSupervisor).putAssignment,
		"PUT /api/kernels/{id}/node-notice": (*fakeSupervisor).putNodeNotice,
		"DELETE /api/kernels/{id}":          (*fakeSupervisor).delete,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			f.asked.Add(1)
			defer f.asked.Done()
			s := r.Context().Value(supervisorKey{}).(*fakeSupervisor)
			if r.Header.Get("Authorization") != "Bearer "+s.token || r.PathValue("id") != s.id {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			s.mu.Lock()
			s.asked++
			s.mu.Unlock()
			if err := h(s, w, r); err != nil {
				t.Error(err)
			}
		})
	}
	server := &http.Server{Handler: mux, ConnContext: func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, supervisorKey{}, c.(supervisorConn).of)
	}}
	served := make(chan error, 1)
	go func() { served <- server.Serve(supervisorListener{f}) }()
	t.Cleanup(func() {
		_ = server.Close() // connections whose other end has gone
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
		f.asked.Wait()
	})
	return f
}

type supervisorKey struct{}

// supervisorConn is a connection to one supervisor.
type supervisorConn struct {
	net.Conn
	of *fakeSupervisor
}

// add makes the supervisor of a pod whose kernel is idle.
func (f *fakeSupervisors) add(t testing.TB, pod *corev1.Pod) *fakeSupervisor {
	t.Helper()
	rec, err := podspec.ReadRecord(pod)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := podspec.DeriveKeys(testKey, pod.Namespace, pod.Name, rec.KeyVersion)
	if err != nil {
		t.Fatal(err)
	}
	id := pod.Labels[podspec.LabelKernel]
	certificate, err := api.Certificate(keys.TLSSeed, id)
	if err != nil {
		t.Fatal(err)
	}
	s := &fakeSupervisor{id: id, token: keys.Token, changed: make(chan struct{}), over: make(chan struct{}),
		tls: &tls.Config{
			Certificates: []tls.Certificate{certificate},
			MinVersion:   tls.VersionTLS13,
			NextProtos:   []string{"http/1.1"},
		},
		status: api.Status{
			Protocol:     api.ProtocolVersion,
			Build:        "fake",
			KernelID:     id,
			Epoch:        1,
			State:        api.Idle,
			LastActivity: time.Now().UTC(),
		}}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all[pod.Name] = s
	return s
}

// of returns the supervisor of a kernel's first pod.
func (f *fakeSupervisors) of(id string) *fakeSupervisor {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.all[podspec.PodName(id, 1)]
}

func (f *fakeSupervisors) Dial(ctx context.Context, pod *corev1.Pod) (net.Conn, error) {
	f.mu.Lock()
	s := f.all[pod.Name]
	f.mu.Unlock()
	if s == nil {
		return nil, errors.New("the pod has no supervisor")
	}
	ours, theirs, err := f.pipe()
	if err != nil {
		return nil, err
	}
	select {
	case f.conns <- supervisorConn{tls.Server(theirs, s.tls), s}:
		return ours, nil
	case <-f.closed:
		err = net.ErrClosed
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, errors.Join(err, ours.Close(), theirs.Close())
}

func (f *fakeSupervisors) Close(error) {}

// connPair returns both ends of a connection that has buffers.
func connPair() (net.Conn, net.Conn, error) {
	l, err := net.Listen("unix", "") // an abstract address that is free
	if err != nil {
		return nil, nil, err
	}
	defer l.Close() //nolint:errcheck // the connection stays open
	ours, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	theirs, err := l.Accept()
	if err != nil {
		return nil, nil, errors.Join(err, ours.Close())
	}
	return ours, theirs, nil
}

// supervisorListener is the net.Listener of the dialled connections.
type supervisorListener struct{ *fakeSupervisors }

func (f supervisorListener) Accept() (net.Conn, error) {
	select {
	case c := <-f.conns:
		return c, nil
	case <-f.closed:
		return nil, net.ErrClosed
	}
}

func (f supervisorListener) Close() error   { close(f.closed); return nil }
func (f supervisorListener) Addr() net.Addr { return &net.UnixAddr{Name: "supervisors"} }

// set changes the supervisor's status.
func (s *fakeSupervisor) set(change func(*api.Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.status)
	s.touch()
}

// toggle makes a kernel busy or idle.
func (s *fakeSupervisor) toggle() {
	s.set(func(st *api.Status) {
		if st.LastActivity = time.Now().UTC(); st.State == api.Busy {
			st.State = api.Idle
		} else {
			st.State = api.Busy
		}
	})
}

// touch wakes waiters. s.mu is held.
func (s *fakeSupervisor) touch() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// await waits until cond, which is called with s.mu held, is true.
func (s *fakeSupervisor) await(t testing.TB, what string, cond func() bool) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		s.mu.Lock()
		ok, changed := cond(), s.changed
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("never %s", what)
		}
	}
}

func (s *fakeSupervisor) getStatus(w http.ResponseWriter, r *http.Request) error {
	api.StreamStatus(w, r, func() (api.Status, <-chan struct{}) { //nolint:errcheck // its reader has gone
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.status, s.changed
	}, s.over)
	return nil
}

func (s *fakeSupervisor) putWaiting(w http.ResponseWriter, r *http.Request) error {
	var said api.Waiting
	if err := json.NewDecoder(r.Body).Decode(&said); err != nil {
		return err
	}
	s.mu.Lock()
	hold := s.hold
	s.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-r.Context().Done(): // the launcher has given up, or the test has failed
			return nil
		}
	}
	s.mu.Lock()
	s.updates = append(slices.Clone(s.updates), said)
	s.touch()
	s.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// putAssignment accepts one assignment.
func (s *fakeSupervisor) putAssignment(w http.ResponseWriter, r *http.Request) error {
	var a api.Assignment
	if err := json.NewDecoder(r.Body).Decode(&a); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.assigned.ID != "" && s.assigned.ID != a.ID {
		w.WriteHeader(http.StatusConflict)
		return nil
	}
	s.assigned = a
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *fakeSupervisor) putNodeNotice(w http.ResponseWriter, r *http.Request) error {
	var body struct{ Text string }
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notices = append(slices.Clone(s.notices), body.Text)
	if s.status.Build == "old" {
		w.WriteHeader(http.StatusNotFound)
		return nil
	}
	s.status.NodeNotice = body.Text
	s.touch()
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *fakeSupervisor) delete(w http.ResponseWriter, r *http.Request) error {
	var body struct{ Reason string }
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return err
	}
	s.mu.Lock()
	if s.reason == "" {
		s.reason, s.request = body.Reason, r.Header.Get(api.HeaderRequestID)
		close(s.over)
	}
	s.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// idOf is the id of the kernel of a number.
func idOf(n int) string { return fmt.Sprintf("aaaaaaaa-0000-4000-8000-%012d", n) }

// newRunning makes a cluster in which so many kernels run, each with a supervisor that reports it idle.
func newRunning(t testing.TB, kernels int) (*testCluster, *fakeSupervisors) {
	t.Helper()
	c, f := newTestCluster(t), newSupervisors(t)
	c.pods = f
	for n := range kernels {
		c.run(t, f, n)
	}
	return c, f
}

// run creates the pod of a running kernel, and its supervisor, without a launcher.
func (c *testCluster) run(t testing.TB, f *fakeSupervisors, n int) {
	t.Helper()
	pod := runningPod(t, n, testRequest(idOf(n)))
	f.add(t, pod)
	if _, err := c.CoreV1().Pods("ns").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// runningPod returns the pod of a running kernel.
func runningPod(t testing.TB, n int, req launcher.Request) *corev1.Pod {
	t.Helper()
	return runningPodBy(t, testPods, n, req)
}

// runningPodBy returns the pod of a running kernel, built with the given options.
func runningPodBy(t testing.TB, o podbuild.Options, n int, req launcher.Request) *corev1.Pod {
	t.Helper()
	created := time.Now().Add(time.Duration(n) * time.Millisecond)
	pod, err := podbuild.Build(o, req, podspec.Record{
		ID:         req.ID,
		Generation: 1,
		Owner:      req.Owner,
		SpecName:   "python3",
		Created:    created,
		Protocol:   1,
		MasterKey:  fingerprintOf(t, testKey),
	})
	if err != nil {
		t.Fatal(err)
	}
	pod.Annotations[podspec.AnnotationClaimed] = podspec.Claimed
	pod.Spec.NodeName = fmt.Sprintf("node-%d", n%20)
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning,
		PodIP: fmt.Sprintf("10.0.%d.%d", n/250, n%250+1),
		ContainerStatuses: []corev1.ContainerStatus{
			{Name: podspec.ContainerSupervisor, ContainerID: "containerd://s", Image: "ekg:1", Ready: true, State: runs},
			{Name: podspec.ContainerKernel, ContainerID: "containerd://k", Image: "kernel:1", Ready: true, State: runs}},
	}
	return pod
}
