package gateway

import (
	"net/http"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
)

// outcomeOf returns the outcome of a request. A kernel that the caller may not see is answered with 404, but was
// refused.
func outcomeOf(status int, p *problem) string {
	switch {
	case p != nil && p.check != "" && status == p.status:
		return kernels.OutcomeRefused
	case status < http.StatusBadRequest:
		return kernels.OutcomeDone
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusTooManyRequests:
		return kernels.OutcomeRefused
	}
	return kernels.OutcomeFailed
}
