package deploy_test

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// On OpenShift no user and no group is fixed; everything else of the security context stays.
func TestManifests_OpenShift(t *testing.T) {
	fixed := find[*appsv1.Deployment](t, token, "ekg").Spec.Template.Spec.SecurityContext
	if fixed.RunAsUser == nil || fixed.RunAsGroup == nil || fixed.FSGroup == nil {
		t.Errorf("elsewhere the security context is %v", fixed)
	}
	pod := find[*appsv1.Deployment](t, openshift, "ekg").Spec.Template.Spec
	s := pod.SecurityContext
	if s == nil || s.RunAsUser != nil || s.RunAsGroup != nil || s.FSGroup != nil ||
		s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.SeccompProfile == nil {
		t.Errorf("the security context is %v", s)
	}
	for _, c := range pod.Containers {
		if c.SecurityContext.RunAsUser != nil || c.SecurityContext.RunAsGroup != nil {
			t.Errorf("%s's security context is %v", c.Name, c.SecurityContext)
		}
	}
}

// Go's garbage collector knows the limit of the gateway's container. The variable comes before the one that uses it.
func TestManifests_MemoryLimit(t *testing.T) {
	c := find[*appsv1.Deployment](t, base, "ekg").Spec.Template.Spec.Containers[0]
	var limit *corev1.ResourceFieldSelector
	for _, e := range c.Env {
		switch e.Name {
		case "MEMORY_LIMIT_MIB":
			limit = e.ValueFrom.ResourceFieldRef
		case "GOMEMLIMIT":
			if limit == nil || limit.Resource != "limits.memory" || limit.Divisor.Value() != 1<<20 ||
				e.Value != "$(MEMORY_LIMIT_MIB)000000" {
				t.Errorf("it is %q, with a limit from %+v", e.Value, limit)
			}
			return
		}
	}
	t.Error("GOMEMLIMIT is missing")
}
