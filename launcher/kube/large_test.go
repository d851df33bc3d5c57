package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/cluster"
)

// The benchmarks of large clusters. Each user has ten kernels. The figures are in docs/kubernetes.md.

const kernelsOfUser = 10

func largeOwner(n int) string { return fmt.Sprintf("user-%d", n/kernelsOfUser) }

// largePod is the pod of a running kernel as an API server returns it: with variables, and with what admission, the
// scheduler and the kubelet have added.
func largePod(t testing.TB, n int) *corev1.Pod {
	req := testRequest(idOf(n))
	req.Owner, req.Env = largeOwner(n), map[string]string{}
	for i := range 10 {
		req.Env[fmt.Sprintf("KERNEL_VARIABLE_%d", i)] = fmt.Sprintf("the value of a variable of kernel %d", n)
	}
	pod := runningPod(t, n, req)
	for i := range pod.Spec.Containers {
		for e := range 20 { // from a webhook, as for proxies
			pod.Spec.Containers[i].Env = append(pod.Spec.Containers[i].Env,
				corev1.EnvVar{Name: fmt.Sprintf("INJECTED_%d", e), Value: fmt.Sprintf("https://proxy-%d.example:3128/", e)})
		}
	}
	for _, c := range []corev1.PodConditionType{"PodReadyToStartContainers", corev1.PodInitialized, corev1.PodReady,
		corev1.ContainersReady, corev1.PodScheduled} {
		pod.Status.Conditions = append(pod.Status.Conditions,
			corev1.PodCondition{Type: c, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
	}
	fields := []byte(`{"f:metadata":{"f:annotations":{` +
		strings.Repeat(`"f:ekg.example/annotation":{},`, 60) + `".":{}}}}`)
	for _, manager := range []string{"ekg", "kubelet"} {
		pod.ManagedFields = append(pod.ManagedFields, metav1.ManagedFieldsEntry{Manager: manager,
			Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(string(fields))})
	}
	return pod
}

// newLarge makes a cluster with so many kernels. Lists of pods share no memory with the cluster.
func newLarge(t testing.TB, kernels int) (*testCluster, *fakeSupervisors) {
	c, f := newTestCluster(t), newSupervisors(t)
	f.pipe = func() (net.Conn, net.Conn, error) { a, b := net.Pipe(); return a, b, nil }
	for n := range kernels {
		pod := largePod(t, n)
		f.add(t, pod)
		if _, err := c.CoreV1().Pods("ns").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c.PrependReactor("list", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
		there, err := c.Tracker().List(corev1.SchemeGroupVersion.WithResource("pods"),
			corev1.SchemeGroupVersion.WithKind("Pod"), "ns")
		if err != nil {
			return true, nil, err
		}
		list := there.(*corev1.PodList)
		for i := range list.Items {
			text, err := json.Marshal(&list.Items[i])
			if err != nil {
				return true, nil, err
			}
			var pod corev1.Pod
			if err := json.Unmarshal(text, &pod); err != nil {
				return true, nil, err
			}
			list.Items[i] = pod
		}
		return true, list, nil
	})
	return c, f
}

// BenchmarkLargeLists measures lists for an administrator, and for a user with ten kernels.
func BenchmarkLargeLists(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		c, f := newLarge(b, n)
		c.pods = f
		l := openTest(b, c, nil)
		awaitStreams(b, l, n)
		b.Run(fmt.Sprintf("all/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				l.freshness.proved(time.Now()) // a proof would measure the cluster
				if all, err := l.Kernels(b.Context()); err != nil || len(all) != n {
					b.Fatal(len(all), err)
				}
			}
		})
		b.Run(fmt.Sprintf("user/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				l.freshness.proved(time.Now())
				if all, err := l.KernelsFor(b.Context(), largeOwner(n/2), nil); err != nil || len(all) != kernelsOfUser {
					b.Fatal(len(all), err)
				}
			}
		})
	}
}

// BenchmarkLargeMemory measures the memory of a replica that knows 10,000 kernels: of pods alone, and with the status
// streams. The supervisors' ends of the streams are in this process and count, too.
func BenchmarkLargeMemory(b *testing.B) {
	const n = 10_000
	for _, streams := range []bool{false, true} {
		b.Run(fmt.Sprintf("streams=%v", streams), func(b *testing.B) {
			for b.Loop() {
				c, f := newLarge(b, n)
				if streams {
					c.pods = f
				}
				c.ClearActions() // they hold the created pods
				memory, _ := use()
				l := openTest(b, c, nil)
				if streams {
					awaitStreams(b, l, n)
				}
				c.ClearActions()
				with, _ := use()
				b.ReportMetric(float64(with-memory)/(1<<20), "MiB")
				b.ReportMetric(float64(with-memory)/n/(1<<10), "KiB/kernel")
			}
		})
	}
}

// slowClient lets each creation and patch of a pod take some time. The fake's reactors run one after the other.
type slowClient struct{ kubernetes.Interface }

func (c slowClient) CoreV1() coreclient.CoreV1Interface { return slowCore{c.Interface.CoreV1()} }

type slowCore struct{ coreclient.CoreV1Interface }

func (c slowCore) Pods(ns string) coreclient.PodInterface {
	return slowPods{c.CoreV1Interface.Pods(ns)}
}

type slowPods struct{ coreclient.PodInterface }

const slowness = 15 * time.Millisecond

func (c slowPods) Create(ctx context.Context, pod *corev1.Pod, o metav1.CreateOptions) (*corev1.Pod, error) {
	time.Sleep(slowness)
	return c.PodInterface.Create(ctx, pod, o)
}

func (c slowPods) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions,
	sub ...string) (*corev1.Pod, error) {
	time.Sleep(slowness)
	return c.PodInterface.Patch(ctx, name, pt, data, o, sub...)
}

// BenchmarkLargeStarts measures starts under limits, 100 a second for three seconds, beside 10,000 kernels. Each
// request takes 15 ms. The time of a start ends with the decision about it.
func BenchmarkLargeStarts(b *testing.B) {
	const n, starts, pause = 10_000, 300, 10 * time.Millisecond
	for b.Loop() {
		c, _ := newLarge(b, n)
		l := openTest(b, c, func(o *Options, _ *timing) {
			o.Limits = &testLimits{all: 2 * n, each: n}
			o.Cluster = &cluster.Cluster{Client: slowClient{c.Clientset}, Leases: c.Clientset, Namespace: "ns"}
		})
		startTest(b, l, idOf(n+starts)) // it has been decided about: all pods are known
		took := make([]time.Duration, starts)
		var wg sync.WaitGroup
		began := time.Now()
		for i := range starts {
			time.Sleep(time.Until(began.Add(time.Duration(i) * pause)))
			wg.Go(func() {
				req := testRequest(idOf(n + i))
				req.Owner = largeOwner(n + i)
				asked := time.Now()
				if k, _, err := l.Start(b.Context(), req); err != nil || k.State != api.Starting {
					b.Error(k, err)
				}
				took[i] = time.Since(asked)
			})
		}
		wg.Wait()
		slices.Sort(took)
		b.ReportMetric(starts/time.Since(began).Seconds(), "starts/s")
		b.ReportMetric(took[starts/2].Seconds()*1000, "p50-ms")
		b.ReportMetric(took[starts*99/100].Seconds()*1000, "p99-ms")
	}
}
