package gateway

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

func withProfiles(o *Options) {
	withFlavors(o)
	o.Specs = &specDir{specs: append(o.Specs.List(),
		kernelspecs.Spec{Name: "torch", DisplayName: "PyTorch", Language: "python", InterruptMode: "signal",
			Users: kernelspecs.Users{}, Metadata: json.RawMessage(`{"ekg": {"profiles": [
				{"name": "big", "displayName": "Big one", "memory": "64Gi", "env": {"SIZE": "big"}},
				{"name": "t4", "flavor": "quarter"}, {"name": "team", "flavor": "h100"}]}}`)},
		kernelspecs.Spec{Name: "torch--whole", DisplayName: "Whole", Language: "python", InterruptMode: "signal"})}
}

// A client chooses a profile by its variable or by the name of an entry, which overrides the variable.
func TestProfiles_Choose(t *testing.T) {
	for _, tt := range []struct {
		name, body string
		status     int
		want       string // profile and flavor of the start, or part of the error
	}{
		{"by variable", `{"name": "torch", "env": {"KERNEL_PROFILE": "big"}}`, 201, "big "},
		{"its flavor", `{"name": "torch", "env": {"KERNEL_PROFILE": "t4"}}`, 201, "t4 quarter"},
		{"another flavor", `{"name": "torch", "flavor": "t4", "env": {"KERNEL_PROFILE": "t4"}}`, 201, "t4 t4"},
		{"of another user's flavor", `{"name": "torch", "env": {"KERNEL_PROFILE": "team"}}`, 400,
			`You may not use the flavor \"h100\", which the kernelspec torch asks for.`},
		{"none", `{"name": "torch"}`, 201, " "},
		{"an empty variable", `{"name": "torch", "env": {"KERNEL_PROFILE": ""}}`, 201, " "},
		{"unknown", `{"name": "torch", "env": {"KERNEL_PROFILE": "../x"}}`, 400,
			`Kernel spec torch has no profile \"../x\". It has: big, t4, team.`},
		{"without profiles", `{"name": "python3", "env": {"KERNEL_PROFILE": "../x"}}`, 201, " "},
		{"by name", `{"name": "torch--big"}`, 201, "big "},
		{"by name in upper case", `{"name": "torch--BIG"}`, 201, "big "},
		{"the name overrides the variable", `{"name": "torch--big", "env": {"KERNEL_PROFILE": "t4"}}`, 201, "big "},
		{"a profile and a flavor of one name", `{"name": "torch--t4"}`, 201, "t4 quarter"},
		{"a flavor by name, a profile by variable", `{"name": "torch--quarter", "env": {"KERNEL_PROFILE": "big"}}`, 201,
			"big quarter"},
		{"a kernelspec that is named so", `{"name": "torch--whole"}`, 201, " "},
		{"unknown by name", `{"name": "torch--other"}`, 404, "Kernel spec torch--other not found"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := startUserGateway(t, withProfiles)
			got := g.do("POST", "/api/kernels", tt.body, as("bob"))
			if tt.status != 201 {
				got.want(t, tt.status, tt.want)
				if len(g.fake.reqs) > 0 {
					t.Error("a kernel was started")
				}
				return
			}
			got.want(t, 201, "")
			req := g.fake.reqs[0]
			chosen := req.Spec.Profile + " "
			if req.Flavor != nil {
				chosen += req.Flavor.Name
			}
			if chosen != tt.want || req.Spec.Profile == "big" &&
				(req.Spec.Env["SIZE"] != "big" || req.Env["KERNEL_PROFILE"] != "big" || req.Spec.Name != "torch") {
				t.Errorf("got %q with %+v", chosen, req)
			}
		})
	}
}

// Front ends without a form get an entry for each profile. A kernel is named like its entry.
func TestProfiles_AsSpecs(t *testing.T) {
	g := startUserGateway(t, withProfiles)
	type list struct{ Kernelspecs map[string]specModel }
	specs := decode[list](t, g.do("GET", "/api/kernelspecs", "", as("bob")).want(t, 200, ""))
	for name, display := range map[string]string{"torch": "PyTorch", "torch--big": "PyTorch (Big one)",
		"torch--t4": "PyTorch (t4)", "torch--team": "PyTorch (team)", "torch--quarter": "PyTorch (quarter)",
		"torch--whole": "Whole"} {
		if s, ok := specs.Kernelspecs[name]; !ok || s.Name != name || s.Spec.DisplayName != display {
			t.Errorf("%s is %+v", name, s)
		}
	}
	for name := range specs.Kernelspecs {
		if strings.HasPrefix(name, "torch--big--") {
			t.Errorf("%s is listed", name)
		}
	}
	g.do("GET", "/api/kernelspecs/torch--BIG", "", as("bob")).want(t, 200, `"display_name":"PyTorch (Big one)"`)
	g.do("GET", "/api/kernelspecs/torch--none", "", as("bob")).want(t, 404, "not found")
	start := `{"name": "torch", "flavor": "quarter", "env": {"KERNEL_PROFILE": "big"}}`
	k := decode[kernelModel](t, g.do("POST", "/api/kernels", start, as("bob")).want(t, 201, `"name":"torch--big"`))
	g.do("GET", "/api/kernels/"+k.ID, "", as("bob")).want(t, 200, `"name":"torch--big"`)
}
