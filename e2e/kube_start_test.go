//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// ownStart starts a kernel in its own container without ekg. It prints the seconds until the first execute_reply. The
// request waits on a socket that connects as soon as the kernel listens: jupyter_client would need longer, to start the
// kernel and to find out that it has started.
const ownStart = `
import subprocess, sys, time, zmq
from jupyter_client import KernelManager
km = KernelManager()
km.write_connection_file()
began = time.monotonic()
kernel = subprocess.Popen([sys.executable, '-m', 'ipykernel_launcher', '-f', km.connection_file])
shell = zmq.Context.instance().socket(zmq.DEALER)
shell.reconnect_ivl = 1
shell.connect('tcp://127.0.0.1:%d' % km.shell_port)
km.session.send(shell, 'execute_request', {'code': '1', 'silent': False})
assert shell.poll(60000)
print('own start', time.monotonic() - began, flush=True)
kernel.kill()
kernel.wait()
`

// bareStart runs a pod with one container of the kernels' image. It returns the time until the container ran, and the
// time of the kernel's own start in it.
func (k *inCluster) bareStart(t *testing.T, client kubernetes.Interface, name string) (running, own time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	pods := client.CoreV1().Pods(k.namespace)
	began := time.Now()
	kernel := corev1.Container{
		Name:    "kernel",
		Image:   "localhost/kernel-py:dev",
		Command: []string{"python3", "-c", ownStart},
	}
	bare := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{kernel}},
	}
	_, err := pods.Create(ctx, bare, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer pods.Delete(context.Background(), name, metav1.DeleteOptions{}) //nolint:errcheck // its namespace goes, too
	w, err := pods.Watch(ctx, metav1.SingleObject(metav1.ObjectMeta{Name: name}))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		pod, ok := e.Object.(*corev1.Pod)
		if ok && pod.Status.Phase == corev1.PodRunning && running == 0 {
			running = time.Since(began)
		}
		if ok && pod.Status.Phase == corev1.PodSucceeded {
			break
		}
	}
	out, err := pods.GetLogs(name, &corev1.PodLogOptions{}).DoRaw(ctx)
	var seconds float64
	_, rest, _ := strings.Cut(string(out), "own start ") // the kernel prints other text before
	if _, serr := fmt.Sscan(rest, &seconds); err != nil || serr != nil || running == 0 {
		t.Fatalf("the bare pod ran after %v and printed %q, %v", running, out, err)
	}
	return running, time.Duration(seconds * float64(time.Second))
}

// startTimes measures a start from the POST to the first execute_reply, and its phases. It compares that with a pod of
// the same image that runs only the kernel. The difference is the time that ekg and its second container add. Figures
// of a busy machine mean little, so only a very slow start fails. EKG_STARTS is the number of starts.
func (k *inCluster) startTimes(t *testing.T) {
	config, err := clientcmd.BuildConfigFromFlags("", k.cluster.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	starts := 5
	if text := os.Getenv("EKG_STARTS"); text != "" {
		if starts, err = strconv.Atoi(text); err != nil || starts < 1 {
			t.Fatalf("EKG_STARTS is %q", text)
		}
	}
	for _, ip := range k.replicas() {
		k.url = "http://" + ip + ":8888" // the tests' proxy asks the cluster for replicas, which takes time
	}
	events := watchRuntime(t, k.cluster)
	var all []phases
	var totals, runs, owns, shares []time.Duration
	for i := range starts {
		p := k.startOnce(t, client, events)
		total := p[momentFirstAnswer].Sub(p[momentPosted])
		running, own := k.bareStart(t, client, fmt.Sprintf("bare-%d", i))
		all = append(all, p)
		totals = append(totals, total)
		runs = append(runs, running)
		owns = append(owns, own)
		shares = append(shares, total-running-own)
	}
	added := logPhases(t, all)
	t.Logf("in the median of %d: POST to the first execute_reply %v; a bare pod runs after %v, and the kernel's own "+
		"start takes %v; the difference is %v (%v); the sum of ekg's phases is %v", starts, median(totals), median(runs),
		median(owns), median(shares), shares, added)
	if median(shares) > 3*time.Second {
		t.Error("ekg's share is over 3 s, which is too long on any machine")
	}
}
