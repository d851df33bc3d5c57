package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/transcript"
)

// limitSpecs are kernelspecs of which one has a limit.
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

func TestKernelLimits_Admit(t *testing.T) {
	at := time.Date(2026, 11, 22, 3, 4, 5, 0, time.UTC)
	held := func(id, spec, owner string, gpus int64, state launcher.State, groups ...string) launcher.Held {
		return launcher.Held{ID: id, SpecName: spec, Owner: owner, GPUs: gpus, State: state, LastActivity: at, Groups: groups}
	}
	ann := held("new", "python3", "ann", 0, launcher.Starting, "team", "vision")
	annGPU := ann
	annGPU.GPUs = 2
	specs := limitSpecs{{Name: "python3"}, {Name: "big", Metadata: json.RawMessage(`{"ekg": {"limits": {"maxKernels": 2}}}`)}}
	older := held("old", "r", "ann", 1, launcher.Idle)
	older.LastActivity = at.Add(-time.Hour)
	ending := held("end", "r", "ann", 0, launcher.Idle)
	ending.Ending = true
	many := make([]launcher.Held, 8)
	for i := range many {
		many[i] = held(string(rune('a'+i)), "r", "ann", 0, launcher.Idle)
	}
	const file = `{users: [{name: ann, limits: {max-kernels: 1, max-gpus: 0}}, {name: bob, limits: {max-kernels: unlimited}}],
		groups: [{name: vision, limits: {max-kernels: 1, max-gpus: 3}}]}`
	for _, test := range []struct {
		name   string
		limits KernelLimits
		start  launcher.Held
		held   []launcher.Held
		limit  string // "": it is admitted
		want   string
	}{
		{"nothing is limited", KernelLimits{}, ann, many, "", ""},
		{"room is left", KernelLimits{PerUser: 3, Kernels: 3}, ann, []launcher.Held{older, held("x", "r", "bob", 0, launcher.Busy)}, "", ""},
		{"one's own", KernelLimits{PerUser: 3}, ann, []launcher.Held{ending, held("b", "r", "ann", 0, launcher.Busy), older, held("x", "r", "bob", 0, launcher.Busy)}, limitPerUser,
			"you have 3 kernels, and you may have 3 kernels at one time (limit kernels-per-user); shut one down to start another: " +
				"r old (idle since 2026-11-22 02:04 UTC), r b (busy), r end (being shut down)"},
		{"the only owner's", KernelLimits{PerUser: 1}, held("new", "python3", "", 0, launcher.Starting), []launcher.Held{held("a", "r", "", 0, launcher.Idle)}, limitPerUser,
			"you have 1 kernel, and you may have 1 kernel at one time (limit kernels-per-user); shut one down to start another: r a (idle since 2026-11-22 03:04 UTC)"},
		{"many", KernelLimits{PerUser: 8}, ann, many, limitPerUser, "r a (idle since 2026-11-22 03:04 UTC), r b (idle since 2026-11-22 03:04 UTC), " +
			"r c (idle since 2026-11-22 03:04 UTC), r d (idle since 2026-11-22 03:04 UTC), r e (idle since 2026-11-22 03:04 UTC), 3 more"},
		{"all, some of which are theirs", KernelLimits{Kernels: 2}, ann, []launcher.Held{held("secret", "theirs", "bob", 0, launcher.Idle), older}, limitKernels,
			"there are 2 kernels, and there may be 2 kernels at one time (limit kernels); shut one of yours down to start another: r old (idle since 2026-11-22 02:04 UTC)"},
		{"all, none of which is theirs", KernelLimits{Kernels: 1}, ann, []launcher.Held{held("secret", "theirs", "bob", 0, launcher.Idle)}, limitKernels,
			"there is 1 kernel, and there may be 1 kernel at one time (limit kernels); none of it is yours: try again when somebody has shut one down"},
		{"a kernelspec's own", KernelLimits{Specs: specs, PerKernelspec: 5}, held("new", "big", "ann", 0, launcher.Starting),
			[]launcher.Held{held("x", "big", "bob", 0, launcher.Busy), held("y", "big", "ann", 0, launcher.Busy), older}, limitPerKernelspec,
			"there are 2 kernels of the kernelspec big, and there may be 2 kernels of the kernelspec big at one time (limit kernels-per-kernelspec); shut one of yours down to start another: big y (busy)"},
		{"all kernelspecs'", KernelLimits{Specs: specs, PerKernelspec: 1}, held("new", "big", "ann", 0, launcher.Starting), []launcher.Held{held("x", "big", "bob", 0, launcher.Busy)},
			limitPerKernelspec, "there is 1 kernel of the kernelspec big"},
		{"a group's", KernelLimits{PerGroup: 1}, ann, []launcher.Held{held("secret", "theirs", "bob", 0, launcher.Idle, "team")}, limitPerGroup,
			"the group team has 1 kernel, and the group team may have 1 kernel at one time (limit kernels-per-group); none of it is yours: try again when somebody has shut one down"},
		{"a single group's", KernelLimits{File: fileOfLimits(t, file), PerGroup: 9}, held("new", "r", "uma", 0, "", "vision"), []launcher.Held{held("x", "r", "bob", 0, launcher.Idle, "vision")},
			limitPerGroup, "the group vision has 1 kernel"},
		{"a single user's", KernelLimits{File: fileOfLimits(t, file), PerUser: 9}, ann, []launcher.Held{older}, limitPerUser, "you have 1 kernel, and you may have 1 kernel"},
		{"a single user's is none", KernelLimits{File: fileOfLimits(t, file), PerUser: 1}, held("new", "r", "bob", 0, ""), []launcher.Held{held("x", "r", "bob", 0, "")}, "", ""},
		{"no GPU for a user", KernelLimits{File: fileOfLimits(t, file), GPUsPerUser: 9}, annGPU, nil, limitGPUsPerUser,
			"it asks for 2 GPUs, and you may have no GPU at one time (limit gpus-per-user): ask for fewer, shutting other kernels down does not help"},
		{"GPUs", KernelLimits{GPUsPerUser: 4}, annGPU, []launcher.Held{held("g", "r", "ann", 3, launcher.Idle), held("c", "r", "ann", 0, launcher.Idle)}, limitGPUsPerUser,
			"it asks for 2 GPUs, you have 3 GPUs, and you may have 4 GPUs at one time (limit gpus-per-user); shut one down to start another: r g (3 GPUs, idle since 2026-11-22 03:04 UTC)"},
		{"a kernel without any", KernelLimits{GPUsPerUser: 1}, ann, []launcher.Held{held("g", "r", "ann", 3, launcher.Idle)}, "", ""},
		{"more GPUs than anybody may have", KernelLimits{GPUsPerUser: 1}, annGPU, nil, limitGPUsPerUser, "shutting other kernels down does not help"},
		{"a group's GPUs", KernelLimits{GPUsPerGroup: 4}, annGPU, []launcher.Held{held("g", "r", "bob", 3, launcher.Idle, "team")}, limitGPUsPerGroup, "it asks for 2 GPUs, the group team has 3 GPUs"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := test.limits.Admit(test.start, test.held)
			var over *launcher.LimitError
			switch {
			case test.limit == "" && err == nil:
			case test.limit == "" || !errors.As(err, &over):
				t.Errorf("%v", err)
			case over.Limit != test.limit || !strings.Contains(over.Reason, test.want) || strings.Contains(over.Reason, "secret") || strings.Contains(over.Reason, "bob"):
				t.Errorf("%s: %s\nwant %s", over.Limit, over.Reason, test.want)
			}
		})
	}
}

func TestKernelLimits_Set(t *testing.T) {
	none := fileOfLimits(t, "users: [{name: ann}]")
	for name, test := range map[string]struct {
		limits *KernelLimits
		want   bool
	}{
		"nothing":      {nil, false},
		"none":         {&KernelLimits{Specs: limitSpecs{{Name: "x"}}, File: none}, false},
		"a flag":       {&KernelLimits{GPUsPerGroup: 1}, true},
		"the file":     {&KernelLimits{File: fileOfLimits(t, "{users: [], groups: [{name: g, limits: {max-gpus: 1}}]}")}, true},
		"a kernelspec": {&KernelLimits{Specs: limitSpecs{{Name: "x", Metadata: json.RawMessage(`{"ekg": {"limits": {"maxKernels": 2}}}`)}}}, true},
	} {
		if got := test.limits.Set(); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// What is over a limit is refused with 403, in the audit log as well, and counted.
func TestKernelLimits_Answer(t *testing.T) {
	audit := &transcript.Buffer{}
	metrics := NewMetrics("test")
	g := startUserGateway(t, func(o *Options) {
		o.Audit, o.Metrics = audit, metrics
		o.KernelLimits = &KernelLimits{PerGroup: 3}
	})
	refusal := &launcher.LimitError{Limit: limitPerUser, Reason: "you have too many"}
	g.fake.newState = launcher.Starting
	g.fake.start = func(_ context.Context, req launcher.Request) (launcher.Kernel, bool, error) {
		if req.Owner == "uma" {
			if !slices.Equal(req.Groups, []string{"team"}) {
				t.Errorf("groups: %q", req.Groups)
			}
			return launcher.Kernel{}, false, refusal
		}
		// This is decided only after the POST has begun to wait.
		k, created, err := g.fake.startForReal(req)
		g.fake.change(func() {
			now := g.fake.kernels[req.ID]
			now.State, now.Reason, now.Limit = launcher.Dead, refusal.Reason, refusal.Limit
		})
		return k, created, err
	}
	g.fake.restarting = func(string) (func(), error) { return nil, refusal }
	for path, body := range map[string]string{"/api/kernels": "", "/api/sessions": `{"path": "x", "type": "y"}`} {
		g.do("POST", path, body, as("uma")).want(t, 403, `{"reason":"you have too many","message":"you have too many"}`)
	}
	g.do("POST", "/api/kernels", "", as("ann")).want(t, 403, "you have too many")
	if len(g.fake.stopped()) != 1 {
		t.Error("the kernel was left behind")
	}
	// A dead kernel is not started again.
	g.fake.add(idA, "python3", launcher.Dead)
	g.fake.change(func() { g.fake.kernels[idA].Owner = "ann" })
	g.do("POST", "/api/kernels/"+idA+"/restart", "", as("ann")).want(t, 403, "you have too many")
	eventually(t, "four refusals in the audit log", func() bool {
		return strings.Count(audit.String(), `"outcome":"refused","status":403,"check":"limit"`) == 4
	})
	families, err := metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted := 0.0
	for _, f := range families {
		if f.GetName() != metricFailures.Name {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetValue() == string(launcher.FailedLimit) {
					counted += m.GetCounter().GetValue()
				}
			}
		}
	}
	if counted != 2 {
		t.Errorf("%v failures were counted", counted)
	}
}
