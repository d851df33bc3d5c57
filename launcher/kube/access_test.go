package kube

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/cluster"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

// TestNamespaceAccess: a namespace without access does not keep the gateway from serving the others.
func TestNamespaceAccess(t *testing.T) {
	const answer = `User "system:serviceaccount:ekg:ekg" cannot list resource "pods" in API group "" ` +
		`in the namespace "other"`
	const why = `the gateway may not list pods in the namespace "other"`
	policy := wish.DefaultPolicy()
	policy.Clients.Namespaces = []string{"other"}
	policy.Clients.Allow = append(policy.Clients.Allow, "KERNEL_NAMESPACE")
	forbid := func(c *testCluster, ns string) *atomic.Bool {
		forbidden := new(atomic.Bool)
		forbidden.Store(true)
		c.PrependReactor("list", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
			if a.GetNamespace() == ns && forbidden.Load() {
				return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New(answer))
			}
			return false, nil, nil
		})
		return forbidden
	}
	t.Run("forbidden in another namespace", func(t *testing.T) {
		c := newTestCluster(t)
		forbidden := forbid(c, "other")
		l := openTest(t, c, func(o *Options, tm *timing) { o.Pods.Policy, tm.fresh = policy, time.Nanosecond })
		there := testRequest(idA)
		there.Env = map[string]string{"KERNEL_NAMESPACE": "other"}
		var failed *launcher.FailedError
		if _, _, err := l.Start(t.Context(), there); !errors.As(err, &failed) || failed.Reason != why {
			t.Errorf("a start there: %v", err)
		}
		if _, _, err := l.Start(t.Context(), testRequest(idB)); err != nil {
			t.Errorf("a start elsewhere: %v", err)
		}
		if all, err := l.Kernels(t.Context()); err != nil || len(all) != 1 {
			t.Errorf("a list: %+v, %v", all, err)
		}
		if _, err := l.Kernel(t.Context(), idA); !errors.Is(err, launcher.ErrNotFound) {
			t.Errorf("an unknown kernel: %v", err)
		}
		forbidden.Store(false) // the informer tries again soon
		eventually(t, "a start there, once it is allowed", func() bool {
			_, _, err := l.Start(t.Context(), there)
			return err == nil
		})
	})
	t.Run("forbidden in its own namespace", func(t *testing.T) {
		c := newTestCluster(t)
		forbid(c, "ns")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, err := Open(ctx, Options{
			Log:       slog.New(onError(cancel)), // once the launcher knows that it may not list
			Cluster:   &cluster.Cluster{Client: c.Clientset, Leases: c.Clientset},
			MasterKey: testKey,
			Pods:      podbuild.Options{Namespace: "ns", SupervisorImage: "ekg:1"},
		})
		if err == nil || !strings.Contains(err.Error(), "the gateway may not list pods") {
			t.Errorf("%v", err)
		}
	})
}

// onError is a log handler that calls the function for each error.
type onError func()

func (onError) Enabled(context.Context, slog.Level) bool { return true }
func (f onError) WithAttrs([]slog.Attr) slog.Handler     { return f }
func (f onError) WithGroup(string) slog.Handler          { return f }
func (f onError) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError {
		f()
	}
	return nil
}
