package local

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// gpuJSON is a GPU as ekg-gpu lists it. MIG- instances follow its UUID.
func gpuJSON(uuid string, instances ...string) string {
	if len(instances) == 0 {
		return fmt.Sprintf(`{"uuid":%q,"model":"Tesla T4","memory_total":16384000000,"healthy":true}`, uuid)
	}
	var mig []string
	for _, i := range instances {
		mig = append(mig, fmt.Sprintf(`{"uuid":%q,"profile":"1g.10gb","memory_total":10240000000}`, i))
	}
	return fmt.Sprintf(`{"uuid":%q,"model":"A100","memory_total":81920000000,"mig_mode":true,"mig":[%s],"healthy":true}`,
		uuid, strings.Join(mig, ","))
}

// withGPUs gives the machine GPUs: ekg-gpu is a script that lists them. The returned function changes them.
func (p *place) withGPUs(gpus ...string) (set func(gpus ...string)) {
	p.t.Helper()
	dir := p.t.TempDir()
	file, program := filepath.Join(dir, "list"), filepath.Join(dir, "ekg-gpu")
	set = func(gpus ...string) {
		if err := os.WriteFile(file, []byte(`{"devices":[`+strings.Join(gpus, ",")+`]}`), 0o600); err != nil {
			p.t.Fatal(err)
		}
	}
	set(gpus...)
	script := "#!/bin/sh\n[ \"$1\" = list ] || exit 2\ncat " + file + "\n"
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		p.t.Fatal(err)
	}
	p.change = func(o *Options, tm *timing) {
		o.GPUProgram = program
		tm.lendPause = 20 * time.Millisecond
	}
	return set
}

// withGate makes the next launchers wait for their list of GPUs, and lend none, until openGate is called. Their time is
// later.
func (p *place) withGate(later *atomic.Int64) (openGate func()) {
	p.t.Helper()
	gate := filepath.Join(p.t.TempDir(), "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		p.t.Fatal(err)
	}
	with := p.change
	p.change = func(o *Options, tm *timing) {
		with(o, tm)
		slow := filepath.Join(filepath.Dir(gate), "ekg-gpu")
		script := "#!/bin/sh\nif [ -p " + gate + " ]; then read -r go < " + gate + "; rm " + gate + "; fi\nexec " +
			o.GPUProgram + " \"$@\"\n"
		if err := os.WriteFile(slow, []byte(script), 0o700); err != nil {
			p.t.Fatal(err)
		}
		o.GPUProgram = slow
		tm.now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	}
	return func() {
		p.t.Helper()
		if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *place) startGPU(l *Launcher, n int, gpus string, change ...func(*launcher.Request)) (launcher.Kernel, error) {
	p.t.Helper()
	req := launcher.Request{ID: id(n), Owner: "ann", Spec: fakeSpec("fine"), Env: map[string]string{}}
	if gpus != "" {
		req.Env["KERNEL_GPUS"] = gpus
	}
	for _, c := range change {
		c(&req)
	}
	k, _, err := l.Start(p.t.Context(), req)
	return k, err
}

func (p *place) mustStart(l *Launcher, n int, gpus string, change ...func(*launcher.Request)) launcher.Kernel {
	p.t.Helper()
	k, err := p.startGPU(l, n, gpus, change...)
	if err != nil {
		p.t.Fatal(err)
	}
	return k
}

func flavored(f flavor.Flavor) func(*launcher.Request) {
	return func(r *launcher.Request) { r.Flavor = &f }
}

// env returns a variable of a kernel's configuration.
func (p *place) env(n int, name string) string {
	p.t.Helper()
	var cfg api.Config
	if err := files.ReadJSON(filepath.Join(p.state, "kernels", id(n), configFile), &cfg); err != nil {
		p.t.Fatal(err)
	}
	return cfg.Env[name]
}

// held returns the GPUs with the numbers of their holders.
func held(t *testing.T, l *Launcher) map[string][]int {
	t.Helper()
	all, _, err := l.lender.Held(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m := map[string][]int{}
	for _, g := range all {
		for _, h := range g.Holders {
			var n int
			if _, err := fmt.Sscanf(h.Kernel[len(h.Kernel)-12:], "%d", &n); err != nil {
				t.Fatal(err)
			}
			m[g.UUID] = append(m[g.UUID], n)
		}
	}
	return m
}

func wantHeld(t *testing.T, l *Launcher, want map[string][]int) {
	t.Helper()
	if got := held(t, l); !maps.EqualFunc(got, want, slices.Equal) {
		t.Fatalf("GPUs are held by %v, not by %v", got, want)
	}
}

const waitsForOne = "it waits for a GPU: 2 of 2 are held by other kernels"
