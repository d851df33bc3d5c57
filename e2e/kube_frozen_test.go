//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// untilInterrupted prints numbered lines until an interrupt. The last line holds their number.
const untilInterrupted = `import signal, time
n, interrupts = 0, []
signal.signal(signal.SIGINT, lambda *_: interrupts.append(n))
while not interrupts and n < 20000:
    print('line', n, '', flush=True)
    n += 1
    time.sleep(0.05)
print('total', n, flush=True)`

// TestChaos_KubeFrozen: one of two replicas is frozen at random moments, for up to 25 s: its process has no processor,
// and its connections stay open. Clients move to the other one. No output is lost. What the frozen one answers when it
// goes on is not from before.
func TestChaos_KubeFrozen(t *testing.T) {
	n := seed(t)
	k := installInCluster(t)
	random := rand.New(rand.NewPCG(n, 3))
	var kept []string
	for range 2 {
		kept = append(kept, k.kernel("python3"))
	}
	r := newReturning(t, k.gateway, kept[0], subprotocolRelay, 5*time.Second)
	cell := r.begin(untilInterrupted)
	r.until(20*time.Second, "the cell begins", func() bool {
		return r.has(func(m message) bool { return m.Parent.MsgID == cell && m.Header.MsgType == "stream" })
	})
	for range 10 {
		// Below two seconds the other replica waits for the frozen one. Above ten, Kubernetes takes it out of the Service.
		long := time.Duration([]int{500, 1500, 3000, 6000, 12000, 25000}[random.IntN(6)]) * time.Millisecond
		kept = k.frozenFor(long, random, kept)
	}
	k.want(204, "POST", "/api/kernels/"+kept[0]+"/interrupt", "", nil)
	wantNumbered(t, r.session, r.ended(cell, time.Minute))
	r.mu.Lock()
	t.Logf("%d messages in %d connections", len(r.got), r.connections)
	r.mu.Unlock()
	k.deleteAll()
}

// frozenFor freezes one of two replicas for this long. Meanwhile the other one starts a kernel and shuts one down. It
// returns the kernels that there are afterwards. The first of kept stays.
func (k *inCluster) frozenFor(long time.Duration, random *rand.Rand, kept []string) []string {
	k.t.Helper()
	k.rolledOut()
	replicas := k.replicas()
	names := slices.Sorted(maps.Keys(replicas))
	if len(names) != 2 {
		k.t.Fatalf("%d replicas are ready", len(names))
	}
	random.Shuffle(2, func(i, j int) { names[i], names[j] = names[j], names[i] })
	frozen, other := k.in(k.t), k.in(k.t)
	frozen.url, other.url = "http://"+replicas[names[0]]+":8888", "http://"+replicas[names[1]]+":8888"
	frozen.knows(kept) // its answer counts as fresh for a while
	pid := k.mainProcess(k.t, "ekg", names[0], "ekg")
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		k.t.Fatal(err)
	}
	thaw := sync.OnceFunc(func() { _ = syscall.Kill(pid, syscall.SIGCONT) }) // a probe may have ended it
	k.t.Cleanup(thaw)
	began := time.Now()
	gone := kept[len(kept)-1]
	kept = append(slices.Clone(kept[:len(kept)-1]), other.kernel("python3"))
	other.want(204, "DELETE", "/api/kernels/"+gone, "", nil)
	took := time.Since(began)
	other.knows(kept)
	other.listed(gone, false)
	answers := frozen.askWhileFrozen(kept, gone)
	during(long, began, func() { other.knows(kept) })
	thaw()
	for answer := range answers {
		if answer != "" {
			k.t.Errorf("frozen for %v: %s", long, answer)
		}
	}
	k.t.Logf("frozen for %v; a start and a shutdown took %v", time.Since(began).Round(time.Second/10),
		took.Round(time.Second/10))
	for _, r := range []*inCluster{frozen, other} {
		r.knows(kept)
		r.eventually(15*time.Second, "the kernel that was shut down is forgotten", func() error {
			if status, b := r.ask("GET", "/api/kernels/"+gone, ""); status != 404 {
				return fmt.Errorf("%d %s", status, b)
			}
			return nil
		})
		r.listed(gone, false)
		for _, id := range kept {
			r.listedOnce(id)
		}
	}
	for _, id := range kept {
		other.state(id, map[bool]string{true: "busy", false: "idle"}[id == kept[0]], time.Minute)
	}
	if pods := k.pods(); len(pods) != len(kept) {
		k.t.Errorf("%d kernels have %d pods", len(kept), len(pods))
	}
	return kept
}

// askWhileFrozen sends requests to a frozen gateway, which answers when it goes on. It may answer 503, but it must not
// answer with what it knew before: kept exist, and gone does not, or is dead until a late event says that it was shut
// down. The channel is closed after the last answer; an empty text is a right one.
func (k *inCluster) askWhileFrozen(kept []string, gone string) <-chan string {
	answers := make(chan string)
	var all sync.WaitGroup
	ask := func(path string, right func(status int, body []byte) bool) {
		all.Go(func() {
			status, body, err := k.tryAsk("GET", path, "")
			if err != nil || status != 503 && !right(status, body) {
				answers <- fmt.Sprintf("GET %s: %d %s, %v; the kernels are %q, and not %s", path, status, body, err, kept, gone)
				return
			}
			answers <- ""
		})
	}
	ask("/api/kernels", func(status int, body []byte) bool {
		var listed []model
		if status != 200 || json.Unmarshal(body, &listed) != nil {
			return false
		}
		n := 0
		for _, m := range listed {
			switch {
			case slices.Contains(kept, m.ID):
				n++
			case m.ID != gone || m.ExecutionState != "dead":
				return false
			}
		}
		return n == len(kept)
	})
	ask("/api/kernels/"+gone, func(status int, body []byte) bool {
		var m model
		return status == 404 || status == 200 && json.Unmarshal(body, &m) == nil && m.ExecutionState == "dead"
	})
	for _, id := range kept {
		ask("/api/kernels/"+id, func(status int, _ []byte) bool { return status == 200 })
	}
	go func() { all.Wait(); close(answers) }()
	return answers
}
