package kube

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

func TestStart(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, nil)
	k, created, err := l.Start(t.Context(), testRequest(idA))
	if err != nil || !created || k.State != api.Starting || k.Owner != "ann" || k.SpecName != "python3" {
		t.Fatalf("%+v, %v, %v", k, created, err)
	}
	secret, err := c.CoreV1().Secrets("ns").Get(t.Context(), "ekg-"+idA+"-1", metav1.GetOptions{})
	if err != nil || len(secret.OwnerReferences) != 1 || secret.OwnerReferences[0].Name != idA+"-1" ||
		len(secret.Data) != 4 {
		t.Errorf("secret: %+v, %v", secret, err)
	}
	t.Run("again", func(t *testing.T) {
		if again, created, err := l.Start(t.Context(), testRequest(idA)); err != nil || created || again.ID != idA {
			t.Errorf("%+v, %v, %v", again, created, err)
		}
		other := testRequest(idA)
		other.Owner = "bob"
		if _, _, err := l.Start(t.Context(), other); !errors.Is(err, launcher.ErrConflict) {
			t.Errorf("another owner: %v", err)
		}
	})
	t.Run("two gateways start it at the same time", func(t *testing.T) {
		second := openTest(t, c, nil)
		var wg sync.WaitGroup
		var made atomic.Int32
		for i := range 10 {
			wg.Go(func() {
				_, created, err := []*Launcher{l, second}[i%2].Start(t.Context(), testRequest(idB))
				if err != nil {
					t.Error(err)
				}
				if created {
					made.Add(1)
				}
			})
		}
		wg.Wait()
		if made.Load() != 1 {
			t.Errorf("created %d times", made.Load())
		}
	})
	t.Run("refusals of the cluster", func(t *testing.T) {
		var refusal error
		c.PrependReactor("create", "pods",
			func(k8stesting.Action) (bool, runtime.Object, error) { return refusal != nil, nil, refusal })
		id := "cccccccc-0000-4000-8000-000000000003"
		var failed *launcher.FailedError
		refusal = apierrors.NewForbidden(corev1.Resource("pods"), id,
			errors.New("exceeded quota: q, requested: pods=1, used: pods=5, limited: pods=5"))
		if _, _, err := l.Start(t.Context(), testRequest(id)); !errors.As(err, &failed) {
			t.Errorf("quota: %v", err)
		}
		refusal = errors.New("connection refused")
		if _, _, err := l.Start(t.Context(), testRequest(id)); !errors.Is(err, launcher.ErrUnavailable) {
			t.Errorf("no cluster: %v", err)
		}
		refusal = nil
		if _, err := l.Kernel(t.Context(), id); !errors.Is(err, launcher.ErrNotFound) {
			t.Errorf("a refused kernel: %v", err)
		}
	})
}

// Only the very pod is deleted, and no later pod of its name.
func TestDeletePod(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, nil)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a-1"}}
	there, err := c.CoreV1().Pods("ns").Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	before := there.DeepCopy()
	before.UID = "of the pod that had its name"
	if err := l.deletePod(t.Context(), before); err != nil {
		t.Error(err)
	}
	if _, err := c.CoreV1().Pods("ns").Get(t.Context(), "a-1", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if err := l.deletePod(t.Context(), there); err != nil {
		t.Error(err)
	}
	if _, err := c.CoreV1().Pods("ns").Get(t.Context(), "a-1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}

// A pod whose secret cannot be made is removed.
func TestStart_SecretRefused(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, nil)
	c.PrependReactor("create", "secrets", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("secrets"), "x", errors.New("no"))
	})
	var failed *launcher.FailedError
	if _, _, err := l.Start(t.Context(), testRequest(idA)); !errors.As(err, &failed) {
		t.Errorf("got %v", err)
	}
	if _, err := c.CoreV1().Pods("ns").Get(t.Context(), idA+"-1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the pod: %v", err)
	}
}
