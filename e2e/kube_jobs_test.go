//go:build e2e

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestChaos_KubeJobs: gateways are killed, and pods of jobs are deleted, while fifty jobs run. Each job ends once, with
// the right outputs.
func TestChaos_KubeJobs(t *testing.T) {
	random := rand.New(rand.NewPCG(seed(t), 0))
	c := theCluster(t)
	ns := c.newNamespace(t)
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(strings.Repeat("k", 40)), 0o600); err != nil {
		t.Fatal(err)
	}
	var all []*inCluster
	for range 2 {
		g := c.newGateway(t, ns, c.kubeconfig, "--master-key-file", key, "--max-kernels", "4")
		g.start()
		all = append(all, g)
	}
	lost := map[string]int{} // pods that were deleted, by job
	all[0].fiftyJobs(6*time.Second, func(n int) {
		if n%5 == 4 { // every 30 s: a gateway takes the jobs of a killed one after 20 s
			victim := all[n/5%2]
			victim.kill()
			victim.start()
			return
		}
		running := slices.DeleteFunc(all[0].jobs(), func(j job) bool { return j.State != "running" })
		if len(running) == 0 {
			return
		}
		j := running[random.IntN(len(running))]
		for _, p := range all[0].podsOf(j.Kernel) {
			c.kubectl(t, "", "-n", ns, "delete", "pod", p.Metadata.Name, "--grace-period=1", "--wait=false")
			lost[j.ID]++
		}
	}, "--kernel", "pod", "--retries", "20")
	for _, j := range all[0].jobs() {
		if j.Attempt > 1+lost[j.ID] { // a pod may be deleted when the job's last cell has run
			t.Errorf("job %s has lost %d pods, and has %d attempts", j.ID, lost[j.ID], j.Attempt)
		}
	}
	t.Logf("%d jobs have lost their pods", len(lost))
	all[0].nothingLeft()
}

// jobsEnd runs jobs whose records are in the cluster. One has a large output and loses all replicas at once, while a
// cell prints. One loses its pod and begins again. One is stopped.
func (k *inCluster) jobsEnd() {
	t := k.t
	const large = "import hashlib, random, time\ntext = random.Random(name).randbytes(1 << 20).hex()\nprint(text)\n" +
		"print(hashlib.sha256(text.encode()).hexdigest())"
	const slow = "for i in range(150):\n    print(name, i, flush=True)\n    time.sleep(0.1)"
	long := k.submits(k.notebookFile("long.ipynb", "name = 'a'", large, slow, "print('end', i)"))
	loses := k.submits(k.notebookFile("loses.ipynb", "import time", "print('again')\ntime.sleep(6)", "print('survived')"),
		"--retries", "1")
	running := func(cell int) func(job) bool {
		return func(j job) bool { return j.State == "running" && j.Cell == cell }
	}
	lost := k.jobIs(loses, "runs its second cell", time.Minute, running(2)).Kernel
	for _, p := range k.podsOf(lost) {
		k.cluster.kubectl(t, "", "-n", k.namespace, "delete", "pod", p.Metadata.Name, "--grace-period=1", "--wait=false")
	}
	kernel := k.jobIs(long, "runs its third cell", time.Minute, running(3)).Kernel
	for pod := range k.replicas() {
		k.killReplica(pod)
	}
	k.rolledOut()
	ended := func(j job) bool { return j.State == "succeeded" || j.State == "failed" }
	j := k.jobIs(long, "has ended", 2*time.Minute, ended)
	if j.State != "succeeded" || j.Kernel != kernel || j.Attempt != 1 {
		t.Errorf("without its gateways: %+v; it began in %s", j, kernel)
	}
	code, logs, errs := k.prints("jobs", "logs", long)
	text, rest, _ := strings.Cut(logs, "\n")
	sum := sha256.Sum256([]byte(text))
	want := hex.EncodeToString(sum[:]) + "\n"
	for i := range 150 {
		want += fmt.Sprintln("a", i)
	}
	if code != 0 || len(text) != 2<<20 || rest != want+"end 149\n" {
		t.Errorf("ekg jobs logs: %d %s: %d bytes, then\n%.500s", code, errs, len(text), rest)
	}
	if j := k.jobIs(loses, "has ended", 2*time.Minute, ended); j.State != "succeeded" || j.Attempt != 2 {
		t.Errorf("without its pod: %+v", j)
	}
	if code, logs, errs := k.prints("jobs", "logs", loses); code != 0 || logs != "again\nsurvived\n" {
		t.Errorf("without its pod: %d %s, %q", code, errs, logs)
	}
	endless := k.submits(k.notebookFile("endless.ipynb", "import time", "while True:\n    time.sleep(1)"))
	k.jobIs(endless, "runs", time.Minute, running(2))
	if code, _, errs := k.prints("jobs", "stop", endless); code != 0 {
		t.Errorf("ekg jobs stop: %d %s", code, errs)
	}
	k.jobIs(endless, "is stopped", time.Minute, func(j job) bool { return j.State == "stopped" })
	if code, _, errs := k.prints("jobs", "rm", long, loses, endless); code != 0 {
		t.Errorf("ekg jobs rm: %d %s", code, errs)
	}
	// A killed gateway may leave pieces of two notebooks, and of a job's record. They are swept up later. The head of each
	// job's record is gone. The room of the jobs' owner stays.
	heads, pieces := k.configMaps("record"), k.configMaps("record-piece")
	if len(heads)+len(pieces) > 9 || strings.Contains(strings.Join(heads, " "), "ekg-record.jobs.") {
		t.Errorf("records of removed jobs are left: %q, and their pieces %q", heads, pieces)
	}
}

// configMaps returns the names of the config maps of a component.
func (k *inCluster) configMaps(component string) []string {
	k.t.Helper()
	return strings.Fields(k.cluster.kubectl(k.t, "", "-n", k.namespace, "get", "configmaps", "-o", "name", "-l",
		"app.kubernetes.io/component="+component))
}

// TestE2E_KubeJobsPreempted: a notebook's kernel displaces the pod of a job with a lower PriorityClass. The job says
// why, and begins again when the kernel has ended.
func TestE2E_KubeJobsPreempted(t *testing.T) {
	t.Parallel() // it mostly waits
	flavors := filepath.Join(t.TempDir(), "flavors.yaml")
	const one = "flavors:\n- {name: one, resource: {name: gpu.intel.com/i915}}\n"
	if err := os.WriteFile(flavors, []byte(one), 0o600); err != nil {
		t.Fatal(err)
	}
	c := theCluster(t)
	class := c.newNamespace(t) // a name that no other test has
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, []byte("jobPriorityClass: "+class+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	k := c.newGateway(t, class, c.kubeconfig, "--start-wait", "1s", "--flavors", flavors, "--kube-policy", policy)
	k.cluster.offer(t, map[string]string{"gpu.intel.com/i915": "1"})
	k.cluster.kubectl(t, fmt.Sprintf(`{"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": -100,
		"preemptionPolicy": "Never", "metadata": {"name": %q}}`, class), "create", "-f", "-")
	t.Cleanup(func() { k.cluster.kubectl(t, "", "delete", "priorityclass", class) })
	k.start()
	path := k.notebookFile("low.ipynb", "n = 100", "import time\ntime.sleep(n)", "print('ends')")
	id := k.submits(path, "--kernel", "pod", "--flavor", "one", "--retries", "1")
	first := k.jobIs(id, "trains", time.Minute, func(j job) bool {
		return j.State == "running" && j.Cell > 1
	}).Kernel
	notebook := k.flavored("one")
	j := k.jobIs(id, "is displaced", time.Minute, func(j job) bool { return j.State == "queued" && j.Attempt == 1 })
	if !strings.Contains(j.Reason, "its kernel has ended: it was preempted") {
		t.Errorf("the reason of the job is %q", j.Reason)
	}
	k.state(notebook.ID, "idle", time.Minute)
	j = k.jobIs(id, "waits", time.Minute, func(j job) bool { return j.State == "starting" && j.Reason != "" })
	if j.Attempt != 2 || j.Kernel == first {
		t.Errorf("the job is %+v", j)
	}
	k.want(204, "DELETE", "/api/kernels/"+notebook.ID, "", nil)
	k.jobIs(id, "runs again", time.Minute, func(j job) bool {
		return j.State == "running" && j.Attempt == 2
	})
	if code, _, errs := k.prints("jobs", "stop", id); code != 0 {
		t.Errorf("ekg jobs stop: %d %s", code, errs)
	}
	k.jobIs(id, "is stopped", time.Minute, func(j job) bool { return j.State == "stopped" })
	k.deleteAll()
}

// TestE2E_KubeJobsGiveWay: a job gives its GPU to a notebook that waits for one, without a PriorityClass. It begins
// again when the notebook's kernel has ended.
func TestE2E_KubeJobsGiveWay(t *testing.T) {
	t.Parallel() // it mostly waits
	const pool = "gives.example/gpu"
	flavors := filepath.Join(t.TempDir(), "flavors.yaml")
	text := "flavors: [{name: one, jobsGiveWay: 2s, resource: {name: " + pool + "}}]\n"
	if err := os.WriteFile(flavors, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	k := newKubeGateway(t, "--start-wait", "1s", "--flavors", flavors)
	k.cluster.offer(t, map[string]string{pool: "1"})
	k.start()
	path := k.notebookFile("gives.ipynb", "n = 300", "import time\ntry:\n    time.sleep(n)\nexcept KeyboardInterrupt:\n"+
		"    print('saved')", "print('ends')")
	id := k.submits(path, "--kernel", "pod", "--flavor", "one", "--retries", "1")
	running := func(attempt int) func(job) bool {
		return func(j job) bool { return j.State == "running" && j.Attempt == attempt && j.Cell > 1 }
	}
	first := k.jobIs(id, "trains", time.Minute, running(1)).Kernel
	notebook := k.flavored("one")
	k.state(notebook.ID, "idle", 2*time.Minute) // the job gives way after its first minute
	j := k.jobIs(id, "waits", time.Minute, func(j job) bool { return j.State == "starting" && j.Reason != "" })
	if j.Attempt != 2 || j.Kernel == first {
		t.Errorf("the job is %+v", j)
	}
	k.want(204, "DELETE", "/api/kernels/"+notebook.ID, "", nil)
	k.jobIs(id, "runs again", time.Minute, running(2))
	if code, _, errs := k.prints("jobs", "stop", id); code != 0 {
		t.Errorf("ekg jobs stop: %d %s", code, errs)
	}
	k.jobIs(id, "is stopped", time.Minute, func(j job) bool { return j.State == "stopped" })
	k.deleteAll()
}
