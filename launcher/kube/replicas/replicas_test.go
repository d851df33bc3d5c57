package replicas

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const idA = "aaaaaaaa-0000-4000-8000-000000000001"

func numbered(n int) string { return fmt.Sprintf("bbbbbbbb-0000-4000-8000-%012d", n) }

// memory is the kernels of a gateway in a test, all of them of the first generation.
type memory struct {
	mu        sync.Mutex
	known     map[string]bool
	refreshed []string
	endings   []string // as EnterEnding has got them
	doubts    int      // those that are not settled
	proofs    int
	busy      error  // of the cluster
	ending    string // of all kernels; "" while they live
}

func (m *memory) List() (all []Entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.known {
		all = append(all, Entry{ID: id, Generation: 1})
	}
	return all
}

func (m *memory) Known(id string) (Kernel, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Kernel{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: id}}}, m.known[id]
}

func (m *memory) Lacks(e Entry) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.known[e.ID]
}

func (m *memory) Enter(id string, k Kernel) error {
	if k.Pod.Name != id {
		return errors.New("it is another kernel's")
	}
	m.add(id)
	return nil
}

func (m *memory) add(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known[id] = true
}

func (m *memory) Ending(string) []byte { return []byte(m.ending) }

func (m *memory) EnterEnding(_ string, ending []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !bytes.HasPrefix(ending, []byte("{")) {
		return errors.New("it is no ending")
	}
	m.endings = append(m.endings, string(ending))
	return nil
}

func (m *memory) Refresh(_ context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refreshed = append(m.refreshed, id)
	return m.busy
}

func (m *memory) Doubt() (settled func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.doubts++
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.doubts--
	}
}

func (m *memory) Prove(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.proofs++
	m.doubts = 0
	return m.busy
}

func (m *memory) has(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Contains(m.refreshed, id)
}

// network joins the replicas of a test, and is the cluster that has their pods.
type network struct {
	t *testing.T

	mu   sync.Mutex
	all  map[string]http.Handler // by address
	pods []corev1.Pod
	hung map[string]bool // addresses that never answer
	sent int
}

func newNetwork(t *testing.T) *network {
	return &network{t: t, all: map[string]http.Handler{}, hung: map[string]bool{}}
}

// RoundTrip carries a request to the replica with its address.
func (n *network) RoundTrip(r *http.Request) (*http.Response, error) {
	ip, _, err := net.SplitHostPort(r.URL.Host)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	to, hung := n.all[ip], n.hung[ip]
	n.sent++
	n.mu.Unlock()
	switch {
	case to == nil:
		return nil, errors.New("no route to host")
	case hung:
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	in := httptest.NewRequest(r.Method, r.URL.RequestURI(), r.Body).WithContext(r.Context())
	in.Header = r.Header
	w := httptest.NewRecorder()
	to.ServeHTTP(w, in)
	resp := w.Result()
	resp.Body = io.NopCloser(bytes.NewReader(w.Body.Bytes()))
	return resp, nil
}

// hang makes the replica with an address take requests and answer none, or answer again.
func (n *network) hang(ip string, hung bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hung[ip] = hung
}

// testKeys returns the master keys of a test's gateway.
func testKeys(t *testing.T, secrets ...string) (all []podspec.MasterKey) {
	t.Helper()
	for _, secret := range secrets {
		k, err := podspec.NewMasterKey([]byte(strings.Repeat(secret, podspec.MinMasterKey)))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, k)
	}
	return all
}

// join makes a replica that has introduced itself, and its kernels.
func (n *network) join(ip string) (*Replicas, *memory) {
	n.t.Helper()
	life, cancel := context.WithCancel(context.Background())
	group, m := new(goroutines.Group), &memory{known: map[string]bool{}}
	rs, err := New(life, Options{Name: "ekg-" + ip, IP: ip, Version: "1.2", Keys: testKeys(n.t, "k"), Kernels: m,
		Pods: func(context.Context) ([]corev1.Pod, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			return slices.Clone(n.pods), nil
		}, Goroutines: group, Log: slog.New(slog.DiscardHandler), Transport: n})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		group.Close()
		cancel()
		rs.Close()
		group.Wait()
	})
	n.mu.Lock()
	n.all[ip] = rs.Handler()
	n.pods = append(n.pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "ekg-" + ip},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip}})
	n.mu.Unlock()
	if err := rs.Introduce(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
	return rs, m
}

const (
	ip1 = "10.0.0.1"
	ip2 = "10.0.0.2"
)

// TestReplicas_Nil: a gateway without replicas notifies none, and has none to ask.
func TestReplicas_Nil(t *testing.T) {
	var rs *Replicas
	rs.Notify(t.Context(), idA)
	rs.Maintain(t.Context())
	rs.Close()
	if rs.Complete(t.Context()) == nil || rs.Gateways(t.Context()) != nil {
		t.Error("it has replicas")
	}
}

// TestHandler: only a request with a token of a master key is served. A kernel stays in doubt until it was read.
func TestHandler(t *testing.T) {
	n := newNetwork(t)
	rs, m := n.join(ip1)
	rs.answering = make(chan struct{}, 1)
	handler := rs.Handler()
	token := rs.keys[0].token
	for _, c := range []struct {
		name, method, path, token, body string
		before                          func()
		code, doubts                    int
	}{
		{"no token", "POST", "/kernels/" + idA, "", "", nil, 403, 0},
		{"another token", "POST", "/kernels/" + idA, "wrong", "", nil, 403, 0},
		{"a list without a token", "GET", "/kernels", "wrong", "", nil, 403, 0},
		{"no kernel's id", "POST", "/kernels/x", token, "", nil, 400, 0},
		{"a change", "POST", "/kernels/" + idA, token, "", nil, 204, 0},
		{"an end", "POST", "/kernels/" + idA, token, `{"reason":"culled"}`, nil, 204, 0},
		{"an end that cannot be read", "POST", "/kernels/" + idA, token, "ended", nil, 400, 1},
		{"an end that is too long", "POST", "/kernels/" + idA, token, "{" + strings.Repeat(" ", maxBody), nil, 400, 1},
		{"the cluster is away", "POST", "/kernels/" + idA, token, "", func() { m.busy = errors.New("away") }, 503, 1},
		{"too many at one time", "POST", "/kernels/" + idA, token, "", func() { rs.answering <- struct{}{} }, 429, 1},
		{"an unknown kernel", "GET", "/kernels/" + idA, token, "", nil, 404, 0},
		{"before it has listed", "GET", "/kernels", token, "", func() { rs.listed.Store(false) }, 503, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			m.doubts, m.busy = 0, nil
			if c.before != nil {
				c.before()
			}
			w, r := httptest.NewRecorder(), httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
			r.Header.Set("Authorization", "Bearer "+c.token)
			handler.ServeHTTP(w, r)
			if w.Code != c.code || m.doubts != c.doubts {
				t.Errorf("it is answered %d with %d doubts, want %d with %d", w.Code, m.doubts, c.code, c.doubts)
			}
		})
	}
	if want := []string{`{"reason":"culled"}`}; !slices.Equal(m.endings, want) {
		t.Errorf("endings are %q, want %q", m.endings, want)
	}
}

// TestNotify_Silent: a replica that does not answer delays one change only. When it answers again, it is notified of
// all that it has missed, and changes wait for it again.
func TestNotify_Silent(t *testing.T) {
	n := newNetwork(t)
	first, _ := n.join(ip1)
	_, late := n.join(ip2)
	first.Notify(t.Context(), numbered(0))
	if !late.has(numbered(0)) {
		t.Fatal("a replica that answers was not notified")
	}
	n.hang(ip2, true)
	began := time.Now()
	first.Notify(t.Context(), numbered(1))
	if took := time.Since(began); took < answerTime {
		t.Fatalf("the first change took %v; the test proves nothing", took)
	}
	began = time.Now()
	missed := []string{numbered(1), numbered(2), numbered(3), numbered(4), numbered(5), numbered(6)}
	for _, id := range missed[1:] {
		first.Notify(t.Context(), id)
	}
	if took := time.Since(began); took > answerTime {
		t.Errorf("5 changes beside a silent replica took %v", took)
	}
	n.hang(ip2, false)
	for deadline := time.Now().Add(20 * time.Second); ; {
		first.mu.Lock()
		s := first.silent["ekg-"+ip2+"/"+ip2]
		var asked chan struct{}
		if s != nil {
			asked = s.asked
		}
		first.mu.Unlock()
		if s == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it is not notified of what it has missed")
		}
		if asked != nil {
			<-asked
		}
		first.Maintain(t.Context())
	}
	for _, id := range missed {
		if !late.has(id) {
			t.Errorf("it was not notified of %s", id)
		}
	}
	first.Notify(t.Context(), numbered(7))
	if !late.has(numbered(7)) {
		t.Error("a change does not wait for a replica that answers again")
	}
}

// TestNotify_Ending: a notification says how the kernel has ended.
func TestNotify_Ending(t *testing.T) {
	n := newNetwork(t)
	first, m := n.join(ip1)
	_, second := n.join(ip2)
	m.ending = `{"reason":"culled"}`
	first.Notify(t.Context(), idA)
	if want := []string{m.ending}; !slices.Equal(second.endings, want) {
		t.Errorf("it has got %q, want %q", second.endings, want)
	}
}

// TestComplete: a gateway learns of kernels and replicas from all that it knows, also from those that they name.
func TestComplete(t *testing.T) {
	n := newNetwork(t)
	first, m := n.join(ip1)
	second, _ := n.join(ip2)
	third, other := n.join("10.0.0.3")
	other.add(idA)
	first.mu.Lock()
	delete(first.met, third.self)
	first.mu.Unlock()
	if err := first.Complete(t.Context()); err != nil || m.Lacks(Entry{ID: idA}) {
		t.Errorf("it lacks the kernel of a replica that it did not know: %v", err)
	}
	n.hang(ip2, true)
	if err := first.Complete(t.Context()); err == nil || !strings.Contains(err.Error(), second.self) {
		t.Errorf("with a replica that does not answer: %v", err)
	}
}

// TestComplete_Rounds: callers that wait at the same time share the requests to the replicas, and no caller gets the
// result of requests that were sent before it called.
func TestComplete_Rounds(t *testing.T) {
	n := newNetwork(t)
	first, _ := n.join(ip1)
	n.join(ip2)
	before, rounds := n.sent, first.rounds.Load()
	first.completing.Lock()
	var callers sync.WaitGroup
	for range 100 {
		callers.Go(func() {
			if err := first.Complete(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	for blockedIn("(*Replicas).Complete(") != 100 {
		runtime.Gosched()
	}
	first.completing.Unlock()
	callers.Wait()
	if asked, n := n.sent-before, first.rounds.Load()-rounds; asked != 1 || n != 1 {
		t.Errorf("100 callers at one moment have sent %d requests in %d rounds", asked, n)
	}
}

// blockedIn counts the goroutines that wait for a mutex in a function.
func blockedIn(function string) (n int) {
	stacks := make([]byte, 16<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for one := range strings.SplitSeq(string(stacks), "\n\n") {
		state, calls, _ := strings.Cut(one, "\n")
		if strings.Contains(state, "[sync.Mutex.Lock") && strings.Contains(calls, function) {
			n++
		}
	}
	return n
}

// TestForgetEnded: a replica whose pod is gone is known until all kernels have been read.
func TestForgetEnded(t *testing.T) {
	n := newNetwork(t)
	first, m := n.join(ip1)
	second, _ := n.join(ip2)
	n.mu.Lock()
	n.pods = n.pods[:1]
	n.mu.Unlock()
	m.mu.Lock()
	m.busy = errors.New("away")
	m.mu.Unlock()
	knows := func() bool { return first.known()[second.self] != "" }
	if first.Maintain(t.Context()); !knows() {
		t.Error("it is forgotten, and its kernels may be unknown")
	}
	m.mu.Lock()
	m.busy = nil
	m.mu.Unlock()
	if first.Maintain(t.Context()); knows() {
		t.Error("it is known although its pod is gone")
	}
}

// TestReplicas_Keys: replicas that share a master key believe each other, whichever is the first.
func TestReplicas_Keys(t *testing.T) {
	for name, c := range map[string]struct {
		own, other []string
		believed   bool
	}{
		"the same":                      {[]string{"a"}, []string{"a"}, true},
		"the other knows the next one":  {[]string{"a"}, []string{"a", "b"}, true},
		"the other uses the next one":   {[]string{"a", "b"}, []string{"b", "a"}, true},
		"the other has only the second": {[]string{"b", "a"}, []string{"a"}, true},
		"only the other knows both":     {[]string{"a"}, []string{"b", "a"}, true},
		"none in common":                {[]string{"a", "b"}, []string{"c"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			withKeys := func(secrets []string) *Replicas {
				rs, err := New(t.Context(), Options{Keys: testKeys(t, secrets...), Log: slog.New(slog.DiscardHandler),
					Kernels: &memory{}})
				if err != nil {
					t.Fatal(err)
				}
				return rs
			}
			own, other := withKeys(c.own), withKeys(c.other)
			server := httptest.NewUnstartedServer(other.Handler())
			server.TLS = other.tlsConfig()
			server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
			server.StartTLS()
			defer server.Close()
			defer own.Close()
			if err := own.notify(t.Context(), server.Listener.Addr().String(), idA); (err == nil) != c.believed {
				t.Errorf("notification: %v", err)
			}
		})
	}
}
