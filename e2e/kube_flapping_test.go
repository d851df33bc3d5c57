//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

// TestChaos_KubeFlapping: the network between two gateways and the API server is slow, cut, refusing or silent in turn.
// The gateways are outside of the cluster, so the output of kernels goes the same way. No output is lost, no kernel
// is missing from a list or answered with 404, and in the end each kernel has one pod.
func TestChaos_KubeFlapping(t *testing.T) {
	n := seed(t)
	c := theCluster(t)
	c.needsOwn(t, "a proxy stands before its API server")
	ns := c.newNamespace(t)
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(strings.Repeat("k", 40)), 0o600); err != nil {
		t.Fatal(err)
	}
	users := fmt.Sprintf(`{"client-certificate": %q, "client-key": %q}`, c.pki("admin.crt"), c.pki("admin.key"))
	stop := make(chan struct{})
	var weather sync.WaitGroup
	var gateways []*inCluster
	var proxies []*faultProxy
	for range 2 {
		p := newFaultProxy(t, nodeIP+":6443")
		g := c.newGateway(t, ns, c.writeKubeconfig(t, "https://"+p.l.Addr().String(), users),
			"--master-key-file", key, "--start-wait", "2s")
		g.start()
		gateways, proxies = append(gateways, g), append(proxies, p)
	}
	r := newReturning(t, gateways[0].gateway, gateways[0].kernel("pod"), subprotocolRelay, 10*time.Second)
	cell := r.begin(untilInterrupted)
	r.until(30*time.Second, "the cell begins", func() bool {
		return r.has(func(m message) bool { return m.Parent.MsgID == cell && m.Header.MsgType == "stream" })
	})
	for i, p := range proxies {
		weather.Go(func() { p.flap(rand.New(rand.NewPCG(n, uint64(i))), stop) })
	}
	end := time.Now().Add(90 * time.Second)
	var kept [2]map[string]int
	t.Run("users", func(t *testing.T) {
		for i := range kept {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				u := &flapUser{inCluster: gateways[i].in(t), random: rand.New(rand.NewPCG(n, uint64(10+i))),
					x: map[string]int{}, pages: map[string]*returning{}, answers: map[int]int{}}
				for u.steps = 0; time.Now().Before(end); u.steps++ {
					u.step()
				}
				t.Logf("%d steps; requests were answered with %v", u.steps, u.answers)
				kept[i] = u.x
			})
		}
	})
	close(stop)
	weather.Wait()
	want := map[string]bool{r.id: true}
	for _, x := range kept {
		for id := range x {
			want[id] = true
		}
	}
	for _, g := range gateways {
		g.eventually(time.Minute, "all kernels are listed, once", func() error { return g.listsExactly(want) })
	}
	for id := range want {
		if pods := gateways[0].podsOf(id); len(pods) != 1 {
			t.Errorf("kernel %s has %d pods", id, len(pods))
		}
	}
	gateways[0].eventually(time.Minute, "the cell is interrupted", func() error {
		status, b := gateways[0].ask("POST", "/api/kernels/"+r.id+"/interrupt", "")
		if status != 204 {
			return fmt.Errorf("%d %s", status, b)
		}
		return nil
	})
	wantNumbered(t, r.session, r.ended(cell, time.Minute))
	r.mu.Lock()
	t.Logf("%d messages in %d connections", len(r.got), r.connections)
	r.mu.Unlock()
	gateways[1].deleteAll()
}

// flap changes the weather at random until stop is closed. Then it is calm, and all links are new.
func (p *faultProxy) flap(random *rand.Rand, stop <-chan struct{}) {
	within := func(least, most time.Duration) time.Duration {
		return least + time.Duration(random.Int64N(int64(most-least)))
	}
	for {
		long := within(200*time.Millisecond, 4*time.Second)
		switch random.IntN(6) {
		case 0:
			p.refuse()
		case 1:
			p.swallow()
		case 2, 3:
			p.slowDown()
		case 4:
			for _, k := range p.all() {
				k.end()
			}
		case 5:
			for _, k := range p.some(false, random) {
				k.set([]fault{halfOpen, mute, deaf, crawling}[random.IntN(4)])
			}
		}
		select {
		case <-stop:
		case <-time.After(long):
		}
		p.restore()
		if random.IntN(2) == 0 { // else its silent links stay
			for _, k := range p.all() {
				if f, _ := k.state(); f != whole {
					k.end()
				}
			}
		}
		select {
		case <-stop:
			for _, k := range p.all() {
				k.end()
			}
			return
		case <-time.After(within(500*time.Millisecond, 3*time.Second)):
		}
	}
}

// flapUser is a user of one gateway. Its requests may be answered with 503, and are repeated then.
type flapUser struct {
	*inCluster
	random  *rand.Rand
	x       map[string]int        // kernels that were started and not shut down, with the value of x in each
	pages   map[string]*returning // one for each kernel that has run a cell
	steps   int
	answers map[int]int // number of answers by status
}

// patience is how long a user repeats a request, and waits for a cell.
const patience = 2 * time.Minute

// repeat sends a request until it is answered with one of these statuses. The test fails at an answer that no outage
// excuses.
func (u *flapUser) repeat(method, path, body string, want ...int) {
	u.t.Helper()
	u.eventually(patience, method+" "+path, func() error {
		status, b, err := u.tryAsk(method, path, body)
		if err != nil {
			return err
		}
		u.answers[status]++
		switch {
		case slices.Contains(want, status):
			return nil
		case status != http.StatusServiceUnavailable && status != http.StatusGatewayTimeout:
			u.t.Fatalf("%s %s: %d %s", method, path, status, b)
		}
		return fmt.Errorf("%d %s", status, b)
	})
}

// step does one random thing, and looks at the list.
func (u *flapUser) step() {
	u.t.Helper()
	ids := slices.Sorted(maps.Keys(u.x))
	if len(ids) == 0 || len(ids) < 3 && u.random.IntN(4) == 0 {
		id := uuid.NewString()
		u.repeat("POST", "/api/kernels", fmt.Sprintf(`{"name": "pod", "kernel_id": %q}`, id), 201)
		u.x[id] = 0
		u.look()
		return
	}
	id := ids[u.random.IntN(len(ids))]
	switch u.random.IntN(8) {
	case 0:
		if page := u.pages[id]; page != nil {
			page.stop()
		}
		delete(u.x, id)
		u.repeat("DELETE", "/api/kernels/"+id, "", 204, 404) // a repeated one may find that the first one succeeded
	case 1:
		u.cell(id) // so it has started
		u.repeat("POST", "/api/kernels/"+id+"/restart", "", 200)
		u.x[id] = 0
	case 2, 3, 4:
		u.cell(id)
	default:
		u.repeat("GET", "/api/kernels/"+id, "", 200)
	}
	u.look()
}

// cell runs a cell that counts, in a page that returns.
func (u *flapUser) cell(id string) {
	u.t.Helper()
	page := u.pages[id]
	if page == nil {
		page = newReturning(u.t, u.gateway, id, subprotocolRelay, 10*time.Second)
		u.pages[id] = page
	}
	u.x[id]++
	cell := page.begin("x = globals().get('x', 0) + 1; print('x is', x)")
	got, want := page.ended(cell, patience).stdout.String(), fmt.Sprintf("x is %d\n", u.x[id])
	if got != want {
		u.t.Fatalf("kernel %s: the cell printed %q, want %q", id, got, want)
	}
}

// look asks for the list once. If it is answered, it has each kernel of the user once.
func (u *flapUser) look() {
	u.t.Helper()
	status, b, err := u.tryAsk("GET", "/api/kernels", "")
	if err != nil {
		u.t.Fatal(err)
	}
	u.answers[status]++
	if status == http.StatusServiceUnavailable {
		return
	}
	for id := range u.x {
		if n := strings.Count(string(b), fmt.Sprintf(`"id":%q`, id)); n != 1 || status != 200 {
			u.t.Errorf("the list has kernel %s %d times: %d %s", id, n, status, b)
		}
	}
}

// listsExactly returns an error unless the gateway lists these kernels and no other, each once and alive.
func (k *inCluster) listsExactly(want map[string]bool) error {
	status, b, err := k.tryAsk("GET", "/api/kernels", "")
	var all []model
	if err != nil || status != 200 || json.Unmarshal(b, &all) != nil {
		return fmt.Errorf("%d %s, %w", status, b, err)
	}
	seen := map[string]bool{}
	for _, m := range all {
		if !want[m.ID] || seen[m.ID] || m.ExecutionState != "idle" && m.ExecutionState != "busy" {
			return fmt.Errorf("%+v", m)
		}
		seen[m.ID] = true
	}
	if len(seen) != len(want) {
		return fmt.Errorf("%d of %d are listed", len(seen), len(want))
	}
	return nil
}
