//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// language is what TestChaos_Kernels says in a kernel's language.
type language struct {
	spec    string
	lines   string // prints "line 0" to "line N-1"; %d is N
	compute string // uses all of the kernel's thread for %d seconds, then prints "done"
	set     string // sets a variable
	get     string // prints it as "kept"
	fails   string // ends with an error

	interrupts bool // the kernel can be interrupted
	late       bool // its output may come after the cell has ended, and under the next cell
}

var languages = []language{
	{spec: "ipykernel6", lines: "for i in range(%d): print('line', i)", interrupts: true,
		compute: "import time\nend = time.time() + %d\nwhile time.time() < end: pass\nprint('done')",
		set:     "x = 'kept'", get: "print(x)", fails: "1 / 0"},
	{spec: "xpython", lines: "for i in range(%d): print('line', i)", interrupts: true,
		compute: "import time\nend = time.time() + %d\nwhile time.time() < end: pass\nprint('done')",
		set:     "x = 'kept'", get: "print(x)", fails: "1 / 0"},
	{spec: "ir", lines: "for (i in 0:(%d - 1)) cat('line ', i, '\\n', sep = '')", interrupts: true,
		compute: "end <- Sys.time() + %d\nwhile (Sys.time() < end) sqrt(2)\ncat('done\\n')",
		set:     "x <- 'kept'", get: "cat(x, '\\n', sep = '')", fails: "stop('no')"},
	{spec: "deno", late: true,
		lines:   "for (let i = 0; i < %d; i++) console.log('line ' + i)",
		compute: "{ const end = Date.now() + %d * 1000; while (Date.now() < end); console.log('done') }",
		set:     "globalThis.x = 'kept'; null", get: "console.log(globalThis.x)", fails: "throw new Error('no')"},
}

// TestChaos_Kernels: what ekg promises does not depend on ipykernel. IRkernel has one thread for everything, so it
// answers no heartbeat while it computes. Deno's kernel is written in Rust, and cannot be interrupted.
func TestChaos_Kernels(t *testing.T) {
	in := theInstallation(t)
	setup := exec.Command(filepath.Join(in.repository, "hack/env/setup"), "deno", "irkernel")
	if out, err := setup.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, l := range languages {
		t.Run(l.spec, func(t *testing.T) {
			g, p := withProxy(t)
			l.runs(t, g, g.kernel(l.spec))
			l.returns(t, g, p, g.kernel(l.spec))
			l.computes(t, g, g.kernel(l.spec))
			l.dies(t, g, g.kernel(l.spec))
		})
	}
}

// ok runs a cell and returns what it printed, which is a number of lines.
func (l language) ok(c *client, code string, lines int, limit time.Duration) string {
	c.t.Helper()
	cell, printed, replied, idle := c.begin(code), "", false, false
	done := func() bool { return replied && idle && (!l.late || strings.Count(printed, "\n") >= lines) }
	c.until(limit, "the end and the output of "+code, func(m message) bool {
		switch {
		case m.Header.MsgType == "stream" && (l.late || m.Parent.MsgID == cell):
			printed += m.field("text")
		case m.Parent.MsgID != cell:
		case m.Header.MsgType == "execute_reply":
			if replied = true; m.field("status") != "ok" {
				c.t.Errorf("%s was answered with %s", code, m.Content)
			}
		case m.field("execution_state") == "idle":
			idle = true
		}
		return done()
	})
	return printed
}

// running waits for a cell's execute_input. Its output may come much later: some kernels send it when the cell ends.
func (c *client) running(cell string) {
	c.t.Helper()
	c.until(time.Minute, "the cell runs", func(m message) bool {
		return m.Parent.MsgID == cell && m.Header.MsgType == "execute_input"
	})
}

// received returns how many messages have arrived.
func (r *returning) received() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.got)
}

func wantEvery(t *testing.T, what, got string, n int) {
	t.Helper()
	var want strings.Builder
	for i := range n {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	if got != want.String() {
		t.Errorf("%s: %d of %d lines: %.200q", what, strings.Count(got, "\n"), n, got)
	}
}

// runs: cells bring their output, in both framings, also after an error and a restart.
func (l language) runs(t *testing.T, g *gateway, id string) {
	for n, v1 := range []bool{true, false} {
		c := g.dial(t, id, fmt.Sprint("runs", n), v1)
		for range 20 {
			wantEvery(t, "a cell", l.ok(c, fmt.Sprintf(l.lines, 50), 50, time.Minute), 50)
		}
		if r := c.execute(l.fails, time.Minute); r.reply.field("status") != "error" {
			t.Errorf("the cell that fails was answered with %s", r.reply.Content)
		}
		l.ok(c, l.set, 0, time.Minute)
		if got := l.ok(c, l.get, 1, time.Minute); got != "kept\n" {
			t.Errorf("the variable is %q", got)
		}
		g.want(200, "POST", "/api/kernels/"+id+"/restart", "{}", nil)
		g.state(id, "idle", time.Minute)
		if r := c.execute(l.get, time.Minute); strings.Contains(r.stdout, "kept") {
			t.Errorf("after the restart the variable is %q", r.stdout)
		}
	}
	g.want(204, "DELETE", "/api/kernels/"+id, "", nil)
	g.noProcesses(id)
}

// returns: a page whose connection breaks while a cell prints gets every line.
func (l language) returns(t *testing.T, g *gateway, p *faultProxy, id string) {
	r := newReturning(t, p.through(g), id, subprotocolRelay, 5*time.Second)
	// xpython loses some of 300 lines itself, also to jupyter_client: a line is four messages, and its sockets hold 1,000.
	const lines = 100
	for range 10 {
		from := r.received()
		cell := r.begin(fmt.Sprintf(l.lines, lines))
		r.until(time.Minute, "some of the cell's output", func() bool {
			return r.has(func(m message) bool { return m.Parent.MsgID == cell })
		})
		for _, link := range p.live() {
			link.end()
		}
		printed := ""
		r.until(time.Minute, "the cell's end and its output", func() bool {
			printed = ""
			ends := 0
			for _, m := range r.got[from:] {
				switch {
				case m.Header.MsgType == "stream" && (l.late || m.Parent.MsgID == cell):
					printed += m.field("text")
				case m.Parent.MsgID == cell && (m.Header.MsgType == "execute_reply" || m.field("execution_state") == "idle"):
					ends++
				}
			}
			return ends == 2 && (!l.late || strings.Count(printed, "\n") >= lines)
		})
		wantEvery(t, "a cell whose connection broke", printed, lines)
	}
	g.want(204, "DELETE", "/api/kernels/"+id, "", nil)
	g.noProcesses(id)
}

// computes: a kernel that computes for longer than any heartbeat is waited for goes on. Then it is interrupted, if it
// can be, and shut down while it computes.
func (l language) computes(t *testing.T, g *gateway, id string) {
	c := g.dial(t, id, "computes", true)
	if got := l.ok(c, fmt.Sprintf(l.compute, 100), 1, 3*time.Minute); got != "done\n" {
		t.Errorf("after 100 s of computing: %q", got)
	}
	if l.interrupts {
		cell := c.begin(fmt.Sprintf(l.lines, 1) + "\n" + fmt.Sprintf(l.compute, 600))
		c.running(cell)
		g.want(204, "POST", "/api/kernels/"+id+"/interrupt", "{}", nil)
		if r := c.finish(cell, time.Minute); r.reply.field("status") == "ok" {
			t.Errorf("the interrupted cell was answered with %s", r.reply.Content)
		}
	}
	cell := c.begin(fmt.Sprintf(l.lines, 1) + "\n" + fmt.Sprintf(l.compute, 600))
	c.running(cell)
	began := time.Now()
	g.want(204, "DELETE", "/api/kernels/"+id, "", nil)
	t.Logf("shut down while it computed, in %v", time.Since(began).Round(10*time.Millisecond))
	g.noProcesses(id)
}

// dies: a killed kernel is restarted, its cell ends with the reason, and the next cell runs.
func (l language) dies(t *testing.T, g *gateway, id string) {
	c := g.dial(t, id, "dies", true)
	l.ok(c, l.set, 0, time.Minute)
	cell := c.begin(fmt.Sprintf(l.compute, 600))
	c.running(cell)
	leader := 0
	for _, p := range g.kernelProcesses(id) {
		pgid, err := syscall.Getpgid(p.pid)
		if err == nil && pgid == p.pid && !strings.Contains(p.cmdline, "ekg-supervisor") {
			leader = p.pid
		}
	}
	if leader == 0 {
		t.Fatalf("the kernel's process is not among %v", g.kernelProcesses(id))
	}
	kernel, err := os.FindProcess(leader)
	if err != nil {
		t.Fatal(err)
	}
	if err := kernel.Kill(); err != nil {
		t.Fatal(err)
	}
	if r := c.finish(cell, time.Minute); r.reply.field("ename") != "KernelDied" {
		t.Errorf("the cell of the killed kernel was answered with %s", r.reply.Content)
	}
	g.state(id, "idle", time.Minute)
	wantEvery(t, "after its death", l.ok(c, fmt.Sprintf(l.lines, 10), 10, time.Minute), 10)
	g.want(204, "DELETE", "/api/kernels/"+id, "", nil)
	g.noProcesses(id)
}

// TestChaos_Sizes: messages of a kernel around each limit arrive, or are replaced by a remark. The kernel keeps its
// variables, and later cells bring their output.
func TestChaos_Sizes(t *testing.T) {
	const part, whole, log = 256 << 20, 512 << 20, 100 << 20
	bin, err := released()
	if err != nil {
		t.Fatal(err)
	}
	g := prepare(t, "", fmt.Sprintf("--log-limit=%d", log))
	g.in.bin = bin
	g.start()
	id := g.kernel("python3")
	c := g.dial(t, id, "ann", true)
	c.says(`x = 7
def send(*sizes):
    kernel = get_ipython().kernel
    kernel.session.send(kernel.iopub_socket, 'display_data', {'data': {}, 'metadata': {}},
                        parent=kernel.get_parent(), buffers=[bytes(n) for n in sizes])
print(x)`, "7\n")
	for _, test := range []struct {
		sizes   string
		arrives bool
	}{
		{fmt.Sprint(log - 4096), true}, {fmt.Sprint(log), true}, {fmt.Sprint(log + 1), true},
		{fmt.Sprint(part - 1), true}, {fmt.Sprint(part), true}, {fmt.Sprint(part + 1), false},
		{fmt.Sprintf("%d, %d", part, part-65536), true}, {fmt.Sprintf("%d, %d", part, part), false},
		{fmt.Sprintf("%d, %d, %d", part, part, 1), false}, {fmt.Sprintf("%d, 1, %d", part+1, part+1), false},
		{fmt.Sprintf("*[1] * %d", 1000), true},
	} {
		began := time.Now()
		shown := countDisplays(t, c, c.begin("send("+test.sizes+")"), 3*time.Minute)
		remark := strings.Contains(shown.others, "A message of type display_data")
		if (shown.displays == 1) != test.arrives || remark == test.arrives {
			t.Errorf("buffers of %s bytes: %d displays arrived, and the cell says %q", test.sizes, shown.displays, shown.others)
		}
		t.Logf("buffers of %s bytes: %v", test.sizes, time.Since(began).Round(time.Millisecond))
		c.says("print(x)", "7\n")
	}
	// A client's message: nothing that is too large reaches the kernel, and the connection ends with a code.
	for _, size := range []int{whole - 65536, whole + 1} {
		d := g.dial(t, id, "bob", true)
		asked := d.send("shell", "kernel_info_request", "{}", func(m *message) { m.Buffers = [][]byte{make([]byte, size)} })
		if size <= whole {
			d.finish(asked, 2*time.Minute) // until then the kernel's queue has no room for another message
			d.says("print(x)", "7\n")
			continue
		}
		for range d.got { // until the gateway ends it
			continue
		}
		if !strings.Contains(fmt.Sprint(d.failed), "1009") {
			t.Errorf("a message of %d bytes ended its connection with %v", size, d.failed)
		}
	}
	c.says("print(x)", "7\n")
}
