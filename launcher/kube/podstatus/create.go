package podstatus

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
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// quotaExceeded matches the error of the quota admission plugin: the quota's name, and lists of resource=quantity.
var quotaExceeded = regexp.MustCompile(`exceeded quota: ([^,]+), requested: (.*), used: (.*), limited: (.*)$`)

// notAllowed matches the error of RBAC: the verb and the resource.
var notAllowed = regexp.MustCompile(` cannot (\w+) resource "(\w+)"`)

// ExplainError returns why a pod, or an object of its own, could not be created or changed, from the API server's
// error. The class is ClassWaiting where the same request may succeed later, as with a quota in use, and ClassNone for
// nil.
func ExplainError(err error) Reason {
	if err == nil {
		return Reason{}
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return newReason(ClassWaiting, time.Time{}, "the Kubernetes API cannot be reached at this moment")
	}
	s := status.Status()
	said := s.Message
	if _, rest, ok := strings.Cut(said, " is forbidden: "); ok {
		said = rest
	}
	never := func(format string, args ...any) Reason { return newReason(ClassNever, time.Time{}, format, args...) }
	waiting := func(format string, args ...any) Reason { return newReason(ClassWaiting, time.Time{}, format, args...) }
	switch {
	case IsUncounted(err):
		return waiting("the cluster has not counted the quotas of its namespace yet")
	case quotaExceeded.MatchString(said):
		return quotaReason(quotaExceeded.FindStringSubmatch(said))
	case apierrors.IsInvalid(err):
		what := "pod"
		if s.Details != nil && s.Details.Kind != "" && s.Details.Kind != "Pod" {
			what = OneLine(s.Details.Kind, 100)
		}
		return never("the %s is not valid: %s", what, invalidFields(&s))
	case apierrors.IsForbidden(err) && apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return never("its namespace is being deleted")
	case apierrors.IsForbidden(err) && notAllowed.MatchString(said):
		m := notAllowed.FindStringSubmatch(said)
		_, where, ok := strings.Cut(said, "in the namespace ")
		if !ok {
			return never("the gateway may not %s %s in the cluster", m[1], m[2])
		}
		return never("the gateway may not %s %s in the namespace %s", m[1], m[2], OneLine(where, 100))
	case apierrors.IsForbidden(err) && strings.Contains(said, "error looking up service account"):
		return waiting("its service account does not exist: %s", OneLine(said, quoteLimit))
	case apierrors.IsForbidden(err):
		return never("the cluster does not allow it: %s", OneLine(said, quoteLimit))
	case apierrors.IsNotFound(err):
		return never("the cluster lacks an object that it needs: %s", OneLine(said, quoteLimit))
	case strings.Contains(said, "denied the request"):
		return never("the cluster does not allow it: %s", OneLine(said, quoteLimit))
	case s.Code >= 500,
		apierrors.IsTooManyRequests(err),
		apierrors.IsTimeout(err),
		apierrors.IsServerTimeout(err),
		s.Code == 0,
		apierrors.IsConflict(err):
		return waiting("the Kubernetes API cannot answer at this moment: %s", OneLine(said, quoteLimit))
	}
	return never("the cluster refused the pod: %s", OneLine(said, quoteLimit))
}

// IsUncounted reports whether an object was rejected because the cluster has not counted a quota of its namespace yet.
// In a new namespace that takes a moment.
func IsUncounted(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "status unknown for quota")
}

// IsTooLarge reports whether the API server has rejected an object because of its size.
func IsTooLarge(err error) bool {
	if apierrors.IsRequestEntityTooLargeError(err) {
		return true
	}
	_, tooLong := apierrors.StatusCause(err, metav1.CauseType(field.ErrorTypeTooLong))
	return apierrors.IsInvalid(err) && tooLong
}

// quotaReason explains an error that quotaExceeded has matched. The class is ClassNever if the request is larger than
// the quota itself.
func quotaReason(m []string) Reason {
	requested, used, limited := quantities(m[2]), quantities(m[3]), quantities(m[4])
	c := ClassWaiting
	var parts []string
	for _, item := range strings.Split(m[2], ",") {
		name, _, _ := strings.Cut(item, "=")
		want, limit := requested[name], limited[name]
		if want.Cmp(limit) > 0 {
			c = ClassNever
		}
		in := used[name]
		parts = append(parts,
			fmt.Sprintf("it asks for %s %s, and %s of %s are in use", want.String(), name, in.String(), limit.String()))
	}
	return newReason(c, time.Time{}, "the quota %q of its namespace does not allow it: %s", OneLine(m[1], 100),
		strings.Join(parts, "; "))
}

// Exceeded says how much of a resource a pod asks for, and how far its quota is used.
type Exceeded struct{ Requested, Used, Limit resource.Quantity }

// ExceededQuota returns the resources of which a quota has too little, if that is the API server's error.
func ExceededQuota(err error) map[string]Exceeded {
	m := quotaExceeded.FindStringSubmatch(err.Error())
	if m == nil {
		return nil
	}
	all, used, limited := map[string]Exceeded{}, quantities(m[3]), quantities(m[4])
	for name, q := range quantities(m[2]) {
		all[name] = Exceeded{Requested: q, Used: used[name], Limit: limited[name]}
	}
	return all
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

// invalidFields names the first three invalid fields. It does not repeat values of variables, which may be secret.
func invalidFields(s *metav1.Status) string {
	if s.Details == nil || len(s.Details.Causes) == 0 {
		return OneLine(s.Message, quoteLimit)
	}
	var parts []string
	for _, c := range s.Details.Causes[:min(3, len(s.Details.Causes))] {
		text := c.Message
		if strings.Contains(c.Field, "env") {
			text = strings.SplitN(text, ":", 2)[0]
		}
		parts = append(parts, OneLine(c.Field+": "+text, quoteLimit/2))
	}
	return strings.Join(parts, "; ")
}
