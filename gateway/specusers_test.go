package gateway

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// withLimitedSpec adds a kernelspec that ann may start, and bob may not.
func withLimitedSpec(o *Options) {
	o.Specs = &specDir{specs: append(o.Specs.List(), kernelspecs.Spec{Name: "limited", DisplayName: "L",
		Language: "python", InterruptMode: "signal", Metadata: json.RawMessage("{}"),
		Users: kernelspecs.Users{Authorized: []string{"ann"}}})}
}

func TestKernelspecs_Users(t *testing.T) {
	for _, tt := range []struct {
		user   string
		status int
	}{{"ann", 201}, {"bob", 403}, {"root", 201}} {
		t.Run(tt.user, func(t *testing.T) {
			g := startUserGateway(t, withLimitedSpec)
			// The name of the variable is the client's, and counts for nothing.
			body := `{"name": "limited", "env": {"KERNEL_USERNAME": "ann"}}`
			g.do("POST", "/api/kernels", body, as(tt.user)).want(t, tt.status, "")
			if tt.status == 403 && len(g.fake.reqs) > 0 {
				t.Error("a kernel was started")
			}
			list := g.do("GET", "/api/kernelspecs", "", as(tt.user)).want(t, 200, "").body
			if got := strings.Contains(list, `"limited"`); got != (tt.status == 201) {
				t.Errorf("listed: %v", got)
			}
		})
	}
	g := startGateway(t, withLimitedSpec)
	g.do("POST", "/api/kernels", `{"name": "limited"}`).want(t, 403, "this gateway has no users")
}
