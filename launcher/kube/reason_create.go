package kube

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// exceeded is what the quota plugin says: the quota, and lists of resource=quantity.
var exceeded = regexp.MustCompile(`exceeded quota: ([^,]+), requested: (.*), used: (.*), limited: (.*)$`)

// notAllowed is what RBAC says: the verb and the resource.
var notAllowed = regexp.MustCompile(` cannot (\w+) resource "(\w+)"`)

// errorReason tells why a pod, or what belongs to it, could not be created or changed, from the API server's error. Its class is classWaiting where the same
// request may be granted later, as with a quota that others use up; it is classNone for nil.
func errorReason(err error) reason {
	if err == nil {
		return reason{}
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return newReason(classWaiting, time.Time{}, "the Kubernetes API cannot be reached at this moment")
	}
	s := status.Status()
	said := s.Message
	if _, rest, ok := strings.Cut(said, " is forbidden: "); ok {
		said = rest
	}
	never := func(format string, args ...any) reason { return newReason(classNever, time.Time{}, format, args...) }
	waiting := func(format string, args ...any) reason { return newReason(classWaiting, time.Time{}, format, args...) }
	switch {
	case exceeded.MatchString(said):
		return quotaReason(exceeded.FindStringSubmatch(said))
	case apierrors.IsInvalid(err):
		return never("the pod is not valid: %s", invalidFields(&s))
	case apierrors.IsForbidden(err) && apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return never("its namespace is being deleted")
	case apierrors.IsForbidden(err) && notAllowed.MatchString(said):
		m := notAllowed.FindStringSubmatch(said)
		_, where, _ := strings.Cut(said, "in the namespace ")
		return never("the gateway may not %s %s in the namespace %s", m[1], m[2], quote(where, 100))
	case apierrors.IsForbidden(err) && strings.Contains(said, "error looking up service account"):
		return waiting("its service account is not there: %s", quote(said, quoteLimit))
	case apierrors.IsForbidden(err):
		return never("the cluster does not allow it: %s", quote(said, quoteLimit))
	case apierrors.IsNotFound(err):
		return never("the cluster does not have what it needs: %s", quote(said, quoteLimit))
	case strings.Contains(said, "denied the request"):
		return never("the cluster does not allow it: %s", quote(said, quoteLimit))
	case s.Code >= 500, apierrors.IsTooManyRequests(err), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err), s.Code == 0,
		apierrors.IsConflict(err):
		return waiting("the Kubernetes API cannot answer at this moment: %s", quote(said, quoteLimit))
	}
	return never("the cluster refused the pod: %s", quote(said, quoteLimit))
}

// quotaReason explains a quota; m is what exceeded matched. What asks for more than the quota has will never fit.
func quotaReason(m []string) reason {
	requested, used, limited := quantities(m[2]), quantities(m[3]), quantities(m[4])
	c := classWaiting
	var parts []string
	for _, item := range strings.Split(m[2], ",") {
		name, _, _ := strings.Cut(item, "=")
		want, limit := requested[name], limited[name]
		if want.Cmp(limit) > 0 {
			c = classNever
		}
		in := used[name]
		parts = append(parts, fmt.Sprintf("it asks for %s %s, and %s of %s are in use", want.String(), name, in.String(), limit.String()))
	}
	return newReason(c, time.Time{}, "the quota %q of its namespace does not allow it: %s", quote(m[1], 100), strings.Join(parts, "; "))
}

func quantities(list string) map[string]resource.Quantity {
	all := map[string]resource.Quantity{}
	for item := range strings.SplitSeq(list, ",") {
		name, value, _ := strings.Cut(item, "=")
		if q, err := resource.ParseQuantity(value); err == nil {
			all[name] = q
		}
	}
	return all
}

// invalidFields names the fields that are wrong, three at most. What was in a variable is not repeated.
func invalidFields(s *metav1.Status) string {
	if s.Details == nil || len(s.Details.Causes) == 0 {
		return quote(s.Message, quoteLimit)
	}
	var parts []string
	for _, c := range s.Details.Causes[:min(3, len(s.Details.Causes))] {
		text := c.Message
		if strings.Contains(c.Field, "env") {
			text = strings.SplitN(text, ":", 2)[0]
		}
		parts = append(parts, quote(c.Field+": "+text, quoteLimit/2))
	}
	return strings.Join(parts, "; ")
}
