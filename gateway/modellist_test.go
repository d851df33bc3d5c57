package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// fixedKernels is a launcher with these kernels.
type fixedKernels struct {
	launcher.Launcher
	*kernelSet
}

func (f fixedKernels) Kernels(ctx context.Context) ([]launcher.Kernel, error) {
	return f.kernelSet.Kernels(ctx)
}

func (f fixedKernels) KernelsFor(ctx context.Context, _ string, _ []string) ([]launcher.Kernel, error) {
	return f.kernelSet.Kernels(ctx)
}

// kernelSet is all kernels of a launcher.
type kernelSet struct {
	kernels atomic.Pointer[[]launcher.Kernel]
}

func (s *kernelSet) Kernels(context.Context) ([]launcher.Kernel, error) {
	return slices.Clone(*s.kernels.Load()), nil
}

func (s *kernelSet) set(kernels ...launcher.Kernel) { s.kernels.Store(&kernels) }

// listedBody returns the answer to a request for all kernels.
func listedBody(t testing.TB, g *Gateway, who kernels.Caller) string {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), "GET", "/api/kernels", nil)
	w := httptest.NewRecorder()
	if err := g.listKernels(w, &call{Request: r, Act: kernels.Act{Who: who}}); err != nil {
		t.Fatal(err)
	}
	if got := w.Header().Get("Content-Length"); got != fmt.Sprint(w.Body.Len()) {
		t.Errorf("Content-Length is %s, and the body has %d bytes", got, w.Body.Len())
	}
	return w.Body.String()
}

// madeNow returns what listedBody should return.
func madeNow(t testing.TB, g *Gateway, who kernels.Caller, kernels []launcher.Kernel) string {
	t.Helper()
	models := make([]kernelModel, 0, len(kernels))
	for i := range kernels {
		models = append(models, g.models.modelFor(who, &kernels[i]))
	}
	text, err := json.Marshal(models)
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + "\n"
}

// listTest is a gateway whose list is compared with models that are made for it alone.
type listTest struct {
	t testing.TB
	g *Gateway
	l *kernelSet
}

func newListTest(t testing.TB) *listTest {
	l := &kernelSet{}
	l.set()
	return &listTest{t, bareGateway(kernels.Options{Launcher: fixedKernels{nil, l}}), l}
}

// expect lists twice: the first answer may be made, and the second one has texts of the first.
func (w *listTest) expect(who kernels.Caller, after string) {
	w.t.Helper()
	for n := range 2 {
		if got, want := listedBody(w.t, w.g, who), madeNow(w.t, w.g, who, *w.l.kernels.Load()); got != want {
			w.t.Errorf("list %d after %s:\ngot  %swant %s", n, after, got, want)
		}
	}
}

func admin() kernels.Caller { return kernels.Caller{User: identity.User{Name: "root", Admin: true}} }

// numbered returns a kernel that was created as the n-th.
func numbered(n int) launcher.Kernel {
	at := time.Date(2026, 11, 21, 5, 53, n, 0, time.UTC)
	return launcher.Kernel{ID: fmt.Sprintf("00000000-0000-4000-8000-%012d", n), SpecName: "python3", Owner: "ann",
		Created: at, LastActivity: at, State: api.Idle}
}

// Each field of a kernel is changed alone, in each place of the list. Kernels are added to each place and removed.
func TestModelList_Changes(t *testing.T) {
	for name, who := range map[string]kernels.Caller{"sole": kernels.SoleOwner(), "admin": admin()} {
		t.Run(name, func(t *testing.T) {
			w := newListTest(t)
			w.expect(who, "nothing")
			base := []launcher.Kernel{numbered(1), numbered(2), numbered(3)}
			w.l.set(base...)
			w.expect(who, "the first kernels")
			for i := range base {
				fields := reflect.TypeFor[launcher.Kernel]()
				for f := range fields.NumField() {
					if slices.Contains([]string{"ID", "Created"}, fields.Field(f).Name) {
						continue // never changed
					}
					k := base[i]
					if fields.Field(f).Name == "Notes" {
						k.SharedWith, k.SharedToUse = []launcher.Grant{{User: "bob", Right: launcher.Use}}, true
					} else {
						another(reflect.ValueOf(&k).Elem().Field(f))
					}
					changed := slices.Clone(base)
					changed[i] = k
					w.l.set(changed...)
					w.expect(who, fmt.Sprintf("a change of %s of kernel %d", fields.Field(f).Name, i))
					w.l.set(base...)
					w.expect(who, "the change back")
				}
				w.l.set(slices.Delete(slices.Clone(base), i, i+1)...)
				w.expect(who, fmt.Sprintf("the end of kernel %d", i))
				w.l.set(base...)
				w.expect(who, "its return")
			}
		})
	}
}

// Random changes of a long list, several at a time.
func TestModelList_Random(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	w, who, next := newListTest(t), admin(), 0
	var present []launcher.Kernel
	for range 300 {
		present = slices.Clone(present)
		for range random.IntN(4) {
			switch n := len(present); {
			case n < 3 || random.IntN(3) == 0:
				next++
				present = append(present, numbered(next))
			case random.IntN(2) == 0:
				i := random.IntN(n)
				present = slices.Delete(present, i, i+1)
			default:
				k := present[random.IntN(n)]
				k.Connections = random.IntN(5)
				present[slices.IndexFunc(present, func(o launcher.Kernel) bool { return o.ID == k.ID })] = k
			}
		}
		w.l.set(present...)
		w.expect(who, "some changes")
	}
}

// A model changes when a time passes, although the kernel has not changed.
func TestModelList_KeepUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, who := newListTest(t), admin()
		kept := numbered(1)
		later := numbered(2)
		kept.KeepUntil = time.Now().Add(time.Minute).Round(0)
		later.KeepUntil = time.Now().Add(time.Hour).Round(0)
		w.l.set(kept, later, numbered(3))
		for _, wait := range []time.Duration{0, 59 * time.Second, time.Second, time.Second, time.Hour, time.Hour} {
			time.Sleep(wait)
			w.expect(who, wait.String())
		}
		if body := listedBody(t, w.g, who); strings.Contains(body, "keep_until") {
			t.Errorf("after all times: %s", body)
		}
	})
}

// A kernelspec is removed and returns while no kernel changes. The names of kernels with a flavor depend on it.
func TestModelList_Specs(t *testing.T) {
	w, who := newListTest(t), admin()
	specs := &specDir{specs: []kernelspecs.Spec{{Name: "python3"}}}
	w.g = bareGateway(kernels.Options{Launcher: fixedKernels{nil, w.l}, Specs: specs,
		Flavors: fixedFlavors{{Name: "t4"}}})
	k := numbered(1)
	k.Flavor = "t4"
	w.l.set(k, numbered(2))
	w.expect(who, "the start")
	with := listedBody(t, w.g, who)
	specs.specs = nil
	w.expect(who, "the end of the kernelspec")
	if without := listedBody(t, w.g, who); without == with {
		t.Errorf("the name does not change: %s", without)
	}
}

// The reason of a kernel that waits for a GPU has numbers that change while no kernel does.
func TestModelList_GPUWait(t *testing.T) {
	g := startUserGateway(t, withFlavors)
	full := &fullLauncher{g.fake, map[string]launcher.GPURoom{"t4": {Total: 8}}}
	w := &listTest{t, g.Gateway, &kernelSet{}}
	o := g.opts.Options
	o.Launcher, o.Metrics = kernelsAndGPUs{full, w.l}, g.metrics
	g.kernels = kernels.New(o, g.Gateway)
	g.models.kernels = g.kernels
	k := numbered(1)
	k.State, k.Flavor, k.Reason = api.Starting, "t4", "no node can take it"
	w.l.set(k, numbered(2))
	w.expect(admin(), "the start")
	for _, total := range []int{9, 10} {
		full.room["t4"] = launcher.GPURoom{Total: total}
		g.kernels = kernels.New(o, g.Gateway) // as if a second had passed
		g.models.kernels = g.kernels
		w.expect(admin(), "a change")
		if body := listedBody(t, g.Gateway, admin()); !strings.Contains(body, fmt.Sprintf("of at most %d kernels", total)) {
			t.Errorf("with room for %d: %s", total, body)
		}
	}
}

// kernelsAndGPUs is a fullLauncher with these kernels.
type kernelsAndGPUs struct {
	*fullLauncher
	*kernelSet
}

func (k kernelsAndGPUs) Kernels(ctx context.Context) ([]launcher.Kernel, error) {
	return k.kernelSet.Kernels(ctx)
}

func (k kernelsAndGPUs) KernelsFor(ctx context.Context, _ string, _ []string) ([]launcher.Kernel, error) {
	return k.kernelSet.Kernels(ctx)
}

// A job enters a kernel, goes on, and leaves it, while no kernel changes.
func TestModelList_Jobs(t *testing.T) {
	g := startUserGateway(t, nil)
	g.addShared()
	w := &listTest{t, g.Gateway, &kernelSet{}}
	all, err := g.fake.Kernels(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.l.set(all...)
	g.opts.Launcher = fixedKernels{g.opts.Launcher, w.l}
	w.expect(admin(), "the start")
	before := listedBody(t, g.Gateway, admin())
	got := g.do("POST", "/api/jobs", fmt.Sprintf(`{"notebook":{"nbformat":4,"nbformat_minor":5,"metadata":{},"cells":[`+
		`{"cell_type":"code","id":"c","metadata":{},"source":"1","outputs":[],"execution_count":null}]},"kernel":"%s"}`, idA),
		as("ann"))
	job := decode[struct{ ID string }](t, got.want(t, http.StatusCreated, ""))
	w.expect(admin(), "a job began")
	if body := listedBody(t, g.Gateway, admin()); body == before || !strings.Contains(body, `"job":{`) {
		t.Errorf("the list has no job: %s", body)
	}
	g.do("POST", "/api/jobs/"+job.ID+"/stop", "", as("ann"))
	for _, there := g.jobs.manager.KernelJob(idA); there; _, there = g.jobs.manager.KernelJob(idA) {
		runtime.Gosched() // until it has ended
	}
	w.expect(admin(), "the job ended")
	if body := listedBody(t, g.Gateway, admin()); body != before {
		t.Errorf("got  %swant %s", body, before)
	}
}

// Lists of several admins, while the kernels change, have all that was changed before their request.
func TestModelList_Concurrent(t *testing.T) {
	w := newListTest(t)
	const n = 50
	var mu sync.Mutex
	present := make([]launcher.Kernel, n)
	for i := range present {
		present[i] = numbered(i)
	}
	w.l.set(present...)
	var all sync.WaitGroup
	for mine := range 4 {
		all.Go(func() {
			for i := range 200 {
				if i%3 != 0 {
					mu.Lock()
					k := present[mine]
					k.Connections = i
					present = slices.Clone(present)
					present[mine] = k
					w.l.set(present...)
					mu.Unlock()
				}
				models := []api.Model{}
				if err := json.Unmarshal([]byte(listedBody(t, w.g, admin())), &models); err != nil || len(models) != n ||
					i%3 != 0 && models[mine].Connections != i {
					t.Errorf("%d: %v, %d models, %+v", i, err, len(models), models[mine])
				}
			}
		})
	}
	all.Wait()
}
