//go:build e2e

package e2e

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestChaos_Parking: twelve kernels on two GPUs run cells for ten minutes, with CUDA and without. Each needs nearly
// half of the memory, so a third one beside two would fail. The gateway and supervisors are killed throughout. No cell
// runs twice, none is lost without a word, none waits for ever, and all variables stay, those on the GPU too.
func TestChaos_Parking(t *testing.T) {
	const kernels, lasts = 12, 10 * time.Minute
	g, usesCUDA := newParkingGateway(t, 2, "--start-wait", "1s", "--park-idle", "1s")
	g.start()
	random := rand.New(rand.NewPCG(seed(t), 0))
	ids := make([]string, kernels)
	for i := range ids {
		var m model
		g.want(201, "POST", "/api/kernels", oneGPU, &m)
		ids[i] = m.ID
	}
	for _, id := range ids {
		g.state(id, "idle", 2*time.Minute)
	}
	ends := time.Now().Add(lasts)
	var cells, lost, woken atomic.Int64
	var done sync.WaitGroup
	for _, id := range ids {
		k := &chaosKernel{returning: newReturning(t, g, id, subprotocolRelay, 20*time.Second), usesCUDA: usesCUDA,
			random: rand.New(rand.NewPCG(random.Uint64(), 1))}
		done.Go(func() {
			for !t.Failed() && time.Now().Before(ends) {
				k.cell(5 * time.Minute)
				pause := time.Duration(k.random.IntN(3000)) * time.Millisecond
				if k.random.IntN(3) == 0 {
					pause += 20 * time.Second // it is idle for long enough to give its GPU to another
				}
				time.Sleep(pause)
			}
			cells.Add(k.cells)
			woken.Add(k.woken)
			lost.Add(k.lost)
		})
	}
	for !t.Failed() && time.Now().Before(ends.Add(-time.Minute)) { // random pauses are the faults' pace
		time.Sleep(time.Duration(5+random.IntN(10)) * time.Second)
		if random.IntN(3) == 0 {
			g.kill()
			g.start()
		} else if pid := g.supervisorOf(ids[random.IntN(kernels)]); syscall.Kill(pid, syscall.SIGKILL) != nil {
			t.Logf("the supervisor %d has ended", pid)
		}
	}
	done.Wait()
	t.Logf("%d cells, %d of them with CUDA; %d were lost, each with a word", cells.Load(), woken.Load(), lost.Load())
	for _, id := range ids {
		g.want(204, "DELETE", "/api/kernels/"+id, "", nil)
	}
}

// chaosKernel is a kernel of TestChaos_Parking, and what its client knows of its variables.
type chaosKernel struct {
	*returning
	usesCUDA           string
	random             *rand.Rand
	ran, unknown       int   // the number that the last cell printed, and how many cells since may have run
	cells, woken, lost int64 // all cells, those that used CUDA, and those whose fate is unknown
}

// cell runs a cell that counts, and that reads what an earlier one has put on the GPU.
func (k *chaosKernel) cell(limit time.Duration) {
	code := "n = globals().get('n', 0) + 1\n"
	if k.random.IntN(3) > 0 {
		code += "if 'held' not in globals():\n    " + strings.ReplaceAll(strings.TrimSpace(k.usesCUDA), "\n", "\n    ") +
			fmt.Sprintf("\n    begin(40 << 20, %q)\nprint(n, held())", k.id)
	} else {
		code += "print(n, 'no')"
	}
	k.cells++
	o := k.ended(k.begin(code), limit)
	if o.replies[0].field("status") != "ok" {
		reply := string(o.replies[0].Content)
		if strings.Contains(reply, "AssertionError") || !strings.Contains(reply, "evalue") {
			k.t.Errorf("a cell ended with %s, and says %q", reply, o.notices)
		}
		k.lost++
		k.unknown++
		return
	}
	n, text := 0, ""
	if _, err := fmt.Sscan(o.stdout.String(), &n, &text); err != nil || n <= k.ran || n > k.ran+1+k.unknown ||
		text != "no" && text != k.id {
		k.t.Errorf("a cell printed %q after %d cells and %d of unknown fate: %v %s", o.stdout.String(), k.ran, k.unknown,
			err, o.notices)
	}
	if text == k.id {
		k.woken++
	}
	k.ran, k.unknown = n, 0
}
