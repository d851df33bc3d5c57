package gateway

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
)

func TestCullOf(t *testing.T) {
	d := func(v time.Duration) *time.Duration { return &v }
	groups := map[string]identity.Cull{
		"short": {IdleTimeout: d(time.Hour), BusyLimit: d(time.Hour), Warning: d(time.Minute)},
		"long":  {IdleTimeout: d(8 * time.Hour), MaxAge: d(24 * time.Hour), Warning: d(0)},
		"free":  {IdleTimeout: d(0)},
	}
	g := &Gateway{opts: Options{GroupCull: func(name string) (identity.Cull, bool) { c, ok := groups[name]; return c, ok }}}
	for _, tt := range []struct {
		groups []string
		want   string
	}{
		{nil, `{}`},
		{[]string{"unknown"}, `{}`},
		{[]string{"short"}, `{"idleTimeout":"1h0m0s","busyLimit":"1h0m0s","warning":"1m0s"}`},
		{[]string{"long", "short"}, `{"idleTimeout":"8h0m0s","busyLimit":"1h0m0s","maxAge":"24h0m0s","warning":"1m0s"}`},
		{[]string{"short", "long"}, `{"idleTimeout":"8h0m0s","busyLimit":"1h0m0s","maxAge":"24h0m0s","warning":"1m0s"}`},
		{[]string{"free", "long"}, `{"idleTimeout":"0s","maxAge":"24h0m0s","warning":"0s"}`},
		{[]string{"long", "free"}, `{"idleTimeout":"0s","maxAge":"24h0m0s","warning":"0s"}`},
	} {
		if got, err := json.Marshal(g.cullOf(tt.groups)); err != nil || string(got) != tt.want {
			t.Errorf("%v: got %s, want %s (%v)", tt.groups, got, tt.want, err)
		}
	}
	if got, err := json.Marshal((&Gateway{}).cullOf([]string{"long"})); err != nil || string(got) != `{}` {
		t.Errorf("without a file: %s, %v", got, err)
	}
}
