//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// This file measures the phases of a start: what the API server, the container runtime, the supervisor and the client
// see. All of them run on the test's machine, so their clocks are one.

// Moments of a start, in their order. The first two and the last three are the client's.
const (
	momentPosted      = "the POST is sent"
	momentCreated     = "the pod exists"
	momentScheduled   = "it has a node"
	momentSandbox     = "the kubelet has mounted its volumes"
	momentNetwork     = "its sandbox runs"
	momentSupervisor  = "the supervisor's container runs"
	momentHook        = "its hook has returned"
	momentContainer   = "the kernel's container runs"
	momentProcess     = "the kernel's process runs"
	momentReady       = "the kernel has answered"
	momentAnswered    = "the POST is answered"
	momentWebsocket   = "the websocket is open"
	momentFirstAnswer = "the first cell is answered"
)

var allMoments = []string{momentPosted, momentCreated, momentScheduled, momentSandbox, momentNetwork, momentSupervisor,
	momentHook, momentContainer, momentProcess, momentReady, momentAnswered, momentWebsocket, momentFirstAnswer}

// momentsOfEKG are the ends of phases that a pod of one container does not have.
var momentsOfEKG = []string{momentSupervisor, momentHook, momentProcess, momentAnswered, momentWebsocket}

// runtimeEvent is an event of the container runtime.
type runtimeEvent struct {
	topic string
	at    time.Time
}

// runtimeEvents collects the events of the container runtime until the test ends.
type runtimeEvents struct {
	mu  sync.Mutex
	all []runtimeEvent
}

// watchRuntime starts to collect events.
func watchRuntime(t *testing.T, c *cluster) *runtimeEvents {
	t.Helper()
	cmd := exec.Command(c.script, "ctr", "events")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := &runtimeEvents{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			// 2026-01-02 03:04:05.678 +0000 UTC NAMESPACE TOPIC JSON
			f := strings.SplitN(lines.Text(), " ", 7)
			if len(f) < 7 {
				continue
			}
			at, err := time.Parse("2006-01-02 15:04:05.999999999 -0700 MST", strings.Join(f[:4], " "))
			if err != nil {
				continue
			}
			r.mu.Lock()
			r.all = append(r.all, runtimeEvent{f[5], at})
			r.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-done
		var ended *exec.ExitError
		if err := cmd.Wait(); err != nil && !errors.As(err, &ended) {
			t.Error(err)
		}
	})
	return r
}

// after returns the time of the n-th event with a topic, from 1, since a time. It is zero if there was none.
func (r *runtimeEvents) after(since time.Time, topic string, n int) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.all {
		if e.topic == topic && e.at.After(since) {
			if n--; n == 0 {
				return e.at
			}
		}
	}
	return time.Time{}
}

// phases are the moments of one start. A moment that was not seen is missing.
type phases map[string]time.Time

// startOnce starts a kernel, runs a cell in it and shuts it down. It returns when what has happened.
func (k *inCluster) startOnce(t *testing.T, client kubernetes.Interface, events *runtimeEvents) phases {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	pods := client.CoreV1().Pods(k.namespace)
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := pods.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	var name string
	seen, watched := phases{}, make(chan struct{})
	go func() {
		defer close(watched)
		for e := range w.ResultChan() {
			pod, ok := e.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			if name == "" {
				name, seen[momentCreated] = pod.Name, time.Now()
			}
			if _, scheduled := seen[momentScheduled]; !scheduled && pod.Name == name && pod.Spec.NodeName != "" {
				seen[momentScheduled] = time.Now()
			}
		}
	}()
	p := phases{momentPosted: time.Now()}
	id := k.kernel("python3")
	p[momentAnswered] = time.Now()
	socket := k.dial(t, id, "s", true)
	p[momentWebsocket] = time.Now()
	socket.says("1 + 1", "")
	p[momentFirstAnswer] = time.Now()
	w.Stop()
	<-watched
	for what, at := range seen {
		p[what] = at
	}
	// The pod's containers start one after the other, and no other pod starts meanwhile.
	begun := p[momentPosted]
	p[momentSandbox] = events.after(begun, "/containers/create", 1)
	p[momentNetwork] = events.after(begun, "/tasks/start", 1)
	p[momentSupervisor] = events.after(begun, "/tasks/start", 2)
	p[momentHook] = events.after(events.after(begun, "/tasks/exec-started", 1), "/tasks/exit", 1)
	p[momentContainer] = events.after(begun, "/tasks/start", 3)
	log, err := pods.GetLogs(name, &corev1.PodLogOptions{Container: "supervisor"}).DoRaw(ctx)
	if err != nil {
		t.Fatal(err)
	}
	p[momentProcess], p[momentReady] = loggedAt(log, "kernel started"), loggedAt(log, "kernel is ready")
	k.want(204, "DELETE", "/api/kernels/"+id, "", nil)
	return p
}

// loggedAt returns the time of the first line of a supervisor's log with a message.
func loggedAt(log []byte, message string) time.Time {
	for line := range bytes.Lines(log) {
		var l struct {
			Time time.Time
			Msg  string
		}
		if json.Unmarshal(line, &l) == nil && l.Msg == message {
			return l.Time
		}
	}
	return time.Time{}
}

// logPhases logs the median of each phase as the rows of a table. It returns the sum of the phases that only ekg has.
func logPhases(t *testing.T, all []phases) (added time.Duration) {
	t.Helper()
	var table strings.Builder
	for i, end := range allMoments[1:] {
		var since, took []time.Duration
		for _, p := range all {
			from, to := p[allMoments[i]], p[end]
			if from.IsZero() || to.IsZero() {
				t.Errorf("a start has no time of %q or %q", allMoments[i], end)
				return 0
			}
			since, took = append(since, to.Sub(p[momentPosted])), append(took, to.Sub(from))
		}
		whose := "the cluster or the kernel"
		if slices.Contains(momentsOfEKG, end) {
			whose = "ekg"
			added += median(took)
		}
		fmt.Fprintf(&table, "\n| %s | %d | %d | %s |", end, median(since).Milliseconds(), median(took).Milliseconds(), whose)
	}
	t.Logf("medians of %d starts, in ms:\n| until | since the POST | since the row above | whose |\n"+
		"| --- | --- | --- | --- |%s", len(all), table.String())
	return added
}

// median returns the median.
func median(all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}
