package local

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/lend"
)

// lenderKernels is how many kernels the gateways of TestLend_Random start and stop.
const lenderKernels = 10

// lenderMain is a gateway that starts, stops and restarts kernels with GPUs at random until it is killed.
func lenderMain(state, runtime, program, seed string) int {
	go func() { // a test that panics or is killed cannot kill it
		_, _ = io.Copy(io.Discard, os.Stdin) // the test's end closes it; an error has the same meaning
		os.Exit(1)
	}()
	n, _ := strconv.ParseUint(seed, 10, 64) // the test wrote it
	random := rand.New(rand.NewPCG(n, 0))
	o := Options{StateDir: state, RuntimeDir: runtime, Supervisor: os.Args[0], GPUProgram: program,
		StopGrace: 100 * time.Millisecond}
	tm := realTiming()
	tm.lendPause, tm.maintenance = 20*time.Millisecond, 100*time.Millisecond
	l, err := open(context.Background(), o, tm)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	third := flavor.Flavor{Name: "third", Replica: &flavor.Replica{Replicas: 3}}
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		k := id(1 + random.IntN(lenderKernels))
		req := launcher.Request{ID: k, Owner: "ann", Spec: fakeSpec("fine"), Env: map[string]string{}}
		switch random.IntN(6) { // an error is the other gateway's doing, or that of the test
		case 0:
			req.Env[lend.CountVariable] = "2"
			_, _, _ = l.Start(ctx, req)
		case 1:
			req.Env[lend.CountVariable] = "1"
			_, _, _ = l.Start(ctx, req)
		case 2:
			req.Flavor = &third
			_, _, _ = l.Start(ctx, req)
		case 3:
			if done, err := l.Restarting(ctx, k); err == nil {
				done()
				_, _ = l.Revive(ctx, k)
			}
		default:
			_ = l.Stop(ctx, k, "at random")
		}
		cancel()
	}
}

// user is a process of a kernel that sees GPUs.
type user struct {
	pid    int
	kernel string
	gpu    string
	part   bool
}

// users returns the living processes of this test's kernels, one entry for each GPU that they see.
func users() (all []user) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil || !strings.Contains(string(b), "EKG_KERNEL_ID="+idPrefix) {
			continue
		}
		u := user{}
		u.pid, _ = strconv.Atoi(strings.Split(f, "/")[2])
		visible := ""
		for v := range strings.SplitSeq(string(b), "\x00") {
			name, value, _ := strings.Cut(v, "=")
			switch name {
			case "EKG_KERNEL_ID":
				u.kernel = value
			case lend.VisibleVariable:
				visible = value
			case lend.MemoryVariable:
				u.part = value != ""
			}
		}
		for _, u.gpu = range lend.Visible(visible) {
			all = append(all, u)
		}
	}
	return all
}

// conflict returns a text if kernels use a GPU at one time that may not.
func conflict(all []user) string {
	type use struct{ whole, parts map[string]bool }
	byGPU := map[string]use{}
	for _, u := range all {
		g, ok := byGPU[u.gpu]
		if !ok {
			g = use{map[string]bool{}, map[string]bool{}}
			byGPU[u.gpu] = g
		}
		if u.part {
			g.parts[u.kernel] = true
		} else {
			g.whole[u.kernel] = true
		}
	}
	for gpu, g := range byGPU {
		if len(g.whole) > 1 || len(g.whole) > 0 && len(g.parts) > 0 || len(g.parts) > 3 {
			return fmt.Sprintf("%s is used by %v alone and by %v in part", gpu, g.whole, g.parts)
		}
	}
	return ""
}

// overlap returns a conflict of processes that live at one time: those of the first look that the second finds too.
func overlap() string {
	if conflict(users()) == "" {
		return ""
	}
	// A process that was killed may take a moment.
	first := users()
	text := ""
	for range 5 {
		second := users()
		first = slices.DeleteFunc(first, func(u user) bool { return !slices.Contains(second, u) })
		if text = conflict(first); text == "" {
			return ""
		}
	}
	return text
}

// TestLend_Random: two gateways start, stop and restart kernels at random, while they, kernels and supervisors are
// killed. A GPU never has two kernels that want it alone. In the end all GPUs are free.
func TestLend_Random(t *testing.T) {
	p := newPlace(t)
	p.withGPUs(gpuJSON("GPU-a"), gpuJSON("GPU-b"), gpuJSON("GPU-c"))
	var o Options
	with := p.change
	with(&o, new(timing))
	p.change = func(o *Options, tm *timing) {
		with(o, tm)
		tm.halfMade, tm.maintenance = time.Millisecond, 20*time.Millisecond
	}
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	var gateways [2]*exec.Cmd
	begin := func(i int) {
		gateways[i] = exec.Command(os.Args[0], "lender", p.state, p.runtime, o.GPUProgram,
			strconv.FormatUint(random.Uint64(), 10))
		gateways[i].Stdout = &p.log
		_, err := gateways[i].StdinPipe() // Wait closes it
		if err == nil {
			err = gateways[i].Start()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	end := func(i int) {
		_ = gateways[i].Process.Kill() // it may have ended
		_ = gateways[i].Wait()
	}
	for i := range gateways {
		begin(i)
		t.Cleanup(func() { end(i) })
	}
	kills, most := 0, 0
	seen := map[string]bool{}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	enough := func() bool { return kills >= 40 && len(seen) >= 15 && most >= 3 }
	began := time.Now()
	for ; time.Since(began) < 5*time.Second || !enough() && time.Since(began) < 4*time.Minute; <-tick.C {
		if text := overlap(); text != "" {
			t.Fatal(text)
		}
		all := users()
		most = max(most, len(all))
		for _, u := range all {
			seen[u.kernel+u.gpu] = true
		}
		switch n := random.IntN(40); {
		case n < 2:
			end(n)
			begin(n)
			kills++
		case n < 6 && len(all) > 0:
			_ = syscall.Kill(all[random.IntN(len(all))].pid, syscall.SIGKILL) // it may have ended
			kills++
		case n < 10 && len(all) > 0:
			var ps processIDs
			kernel := all[random.IntN(len(all))].kernel
			if files.ReadJSON(filepath.Join(p.state, "kernels", kernel, processFile), &ps) == nil && ps.holder() > 1 {
				_ = syscall.Kill(ps.holder(), syscall.SIGKILL)
				kills++
			}
		}
	}
	for i := range gateways {
		end(i)
	}
	if !enough() {
		t.Errorf("%d kills, %d pairs of kernel and GPU, %d processes at one time: the test proves little", kills, len(seen),
			most)
	}
	t.Logf("%d kills, %d pairs of kernel and GPU, %d processes at one time", kills, len(seen), most)
	p.clear()
	l := p.open()
	t.Cleanup(func() { _ = l.Close() })
	poll.Until(t, "no GPU is held", func() bool { return len(held(t, l)) == 0 })
	if left := users(); len(left) > 0 {
		t.Errorf("processes are left: %+v", left)
	}
	poll.Until(t, "what killed gateways have left is removed", func() bool {
		kernels, err := os.ReadDir(filepath.Join(p.state, "kernels"))
		folders, rerr := os.ReadDir(p.runtime)
		return err == nil && rerr == nil && len(kernels) == 0 && len(folders) == 0
	})
	// The folder of a start may take longer than this launcher lets an unfinished one be.
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	p.change = with
	l = p.launcher()
	p.mustStart(l, 1, "3")
	wait(t, l, 1, "running", isIdle)
}
