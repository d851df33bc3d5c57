package gateway

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// listed returns the text of a kernel in a list.
func listed(t *testing.T, g *Gateway, who kernels.Caller, k launcher.Kernel) string {
	t.Helper()
	texts, err := g.models.textsFor(who, []launcher.Kernel{k})
	if err != nil {
		t.Fatal(err)
	}
	if len(texts) == 0 {
		return ""
	}
	return string(texts[0].text)
}

// encoded returns what listed should return.
func encoded(t *testing.T, g *Gateway, who kernels.Caller, k launcher.Kernel) string {
	t.Helper()
	if !who.Sees(k) {
		return ""
	}
	text, err := json.Marshal(g.models.modelFor(who, &k))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Each field of a kernel is changed alone, and changed back. A list shows both at once, to each caller.
func TestModelTexts_Changes(t *testing.T) {
	g := bareGateway(kernels.Options{})
	callers := []kernels.Caller{kernels.SoleOwner(), {User: identity.User{Name: "root", Admin: true}},
		{User: identity.User{Name: "ann"}},
		{User: identity.User{Name: "bob"}}}
	now := time.Now()
	base := launcher.Kernel{ID: idA, SpecName: "python3", Owner: "ann", Created: now, LastActivity: now, State: api.Idle,
		Notes: launcher.Notes{SharedWith: []launcher.Grant{{User: "bob", Right: launcher.Read}}}}
	shown := 0
	try := func(field string, k launcher.Kernel) {
		for _, who := range callers {
			before := listed(t, g, who, base)
			for _, k := range []launcher.Kernel{k, base} {
				if got, want := listed(t, g, who, k), encoded(t, g, who, k); got != want {
					t.Errorf("%s changed, listed for %q: got  %s\nwant %s", field, who.Name, got, want)
				}
			}
			if encoded(t, g, who, k) != before {
				shown++
			}
		}
	}
	v := reflect.New(reflect.TypeFor[launcher.Kernel]()).Elem()
	for i := range v.NumField() {
		v.Set(reflect.ValueOf(base))
		if v.Type().Field(i).Name == "Notes" {
			continue
		}
		another(v.Field(i))
		try(v.Type().Field(i).Name, v.Interface().(launcher.Kernel))
	}
	for _, grants := range [][]launcher.Grant{nil, {}, {{User: "bob", Right: launcher.Use}},
		{{User: "bob", Right: launcher.Read}, {Group: "team", Right: launcher.Use}}} {
		k := base
		k.SharedWith = grants
		try("SharedWith", k)
	}
	k := base
	k.SharedToUse = true
	try("SharedToUse", k)
	// The texts of the base are found, or nothing above is tested.
	for _, who := range callers {
		first, err := g.models.textsFor(who, []launcher.Kernel{base})
		if again, _ := g.models.textsFor(who, []launcher.Kernel{base}); err != nil || first[0] != again[0] || shown < 30 {
			t.Errorf("for %q %p and %p, %d changes were shown: %v", who.Name, first[0], again[0], shown, err)
		}
	}
}

// another gives a kernel's field another value.
func another(v reflect.Value) {
	half := 0.5
	switch v.Interface().(type) {
	case string, api.State:
		v.SetString("<another>")
	case int, int64, gpu.Amount:
		v.SetInt(v.Int() + 3)
	case bool:
		v.SetBool(!v.Bool())
	case time.Time:
		v.Set(reflect.ValueOf(time.Now().Add(time.Hour)))
	case []string:
		v.Set(reflect.ValueOf([]string{"team"}))
	case []api.GPU:
		v.Set(reflect.ValueOf([]api.GPU{{UUID: "GPU-1", Utilization: &half}}))
	case api.Death:
		v.Set(reflect.ValueOf(api.NewDeath(time.Now(), "killed")))
	case api.Parked:
		v.Set(reflect.ValueOf(api.Parked{State: api.GPUParked, Since: "2026-01-01T00:00:00Z",
			Cause: api.CauseMemory, KeepGPUUntil: "2026-01-01T00:00:00Z"}))
	case api.GPUUse:
		v.Set(reflect.ValueOf(api.GPUUse{Busy: time.Second}))
	default:
		panic("a field of a new kind: " + v.Type().String())
	}
}

// TestKernelModel_Equal also fails for a new field that equal does not know.
func TestKernelModel_Equal(t *testing.T) {
	v := reflect.New(reflect.TypeFor[kernelModel]()).Elem()
	try := func(name string, field reflect.Value) {
		set(field)
		changed := v.Interface().(kernelModel)
		field.SetZero()
		base := v.Interface().(kernelModel)
		if changed.equal(&base) || base.equal(&changed) || !changed.equal(&changed) {
			t.Errorf("a change of %s is not seen", name)
		}
	}
	for i := range v.NumField() {
		switch field := v.Field(i); {
		case field.Kind() == reflect.Struct:
			for j := range field.NumField() {
				try(field.Type().Field(j).Name, field.Field(j))
			}
		case v.Type().Field(i).Name != "SharedWith":
			try(v.Type().Field(i).Name, field)
		}
	}
	grants := []kernelModel{{}, {SharedWith: []launcher.Grant{}}, {SharedWith: []launcher.Grant{{User: "ann"}}}}
	for i := range grants {
		for j := range grants {
			if grants[i].equal(&grants[j]) != (i == j) {
				t.Errorf("grants %d and %d: %v", i, j, i != j)
			}
		}
	}
}

// A model changes when one of its times passes, although the kernel has not changed. Unused texts are forgotten.
func TestModelTexts_Time(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, who := bareGateway(kernels.Options{}), kernels.SoleOwner()
		k := launcher.Kernel{ID: idA, Created: time.Now(), KeepUntil: time.Now().Add(time.Second)}
		before := listed(t, g, who, k)
		time.Sleep(time.Second)
		if after := listed(t, g, who, k); after == before || after != encoded(t, g, who, k) {
			t.Errorf("first %s\nthen %s", before, after)
		}
		kept, err := g.models.textsFor(who, []launcher.Kernel{k})
		for range 3 {
			time.Sleep(modelsKept)
			if again, err := g.models.textsFor(who, []launcher.Kernel{k}); err != nil || again[0] != kept[0] {
				t.Errorf("a text in use was made again: %v", err)
			}
		}
		for range 2 {
			time.Sleep(modelsKept)
			g.models.texts.last("ann") // the list of another caller
		}
		if err != nil || g.models.texts.last("") != nil {
			t.Errorf("the texts of an unused list are kept: %v", err)
		}
	})
}

// A change of a grant's memory, and of the grants themselves, is seen.
func TestModelTexts_OwnMemory(t *testing.T) {
	g, who := bareGateway(kernels.Options{}), kernels.Caller{User: identity.User{Name: "ann"}}
	k := launcher.Kernel{ID: idA, Owner: "ann", Notes: launcher.Notes{SharedWith: []launcher.Grant{{User: "bob"}}}}
	listed(t, g, who, k)
	k.SharedWith[0].User = "eve"
	if got, want := listed(t, g, who, k), encoded(t, g, who, k); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Lists of several clients, while kernels change, are complete and current.
func TestModelTexts_Concurrent(t *testing.T) {
	g := startGateway(t, nil)
	ids := []string{idA, idB}
	for _, id := range ids {
		g.fake.add(id, "python3", api.Idle)
	}
	var all sync.WaitGroup
	for n := range 4 {
		all.Go(func() {
			id := ids[n%2]
			for i := range 50 {
				if n < 2 {
					g.fake.change(func() { g.fake.kernels[id].Connections = i })
				}
				models := decode[[]api.Model](t, g.do("GET", "/api/kernels", "").want(t, http.StatusOK, ""))
				at := slices.IndexFunc(models, func(m api.Model) bool { return m.ID == id })
				if len(models) != 2 || at < 0 || n < 2 && models[at].Connections != i {
					t.Errorf("%d: listed are %+v", i, models)
				}
			}
		})
	}
	all.Wait()
}

// A list of kernels that have not changed encodes none of them.
func TestModelTexts_Again(t *testing.T) {
	g, who := bareGateway(kernels.Options{}), kernels.Caller{User: identity.User{Name: "root", Admin: true}}
	kernels := manyKernels(1000)
	for i := range kernels {
		kernels[i].GPU = []api.GPU{{UUID: "GPU-1"}}
		kernels[i].SharedWith = []launcher.Grant{{User: "bob", Right: launcher.Read}}
	}
	texts, err := g.models.textsFor(who, kernels)
	if err != nil {
		t.Fatal(err)
	}
	kernels[500].Connections++
	again, err := g.models.textsFor(who, kernels)
	if err != nil || len(again) != len(texts) {
		t.Fatalf("%d texts, %v", len(again), err)
	}
	for i, text := range again {
		if (text == texts[i]) != (i != 500) {
			t.Errorf("kernel %d: the same text is %v", i, text == texts[i])
		}
	}
	// Some have gone since, and there is one more.
	fewer := slices.Delete(slices.Clone(kernels), 100, 300)
	fewer = append(fewer, launcher.Kernel{ID: idB, Created: fewer[len(fewer)-1].Created.Add(time.Second)})
	third, err := g.models.textsFor(who, fewer)
	if err != nil || len(third) != len(fewer) {
		t.Fatalf("%d texts, %v", len(third), err)
	}
	if !slices.Equal(third[:len(third)-1], slices.Delete(again, 100, 300)) {
		t.Error("some texts were made again")
	}
}

// set gives a field a value that is not zero.
func set(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("text")
	case reflect.Int, reflect.Int64:
		v.SetInt(-7)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.ValueOf(&kernelJob{ID: "<a>", Name: "it's", Cell: 3, Cells: 9}))
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[api.Parked]() {
			v.Set(reflect.ValueOf(api.Parked{State: api.GPUParked}))
		} else {
			v.Set(reflect.ValueOf(api.Death{Reason: "killed"}))
		}
	case reflect.Slice: // of devices
		half := 0.5
		v.Set(reflect.ValueOf([]api.GPU{{UUID: "<a>", Utilization: &half, MemoryUsed: 1 << 40}, {Error: "GPU is lost"}}))
	default:
		panic("a field of a new kind: " + v.Kind().String())
	}
}
