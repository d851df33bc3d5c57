package warmpods

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/gpuview"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/warm"
)

// The tests of package kube have several gateways on one cluster. These here are of one Store.

// kernels is a launcher without kernels.
type kernels struct {
	parts     error // of CreateParts
	limited   bool  // there are limits
	mu        sync.Mutex
	discarded []string
}

func (*kernels) GPUWaits() []gpuview.Wait                                    { return nil }
func (*kernels) GPUs() launcher.GPUs                                         { return launcher.GPUs{} }
func (*kernels) Unowned() []*corev1.Pod                                      { return nil }
func (*kernels) Why(*corev1.Pod) string                                      { return "" }
func (k *kernels) CreateParts(context.Context, *corev1.Pod) error            { return k.parts }
func (*kernels) Allows(*corev1.Pod, podspec.Record) bool                     { return true }
func (*kernels) Admit(context.Context, *corev1.Pod) (admitted bool, _ error) { return false, nil }
func (*kernels) Failed(_ context.Context, err error) error                   { return err }
func (k *kernels) Discard(_ context.Context, pod *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.discarded = append(k.discarded, pod.Name)
}
func (*kernels) Given(context.Context, *corev1.Pod, time.Time) (launcher.Kernel, error) {
	return launcher.Kernel{}, errors.New("no kernel")
}

// plain is a start of a kernelspec with warm kernels.
func plain() launcher.Request {
	return launcher.Request{ID: uuid.Nil.String(), AnyID: true,
		Spec: kernelspecs.Spec{Name: "python3", Argv: []string{"python3", "-f", "{connection_file}"}, Language: "python"}}
}

var build = podbuild.Options{Namespace: "ns", SupervisorImage: "ekg:1", KernelImage: "kernel:1"}

// open returns a Store that knows pods and wants one warm kernel, with its cluster and its clock.
func open(t *testing.T, k *kernels, pods ...runtime.Object) (*Store, *fake.Clientset, *time.Time) {
	t.Helper()
	c, now := fake.NewSimpleClientset(pods...), new(time.Now())
	var group goroutines.Group
	life, end := context.WithCancel(t.Context())
	s, err := New(Options{
		Pods:       c.CoreV1().Pods("ns"),
		Build:      build,
		Limits:     func() bool { return k.limited },
		Kernels:    k,
		Supervisor: func(*corev1.Pod) (*api.Client, error) { return &api.Client{}, nil },
		Wanted:     func() []launcher.Warm { return []launcher.Warm{{Start: plain(), Count: 1}} },
		Bound:      func(ctx context.Context) (context.Context, context.CancelFunc) { return context.WithCancel(ctx) },
		Now:        func() time.Time { return *now },
		ClusterNow: func() time.Time { return *now },
		Life:       life,
		Goroutines: &group,
		Log:        slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		group.Close()
		end()
		group.Wait()
	})
	if !cache.WaitForCacheSync(t.Context().Done(), s.pods.HasSynced) {
		t.Fatal("the pods are not listed")
	}
	return s, c, now
}

// A created warm kernel that the watch does not report counts as long as its pod exists.
func TestStore_Unreported(t *testing.T) {
	s, c, now := open(t, &kernels{})
	there := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "there"}}
	if _, err := c.CoreV1().Pods("ns").Create(t.Context(), there, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.noteMade("there", "python3", there.Name)
	s.noteMade("gone", "python3", "no-such-pod")
	if got := s.unreported(t.Context()); len(got) != 2 {
		t.Errorf("at first %v count", got)
	}
	*now = now.Add(2 * reportTime)
	if got := s.unreported(t.Context()); len(got) != 1 || got["there"] != "python3" {
		t.Errorf("later %v count", got)
	}
}

// A warm kernel whose parts cannot be created does not count as created.
func TestStore_PartsFail(t *testing.T) {
	s, _, _ := open(t, &kernels{parts: errors.New("its secret could not be created")})
	kind, _, err := s.Kind(plain())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Create(t.Context(), kind); err == nil || len(s.unreported(t.Context())) != 0 {
		t.Errorf("%v, %v count", err, s.made)
	}
}

// A start whose claim another start has won looks at no more than a few warm kernels, and takes none. Limits count that
// there are at that moment.
func TestStore_Outrun(t *testing.T) {
	kind, err := podbuild.NewWarmKind(build, plain())
	if err != nil {
		t.Fatal(err)
	}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	var pods []runtime.Object
	for range claimTries + 2 {
		pod, err := kind.Build(build, podspec.Record{ID: uuid.NewString(), Created: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: podspec.ContainerSupervisor, State: running},
			{Name: podspec.ContainerKernel, State: running}}
		pods = append(pods, pod)
	}
	k := &kernels{}
	s, c, _ := open(t, k, pods...)
	patches := 0
	c.PrependReactor("patch", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		patches++
		claim := podspec.ClaimDecided
		if k.limited {
			claim = podspec.ClaimUndecided
		}
		if patch := string(a.(k8stesting.PatchAction).GetPatch()); !strings.Contains(patch, `"`+claim+`"`) {
			t.Errorf("with limits: %v, the patch is %s", k.limited, patch)
		}
		k.limited = !k.limited // such as by another file of users
		return true, nil, apierrors.NewConflict(corev1.Resource("pods"), "x", errors.New("it has changed"))
	})
	_, result, err := s.Claim(t.Context(), kind, plain())
	if result != launcher.ClaimEmpty || err != nil || patches != claimTries || len(k.discarded) != 0 {
		t.Errorf("%s, %v, %d patches, %v discarded", result, err, patches, k.discarded)
	}
}

// A warm kernel has its start limit from the moment at which its pod gets a node.
func TestStore_WaitedForNode(t *testing.T) {
	s, _, now := open(t, &kernels{})
	for ago, want := range map[time.Duration]bool{time.Minute: true, startLimit + time.Minute: false} {
		pod := &corev1.Pod{}
		pod.Namespace, pod.Name, pod.Spec.NodeName = "ns", "w", "n"
		pod.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour))
		pod.Annotations = map[string]string{podspec.AnnotationWarm: "x"}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(now.Add(-ago))}}
		if k := s.look(pod, podspec.Record{}); (k.State != warm.Failed) != want {
			t.Errorf("%v ago: %+v", ago, k)
		}
	}
}
