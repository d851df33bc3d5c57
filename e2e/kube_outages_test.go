//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// This file breaks the cluster itself. Its tests are not parallel to any others.

// broken stops or freezes one of the cluster's programs. The returned function, which also runs at the end of the test,
// makes it work again.
func (c *cluster) broken(t *testing.T, how, program string) (restore func()) {
	t.Helper()
	again := map[string]string{"stop": "start", "freeze": "thaw"}[how]
	if _, err := c.run(how, program); err != nil {
		t.Fatal(err)
	}
	restore = sync.OnceFunc(func() {
		if _, err := c.run(again, program); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(restore)
	return restore
}

// replicasAlone returns the replicas, each with its own address.
func (k *inCluster) replicasAlone() []*inCluster {
	k.t.Helper()
	var all []*inCluster
	for _, ip := range slices.Sorted(maps.Values(k.replicas())) {
		one := k.in(k.t)
		one.url = "http://" + ip + ":8888"
		all = append(all, one)
	}
	if len(all) != 2 {
		k.t.Fatalf("%d replicas are ready", len(all))
	}
	return all
}

// uids returns the uids of the namespace's pods by name.
func (k *inCluster) uids() map[string]string {
	k.t.Helper()
	all := map[string]string{}
	for _, p := range k.pods() {
		all[p.Metadata.Name] = p.Metadata.UID
	}
	return all
}

// TestE2E_KubeOutages: parts of the cluster fail, and running kernels are not affected.
func TestE2E_KubeOutages(t *testing.T) {
	k := installInCluster(t)
	for _, o := range []struct {
		name, how string
		long      time.Duration
	}{
		{"the API server is frozen", "freeze", 30 * time.Second},
		{"the API server is stopped", "stop", 2 * time.Minute},
	} {
		t.Run(o.name, func(t *testing.T) { k.in(t).withoutAPIServer(o.how, o.long) })
	}
	t.Run("the kubelet is stopped", func(t *testing.T) { k.in(t).withoutKubelet() })
	t.Run("a replica's watch is late", func(t *testing.T) { k.in(t).withLateWatch() })
	k.deleteAll()
}

// withoutAPIServer breaks the API server for this long.
func (k *inCluster) withoutAPIServer(how string, long time.Duration) {
	t := k.t
	replicas := k.replicasAlone()
	ids := []string{replicas[0].kernel("python3"), replicas[1].kernel("python3")}
	open := replicas[0].dial(t, ids[0], "open", true)
	open.says("x = 0", "")
	before := k.uids()
	restore := k.cluster.broken(t, how, "apiserver")
	var unsure sync.WaitGroup // requests that no gateway can answer meanwhile
	for _, r := range replicas {
		for _, q := range [][3]string{{"POST", "/api/kernels", `{"name": "python3"}`},
			{"GET", "/api/kernels/00000000-0000-4000-8000-00000000000f"}} {
			unsure.Go(func() {
				if status, b, err := r.tryAsk(q[0], q[1], q[2]); err != nil || status != 503 {
					t.Errorf("%s %s: %d %s, %v", q[0], q[1], status, b, err)
				}
			})
		}
	}
	began, x := time.Now(), 0
	during(long, began, func() {
		x++
		open.says("x += 1; print(x)", fmt.Sprintln(x))
		for _, r := range replicas {
			r.knows(ids)
		}
	})
	unsure.Wait()
	for i, r := range replicas {
		r.dial(t, ids[1], fmt.Sprint("new ", i), true).says("print('meanwhile')", "meanwhile\n")
	}
	t.Logf("%d cells in %v", x, time.Since(began).Round(time.Second))
	restore()
	restored := time.Now()
	for _, program := range []string{"controllers", "scheduler", "kubelet"} {
		// Each program is restarted. It would otherwise wait up to a minute before it reconnects.
		k.cluster.broken(t, "stop", program)()
	}
	var after []string
	for _, r := range replicas {
		r.eventually(60*time.Second, "everything is listed again", func() error {
			status, b := r.ask("GET", "/api/kernels", "")
			var all []model
			if err := json.Unmarshal(b, &all); err != nil || status != 200 {
				return fmt.Errorf("%d %s", status, b)
			}
			pods := k.pods()
			for _, m := range all {
				if m.ExecutionState != "idle" && !slices.Contains(after, m.ID) {
					return fmt.Errorf("%+v", m)
				}
			}
			if len(all) != len(pods) || !slices.ContainsFunc(all, func(m model) bool { return m.ID == ids[0] }) {
				return fmt.Errorf("%d pods, %s", len(pods), b)
			}
			return nil
		})
		t.Logf("everything is listed again %v after the API server works", time.Since(restored).Round(time.Second))
		r.knows(ids)
		after = append(after, r.startsAgain())
		t.Logf("a replica starts kernels again %v after the API server works", time.Since(restored).Round(time.Second))
	}
	for _, id := range after {
		replicas[0].state(id, "idle", 90*time.Second)
	}
	t.Logf("the next kernels are up %v after it", time.Since(restored).Round(time.Second))
	now := k.uids()
	for name, uid := range before {
		if now[name] != uid {
			t.Errorf("pod %s was %s and is %q", name, uid, now[name])
		}
	}
	open.says("print(x)", fmt.Sprintln(x))
}

// knows checks that the gateway reports these kernels as alive, one by one and in the list.
func (k *inCluster) knows(ids []string) {
	k.t.Helper()
	lives := func(m model) bool { return m.ExecutionState == "idle" || m.ExecutionState == "busy" }
	for _, id := range ids {
		var m model
		if k.want(200, "GET", "/api/kernels/"+id, "", &m); !lives(m) {
			k.t.Errorf("%+v", m)
		}
	}
	var all []model
	k.want(200, "GET", "/api/kernels", "", &all)
	for _, id := range ids {
		if !slices.ContainsFunc(all, func(m model) bool { return m.ID == id && lives(m) }) {
			k.t.Errorf("the list lacks %s: %+v", id, all)
		}
	}
}

// startsAgain starts a kernel as soon as the gateway reaches the API server. The cluster's proxy may need half a minute
// until it leads there again.
func (k *inCluster) startsAgain() (id string) {
	k.t.Helper()
	k.eventually(90*time.Second, "a kernel is started", func() error {
		status, b, err := k.tryAsk("POST", "/api/kernels", `{"name": "python3"}`)
		if err != nil || status != 201 {
			return fmt.Errorf("%d %s, %v", status, b, err)
		}
		var m model
		if err := json.Unmarshal(b, &m); err != nil {
			return err
		}
		id = m.ID
		return nil
	})
	return id
}

// withoutKubelet stops the kubelet until the cluster has noticed.
func (k *inCluster) withoutKubelet() {
	t := k.t
	replicas := k.replicasAlone()
	id := replicas[0].kernel("python3")
	open := replicas[0].dial(t, id, "open", true)
	open.says("x = 41", "")
	before := k.uids()[id+"-1"]
	restore := k.cluster.broken(t, "stop", "kubelet")
	began := time.Now()
	early := replicas[0].kernel("python3")
	replicas[1].waits(early, "has not accepted it")
	k.cluster.kubectl(t, "", "wait", "node/node1", "--for=condition=Ready=Unknown", "--timeout=120s")
	// The taint follows the condition. Until then the scheduler gives the node further pods.
	k.eventually(30*time.Second, "the node is tainted", func() error {
		out, err := k.cluster.tryKubectl("", "get", "node/node1", "-o", "jsonpath={.spec.taints[*].key}")
		if err == nil && !strings.Contains(out, "node.kubernetes.io/unreachable") {
			err = fmt.Errorf("its taints are %q", out)
		}
		return err
	})
	t.Logf("noticed after %v", time.Since(began).Round(time.Second))
	late := replicas[1].kernel("python3")
	replicas[0].waits(late, "does not answer")
	open.says("print(x + 1)", "42\n")
	for _, r := range replicas {
		r.knows([]string{id})
		r.dial(t, id, "new", true).says("print(x)", "41\n")
	}
	restore()
	for _, waiting := range []string{early, late} {
		replicas[0].state(waiting, "idle", 120*time.Second)
	}
	open.says("print(x + 2)", "43\n")
	if after := k.uids()[id+"-1"]; after != before {
		t.Errorf("the kernel's pod was %s and is %q", before, after)
	}
	k.rolledOut()
}

// waits waits until the model says that the kernel waits for this.
func (k *inCluster) waits(id, what string) {
	k.t.Helper()
	var m model
	k.eventually(60*time.Second, fmt.Sprintf("the reason says %q", what), func() error {
		if m = k.state(id, "starting", 10*time.Second); !strings.Contains(m.Reason, what) {
			return fmt.Errorf("it is %q", m.Reason)
		}
		return nil
	})
	k.t.Logf("waiting: %s", m.Reason)
}

// dies waits until the kernel is dead for a reason that contains this.
func (k *inCluster) dies(id, why string, limit time.Duration) {
	k.t.Helper()
	var m model
	k.eventually(limit, fmt.Sprintf("it is dead, and the reason says %q", why), func() error {
		k.want(200, "GET", "/api/kernels/"+id, "", &m)
		if m.ExecutionState != "dead" || !strings.Contains(m.Reason, why) {
			return fmt.Errorf("it is %s: %q", m.ExecutionState, m.Reason)
		}
		return nil
	})
	k.t.Logf("dead: %s", m.Reason)
}

// TestE2E_KubeNode: a kernel loses its node by a drain and by a deletion. Each time it restarts after the node is back.
func TestE2E_KubeNode(t *testing.T) {
	k := newKubeGateway(t, "--start-wait", "4s")
	k.cluster.needsOwn(t, "its node is drained")
	k.start()
	id := k.kernel("pod")
	k.state(id, "idle", 60*time.Second)
	t.Run("it is drained", func(t *testing.T) {
		k := k.in(t)
		t.Cleanup(func() { k.cluster.kubectl(t, "", "uncordon", "node1") })
		k.cluster.kubectl(t, "", "drain", "node1", "--force", "--delete-emptydir-data", "--ignore-daemonsets",
			"--timeout=90s")
		k.dies(id, "drained", 60*time.Second)
		k.want(200, "POST", "/api/kernels/"+id+"/restart", "", nil)
		k.waits(id, "cordoned")
		k.cluster.kubectl(t, "", "uncordon", "node1")
		k.state(id, "idle", 60*time.Second)
		k.dial(t, id, "s", true).says("print('again')", "again\n")
	})
	t.Run("it is deleted", func(t *testing.T) {
		k := k.in(t)
		back := sync.OnceFunc(func() {
			// A kubelet registers its node only at its start. The proxy ends when its node is deleted.
			for _, args := range [][]string{{"stop", "kubelet"}, {"start", "kubelet"}, {"start", "proxy"}} {
				if _, err := k.cluster.run(args...); err != nil {
					t.Error(err)
				}
			}
		})
		t.Cleanup(back)
		k.cluster.kubectl(t, "", "delete", "node", "node1")
		k.dies(id, "its node is gone", 150*time.Second)
		back()
		k.want(200, "POST", "/api/kernels/"+id+"/restart", "", nil)
		k.state(id, "idle", 60*time.Second)
		k.dial(t, id, "s", true).says("print('again')", "again\n")
		n := k.cluster.kubectl(t, "", "get", "node", "node1", "-o", `jsonpath={.status.capacity.nvidia\.com/gpu}`)
		if n != "4" {
			t.Errorf("the node has %q GPUs", n)
		}
	})
	k.deleteAll()
}

// withLateWatch delays all events for one of two replicas by two seconds, with a proxy of its own.
func (k *inCluster) withLateWatch() {
	t, c := k.t, k.cluster
	proxy := c.newAPIProxy(t)
	proxy.late = 2 * time.Second
	var d map[string]any
	if err := json.Unmarshal([]byte(c.kubectl(t, "", "-n", "ekg", "get", "deployment", "ekg", "-o", "json")),
		&d); err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(proxy.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	at := func(path ...string) map[string]any {
		object := d
		for _, key := range path {
			object = object[key].(map[string]any)
		}
		return object
	}
	d["metadata"] = map[string]any{"name": "ekg-late", "namespace": "ekg", "labels": at("metadata", "labels")}
	delete(d, "status")
	at("spec")["replicas"] = 1
	at("spec", "selector", "matchLabels")["test"] = "late"
	at("spec", "template", "metadata", "labels")["test"] = "late"
	container := at("spec", "template", "spec")["containers"].([]any)[0].(map[string]any)
	container["env"] = append(container["env"].([]any), map[string]any{"name": "KUBERNETES_SERVICE_HOST", "value": nodeIP},
		map[string]any{"name": "KUBERNETES_SERVICE_PORT", "value": port})
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.kubectl(t, "", "-n", "ekg", "delete", "deployment", "ekg-late", "--ignore-not-found")
		c.kubectl(t, "", "-n", "ekg", "scale", "deployment", "ekg", "--replicas=2")
		k.rolledOut()
	})
	c.kubectl(t, "", "-n", "ekg", "scale", "deployment", "ekg", "--replicas=1")
	c.kubectl(t, string(text), "create", "-f", "-")
	c.kubectl(t, "", "-n", "ekg", "rollout", "status", "deployment/ekg-late", "--timeout=60s")
	var prompt, late *inCluster
	k.eventually(30*time.Second, "there is one replica of each kind", func() error {
		all := k.replicas()
		if len(all) != 2 {
			return fmt.Errorf("there are %v", all)
		}
		for name, ip := range all {
			one := k.in(t)
			one.url = "http://" + ip + ":8888"
			if strings.HasPrefix(name, "ekg-late-") {
				late = one
			} else {
				prompt = one
			}
		}
		return nil
	})
	// The watch by which a replica finds the others is repeated once the API server answers after the outages before.
	k.eventually(15*time.Second, "the replicas know each other", func() error {
		for _, pair := range [][2]*inCluster{{prompt, late}, {late, prompt}} {
			id := pair[0].kernel("python3")
			known := pair[1].lists(id)
			pair[0].want(204, "DELETE", "/api/kernels/"+id, "", nil)
			if !known {
				return fmt.Errorf("kernel %s is missing", id)
			}
		}
		return nil
	})
	for range 3 {
		for _, pair := range [][2]*inCluster{{prompt, late}, {late, prompt}} {
			one, other := pair[0], pair[1]
			id := one.kernel("python3")
			other.listed(id, true)
			one.want(204, "DELETE", "/api/kernels/"+id, "", nil)
			other.listed(id, false)
			one.listed(id, false)
		}
	}
}

// lists reports whether the gateway lists a kernel at this moment.
func (k *inCluster) lists(id string) bool {
	k.t.Helper()
	var all []model
	k.want(200, "GET", "/api/kernels", "", &all)
	return slices.ContainsFunc(all, func(m model) bool { return m.ID == id })
}

// listed checks whether the gateway knows a kernel at this moment.
func (k *inCluster) listed(id string, want bool) {
	k.t.Helper()
	status := map[bool]int{true: 200, false: 404}[want]
	if k.lists(id) != want {
		k.t.Errorf("%s: listed %v, want %v", id, !want, want)
	}
	k.want(status, "GET", "/api/kernels/"+id, "", nil)
}
