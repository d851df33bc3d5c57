package namespaces

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

// TestSet_Denial: a namespace is denied from the first refused list until a list has been read. Others are not.
func TestSet_Denial(t *testing.T) {
	policy := wish.DefaultPolicy()
	policy.Clients.Namespaces = []string{"other"}
	policy.Clients.Allow = append(policy.Clients.Allow, "KERNEL_NAMESPACE")
	s := New(podbuild.Options{Namespace: "ns", Policy: policy})
	read := false
	settled := s.Track("other", []cache.InformerSynced{func() bool { return true }, func() bool { return read }})
	if s.Deny("other", errors.New("connection refused")) || s.Denial("other") != "" || settled() {
		t.Error("a list that is not answered denies the namespace")
	}
	forbidden := apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("no"))
	if !s.Deny("other", forbidden) || s.Deny("other", forbidden) {
		t.Error("only the first refusal is reported")
	}
	if s.Denial("other") == "" || !settled() || !slices.Equal(s.Readable(), []string{"ns"}) {
		t.Errorf("denied: %q, settled: %v, readable: %q", s.Denial("other"), settled(), s.Readable())
	}
	read = true
	if s.Denial("other") != "" || !slices.Equal(s.Readable(), []string{"ns", "other"}) {
		t.Errorf("after a list: %q, readable: %q", s.Denial("other"), s.Readable())
	}
	for ns, want := range map[string]bool{"ns": true, "other": true, "third": false} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns}}
		if s.Serves(pod) != want {
			t.Errorf("a pod in %s is served: %v", ns, !want)
		}
		if got := s.OfEnding(pod); want && got != ns || !want && got != "ns" {
			t.Errorf("the ending of a pod in %s is kept in %s", ns, got)
		}
	}
}
