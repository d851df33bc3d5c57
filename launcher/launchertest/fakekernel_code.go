package launchertest

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// execution is the handling of one request.
type execution struct {
	// Fixed.
	k       *FakeKernel
	r       request
	channel jupyter.Channel

	// Owned by the goroutine that handles the request.
	count      int  // execution_count
	silent     bool // nothing is published
	allowStdin bool
	loseIdle   bool
	finally    string // a file that an interrupt of the cell creates; "": none
	after      func() // called after idle
	then       string // a command that is run after idle; "": none
}

// failure is how a cell fails: ename and evalue.
type failure struct{ name, value string }

func (f *failure) Error() string { return f.name + ": " + f.value }

var errInterrupted = &failure{"KeyboardInterrupt", ""}

// errEnded says that the kernel is ending: no reply follows.
var errEnded = errors.New("kernel has ended")

// execute runs a cell.
func (x *execution) execute() {
	var c struct {
		Code       string `json:"code"`
		Silent     bool   `json:"silent"`
		AllowStdin bool   `json:"allow_stdin"`
	}
	if json.Unmarshal(x.r.msg.Content, &c) != nil {
		return
	}
	ctx, cancel := context.WithCancelCause(x.k.ctx)
	defer cancel(nil)
	x.silent, x.allowStdin = c.Silent, c.AllowStdin
	x.k.mu.Lock()
	if !c.Silent {
		x.k.executed++
	}
	x.count = x.k.executed
	main := x.r.header.Subshell == ""
	if main {
		x.k.interrupt = cancel
	}
	x.k.mu.Unlock()
	x.publish("execute_input", content{"code": c.Code, "execution_count": x.count})
	if main {
		x.k.running.Lock()
	}
	err := x.run(ctx, c.Code)
	if errors.Is(err, errInterrupted) && x.finally != "" {
		if ferr := os.WriteFile(x.finally, nil, 0o600); ferr != nil {
			err = &failure{"OSError", ferr.Error()}
		}
	}
	if main {
		x.k.running.Unlock()
		x.k.mu.Lock()
		x.k.interrupt = nil
		x.k.mu.Unlock()
	}
	if err == nil {
		x.reply("execute_reply", content{"execution_count": x.count, "payload": []any{}, "user_expressions": content{}})
		return
	}
	var f *failure
	if !errors.As(err, &f) {
		x.loseIdle = true // the kernel is ending
		return
	}
	e := content{"ename": f.name, "evalue": f.value, "traceback": []string{f.Error()}}
	x.publish("error", e)
	x.reply("execute_reply", content{"status": "error", "execution_count": x.count, "ename": f.name, "evalue": f.value,
		"traceback": []string{f.Error()}})
}

func (x *execution) publish(msgType string, c content) {
	if !x.silent {
		x.k.publish(msgType, x.r.msg.Header, c, nil)
	}
}

func (x *execution) stream(name, text string) {
	x.publish("stream", content{"name": name, "text": text})
}

func (x *execution) result(text string) {
	x.publish("execute_result",
		content{"data": content{"text/plain": text}, "metadata": content{}, "execution_count": x.count})
}

// run executes the commands of a cell until one fails.
func (x *execution) run(ctx context.Context, code string) error {
	for line := range strings.Lines(code) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") || x.k.opts.Python && strings.HasPrefix(line, "exec(") {
			continue
		}
		if err := stopped(ctx); err != nil {
			return err
		}
		name, rest, _ := strings.Cut(line, " ")
		command, ok := commands[name]
		if !ok {
			return &failure{"NameError", fmt.Sprintf("name '%s' is not defined", name)}
		}
		if err := command(x, ctx, rest); err != nil {
			return err
		}
	}
	return stopped(ctx)
}

// stopped returns the reason why a cell cannot go on, or nil.
func stopped(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	var f *failure
	if cause := context.Cause(ctx); errors.As(cause, &f) {
		return f
	}
	return errEnded
}

func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return stopped(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return stopped(ctx)
	}
}

// commands are the commands of cells; the package comment describes them.
var commands = map[string]func(x *execution, ctx context.Context, rest string) error{
	"print":  (*execution).print,
	"echo":   func(x *execution, _ context.Context, rest string) error { x.stream("stdout", rest+"\n"); return nil },
	"stderr": func(x *execution, _ context.Context, rest string) error { x.stream("stderr", rest+"\n"); return nil },
	"result": func(x *execution, _ context.Context, rest string) error { x.result(rest); return nil },
	"pid": func(x *execution, _ context.Context, _ string) error {
		x.result(strconv.Itoa(os.Getpid()))
		return nil
	},
	"complain":   (*execution).complain,
	"flood":      (*execution).flood,
	"big":        (*execution).big,
	"show":       (*execution).show,
	"buffers":    (*execution).buffers,
	"set":        (*execution).set,
	"get":        (*execution).get,
	"sleep":      (*execution).sleep,
	"finally":    func(x *execution, _ context.Context, rest string) error { x.finally = rest; return nil },
	"then":       func(x *execution, _ context.Context, rest string) error { x.then = rest; return nil },
	"input":      func(x *execution, ctx context.Context, rest string) error { return x.ask(ctx, rest, false) },
	"password":   func(x *execution, ctx context.Context, rest string) error { return x.ask(ctx, rest, true) },
	"error":      func(*execution, context.Context, string) error { return &failure{"ValueError", "as asked"} },
	"background": (*execution).background,
	"lose":       (*execution).lose,
	"garbage":    (*execution).garbage,
	"claim":      (*execution).claim,
	"exit":       (*execution).exit,
	"crash":      func(x *execution, _ context.Context, _ string) error { x.k.leave(-9); return errEnded },
	"hang":       func(x *execution, _ context.Context, _ string) error { <-x.k.ctx.Done(); return errEnded },
}

// number reads N with a decimal suffix k, m or g.
func number(s string) (int, error) {
	factor := 1
	switch {
	case strings.HasSuffix(s, "k"):
		factor = 1e3
	case strings.HasSuffix(s, "m"):
		factor = 1e6
	case strings.HasSuffix(s, "g"):
		factor = 1e9
	}
	n, err := strconv.Atoi(strings.TrimRight(s, "kmg"))
	if err != nil || n < 0 {
		return 0, &failure{"SyntaxError", fmt.Sprintf("%q is no number", s)}
	}
	return n * factor, nil
}

// series reads "N" or "N every D".
func series(rest string) (n int, every time.Duration, err error) {
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0, 0, &failure{"SyntaxError", "a number is missing"}
	}
	if n, err = number(fields[0]); err != nil {
		return 0, 0, err
	}
	if len(fields) > 1 {
		if len(fields) != 3 || fields[1] != "every" {
			return 0, 0, &failure{"SyntaxError", fmt.Sprintf("%q is not N every D", rest)}
		}
		if every, err = time.ParseDuration(fields[2]); err != nil {
			return 0, 0, &failure{"SyntaxError", err.Error()}
		}
	}
	return n, every, nil
}

// numbered publishes n messages. Their content is a template with a running number in it.
func (x *execution) numbered(
	ctx context.Context, msgType, before string, after []byte, n int, every time.Duration,
) error {
	var b, body []byte
	for i := range n {
		if i > 0 && every > 0 {
			if err := wait(ctx, every); err != nil {
				return err
			}
		} else if err := stopped(ctx); err != nil {
			return err
		}
		if !x.silent {
			body = strconv.AppendInt(append(body[:0], before...), int64(i), 10)
			b = x.k.publishParts(b[:0], msgType, x.r.msg.Header, body, after)
		}
	}
	return nil
}

func (x *execution) print(ctx context.Context, rest string) error {
	n, every, err := series(rest)
	if err != nil {
		return err
	}
	return x.numbered(ctx, "stream", `{"name":"stdout","text":"`, []byte(`\n"}`), n, every)
}

func (x *execution) flood(ctx context.Context, rest string) error {
	rest, of, _ := strings.Cut(rest, " of ")
	n, every, err := series(rest)
	if err != nil {
		return err
	}
	size := 0
	if of != "" {
		if size, err = number(of); err != nil {
			return err
		}
	}
	return x.numbered(ctx, "display_data", `{"data":{"text/plain":"`, x.k.filler(size), n, every)
}

// filler returns the end of a display_data with size bytes of text. The last one is kept, since a benchmark asks for
// the same size again.
func (k *FakeKernel) filler(size int) []byte {
	const end = `"},"metadata":{},"transient":{}}`
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.filled) != size+len(end) {
		b := make([]byte, size, size+len(end))
		for i := range b {
			b[i] = 'x'
		}
		k.filled = append(b, end...)
	}
	return k.filled
}

func (x *execution) background(_ context.Context, rest string) error {
	n, every, err := series(rest)
	if err != nil {
		return err
	}
	later := *x
	x.k.spawn(func() {
		if wait(x.k.ctx, every) == nil {
			// it ends with the kernel
			_ = later.numbered(x.k.ctx, "stream", `{"name":"stdout","text":"`, []byte(`\n"}`), n, every)
		}
	})
	return nil
}

func (x *execution) big(_ context.Context, rest string) error {
	n, err := number(rest)
	if err != nil {
		return err
	}
	const before, after = `{"data":{"text/plain":"`, `"},"metadata":{},"transient":{}}`
	body := make([]byte, 0, len(before)+n+len(after))
	body = append(body, before...)
	body = append(body, bytes.Repeat([]byte("x"), n)...)
	x.k.publishRaw("display_data", x.r.msg.Header, append(body, after...), nil)
	return nil
}

func (x *execution) show(_ context.Context, rest string) error {
	body := []byte(`{"data":{"application/json":` + rest + `},"metadata":{},"transient":{}}`)
	x.k.publishRaw("display_data", x.r.msg.Header, body, nil)
	return nil
}

func (x *execution) buffers(_ context.Context, rest string) error {
	n, err := number(rest)
	if err != nil {
		return err
	}
	buffer := make([]byte, n)
	for i := range buffer {
		buffer[i] = byte(i) // not valid UTF-8
	}
	x.k.publish("comm_msg", x.r.msg.Header, content{"comm_id": "fake", "data": content{"size": n}}, [][]byte{buffer})
	return nil
}

func (x *execution) complain(_ context.Context, rest string) error {
	if _, err := fmt.Fprintln(x.k.opts.Stderr, rest); err != nil {
		return &failure{"OSError", err.Error()}
	}
	return nil
}

func (x *execution) set(_ context.Context, rest string) error {
	name, value, _ := strings.Cut(rest, " ")
	x.k.mu.Lock()
	defer x.k.mu.Unlock()
	x.k.variables[name] = value
	return nil
}

func (x *execution) get(_ context.Context, rest string) error {
	x.k.mu.Lock()
	value, ok := x.k.variables[rest]
	x.k.mu.Unlock()
	if !ok {
		return &failure{"NameError", fmt.Sprintf("name '%s' is not defined", rest)}
	}
	x.result(value)
	return nil
}

func (x *execution) sleep(ctx context.Context, rest string) error {
	d, err := time.ParseDuration(rest)
	if err != nil {
		return &failure{"SyntaxError", err.Error()}
	}
	return wait(ctx, d)
}

// ask sends an input_request to the client that sent the cell. Earlier answers are dropped.
func (x *execution) ask(ctx context.Context, prompt string, password bool) error {
	if !x.allowStdin {
		return &failure{
			"StdinNotImplementedError",
			"raw_input was called, but this frontend does not support input requests.",
		}
	}
	for len(x.k.answers) > 0 {
		<-x.k.answers
	}
	m := x.k.message(jupyter.Stdin, "input_request", x.r.msg.Header,
		encode(content{"prompt": prompt, "password": password}))
	x.k.stdin.sendTo(x.r.identity, m.Frames(x.k.signer))
	select {
	case a := <-x.k.answers:
		x.stream("stdout", a.value+"\n")
		return nil
	case <-ctx.Done():
		return stopped(ctx)
	}
}

func (x *execution) lose(_ context.Context, rest string) error {
	if rest == "idle" {
		x.loseIdle = true
		return nil
	}
	n, err := number(rest)
	if err != nil {
		return err
	}
	x.k.counter.Add(int64(n))
	return nil
}

// garbage publishes three messages that clients should reject.
func (x *execution) garbage(context.Context, string) error {
	m := x.k.message(jupyter.IOPub, "stream", x.r.msg.Header, []byte(`{"name":"stdout","text":"forged"}`))
	good := m.Frames(x.k.signer)
	forged := append([][]byte(nil), good...)
	forged[1] = bytes.Repeat([]byte("0"), 64)
	for _, frames := range [][][]byte{{[]byte("no"), []byte("delimiter")}, forged, good[:4]} {
		x.k.iopub.publish("garbage", encodeMessage([]byte("garbage"), frames))
	}
	return nil
}

func (x *execution) claim(_ context.Context, rest string) error {
	n, err := number(rest)
	if err != nil {
		return err
	}
	x.k.iopub.publish("claim", binary.BigEndian.AppendUint64([]byte{flagLong}, uint64(n)))
	return nil
}

func (x *execution) exit(_ context.Context, rest string) error {
	code, err := strconv.Atoi(rest)
	if err != nil {
		return &failure{"SyntaxError", fmt.Sprintf("%q is no exit code", rest)}
	}
	x.k.leave(code)
	return errEnded
}
