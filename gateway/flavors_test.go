package gateway

import (
	"encoding/json"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
)

type fixedFlavors []flavor.Flavor

func (f fixedFlavors) List() []flavor.Flavor { return f }

// Flavors of these tests: all users may choose t4, ann and the group team may choose h100.
var testFlavors = fixedFlavors{
	{Name: "t4", Label: "T4, 16 GiB", GPU: &flavor.Devices{}, Spot: true, PricePerHour: 0.35},
	{Name: "h100", GPU: &flavor.Devices{Count: 2}, Users: []string{"ann"}, Groups: []string{"team"}},
	{Name: "quarter", Replica: &flavor.Replica{Replicas: 4}},
}

func withFlavors(o *Options) {
	o.Flavors = testFlavors
	o.Specs = &specDir{specs: append(o.Specs.List(), kernelspecs.Spec{Name: "own", DisplayName: "Own", Language: "python",
		InterruptMode: "signal", Metadata: json.RawMessage(`{"ekg": {"flavor": "t4"}}`)})}
}

func TestFlavors_List(t *testing.T) {
	g := startUserGateway(t, withFlavors)
	const t4 = `{"name":"t4","label":"T4, 16 GiB","kind":"gpu","gpus":1,"spot":true,"price_per_hour":0.35}`
	const h100 = `{"name":"h100","label":"h100","kind":"gpu","gpus":2,"spot":false}`
	const quarter = `{"name":"quarter","label":"quarter","kind":"replica","gpus":0.25,"spot":false}`
	for user, want := range map[string][]string{
		"ann": {t4, h100, quarter}, "uma": {t4, h100, quarter}, "root": {t4, h100, quarter}, "bob": {t4, quarter},
	} {
		got := g.do("GET", "/api/flavors", "", as(user)).want(t, 200, "")
		if strings.TrimSpace(got.body) != "["+strings.Join(want, ",")+"]" {
			t.Errorf("%s sees %s", user, got.body)
		}
	}
	g2 := startGateway(t, nil)
	if got := g2.do("GET", "/api/flavors", "").want(t, 200, ""); strings.TrimSpace(got.body) != "[]" {
		t.Errorf("without flavors: %s", got.body)
	}
}

func TestFlavors_Choose(t *testing.T) {
	for _, tt := range []struct {
		name, user, body string
		status           int
		want             string // flavor of the start, or part of the error
	}{
		{"by variable", "bob", `{"name": "python3", "env": {"KERNEL_FLAVOR": "t4"}}`, 201, "t4"},
		{"by body", "bob", `{"name": "python3", "flavor": "t4"}`, 201, "t4"},
		{"the body overrides the variable", "bob", `{"flavor": "t4", "env": {"KERNEL_FLAVOR": "quarter"}}`, 201, "t4"},
		{"by kernelspec", "bob", `{"name": "own"}`, 201, "t4"},
		{"another than the kernelspec's", "bob", `{"name": "own", "flavor": "quarter"}`, 201, "quarter"},
		{"by name", "bob", `{"name": "python3--t4"}`, 201, "t4"},
		{"by name in upper case", "bob", `{"name": "python3--T4"}`, 201, "t4"},
		{"the name overrides the variable", "bob", `{"name": "python3--t4", "env": {"KERNEL_FLAVOR": "quarter"}}`, 201,
			"t4"},
		{"none", "bob", `{"name": "python3"}`, 201, ""},
		{"an empty variable", "bob", `{"name": "python3", "env": {"KERNEL_FLAVOR": ""}}`, 201, ""},
		{"of a group", "uma", `{"flavor": "h100"}`, 201, "h100"},
		{"of an admin", "root", `{"flavor": "h100"}`, 201, "h100"},
		{"another user's", "bob", `{"flavor": "h100"}`, 400,
			`You may not use the flavor \"h100\", which the request asks for. You may choose: t4, quarter.`},
		{"another user's by name", "bob", `{"name": "python3--h100"}`, 400, `You may not use the flavor \"h100\"`},
		{"unknown", "bob", `{"flavor": "../x"}`, 400, `You may not use the flavor \"../x\"`},
		{"unknown by name", "bob", `{"name": "python3--x"}`, 404, "Kernel spec python3--x not found"},
		{"of a kernelspec with its own", "bob", `{"name": "own--t4"}`, 404, "Kernel spec own--t4 not found"},
		{"no string", "bob", `{"flavor": 4}`, 400, "flavor"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := startUserGateway(t, withFlavors)
			got := g.do("POST", "/api/kernels", tt.body, as(tt.user))
			if tt.status != 201 {
				got.want(t, tt.status, tt.want)
				if len(g.fake.reqs) > 0 {
					t.Error("a kernel was started")
				}
				return
			}
			got.want(t, 201, "")
			if len(g.fake.reqs) != 1 {
				t.Fatalf("%d starts", len(g.fake.reqs))
			}
			req := g.fake.reqs[0]
			switch {
			case tt.want == "" && req.Flavor != nil:
				t.Errorf("flavor %s", req.Flavor.Name)
			case tt.want != "" && (req.Flavor == nil || req.Flavor.Name != tt.want || req.Env["KERNEL_FLAVOR"] != tt.want):
				t.Errorf("flavor %+v, variable %q, want %s", req.Flavor, req.Env["KERNEL_FLAVOR"], tt.want)
			case strings.Contains(req.Spec.Name, "--"):
				t.Errorf("kernelspec %s", req.Spec.Name)
			}
		})
	}
	g := startGateway(t, nil)
	g.do("POST", "/api/kernels", `{"flavor": "t4"}`).want(t, 400, "This gateway has no flavors")
	g.do("POST", "/api/kernels", `{"name": "python3--t4"}`).want(t, 404, "not found")
}

// Front ends that cannot choose a flavor get a kernelspec for each. A kernel is named like the kernelspec in the list.
func TestFlavors_AsSpecs(t *testing.T) {
	g := startUserGateway(t, withFlavors)
	type list struct {
		Default     string
		Kernelspecs map[string]specModel
	}
	specs := decode[list](t, g.do("GET", "/api/kernelspecs", "", as("bob")).want(t, 200, ""))
	want := map[string]string{"python3": "Python 3", "python3--t4": "Python 3 (T4, 16 GiB)",
		"python3--quarter": "Python 3 (quarter)", "r": "R", "r--t4": "R (T4, 16 GiB)", "r--quarter": "R (quarter)",
		"own": "Own"}
	for name, display := range want {
		s, ok := specs.Kernelspecs[name]
		if !ok || s.Name != name || s.Spec.DisplayName != display {
			t.Errorf("%s is %+v", name, s)
		}
	}
	if len(specs.Kernelspecs) != len(want) || specs.Default != "python3" {
		t.Errorf("%d kernelspecs, default %s", len(specs.Kernelspecs), specs.Default)
	}
	g.do("GET", "/kernelspecs/python3--t4/logo-svg.svg", "", as("bob")).want(t, 200, "<svg/>")
	g.do("GET", "/api/kernelspecs/python3--t4", "", as("bob")).want(t, 200, `"name":"python3--t4"`)
	g.do("GET", "/api/kernelspecs/python3--h100", "", as("bob")).want(t, 404, "not found")
	g.do("GET", "/api/kernelspecs/python3--h100", "", as("ann")).want(t, 200, `"display_name":"Python 3 (h100)"`)

	k := decode[kernelModel](t, g.do("POST", "/api/kernels", `{"name": "python3--t4"}`, as("bob")).want(t, 201,
		`"flavor":"t4"`))
	if k.Name != "python3--t4" {
		t.Errorf("the kernel's name is %s", k.Name)
	}
	for _, path := range []string{"/api/kernels", "/api/kernels/" + k.ID} {
		g.do("GET", path, "", as("bob")).want(t, http.StatusOK, `"name":"python3--t4"`)
	}
	s := g.do("POST", "/api/sessions", `{"path": "a.ipynb", "type": "notebook", "name": "a",
		"kernel": {"name": "python3--quarter"}}`, as("bob")).want(t, 201, `"name":"python3--quarter"`)
	if req := g.fake.reqs[len(g.fake.reqs)-1]; req.Flavor == nil || req.Flavor.Size() != gpu.One/4 {
		t.Errorf("%s starts %+v", s.body, req.Flavor)
	}
	// A kernelspec's own name counts, even if it looks like one with a flavor.
	g2 := startUserGateway(t, func(o *Options) {
		withFlavors(o)
		o.Specs = &specDir{specs: append(o.Specs.List(), kernelspecs.Spec{Name: "python3--t4", DisplayName: "Mine"})}
	})
	g2.do("GET", "/api/kernelspecs", "", as("bob")).want(t, 200, `"display_name":"Mine"`)
	g2.do("POST", "/api/kernels", `{"name": "python3--t4"}`, as("bob")).want(t, 201, "")
	if req := g2.fake.reqs[0]; req.Spec.Name != "python3--t4" || req.Flavor != nil {
		t.Errorf("starts %s with %+v", req.Spec.Name, req.Flavor)
	}

	// Neither has a kernel with the same flavor the name of that kernelspec.
	g2.do("POST", "/api/kernels", `{"name": "python3", "flavor": "t4"}`, as("bob")).want(t, 201, `"name":"python3",`)

	// The default kernelspec may have a flavor.
	g3 := startUserGateway(t, func(o *Options) {
		withFlavors(o)
		o.DefaultKernel = "python3--t4"
	})
	g3.do("GET", "/api/kernelspecs", "", as("bob")).want(t, 200, `{"default":"python3--t4",`)
	for _, path := range []string{"/api/kernels", "/api/sessions"} {
		g3.do("POST", path, `{"path": "a.ipynb", "type": "notebook"}`, as("bob")).want(t, 201, `"flavor":"t4"`)
	}

	// An unlisted flavor is chosen by its name only.
	g4 := startUserGateway(t, func(o *Options) {
		o.Flavors = fixedFlavors{{Name: "t4"}, {Name: "rare", Unlisted: true}}
	})
	listed := decode[list](t, g4.do("GET", "/api/kernelspecs", "", as("bob"))).Kernelspecs
	if _, rare := listed["python3--rare"]; rare || listed["python3--t4"].Name == "" {
		t.Errorf("listed are %v", slices.Sorted(maps.Keys(listed)))
	}
	for _, body := range []string{`{"flavor": "rare"}`, `{"name": "python3--rare"}`} {
		rare := g4.do("POST", "/api/kernels", body, as("bob")).want(t, 201, `"flavor":"rare"`)
		if !strings.Contains(rare.body, `"name":"python3"`) { // a front end has no other kernelspec for it
			t.Errorf("with an unlisted flavor: %s", rare.body)
		}
	}

	// A session that gets another kernel by name asks for its flavor as a start does.
	id := decode[sessionModel](t, g3.do("POST", "/api/sessions", `{"path": "b.ipynb", "type": "notebook"}`, as("bob"))).ID
	starts := len(g3.fake.reqs)
	patch := func(name, user string) reply {
		return g3.do("PATCH", "/api/sessions/"+id, `{"kernel": {"name": "`+name+`"}}`, as(user))
	}
	patch("python3--h100", "bob").want(t, 400, `You may not use the flavor \"h100\"`)
	if len(g3.fake.reqs) != starts {
		t.Error("a kernel was started")
	}
	patch("python3--quarter", "bob").want(t, 200, `"flavor":"quarter"`)

	own := g.do("POST", "/api/kernels", `{"name": "own"}`, as("bob")).want(t, 201, `"flavor":"t4"`)
	if !strings.Contains(own.body, `"name":"own"`) {
		t.Errorf("a kernelspec with its own flavor: %s", own.body)
	}
}

// countedFlavors counts how often the flavors are read.
type countedFlavors struct {
	fixedFlavors
	read *int
}

func (f countedFlavors) List() []flavor.Flavor {
	*f.read++
	return f.fixedFlavors
}

// TestFlavors_OfList: a list of kernels reads the file of flavors once for each flavor, not for each kernel.
func TestFlavors_OfList(t *testing.T) {
	read := 0
	g := bareGateway(kernels.Options{Specs: testSpecs(t),
		Flavors: countedFlavors{fixedFlavors{{Name: "t4"}, {Name: "rare", Unlisted: true}}, &read}})
	all := manyKernels(100)
	names := map[string]string{"t4": "python3--t4", "rare": "python3", "": "python3", "gone": "python3"}
	for i := range all {
		all[i].Flavor = slices.Sorted(maps.Keys(names))[i%len(names)]
	}
	texts, err := g.models.textsFor(kernels.Caller{User: identity.User{Name: "root", Admin: true}}, all)
	if err != nil || len(texts) != len(all) {
		t.Fatalf("%d texts, %v", len(texts), err)
	}
	for i, text := range texts {
		if text.model.Name != names[all[i].Flavor] {
			t.Errorf("a kernel with the flavor %q is named %s", all[i].Flavor, text.model.Name)
		}
	}
	// The waits for GPUs read it once besides.
	if read > len(names) {
		t.Errorf("%d kernels read the flavors %d times", len(all), read)
	}
}

// A definition whose flavor is its kernelspec's keeps that when something else is changed. A chosen flavor stays, too.
func TestFlavors_OfDefinition(t *testing.T) {
	g := startUserGateway(t, withFlavors)
	for _, tt := range []struct {
		chosen, patch, flavor string
		start                 kernels.Wish
	}{
		{"", `{"name":"b"}`, "t4", kernels.Wish{Name: "own"}},
		{`,"flavor":"quarter"`, `{"name":"b"}`, "quarter", kernels.Wish{Name: "own", Flavor: "quarter"}},
		{"", `{"flavor":"quarter"}`, "quarter", kernels.Wish{Name: "own", Flavor: "quarter"}},
		{"", `{"kernelspec":"python3"}`, "", kernels.Wish{Name: "python3"}},
	} {
		made := g.do("POST", "/api/jobs/definitions", `{"kernelspec":"own"`+tt.chosen+
			`,"notebook":{"nbformat":4,"nbformat_minor":5,"metadata":{},"cells":[]}}`, as("ann")).want(t, 201, "own")
		path := strings.TrimPrefix(made.Header.Get("Location"), g.base)
		changed := g.do("PATCH", path, tt.patch, as("ann")).want(t, 200, "")
		if has := strings.Contains(changed.body, `"flavor":"`+tt.flavor+`"`); has != (tt.flavor != "") {
			t.Errorf("%s: %s, want the flavor %q", tt.patch, changed.body, tt.flavor)
		}
		sub, err := g.jobs.manager.DefinitionSubmission(t.Context(), path[strings.LastIndex(path, "/")+1:])
		if err != nil || !reflect.DeepEqual(sub.Start, tt.start) {
			t.Errorf("%s: the start is %+v, %v; want %+v", tt.patch, sub.Start, err, tt.start)
		}
	}
}
