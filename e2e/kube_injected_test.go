//go:build e2e

package e2e

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// podGone is how soon a pod must be gone after its kernel has ended. It is the grace period of the pod, which a
// container that ignores SIGTERM uses up, the delay before one gateway removes a pod that another container holds open,
// and some time for a loaded machine.
const podGone = 60 * time.Second

// TestE2E_KubeInjected: a webhook adds annotations and a container to each pod. Kernels start, restart and end as
// without it.
func TestE2E_KubeInjected(t *testing.T) {
	t.Parallel() // it mostly waits
	injected(t, true, [][]string{{"cell", "restart", "dies", "end"}, {"pod deleted", "lines", "end"}})
}

// TestChaos_KubeInjected runs random steps while a webhook adds a random part of it.
func TestChaos_KubeInjected(t *testing.T) {
	random := rand.New(rand.NewPCG(seed(t), 2))
	all := []string{"cell", "lines", "restart", "dies", "pod deleted", "end"}
	kernels := make([][]string, 4)
	for i := range kernels {
		for range 12 {
			kernels[i] = append(kernels[i], all[random.IntN(len(all))])
		}
	}
	injected(t, false, kernels)
}

// injected runs the steps of all kernels at once, and those of one kernel in their order.
func injected(t *testing.T, always bool, kernels [][]string) {
	k := newKubeGateway(t, "--start-wait", "30s")
	culled := newKubeGateway(t, "--start-wait", "30s", "--cull-idle-timeout", "3")
	i := k.cluster.inject(t, seed(t), always, k.namespace, culled.namespace)
	k.podSpec("exits", map[string]any{"image": "localhost/kernel-py:dev"},
		"/bin/sh", "-c", "echo these are my last words >&2; exit 3")
	k.start()
	culled.start()
	t.Run("at once", func(t *testing.T) {
		for n, steps := range kernels {
			t.Run(fmt.Sprint("kernel ", n), func(t *testing.T) {
				t.Parallel()
				s := &steppedKernel{inCluster: k.in(t)}
				s.begin()
				for _, step := range steps {
					s.step(step)
				}
			})
		}
		t.Run("an idle kernel is culled", func(t *testing.T) {
			t.Parallel()
			c := culled.in(t)
			id := c.kernel("pod")
			c.state(id, "idle", time.Minute)
			c.eventually(time.Minute, "it is culled", func() error {
				status, b := c.ask("GET", "/api/kernels/"+id, "")
				if status != 404 && !strings.Contains(string(b), "it was idle for") {
					return fmt.Errorf("%d %s", status, b)
				}
				return nil
			})
			c.podsGone(id)
		})
		t.Run("a start that fails leaves nothing", func(t *testing.T) {
			t.Parallel()
			k := k.in(t)
			if status, b := k.ask("POST", "/api/kernels", `{"name": "exits"}`); status < 400 ||
				!strings.Contains(string(b), "these are my last words") {
				t.Errorf("%d %s", status, b)
			}
		})
	})
	k.deleteAll()
	culled.deleteAll()
	pods, beside := i.count()
	t.Logf("%d pods were changed, and %d of them got a container", pods, beside)
	if beside == 0 {
		t.Error("no pod got a container")
	}
}

// steppedKernel is a kernel whose variable x counts cells, and its user.
type steppedKernel struct {
	*inCluster
	id string
	c  *client
	x  int
}

// begin starts the kernel.
func (s *steppedKernel) begin() {
	s.t.Helper()
	s.id = s.kernel("pod")
	s.again()
}

// again opens a connection to a kernel without variables.
func (s *steppedKernel) again() {
	s.t.Helper()
	s.state(s.id, "idle", 90*time.Second)
	s.c, s.x = s.dial(s.t, s.id, fmt.Sprint("session ", messageNumber.Add(1)), true), 0
	s.says("print('x' in globals()); x = 0", "False\n")
}

// says runs a cell and checks what it prints.
func (s *steppedKernel) says(code, want string) {
	s.t.Helper()
	if r := s.c.execute(code, time.Minute); r.stdout != want {
		s.t.Fatalf("%q printed %q, want %q; reply %s", code, r.stdout, want, r.reply.Content)
	}
}

// step does one thing to the kernel. Afterwards it is listed once, it has one pod, and its variables are as expected.
func (s *steppedKernel) step(what string) {
	s.t.Helper()
	began := time.Now()
	switch what {
	case "cell":
		s.x++
		s.says("x += 1; print(x)", fmt.Sprintln(s.x))
	case "lines":
		const lines = 500
		r := s.c.execute(fmt.Sprintf("for i in range(%d): print('line', i)", lines), time.Minute)
		wantEvery(s.t, "a cell", r.stdout, lines)
	case "restart":
		s.want(200, "POST", "/api/kernels/"+s.id+"/restart", "", nil)
		s.again()
	case "dies":
		r := s.c.execute("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", time.Minute)
		if r.reply.field("ename") != "KernelDied" {
			s.t.Fatalf("the cell that kills its kernel was answered with %s", r.reply.Content)
		}
		s.again()
	case "pod deleted":
		pods := s.podsOf(s.id)
		if len(pods) != 1 {
			s.t.Fatalf("there are %d pods", len(pods))
		}
		s.cluster.kubectl(s.t, "", "-n", s.namespace, "delete", "pod", pods[0].Metadata.Name, "--wait=false")
		s.dies(s.id, "its pod was deleted", podGone)
		s.want(200, "POST", "/api/kernels/"+s.id+"/restart", "", nil)
		s.again()
	case "end":
		s.want(204, "DELETE", "/api/kernels/"+s.id, "", nil)
		s.want(404, "GET", "/api/kernels/"+s.id, "", nil)
		s.podsGone(s.id)
		s.begin()
	default:
		s.t.Fatalf("no step is named %q", what)
	}
	s.says("print(x)", fmt.Sprintln(s.x))
	s.listedOnce(s.id)
	if pods := s.podsOf(s.id); len(pods) != 1 {
		s.t.Errorf("after %s the kernel has %d pods", what, len(pods))
	}
	s.t.Logf("%s took %v", what, time.Since(began).Round(100*time.Millisecond))
}

// listedOnce checks that the gateway lists a kernel, and not twice.
func (k *inCluster) listedOnce(id string) {
	k.t.Helper()
	var all []model
	k.want(200, "GET", "/api/kernels", "", &all)
	n := 0
	for _, m := range all {
		if m.ID == id {
			n++
		}
	}
	if n != 1 {
		k.t.Errorf("kernel %s is listed %d times", id, n)
	}
}

// podsGone waits until a kernel has no pod.
func (k *inCluster) podsGone(id string) {
	k.t.Helper()
	k.eventually(podGone, "the kernel's pod is gone", func() error {
		if pods := k.podsOf(id); len(pods) > 0 {
			return fmt.Errorf("%s is %s", pods[0].Metadata.Name, pods[0].Status.Phase)
		}
		return nil
	})
}
