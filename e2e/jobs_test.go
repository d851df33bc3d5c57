//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// notebookFile writes a notebook with one cell for each source, the first with the tag parameters.
func (g *gateway) notebookFile(name string, sources ...string) string {
	g.t.Helper()
	type cell map[string]any
	var cells []cell
	for i, source := range sources {
		tags := []string{}
		if i == 0 {
			tags = append(tags, "parameters")
		}
		cells = append(cells, cell{"cell_type": "code", "id": fmt.Sprintf("cell-%d", i), "source": source,
			"metadata": map[string]any{"tags": tags}, "outputs": []any{}, "execution_count": nil})
	}
	b, err := json.Marshal(map[string]any{"nbformat": 4, "nbformat_minor": 5, "cells": cells,
		"metadata": map[string]any{"kernelspec": map[string]any{"name": "python3", "display_name": "Python 3"}}})
	if err != nil {
		g.t.Fatal(err)
	}
	path := filepath.Join(g.dir, name)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		g.t.Fatal(err)
	}
	return path
}

// job is the part of a job that tests look at.
type job struct {
	ID      string `json:"id"`
	State   string `json:"state"`
	Reason  string `json:"reason"`
	Kernel  string `json:"kernel_id"`
	Attempt int    `json:"attempt"`
	Cell    int    `json:"cell"`
	Ended   string `json:"ended"`
}

func (g *gateway) job(id string) job {
	g.t.Helper()
	var j job
	g.want(200, "GET", "/api/jobs/"+id, "", &j)
	return j
}

// jobs lists all jobs.
func (g *gateway) jobs() (all []job) {
	g.t.Helper()
	g.want(200, "GET", "/api/jobs", "", &all)
	return all
}

// jobIs waits until a condition holds for a job.
func (g *gateway) jobIs(id, what string, limit time.Duration, ok func(job) bool) (j job) {
	g.t.Helper()
	g.eventually(limit, "job "+what, func() error {
		j = job{} // a member that is absent now
		status, b, err := g.tryAsk("GET", "/api/jobs/"+id, "")
		if err != nil || status != 200 || json.Unmarshal(b, &j) != nil || !ok(j) {
			return fmt.Errorf("%d %s %v", status, b, err)
		}
		return nil
	})
	return j
}

// submits runs `ekg run` and returns the job's id.
func (g *gateway) submits(args ...string) string {
	g.t.Helper()
	code, out, errs := g.prints(append([]string{"run"}, args...)...)
	if code != 0 {
		g.t.Fatalf("ekg run: %d\n%s%s", code, out, errs)
	}
	return strings.TrimSpace(out)
}

// slowly prints numbered lines, some for each second.
const slowly = "import time\nfor i in range(60):\n    print(name, i, flush=True)\n    time.sleep(0.1)\n"

func lines(name string) (all string) {
	for i := range 60 {
		all += fmt.Sprintln(name, i)
	}
	return all
}

// TestE2E_Jobs: a notebook runs as a job, and its author need not wait for it.
func TestE2E_Jobs(t *testing.T) {
	t.Parallel()
	g := newGateway(t, "--max-kernels=2")
	t.Run("from start to end", func(t *testing.T) { jobEnds(t, g) })
	t.Run("its command is interrupted", func(t *testing.T) { jobGoesOn(t, g) })
	t.Run("refused", func(t *testing.T) { jobsRefused(t, g) })
	t.Run("the gateway is killed", func(t *testing.T) { jobOutlivesGateway(t, g) })
	t.Run("the gateway ends during a start", func(t *testing.T) { jobStartsOnce(t, g) })
	t.Run("definitions", func(t *testing.T) { definitions(t, g) })
	t.Run("its kernel is killed", func(t *testing.T) { jobRetries(t, g) })
	t.Run("it begins again with a cell", func(t *testing.T) { jobRestartsFrom(t, g) })
	t.Run("it waits for a limit, and is stopped", func(t *testing.T) { jobWaits(t, g) })
}

func jobEnds(t *testing.T, g *gateway) {
	path := g.notebookFile("report.ipynb", "x = 1\nname = 'nobody'", "print(name, x)", "x * 2")
	out := filepath.Join(g.dir, "out.ipynb")
	code, id, errs := g.prints("run", path, "-p", "x", "21", "-r", "name", "7", "-o", out)
	id = strings.TrimSpace(id)
	if code != 0 || !strings.Contains(errs, "report: succeeded") {
		t.Fatalf("ekg run: %d\n%s%s", code, id, errs)
	}
	b, err := os.ReadFile(out)
	if err != nil || !strings.Contains(string(b), `"7 21\n"`) || !strings.Contains(string(b), `"text/plain": "42"`) &&
		!strings.Contains(string(b), `"42"`) {
		t.Errorf("the notebook: %s, %v", b, err)
	}
	if code, logs, errs := g.prints("jobs", "logs", id[:8]); code != 0 || logs != "7 21\n42\n" {
		t.Errorf("ekg jobs logs: %d, %q, %s", code, logs, errs)
	}
	if code, list, _ := g.prints("jobs"); code != 0 || !strings.Contains(list, "succeeded") {
		t.Errorf("ekg jobs: %d\n%s", code, list)
	}
	g.eventually(10*time.Second, "the job's kernel has ended", func() error {
		if code, list, _ := g.prints("ps"); code != 0 || list != "No kernels.\n" {
			return errors.New(list)
		}
		return nil
	})
	if code, _, errs := g.prints("run", g.notebookFile("bad.ipynb", "1/0", "print('never')"), "--follow"); code != 1 ||
		!strings.Contains(errs, "cell 1: ZeroDivisionError: division by zero") {
		t.Errorf("a job that fails: %d\n%s", code, errs)
	}
	once := g.submits(path, "--once", "today")
	if again := g.submits(path, "--once", "today"); again != once {
		t.Errorf("one token made the jobs %s and %s", once, again)
	}
	g.jobIs(once, "has ended", 30*time.Second, func(j job) bool { return j.State == "succeeded" })
	if code, _, errs := g.prints("jobs", "rm", once, id); code != 0 {
		t.Errorf("ekg jobs rm: %d %s", code, errs)
	}
	g.want(404, "GET", "/api/jobs/"+once, "", nil)
}

// jobGoesOn: Ctrl-C ends the command that follows a job. The job goes on, and the command has said how to come back.
func jobGoesOn(t *testing.T, g *gateway) {
	free := filepath.Join(g.dir, "free")
	const waits = "import os, time\nwhile not os.path.exists(free):\n    time.sleep(0.1)"
	path := g.notebookFile("follow.ipynb", "free = ''", waits, "print('ends')")
	cmd := g.command("run", path, "-r", "free", free, "--follow")
	shown, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	var said []string
	lines := bufio.NewScanner(shown)
	for lines.Scan() {
		said = append(said, lines.Text())
		if strings.HasSuffix(lines.Text(), "follow: running, cell 3 of 4") {
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, id, found := strings.Cut(strings.Join(said, "\n"), "the job goes on. To come back: ekg jobs follow ")
	if err := cmd.Wait(); err == nil || !found {
		t.Fatalf("%v: %q", err, said)
	}
	g.jobIs(id, "runs", time.Second, func(j job) bool { return j.State == "running" })
	if err := os.WriteFile(free, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := g.prints("jobs", "follow", id); code != 0 || !strings.Contains(errs, "follow: succeeded") {
		t.Errorf("ekg jobs follow: %d\n%s", code, errs)
	}
}

func jobsRefused(t *testing.T, g *gateway) {
	empty := `{"nbformat":4,"nbformat_minor":5,"metadata":{},"cells":[]}`
	for body, status := range map[string]int{
		`{}`:                               400,
		`{"notebook":[]}`:                  400,
		`{"notebook":{"nbformat":3}}`:      400,
		`{"notebook":` + empty + `,"x":1}`: 201,
		`{"notebook":` + empty + `,"kernelspec":"nope"}`:                       404,
		`{"notebook":` + empty + `,"flavor":"t4"}`:                             400,
		`{"notebook":` + empty + `,"retries":-1}`:                              400,
		`{"notebook":` + empty + `,"timeout":"1"}`:                             400,
		`{"notebook":` + empty + `,"parameters":{"a b":1}}`:                    400,
		`{"notebook":` + empty + `,"name":"` + strings.Repeat("x", 301) + `"}`: 400,
	} {
		if got, b := g.ask("POST", "/api/jobs", body); got != status {
			t.Errorf("%.100s: %d %s, want %d", body, got, b, status)
		}
	}
	for _, id := range []string{"../x", "00000000-0000-0000-0000-000000000000"} {
		if got, b := g.ask("GET", "/api/jobs/"+id, ""); got != 404 {
			t.Errorf("job %s: %d %s", id, got, b)
		}
	}
}

// jobOutlivesGateway: the gateway that holds a job is killed while a cell runs, then another one is ended in order.
func jobOutlivesGateway(t *testing.T, g *gateway) {
	other := *g
	other.addr = freeAddress(t, "127.0.0.1")
	other.url = "http://" + other.addr
	id := g.submits(g.notebookFile("slow.ipynb", "name = 'a'", slowly, "print('end', i)"))
	running := func(j job) bool { return j.State == "running" && j.Cell == 2 }
	kernel := g.jobIs(id, "runs its second cell", 30*time.Second, running).Kernel
	g.kill()
	other.start()
	t.Cleanup(func() { _ = other.signal(syscall.SIGTERM) })
	g.start()
	j := other.jobIs(id, "has ended", 90*time.Second, func(j job) bool { return j.State == "succeeded" })
	if j.Kernel != kernel || j.Attempt != 1 {
		t.Errorf("the job ran in the kernel %s, attempt %d; it began in %s", j.Kernel, j.Attempt, kernel)
	}
	if code, logs, errs := g.prints("jobs", "logs", id); code != 0 || logs != lines("a")+"end 59\n" {
		t.Errorf("%d, %s\nthe outputs are\n%s", code, errs, logs)
	}
}

// definitions: a schedule makes a job while the test watches, and is paused, resumed, run by hand and removed.
func definitions(t *testing.T, g *gateway) {
	path := g.notebookFile("daily.ipynb", "x = 1", "print('x is', x)")
	for _, args := range [][]string{
		{"--schedule", "61 * * * *"}, {"--schedule", "* * * * *", "--timezone", "Mars/Base"}, {"--timezone", "UTC"},
		{"--schedule", "* * * * *", "--follow"},
	} {
		if code, out, _ := g.prints(append([]string{"run", path}, args...)...); code == 0 {
			t.Errorf("ekg run %q: %s", args, out)
		}
	}
	id := g.submits(path, "--schedule", "* * * * *", "--timezone", "Europe/Berlin", "-p", "x", "5")
	calls := func(args ...string) string {
		t.Helper()
		code, out, errs := g.prints(append([]string{"jobs", "definitions"}, args...)...)
		if code != 0 {
			t.Errorf("ekg jobs definitions %q: %d %s", args, code, errs)
		}
		return out
	}
	var made []job
	g.eventually(90*time.Second, "the schedule has made a job", func() error {
		g.want(200, "GET", "/api/jobs?state=succeeded&definition="+id, "", &made)
		if len(made) == 0 {
			return errors.New(calls())
		}
		return nil
	})
	if code, logs, errs := g.prints("jobs", "logs", made[0].ID); code != 0 || logs != "x is 5\n" {
		t.Errorf("ekg jobs logs: %d, %q, %s", code, logs, errs)
	}
	calls("pause", id[:8])
	if list := calls(); !strings.Contains(list, "paused") || !strings.Contains(list, "Europe/Berlin") {
		t.Error(list)
	}
	byHand := strings.TrimSpace(calls("run", id[:8]))
	g.jobIs(byHand, "has ended", 30*time.Second, func(j job) bool { return j.State == "succeeded" })
	g.want(400, "PATCH", "/api/jobs/definitions/"+id, `{"schedule": "often"}`, nil)
	g.want(400, "PATCH", "/api/jobs/definitions/"+id, `{"active": 1}`, nil)
	g.want(200, "PATCH", "/api/jobs/definitions/"+id, `{"name": "new", "parameters": {"x": 6}}`, nil)
	calls("resume", id[:8])
	if list := calls(); !strings.Contains(list, "active") || !strings.Contains(list, "new") {
		t.Error(list)
	}
	calls("rm", id)
	g.want(404, "GET", "/api/jobs/definitions/"+id, "", nil)
	g.want(200, "GET", "/api/jobs/"+byHand, "", nil)
}

func jobRetries(t *testing.T, g *gateway) {
	path := g.notebookFile("dies.ipynb", "import os\nmark = ''", "if not os.path.exists(mark):\n"+
		"    open(mark, 'w').close()\n    os.kill(os.getpid(), 9)", "print('survived')")
	mark := filepath.Join(g.dir, "mark")
	id := g.submits(path, "--retries", "1", "-p", "mark", mark)
	ended := func(j job) bool { return j.State == "succeeded" || j.State == "failed" }
	j := g.jobIs(id, "has ended", 60*time.Second, ended)
	if _, logs, _ := g.prints("jobs", "logs", id); j.State != "succeeded" || j.Attempt != 2 || logs != "survived\n" {
		t.Errorf("%+v, %q", j, logs)
	}
	if err := os.Remove(mark); err != nil {
		t.Fatal(err)
	}
	id = g.submits(path, "-p", "mark", mark)
	if j := g.jobIs(id, "has failed", 60*time.Second, func(j job) bool { return j.State == "failed" }); j.Attempt != 1 ||
		!strings.Contains(j.Reason, "cell 3: ") {
		t.Errorf("without retries: %+v", j)
	}
}

func jobWaits(t *testing.T, g *gateway) {
	kernels := []string{g.kernel("python3"), g.kernel("python3")}
	path := g.notebookFile("waits.ipynb", "name = 'w'", slowly)
	id := g.submits(path)
	g.jobIs(id, "waits", 30*time.Second, func(j job) bool { return j.State == "queued" && j.Reason != "" })
	queued := g.submits(path)
	if code, _, errs := g.prints("jobs", "stop", queued); code != 0 {
		t.Errorf("ekg jobs stop: %d %s", code, errs)
	}
	g.jobIs(queued, "is stopped", 20*time.Second, func(j job) bool { return j.State == "stopped" })
	g.want(409, "DELETE", "/api/jobs/"+id, "", nil)
	for _, k := range kernels {
		g.want(204, "DELETE", "/api/kernels/"+k, "", nil)
	}
	g.jobIs(id, "runs", 40*time.Second, func(j job) bool { return j.State == "running" && j.Cell == 2 })
	if code, _, errs := g.prints("jobs", "stop", id); code != 0 {
		t.Errorf("ekg jobs stop: %d %s", code, errs)
	}
	g.jobIs(id, "is stopped", 20*time.Second, func(j job) bool { return j.State == "stopped" })
	if _, logs, _ := g.prints("jobs", "logs", id); !strings.HasPrefix(logs, "w 0\n") || strings.Contains(logs, "w 59\n") {
		t.Errorf("the outputs of a stopped job are\n%s", logs)
	}
}

// TestChaos_Jobs: gateways are killed while fifty jobs run, each directly after one of twenty writes of their records,
// by chance. Each job ends once, with the right outputs. A gateway lives for 30 s: it takes the jobs of a killed one
// after 20 s.
func TestChaos_Jobs(t *testing.T) {
	g := newGateway(t, "--max-kernels=6")
	other := *g
	other.addr = freeAddress(t, "127.0.0.1")
	other.url = "http://" + other.addr
	other.start()
	t.Cleanup(func() { _ = other.signal(syscall.SIGTERM) })
	random := rand.New(rand.NewPCG(seed(t), 0))
	g.fiftyJobs(15*time.Second, func(n int) {
		victim := []*gateway{g, &other}[n%2]
		g.awaitWrites(1 + random.IntN(20))
		victim.kill()
		victim.start()
	})
	for _, j := range g.jobs() {
		if j.Attempt != 1 {
			t.Errorf("job %s has %d attempts", j.ID, j.Attempt)
		}
	}
}

// awaitWrites returns directly after the n-th write of the records of jobs from now on: of a record, a piece or a
// lease, or the removal of one. It returns after 10 seconds if there are fewer.
func (g *gateway) awaitWrites(n int) {
	g.t.Helper()
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		g.t.Error(err)
		return
	}
	events := os.NewFile(uintptr(fd), "inotify")
	defer func() { _ = events.Close() }() // it was only read
	for _, kind := range []string{"jobs", "job-notebooks", "job-leases"} {
		dir := filepath.Join(g.dir, "state", "records", kind)
		err := os.MkdirAll(dir, 0o700)
		if err == nil {
			_, err = syscall.InotifyAddWatch(fd, dir, syscall.IN_MOVED_TO|syscall.IN_DELETE)
		}
		if err != nil {
			g.t.Error(err)
			return
		}
	}
	if err := events.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		g.t.Error(err)
		return
	}
	for b := make([]byte, 4096); n > 0; {
		size, err := events.Read(b)
		if err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				g.t.Error(err)
			}
			return
		}
		for left := b[:size]; len(left) >= syscall.SizeofInotifyEvent; n-- {
			left = left[syscall.SizeofInotifyEvent+binary.NativeEndian.Uint32(left[12:]):]
		}
	}
}

// fiftyJobs runs fifty jobs, and calls disturb again and again until all have ended. It checks that each has succeeded,
// with the right outputs.
func (g *gateway) fiftyJobs(every time.Duration, disturb func(n int), args ...string) {
	g.t.Helper()
	path := g.notebookFile("many.ipynb", "name = 'x'", "print(name, 'begins')",
		"import time\nfor i in range(5):\n    print(name, i, flush=True)\n    time.sleep(0.2)", "print(name, 'ends')")
	var ids []string
	for i := range 50 {
		own := []string{path, "-r", "name", fmt.Sprintf("n%d", i)}
		ids = append(ids, g.submits(append(own, args...)...))
	}
	ctx, cancel := context.WithCancel(g.t.Context())
	var disturbing sync.WaitGroup
	disturbing.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-time.After(every):
			}
			disturb(n)
		}
	})
	err := poll(10*time.Minute, "all jobs have ended", func() error {
		left := slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
			status, b, err := g.tryAsk("GET", "/api/jobs/"+id, "")
			var j job
			return err == nil && status == 200 && json.Unmarshal(b, &j) == nil && j.Ended != ""
		})
		if len(left) > 0 {
			return fmt.Errorf("%d jobs have not ended", len(left))
		}
		return nil
	})
	cancel()
	disturbing.Wait()
	if err != nil {
		g.t.Fatal(err)
	}
	for i, id := range ids {
		name := fmt.Sprintf("n%d", i)
		want := name + " begins\n"
		for n := range 5 {
			want += fmt.Sprintln(name, n)
		}
		if code, logs, errs := g.prints("jobs", "logs", id); code != 0 || logs != want+name+" ends\n" {
			g.t.Errorf("job %d: %d %s\n%s", i, code, errs, logs)
		}
		if j := g.job(id); j.State != "succeeded" {
			g.t.Errorf("job %d: %+v", i, j)
		}
	}
}
