package limits

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// limitSpecs is a fixed list of kernelspecs.
type limitSpecs []kernelspecs.Spec

func (s limitSpecs) List() []kernelspecs.Spec { return s }
func (s limitSpecs) Get(name string) (kernelspecs.Spec, bool) {
	i := slices.IndexFunc(s, func(k kernelspecs.Spec) bool { return k.Name == name })
	if i < 0 {
		return kernelspecs.Spec{}, false
	}
	return s[i], true
}

func fileOfLimits(t *testing.T, text string) *identity.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "users.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := identity.OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestPolicy_Decide(t *testing.T) {
	at := time.Date(2026, 11, 22, 3, 4, 5, 0, time.UTC)
	held := func(id, spec, owner string, gpus int64, state api.State, groups ...string) launcher.Held {
		return launcher.Held{ID: id, SpecName: spec, Owner: owner, GPUs: gpu.Whole(gpus), State: state, LastActivity: at,
			Groups: groups}
	}
	ann := held("new", "python3", "ann", 0, api.Starting, "team", "vision")
	annGPU := ann
	annGPU.GPUs = gpu.Whole(2)
	quarter := ann
	quarter.GPUs = gpu.One / 4
	share := held("s", "r", "ann", 0, api.Idle)
	share.GPUs = 751
	specs := limitSpecs{{Name: "python3"},
		{Name: "big", Metadata: json.RawMessage(`{"ekg": {"limits": {"maxKernels": 2}}}`)}}
	older := held("old", "r", "ann", 1, api.Idle)
	older.LastActivity = at.Add(-time.Hour)
	ending := held("end", "r", "ann", 0, api.Idle)
	ending.Ending = true
	many := make([]launcher.Held, 8)
	for i := range many {
		many[i] = held(string(rune('a'+i)), "r", "ann", 0, api.Idle)
	}
	const file = `{users: [{name: ann, limits: {max-kernels: 1, max-gpus: 0}},
		{name: bob, limits: {max-kernels: unlimited}}], groups: [{name: vision, limits: {max-kernels: 1, max-gpus: 3}}]}`
	for _, test := range []struct {
		name   string
		limits Policy
		start  launcher.Held
		held   []launcher.Held
		limit  string // "": it is admitted
		want   string
	}{
		{"nothing is limited", Policy{}, ann, many, "", ""},
		{"room is left", Policy{PerUser: 3, Kernels: 3}, ann, []launcher.Held{older, held("x", "r", "bob", 0, api.Busy)}, "",
			""},
		{"one's own", Policy{PerUser: 3}, ann,
			[]launcher.Held{ending, held("b", "r", "ann", 0, api.Busy), older, held("x", "r", "bob", 0, api.Busy)}, limitPerUser,
			"you have 3 kernels, and you may have 3 kernels at one time (limit kernels-per-user); shut one down to start " +
				"another: " +
				"r old (idle since 2026-11-22 02:04 UTC), r b (busy), r end (being shut down)"},
		{"the only owner's", Policy{PerUser: 1}, held("new", "python3", "", 0, api.Starting),
			[]launcher.Held{held("a", "r", "", 0, api.Idle)}, limitPerUser,
			"you have 1 kernel, and you may have 1 kernel at one time (limit kernels-per-user); shut one down to start " +
				"another: r a (idle since 2026-11-22 03:04 UTC)"},
		{"many", Policy{PerUser: 8}, ann, many, limitPerUser,
			"r a (idle since 2026-11-22 03:04 UTC), r b (idle since 2026-11-22 03:04 UTC), " +
				"r c (idle since 2026-11-22 03:04 UTC), r d (idle since 2026-11-22 03:04 UTC), r e (idle since 2026-11-22 03:04 " +
				"UTC), 3 more"},
		{"all, some of which are theirs", Policy{Kernels: 2}, ann,
			[]launcher.Held{held("secret", "theirs", "bob", 0, api.Idle), older}, limitKernels,
			"there are 2 kernels, and there may be 2 kernels at one time (limit kernels); shut one of yours down to start " +
				"another: r old (idle since 2026-11-22 02:04 UTC)"},
		{"all, none of which is theirs", Policy{Kernels: 1}, ann,
			[]launcher.Held{held("secret", "theirs", "bob", 0, api.Idle)}, limitKernels,
			"there is 1 kernel, and there may be 1 kernel at one time (limit kernels); none of these is yours: try again " +
				"when another user has shut one down"},
		{"a kernelspec's own", Policy{Specs: specs, PerKernelspec: 5}, held("new", "big", "ann", 0, api.Starting),
			[]launcher.Held{held("x", "big", "bob", 0, api.Busy), held("y", "big", "ann", 0, api.Busy), older},
			limitPerKernelspec,
			"there are 2 kernels of the kernelspec big, and there may be 2 kernels of the kernelspec big at one time (limit " +
				"kernels-per-kernelspec); shut one of yours down to start another: big y (busy)"},
		{"all kernelspecs'", Policy{Specs: specs, PerKernelspec: 1}, held("new", "big", "ann", 0, api.Starting),
			[]launcher.Held{held("x", "big", "bob", 0, api.Busy)},
			limitPerKernelspec, "there is 1 kernel of the kernelspec big"},
		{"a group's", Policy{PerGroup: 1}, ann, []launcher.Held{held("secret", "theirs", "bob", 0, api.Idle, "team")},
			limitPerGroup,
			"the group team has 1 kernel, and the group team may have 1 kernel at one time (limit kernels-per-group); none " +
				"of these is yours: try again when another user has shut one down"},
		{"a single group's", Policy{File: fileOfLimits(t, file), PerGroup: 9}, held("new", "r", "uma", 0, "", "vision"),
			[]launcher.Held{held("x", "r", "bob", 0, api.Idle, "vision")},
			limitPerGroup, "the group vision has 1 kernel"},
		{"a single user's", Policy{File: fileOfLimits(t, file), PerUser: 9}, ann, []launcher.Held{older}, limitPerUser,
			"you have 1 kernel, and you may have 1 kernel"},
		{"a single user's is unlimited", Policy{File: fileOfLimits(t, file), PerUser: 1}, held("new", "r", "bob", 0, ""),
			[]launcher.Held{held("x", "r", "bob", 0, "")}, "", ""},
		{"no GPU for a user", Policy{File: fileOfLimits(t, file), GPUsPerUser: 9}, annGPU, nil, limitGPUsPerUser,
			"it asks for 2 GPUs, and you may have no GPU at one time (limit gpus-per-user): ask for fewer, shutting other " +
				"kernels down does not help"},
		{"GPUs", Policy{GPUsPerUser: 4}, annGPU,
			[]launcher.Held{held("g", "r", "ann", 3, api.Idle), held("c", "r", "ann", 0, api.Idle)}, limitGPUsPerUser,
			"it asks for 2 GPUs, you have 3 GPUs, and you may have 4 GPUs at one time (limit gpus-per-user); shut one down " +
				"to start another: r g (3 GPUs, idle since 2026-11-22 03:04 UTC)"},
		{"shares of GPUs", Policy{GPUsPerUser: 1}, quarter, []launcher.Held{share}, limitGPUsPerUser,
			"it asks for 0.25 GPUs, you have 0.751 GPUs, and you may have 1 GPU at one time (limit gpus-per-user); shut one " +
				"down to start another: r s (0.751 GPUs, idle since 2026-11-22 03:04 UTC)"},
		{"shares that fit", Policy{GPUsPerUser: 1}, quarter, []launcher.Held{
			{ID: "a", Owner: "ann", GPUs: 500}, {ID: "b", Owner: "ann", GPUs: 250}}, "", ""},
		{"a kernel without any", Policy{GPUsPerUser: 1}, ann, []launcher.Held{held("g", "r", "ann", 3, api.Idle)}, "", ""},
		{"more GPUs than any user may have", Policy{GPUsPerUser: 1}, annGPU, nil, limitGPUsPerUser,
			"shutting other kernels down does not help"},
		{"a group's GPUs", Policy{GPUsPerGroup: 4}, annGPU, []launcher.Held{held("g", "r", "bob", 3, api.Idle, "team")},
			limitGPUsPerGroup, "it asks for 2 GPUs, the group team has 3 GPUs"},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := test.limits.Decide(test.start, test.held)
			over := v.Refused
			switch {
			case test.limit == "" && over == nil:
			case test.limit == "" || over == nil:
				t.Errorf("%v", over)
			case over.Limit != test.limit || !strings.Contains(over.Reason, test.want) ||
				strings.Contains(over.Reason, "secret") || strings.Contains(over.Reason, "bob"):
				t.Errorf("%s: %s\nwant %s", over.Limit, over.Reason, test.want)
			}
			for all := test.held; v.Refused != nil && !strings.Contains(v.Refused.Reason, "does not help"); {
				before := len(all)
				all = slices.DeleteFunc(slices.Clone(all), func(h launcher.Held) bool { return slices.Contains(v.Against, h.ID) })
				if v = test.limits.Decide(test.start, all); v.Refused != nil && len(all) == before {
					t.Fatalf("without the kernels that count: %v", v.Refused)
				}
			}
		})
	}
}

func TestPolicy_Set(t *testing.T) {
	none := fileOfLimits(t, "users: [{name: ann}]")
	for name, test := range map[string]struct {
		limits *Policy
		want   bool
	}{
		"nothing":  {nil, false},
		"none":     {&Policy{Specs: limitSpecs{{Name: "x"}}, File: none}, false},
		"a flag":   {&Policy{GPUsPerGroup: 1}, true},
		"the file": {&Policy{File: fileOfLimits(t, "{users: [], groups: [{name: g, limits: {max-gpus: 1}}]}")}, true},
		"a kernelspec": {&Policy{Specs: limitSpecs{{Name: "x",
			Metadata: json.RawMessage(`{"ekg": {"limits": {"maxKernels": 2}}}`)}}}, true},
	} {
		if got := test.limits.Set(); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
