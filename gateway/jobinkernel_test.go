package gateway

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestJobs_InKernel: only the owner of a kernel submits a job in it, and the kernel survives its session then.
func TestJobs_InKernel(t *testing.T) {
	g := startUserGateway(t, nil)
	g.addShared()
	g.fake.add(idB, "python3", api.Dead)
	g.fake.change(func() { g.fake.kernels[idB].Owner = "ann" })
	body := func(kernel, more string) string {
		return fmt.Sprintf(`{"notebook":{"nbformat":4,"nbformat_minor":5,"metadata":{},"cells":[{"cell_type":"code","id":"c",`+
			`"metadata":{},"source":"1","outputs":[],"execution_count":null}]},"kernel":"%s"%s}`, kernel, more)
	}
	for _, a := range []struct {
		user, body string
		status     int
	}{
		{"rita", body(idA, ""), 403}, // may read
		{"uma", body(idA, ""), 403},  // may use
		{"bob", body(idA, ""), 404},
		{"ann", body(idUnknown, ""), 404},
		{"ann", body("../x", ""), 404},
		{"ann", body(idB, ""), 409},
		{"ann", body(idA, `,"flavor":"t4"`), 400},
		{"ann", body(idA, `,"env":{"A":"b"}`), 400},
		{"ann", body(idA, `,"kernelspec":"r"`), 400},
		{"ann", body(idA, `,"then":"forget"`), 400},
		{"ann", body(idA, `,"retries":1`), 400},
		{"ann", body(idA, `,"parameters":{"a":1}`), 400},
		{"ann", body(idA, `,"from_cell":0`), 400},
		{"ann", body(idA, `,"from_cell":2`), 400},
		{"ann", body(idA, `,"from_cell":"d"`), 400},
		{"ann", body(idA, `,"from_cell":["c"]`), 400},
		{"ann", body(idA, `,"from_cell":"c","env":{},"flavor":null,"then":"end"`), 201},
		{"ann", body(idA, ""), 409},
	} {
		got := g.do("POST", "/api/jobs", a.body, as(a.user))
		if got.StatusCode != a.status {
			t.Errorf("%s %s: %d %s, want %d", a.user, a.body[150:], got.StatusCode, got.body, a.status)
		}
		if a.status == 201 && (!strings.Contains(got.body, `"kernel_id":"`+idA) || !strings.Contains(got.body, `"then":"end"`) ||
			!strings.Contains(got.body, `"from_cell":1`)) {
			t.Errorf("the job is %s", got.body)
		}
	}
	begun := time.Now().Add(-time.Hour)
	g.fake.change(func() {
		held := launcher.Usage{Started: begun, GPUs: gpu.Whole(2)}
		g.fake.usage = []launcher.KernelUsage{{ID: idA, Owner: "ann", Usage: held}}
	})
	if got := kernels.GPUSecondsOf(g.fake.usage, idA, time.Time{}, begun.Add(time.Minute)); got != 120 {
		t.Errorf("GPU seconds of the kernel: %v", got)
	}
	if got := kernels.GPUSecondsOf(g.fake.usage, idA, begun.Add(time.Minute), begun.Add(90*time.Second)); got != 60 {
		t.Errorf("GPU seconds of a part of its life: %v", got)
	}
	if got := kernels.GPUSecondsOf(g.fake.usage, idB, time.Time{}, begun.Add(time.Minute)); got != 0 {
		t.Errorf("GPU seconds of another kernel: %v", got)
	}
	list := []jobs.Job{{State: jobs.Running, Kernel: idA, Started: begun.Add(time.Minute), GPUSeconds: 5},
		{State: jobs.Succeeded, Kernel: idA, Started: begun, GPUSeconds: 5},
		{State: jobs.Starting, Kernel: idA, GPUSeconds: 5}}
	g.jobs.addGPUSeconds(t.Context(), list)
	if list[0].GPUSeconds < 7205 || list[0].GPUSeconds > 7300 || list[1].GPUSeconds != 5 || list[2].GPUSeconds != 5 {
		t.Errorf("GPU seconds of jobs: %+v", list)
	}
	const job = `"job":{"id":"`
	for user, want := range map[string]bool{"ann": true, "rita": false, "uma": false} {
		for _, path := range []string{"/api/kernels", "/api/kernels/" + idA} {
			got := g.do("GET", path, "", as(user)).want(t, 200, idA)
			if strings.Contains(got.body, job) != want ||
				want && !strings.Contains(got.body, `"name":"notebook","cell":0,"cells":1}`) {
				t.Errorf("%s for %s: %s, want a job: %v", path, user, got.body, want)
			}
		}
	}
	scheduled := body(idA, `,"schedule":"0 6 * * *"`)
	if got := g.do("POST", "/api/jobs/definitions", scheduled, as("ann")); got.StatusCode != 400 {
		t.Errorf("a definition with a kernel: %d %s", got.StatusCode, got.body)
	}
	if got := g.do("DELETE", "/api/sessions/s1", "", as("ann")); got.StatusCode != 204 {
		t.Errorf("the session is not removed: %d %s", got.StatusCode, got.body)
	}
	if stopped := g.fake.stopped(); len(stopped) != 0 {
		t.Errorf("stopped were %v", stopped)
	}
	if got := g.do("GET", "/api/sessions/s1", "", as("ann")); got.StatusCode != 404 {
		t.Errorf("the session: %d %s", got.StatusCode, got.body)
	}
	var left []launcher.Session
	g.fake.change(func() { left = g.fake.kernels[idA].Sessions })
	if len(left) != 0 {
		t.Errorf("the kernel's sessions are %v", left)
	}
}
