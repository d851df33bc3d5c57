//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// podCensus follows a namespace's pods by a watch. It records each moment with more pods than allowed.
type podCensus struct {
	most int

	mu       sync.Mutex
	admitted map[string]bool // by uid: pods that were admitted and still exist
	waiting  map[string]bool
	broken   []string
}

// podEvent is an event of a watch.
type podEvent struct {
	Type   string
	Object json.RawMessage
}

// watchedPod holds the fields of a pod that the census reads.
type watchedPod struct {
	Metadata struct {
		Name, UID, ResourceVersion string
		Annotations                map[string]string
	}
	Spec   struct{ SchedulingGates []struct{ Name string } }
	Status struct{ Phase string }
}

// watchPods starts a census before there is any pod. Events arrive in the order of the changes.
func (c *cluster) watchPods(t *testing.T, ns string, most int) *podCensus {
	t.Helper()
	p := c.newAPIProxy(t)
	// The certificate of the tests' own proxy need not be verified.
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	s := &podCensus{most: most, admitted: map[string]bool{}, waiting: map[string]bool{}}
	ctx, cancel := context.WithCancel(context.Background())
	get := func(query string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.server.URL+"/api/v1/namespaces/"+ns+"/pods"+query, nil)
		if err != nil {
			return nil, err
		}
		return client.Do(req)
	}
	var list struct {
		Metadata struct{ ResourceVersion string }
		Items    []watchedPod
	}
	resp, err := get("")
	if err == nil {
		err = json.NewDecoder(resp.Body).Decode(&list)
		_ = resp.Body.Close() // it was only read
	}
	if err != nil || len(list.Items) > 0 || list.Metadata.ResourceVersion == "" {
		t.Fatalf("pods cannot be watched: %v, %+v", err, list)
	}
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		for version := list.Metadata.ResourceVersion; ctx.Err() == nil; {
			resp, err := get("?watch=1&resourceVersion=" + version)
			if err != nil {
				s.note(ctx, "the watch: %v", err)
				return
			}
			version = s.follow(ctx, resp.Body, version)
			_ = resp.Body.Close() // it was only read
		}
	}()
	return s
}

func (s *podCensus) note(ctx context.Context, format string, args ...any) {
	if ctx.Err() == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.broken = append(s.broken, fmt.Sprintf(format, args...))
	}
}

// follow counts until a watch ends. It returns the version from which the next watch continues.
func (s *podCensus) follow(ctx context.Context, watch io.Reader, version string) string {
	for d := json.NewDecoder(watch); ; {
		var e podEvent
		if d.Decode(&e) != nil {
			return version // API servers end watches now and then
		}
		var o watchedPod
		if err := json.Unmarshal(e.Object, &o); err != nil {
			s.note(ctx, "a watch from %s: %s %s", version, e.Type, e.Object)
			return version
		}
		version = o.Metadata.ResourceVersion
		gone := e.Type == "DELETED" || o.Status.Phase == "Succeeded" || o.Status.Phase == "Failed"
		gated := len(o.Spec.SchedulingGates) > 0
		ended := o.Metadata.Annotations["elastic-kernel-gateway.github.io/ending"] != ""
		s.mu.Lock()
		delete(s.admitted, o.Metadata.UID)
		delete(s.waiting, o.Metadata.UID)
		switch {
		case gone:
		case !gated:
			s.admitted[o.Metadata.UID] = true
		case !ended:
			s.waiting[o.Metadata.UID] = true
		}
		if n := len(s.admitted); n > s.most {
			s.broken = append(s.broken, fmt.Sprintf("%d with %s", n, o.Metadata.Name))
		}
		s.mu.Unlock()
	}
}

// settled waits until there are this many admitted pods and no pod waits for a decision.
func (s *podCensus) settled(k *inCluster, want int) {
	k.t.Helper()
	k.eventually(40*time.Second, fmt.Sprintf("%d kernels, and no start that waits", want), func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.admitted) != want || len(s.waiting) != 0 {
			return fmt.Errorf("%d, and %d wait; %q", len(s.admitted), len(s.waiting), s.broken)
		}
		return nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.broken) > 0 {
		k.t.Errorf("there were more than %d: %q", s.most, s.broken)
	}
}

// strike disturbs the gateway that sends the n-th admission, before the cluster receives it.
type strike struct {
	mu   sync.Mutex
	left int
	do   func(g *inCluster, r *http.Request) (forward bool)
}

func (s *strike) arm(n int, do func(*inCluster, *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left, s.do = n, do
}

// sees handles a request of a gateway.
func (s *strike) sees(g *inCluster, r *http.Request) bool {
	if r.Method != "PATCH" || !strings.Contains(r.URL.Path, "/pods/") {
		return true
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return false
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if !bytes.Contains(body, []byte("schedulingGates")) {
		return true
	}
	s.mu.Lock()
	if s.left > 0 {
		s.left--
	}
	now := s.do != nil && s.left == 0
	do := s.do
	if now {
		s.do = nil
	}
	s.mu.Unlock()
	return !now || do(g, r)
}

// answers holds the answers to POSTs.
type answers struct {
	mu      sync.Mutex
	ids     []string
	refused []string
	others  []string // each begins with the gateway's URL
}

// startMany sends n POSTs at once and spreads them evenly over the gateways.
func startMany(all []*inCluster, n int, body string) *answers {
	a := &answers{}
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			status, b, err := all[i%len(all)].tryAsk("POST", "/api/kernels", body)
			var m struct{ model }
			a.mu.Lock()
			defer a.mu.Unlock()
			switch {
			case err == nil && status == 201 && json.Unmarshal(b, &m) == nil:
				a.ids = append(a.ids, m.ID)
			case err == nil && status == 403:
				a.refused = append(a.refused, string(b))
			default:
				a.others = append(a.others, fmt.Sprint(all[i%len(all)].url, " ", status, " ", string(b), err))
			}
		})
	}
	wg.Wait()
	return a
}

// limitGateways starts three gateways for one namespace. Each has its own proxy to the cluster.
func limitGateways(t *testing.T, c *cluster, ns string, s *strike, args ...string) []*inCluster {
	t.Helper()
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(strings.Repeat("k", 40)), 0o600); err != nil {
		t.Fatal(err)
	}
	var all []*inCluster
	for range 3 {
		proxy := c.newAPIProxy(t)
		own := append([]string{"--master-key-file", key, "--start-wait", "0s"}, args...)
		g := c.newGateway(t, ns, proxy.kubeconfig(t, c), own...)
		proxy.before = func(r *http.Request) bool { return s.sees(g, r) }
		proxy.after = func(r *http.Response) bool {
			if at, ok := r.Request.Context().Value(struckKey{}).(chan int); ok {
				at <- r.StatusCode
			}
			return true
		}
		all = append(all, g)
	}
	var starting sync.WaitGroup
	for _, g := range all {
		starting.Go(func() {
			if err := g.tryStart(); err != nil {
				t.Error(err)
			}
		})
	}
	starting.Wait()
	return all
}

// struckKey is the context key of a channel. The channel receives the status of a delayed admission.
type struckKey struct{}

// TestE2E_KubeLimits: three gateways together admit exactly as many kernels as the limit allows.
func TestE2E_KubeLimits(t *testing.T) {
	c := theCluster(t)
	ns := c.newNamespace(t)
	const most = 4
	census := c.watchPods(t, ns, most)
	var s strike
	all := limitGateways(t, c, ns, &s, "--max-kernels-per-user", fmt.Sprint(most))
	if t.Failed() {
		return
	}

	// The deciding gateway is stopped when it sends its second admission. It continues after another gateway has decided
	// about all starts.
	stopped, release, late := make(chan *inCluster, 1), make(chan struct{}), make(chan int, 1)
	s.arm(2, func(g *inCluster, r *http.Request) bool {
		if err := syscall.Kill(g.cmd.Process.Pid, syscall.SIGSTOP); err != nil {
			t.Error(err)
		}
		stopped <- g
		<-release
		// The admission is delivered even if the gateway no longer waits for its answer.
		ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
		t.Cleanup(cancel)
		*r = *r.WithContext(context.WithValue(ctx, struckKey{}, late))
		return true
	})
	began := time.Now()
	answered := make(chan *answers, 1)
	go func() { answered <- startMany(all, 100, `{"name": "pod"}`) }()
	first := <-stopped
	goOn := sync.OnceFunc(func() {
		close(release)
		_ = syscall.Kill(first.cmd.Process.Pid, syscall.SIGCONT) // it may have ended
	})
	t.Cleanup(goOn)
	others := slices.DeleteFunc(slices.Clone(all), func(g *inCluster) bool { return g == first })
	census.settled(others[0], most)
	t.Logf("another gateway has decided about all %v after the first POST", time.Since(began).Round(100*time.Millisecond))
	goOn()
	select {
	case status := <-late:
		if status != http.StatusConflict && status != http.StatusNotFound {
			t.Errorf("an admission of a gateway that had lost its lease was answered with %d", status)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("an admission of a gateway that had lost its lease was not answered")
	}
	got := <-answered
	// The stopped gateway may not have learned in time how its starts ended. Its clients get a 503 and may try again.
	wrong := slices.DeleteFunc(slices.Clone(got.others), func(text string) bool {
		return strings.HasPrefix(text, first.url+" 503 ")
	})
	if len(got.ids) > most || len(got.refused) < 60 || len(wrong) > 0 {
		t.Errorf("%d were started, %d were refused, and the other answers are %q", len(got.ids), len(got.refused), got.others)
	}
	const why = `"message":"you have 4 kernels, and you may have 4 kernels at one time (limit kernels-per-user); ` +
		`shut one down to start another: pod `
	for _, text := range got.refused {
		if !strings.Contains(text, why) {
			t.Fatalf("a start was refused with %s", text)
		}
	}
	census.settled(all[0], most)

	// A freed place can be used at once, through any gateway.
	var kernels []model
	all[0].want(200, "GET", "/api/kernels", "", &kernels)
	if len(kernels) != most {
		t.Fatalf("%d kernels are listed: %+v", len(kernels), kernels)
	}
	for i, m := range kernels[:2] {
		all[i].want(204, "DELETE", "/api/kernels/"+m.ID, "", nil)
	}
	for i := range 2 {
		all[(i+1)%3].want(201, "POST", "/api/kernels", `{"name": "pod"}`, nil)
	}
	all[0].want(403, "POST", "/api/kernels", `{"name": "pod"}`, nil)
	census.settled(all[0], most)

	// The deciding gateway is killed at its next decision.
	all[0].want(200, "GET", "/api/kernels", "", &kernels)
	killed := make(chan *inCluster, 1)
	s.arm(1, func(g *inCluster, r *http.Request) bool {
		killed <- g
		if err := syscall.Kill(g.cmd.Process.Pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		return false
	})
	for _, m := range kernels[:2] {
		all[1].want(204, "DELETE", "/api/kernels/"+m.ID, "", nil)
	}
	got = startMany(all, 30, `{"name": "pod"}`)
	first = <-killed
	others = slices.DeleteFunc(slices.Clone(all), func(g *inCluster) bool { return g == first })
	census.settled(others[0], most)
	if len(got.ids) > 2 || len(got.refused) == 0 {
		t.Errorf("%d were started, %d were refused, and the other answers are %q", len(got.ids), len(got.refused), got.others)
	}
	others[0].deleteAll()
	t.Logf("it took %v", time.Since(began).Round(100*time.Millisecond))

	t.Run("duration of a decision", func(t *testing.T) { limitsTake(t, c) })
}

// limitsTake measures the time that limits add to a POST.
func limitsTake(t *testing.T, c *cluster) {
	nowhere := map[string]any{"image": "localhost/kernel-py:dev", "nodeSelector": map[string]string{"no": "such-node"}}
	var gateways []*inCluster
	for _, args := range [][]string{{}, {"--max-kernels", "100"}} {
		g := c.newGateway(t, c.newNamespace(t), c.kubeconfig, append([]string{"--start-wait", "0s"}, args...)...)
		g.podSpec("nowhere", nowhere)
		g.start()
		gateways = append(gateways, g)
	}
	took := make([][]time.Duration, 2)
	for range 20 {
		for i, g := range gateways {
			began := time.Now()
			g.kernel("nowhere")
			took[i] = append(took[i], time.Since(began))
		}
	}
	for _, g := range gateways {
		g.deleteAll()
	}
	for i, name := range []string{"without limits", "with limits"} {
		slices.Sort(took[i])
		t.Logf("POST %s: median %v, 90%% within %v",
			name, took[i][10].Round(100*time.Microsecond), took[i][17].Round(100*time.Microsecond))
	}
}
