package limits

import (
	"encoding/json"
	"slices"
	"testing"
)

func TestPolicy_Cull(t *testing.T) {
	p := &Policy{File: fileOfLimits(t, `{users: [], groups: [
		{name: short, cull: {idle-timeout: 1h, busy-limit: 1h, warning: 1m}},
		{name: long, cull: {idle-timeout: 8h, max-age: 24h, warning: 0s}},
		{name: free, cull: {idle-timeout: 0s}}]}`)}
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
		if got, err := json.Marshal(p.Cull(tt.groups)); err != nil || string(got) != tt.want {
			t.Errorf("%v: got %s, want %s (%v)", tt.groups, got, tt.want, err)
		}
	}
	if got, err := json.Marshal((&Policy{}).Cull([]string{"long"})); err != nil || string(got) != `{}` {
		t.Errorf("without a file: %s, %v", got, err)
	}
}

func TestPolicy_Groups(t *testing.T) {
	all := []string{"free", "plain", "short"}
	file := fileOfLimits(t, "{users: [], groups: [{name: short}, {name: free, cull: {idle-timeout: 0s}}]}")
	for _, tt := range []struct {
		name   string
		policy *Policy
		want   []string
	}{
		{"no policy", nil, nil},
		{"no limits", &Policy{}, nil},
		{"groups of the users file", &Policy{File: file}, []string{"free", "short"}},
		{"a limit for every group", &Policy{PerGroup: 1, File: file}, all},
		{"a GPU limit for every group", &Policy{GPUsPerGroup: 1}, all},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.policy.Groups(all); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
