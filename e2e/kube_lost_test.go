//go:build e2e

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestChaos_KubeNodeLost: the node of all kernels is lost, and comes back: after some seconds, after the cluster has
// noticed, or after a pod is deleted. The kubelet and all processes of the kernels' pods are
// frozen meanwhile. So the node reports nothing, its supervisors answer nothing, and a deleted pod does not end.
func TestChaos_KubeNodeLost(t *testing.T) {
	random := rand.New(rand.NewPCG(seed(t), 4))
	k := newKubeGateway(t, "--start-wait", "2s")
	k.cluster.needsOwn(t, "its kubelet and the processes of its pods are frozen")
	k.start()
	id, evicted := k.kernel("pod"), k.kernel("pod")
	for _, id := range []string{id, evicted} {
		k.state(id, "idle", time.Minute)
	}
	k.dial(t, evicted, "first", true).says("x = 41", "")
	r := newReturning(t, k.gateway, id, subprotocolRelay, 10*time.Second)
	cell := r.begin(untilInterrupted)
	r.until(20*time.Second, "the cell begins", func() bool {
		return r.has(func(m message) bool { return m.Parent.MsgID == cell && m.Header.MsgType == "stream" })
	})
	before := k.uids()
	rounds := []func(){
		func() { k.lostFor(time.Duration(1+random.IntN(20)) * time.Second) },
		func() { k.lostUntilNoticed([]string{id, evicted}) },
	}
	random.Shuffle(len(rounds), func(i, j int) { rounds[i], rounds[j] = rounds[j], rounds[i] })
	for _, round := range rounds {
		round()
		k.eventually(time.Minute, "no kernel has a reason", func() error {
			for id, want := range map[string]string{id: "busy", evicted: "idle"} {
				if m := k.state(id, want, time.Minute); m.Reason != "" {
					return fmt.Errorf("kernel %s: %s", id, m.Reason)
				}
			}
			return nil
		})
		k.dial(t, evicted, fmt.Sprint("again ", messageNumber.Add(1)), true).says("print(x)", "41\n")
		for name, uid := range k.uids() {
			if before[name] != uid {
				t.Errorf("pod %s was %q and is %s", name, before[name], uid)
			}
		}
	}
	k.lostUntilEvicted(id, evicted)
	k.want(204, "POST", "/api/kernels/"+id+"/interrupt", "", nil)
	wantNumbered(t, r.session, r.ended(cell, time.Minute))
	k.deleteAll()
}

// lose freezes the kubelet and all processes of the namespace's pods. The returned function, which also runs at the end
// of the test, lets them continue.
func (k *inCluster) lose() (back func()) {
	k.t.Helper()
	thaw := k.cluster.broken(k.t, "freeze", "kubelet")
	var containers []string
	for _, p := range k.pods() {
		for _, c := range p.Status.ContainerStatuses {
			containers = append(containers, strings.TrimPrefix(c.ContainerID, "containerd://"))
		}
	}
	frozen := map[int]bool{}
	back = sync.OnceFunc(func() {
		for pid := range frozen {
			if err := syscall.Kill(pid, syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
				k.t.Error(err)
			}
		}
		thaw()
	})
	k.t.Cleanup(back)
	for n := 1; n > 0; { // a process may have started another one meanwhile
		n = 0
		for _, p := range processes(k.t, func(process) bool { return true }) {
			if !frozen[p.pid] && inContainer(p.pid, containers) {
				if err := syscall.Kill(p.pid, syscall.SIGSTOP); err != nil {
					k.t.Fatal(err)
				}
				frozen[p.pid] = true
				n++
			}
		}
	}
	k.t.Logf("%d processes in %d containers are frozen", len(frozen), len(containers))
	return back
}

// inContainer reports whether a process belongs to one of these containers.
func inContainer(pid int, containers []string) bool {
	group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false // it has ended
	}
	for _, id := range containers {
		if id != "" && bytes.Contains(group, []byte(id)) {
			return true
		}
	}
	return false
}

// lostFor loses the node for this long.
func (k *inCluster) lostFor(long time.Duration) {
	k.t.Helper()
	defer k.lose()()
	k.t.Logf("the node is lost for %v", long)
	began := time.Now()
	during(long, began, func() { k.want(200, "GET", "/api/kernels", "", nil) })
}

// lostUntilNoticed loses the node until the cluster has noticed. The kernels stay listed as alive, and say why they do
// not answer.
func (k *inCluster) lostUntilNoticed(ids []string) {
	k.t.Helper()
	defer k.lose()()
	began := time.Now()
	for _, id := range ids {
		k.unheard(id, "its supervisor has not answered")
	}
	k.t.Logf("the model says so after %v", time.Since(began).Round(time.Second))
	k.noticed()
	for _, id := range ids {
		k.unheard(id, "does not answer")
		k.listedOnce(id)
	}
	k.t.Logf("the node is noticed as lost after %v", time.Since(began).Round(time.Second))
}

// noticed waits until the cluster takes the node for lost.
func (k *inCluster) noticed() {
	k.t.Helper()
	k.cluster.kubectl(k.t, "", "wait", "node/node1", "--for=condition=Ready=Unknown", "--timeout=120s")
}

// unheard waits until the model of a kernel that is alive gives a reason that contains this.
func (k *inCluster) unheard(id, why string) {
	k.t.Helper()
	var m model
	k.eventually(90*time.Second, fmt.Sprintf("the reason says %q", why), func() error {
		k.want(200, "GET", "/api/kernels/"+id, "", &m)
		if m.ExecutionState == "dead" {
			k.t.Fatalf("kernel %s is dead: %s", id, m.Reason)
		}
		if !strings.Contains(m.Reason, why) {
			return fmt.Errorf("it is %s: %q", m.ExecutionState, m.Reason)
		}
		return nil
	})
	k.t.Logf("%s: %s", m.ExecutionState, m.Reason)
}

// lostUntilEvicted loses the node until the pod of one of two kernels is deleted, and the gateway takes that one for
// dead. The test deletes the pod: a cluster whose only node is lost evicts nothing. The kernel is restarted while the
// node is away. When the node is back, the other kernel goes on.
func (k *inCluster) lostUntilEvicted(id, evicted string) {
	k.t.Helper()
	back := k.lose()
	began := time.Now()
	k.noticed()
	k.cluster.kubectl(k.t, "", "delete", "pod", "-n", k.namespace, evicted+"-1", "--wait=false")
	k.dies(evicted, "its node node1 is lost", 3*time.Minute)
	k.t.Logf("the evicted kernel is dead after %v", time.Since(began).Round(time.Second))
	k.unheard(id, "does not answer")
	k.listedOnce(evicted)
	k.want(200, "POST", "/api/kernels/"+evicted+"/restart", "", nil)
	k.waits(evicted, "node")
	k.listedOnce(evicted)
	back()
	k.state(evicted, "idle", 2*time.Minute)
	k.state(id, "busy", time.Minute)
	k.dial(k.t, evicted, "restarted", true).says("print('x' in globals())", "False\n")
	k.eventually(time.Minute, "each kernel has one pod", func() error {
		if pods := k.uids(); len(pods) != 2 || pods[id+"-1"] == "" || pods[evicted+"-2"] == "" {
			return fmt.Errorf("there are %v", pods)
		}
		return nil
	})
	k.listedOnce(id)
	k.listedOnce(evicted)
}
