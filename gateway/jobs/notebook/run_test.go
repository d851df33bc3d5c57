package notebook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// script is a kernel whose answers a test has written: for each cell, what it does with reply. It is a Conn.
type script struct {
	t           *testing.T
	cells       map[string]func(k *kernelCell) // by source
	log         []jupyter.Message              // everything that the kernel has sent, in order
	next        int                            // in log
	seen        []string                       // msg_ids of requests that ran
	told        []jupyter.Message              // outputs of widgets from the run
	states      map[string]any                 // of widgets, by comm: what a request_state gets
	asked       []string                       // comms
	mute        bool                           // messages of comms get no answer and no idle
	interrupts  int
	onInterrupt func(k *kernelCell)
	last        *kernelCell
	gone        error
	alarm       <-chan time.Time
	late        func() // what the kernel does at the alarm
}

// kernelCell sends messages about one request.
type kernelCell struct {
	s      *script
	parent []byte
	count  int
}

func (k *kernelCell) send(channel jupyter.Channel, msgType string, content any) {
	k.s.log = append(k.s.log, jupyter.New(channel, msgType, "kernel", k.parent, content))
}

func (k *kernelCell) pub(msgType string, content any) { k.send(jupyter.IOPub, msgType, content) }

func (k *kernelCell) print(name, text string) {
	k.pub("stream", map[string]any{"name": name, "text": text})
}

func (k *kernelCell) state(state string) { k.pub("status", map[string]any{"execution_state": state}) }

// end sends reply and idle. ename is "" for success.
func (k *kernelCell) end(ename, evalue string) {
	reply := map[string]any{"status": "ok", "execution_count": k.count}
	if ename != "" {
		reply = map[string]any{"status": "error", "ename": ename, "evalue": evalue, "traceback": []string{}}
		k.pub("error", map[string]any{"ename": ename, "evalue": evalue, "traceback": []string{"line"}})
	}
	k.send(jupyter.Shell, "execute_reply", reply)
	k.state("idle")
}

func (s *script) Send(_ context.Context, m jupyter.Message) error {
	own, _ := headers(&m)
	if slices.Contains(s.seen, own.MsgID) {
		return nil
	}
	s.seen = append(s.seen, own.MsgID)
	if own.MsgType == "comm_msg" {
		s.comm(m)
		return nil
	}
	k := &kernelCell{s: s, parent: m.Header, count: len(s.seen) - 1}
	s.last = k
	if own.MsgType == "kernel_info_request" {
		k.send(jupyter.Shell, "kernel_info_reply", map[string]any{"language_info": map[string]string{"name": "python"}})
		return nil
	}
	var c struct {
		Code       string `json:"code"`
		AllowStdin bool   `json:"allow_stdin"`
	}
	if err := json.Unmarshal(m.Content, &c); err != nil || c.AllowStdin {
		s.t.Errorf("request %s", m.Content)
	}
	k.state("busy")
	k.pub("execute_input", map[string]any{"code": c.Code, "execution_count": k.count})
	if f := s.cells[c.Code]; f != nil {
		f(k)
	} else {
		k.end("", "")
	}
	return nil
}

// comm does what a kernel does with a message of a comm.
func (s *script) comm(m jupyter.Message) {
	var c struct {
		ID   string `json:"comm_id"`
		Data struct {
			Method string `json:"method"`
		} `json:"data"`
	}
	if err := json.Unmarshal(m.Content, &c); err != nil {
		s.t.Fatal(err)
	}
	k := &kernelCell{s: s, parent: m.Header}
	if c.Data.Method == "request_state" {
		s.asked = append(s.asked, c.ID)
		if state := s.states[c.ID]; state != nil {
			k.pub("comm_msg", map[string]any{"comm_id": c.ID, "data": map[string]any{"method": "update", "state": state}})
		}
	} else {
		s.told = append(s.told, m)
	}
	if !s.mute {
		k.state("idle")
	}
}

func (s *script) Receive(ctx context.Context) (jupyter.Message, string, error) {
	if s.next < len(s.log) {
		s.next++
		return s.log[s.next-1], fmt.Sprint(s.next), nil
	}
	if s.gone != nil {
		return jupyter.Message{}, "", s.gone
	}
	select {
	case <-s.alarm:
		s.late()
		return s.Receive(ctx)
	case <-ctx.Done():
		return jupyter.Message{}, "", ctx.Err()
	}
}

func (s *script) Interrupt(context.Context) error {
	s.interrupts++
	if s.onInterrupt != nil {
		s.onInterrupt(s.last)
	}
	return nil
}

// memory is the pieces of a test.
type memory struct {
	names map[string]string
	bytes int // of all pieces
}

func (m *memory) Put(_ context.Context, data []byte) (string, error) {
	if m.names == nil {
		m.names = map[string]string{}
	}
	name := fmt.Sprint("p", len(m.names))
	m.names[name] = string(data)
	m.bytes += len(data)
	return name, nil
}

func (m *memory) Get(_ context.Context, name string) ([]byte, error) {
	if data, there := m.names[name]; there {
		return []byte(data), nil
	}
	return nil, fmt.Errorf("there is no piece %q", name)
}

func (m *memory) Remove(_ context.Context, names []string) {
	for _, name := range names {
		m.names[name] = "removed"
	}
}

// assembled returns the notebook of a state.
func assembled(t *testing.T, s State, pieces Pieces) []byte {
	t.Helper()
	var b bytes.Buffer
	err := Write(t.Context(), &b, s, pieces, func(_ context.Context, err error) (State, error) { return State{}, err })
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// stored is what was stored last.
type stored struct {
	document []byte
	state    []byte
	progress Progress
	pieces   Pieces
}

// resumed returns the state that was stored.
func (s *stored) resumed(t *testing.T) *State {
	t.Helper()
	state := &State{}
	if err := json.Unmarshal(s.state, state); err != nil {
		t.Fatal(err)
	}
	return state
}

// notebookOf is a notebook with cells of code. A source may begin with "#tag NAME " for a tag.
func notebookOf(t *testing.T, sources ...string) *Document {
	t.Helper()
	cells := []any{}
	for _, source := range sources {
		tags := []string{}
		if rest, tagged := strings.CutPrefix(source, "#tag "); tagged {
			tag, code, _ := strings.Cut(rest, " ")
			tags, source = append(tags, tag), code
		}
		cells = append(cells, map[string]any{"cell_type": "code", "metadata": map[string]any{"tags": tags},
			"source": source, "outputs": []any{}, "execution_count": nil})
	}
	b, err := json.Marshal(map[string]any{"nbformat": 4, "nbformat_minor": 4, "metadata": struct{}{}, "cells": cells})
	if err != nil {
		t.Fatal(err)
	}
	d := document(t, string(b))
	if err := d.Prepare(Plan{}); err != nil {
		t.Fatal(err)
	}
	return d
}

// do runs a document on a script.
func do(t *testing.T, s *script, d *Document, change func(*Run)) (Result, *stored) {
	t.Helper()
	s.t = t
	pieces, last := &memory{}, &stored{}
	r := &Run{Conn: s, Document: d, ID: "job-1", SaveEvery: time.Nanosecond, Pieces: pieces}
	r.Save = func(_ context.Context, state *State, p Progress) error {
		*last = stored{state: encode(state), progress: p, pieces: r.Pieces}
		last.document = assembled(t, *last.resumed(t), r.Pieces)
		return nil
	}
	if change != nil {
		change(r)
	}
	res, err := r.Do(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return res, last
}

// outputsOf returns the outputs of a cell, in a short form.
func outputsOf(t *testing.T, s *stored, at int) string {
	t.Helper()
	return shownIn(document(t, string(s.document)), at)
}

// shownIn returns the outputs of a notebook's cell, in a short form.
func shownIn(d *Document, at int) string {
	b := strings.Builder{}
	for _, o := range parseOutputs(d.cells[at].object().values["outputs"]) {
		if o.other == nil {
			fmt.Fprintf(&b, "%s %q; ", o.stream, o.text)
			continue
		}
		data := strings.Join(strings.Fields(string(o.other.values["data"])), "")
		fmt.Fprintf(&b, "%s %s%s; ", o.other.text("output_type"), data, o.other.text("ename"))
	}
	return strings.TrimSuffix(b.String(), "; ")
}

func text(s string) map[string]any { return map[string]any{"text/plain": s} }

// TestRun_Outputs: outputs stand in the cell as a front end would have saved them.
func TestRun_Outputs(t *testing.T) {
	shown := func(msgType, value, id string) func(*kernelCell) {
		return func(k *kernelCell) {
			k.pub(msgType, map[string]any{"data": text(value), "metadata": struct{}{},
				"transient": map[string]any{"display_id": id}})
		}
	}
	say := func(name, text string) func(*kernelCell) { return func(k *kernelCell) { k.print(name, text) } }
	clear := func(wait bool) func(*kernelCell) {
		return func(k *kernelCell) { k.pub("clear_output", map[string]any{"wait": wait}) }
	}
	for _, test := range []struct {
		name string
		does []func(*kernelCell)
		want string
	}{
		{"text of one stream is joined", []func(*kernelCell){say("stdout", "a"), say("stdout", "b\n"), say("stderr", "c"),
			say("stdout", "d")}, `stdout "ab\n"; stderr "c"; stdout "d"`},
		{"a display is updated", []func(*kernelCell){shown("display_data", "1", "x"), say("stdout", "a"),
			shown("update_display_data", "2", "x")}, `display_data {"text/plain":["2"]}; stdout "a"`},
		{"a display with the same id updates the first", []func(*kernelCell){shown("display_data", "1", "x"),
			shown("display_data", "2", "x")}, `display_data {"text/plain":["2"]}; display_data {"text/plain":["2"]}`},
		{"an update of no display", []func(*kernelCell){shown("update_display_data", "2", "x")}, ""},
		{"output is cleared", []func(*kernelCell){say("stdout", "a"), clear(false)}, ""},
		{"output is cleared later", []func(*kernelCell){say("stdout", "a"), clear(true), say("stdout", "b")}, `stdout "b"`},
		{"output is not cleared without more", []func(*kernelCell){say("stdout", "a"), clear(true)}, `stdout "a"`},
		{"a cleared display is not updated", []func(*kernelCell){shown("display_data", "1", "x"), clear(false),
			say("stdout", "a"), shown("update_display_data", "2", "x")}, `stdout "a"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &script{cells: map[string]func(*kernelCell){"c": func(k *kernelCell) {
				for _, f := range test.does {
					f(k)
				}
				k.end("", "")
			}}}
			res, last := do(t, s, notebookOf(t, "c"), nil)
			if got := outputsOf(t, last, 0); got != test.want || res.Status != Completed {
				t.Errorf("%v: got %s\nwant %s", res, got, test.want)
			}
		})
	}
}

// endCase is a notebook whose run ends.
type endCase struct {
	name  string
	cells []string
	allow bool // errors
	want  Result
	ran   int // cells
}

// runEnds checks where runs end, and that the notebook of a failed one says so in two places, with the cell's number.
func runEnds(t *testing.T, cells map[string]func(*kernelCell), tests []endCase) {
	t.Helper()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := &script{cells: cells}
			res, last := do(t, s, notebookOf(t, test.cells...), func(r *Run) { r.AllowErrors = test.allow })
			if res != test.want || len(s.seen)-1 != test.ran {
				t.Errorf("got %+v after %d cells, want %+v after %d", res, len(s.seen)-1, test.want, test.ran)
			}
			marks := strings.Count(string(last.document), tagError)
			if (res.Status == Failed) != (marks == 2) || marks > 0 && !strings.Contains(string(last.document),
				"In ["+string(rune('0'+res.Cell))+"]") {
				t.Errorf("%d marks of an error", marks)
			}
		})
	}
}

// TestRun_Ends: the run ends where papermill and nbclient would end it.
func TestRun_Ends(t *testing.T) {
	fails := map[string]func(*kernelCell){
		"bad":  func(k *kernelCell) { k.end("ValueError", "no") },
		"exit": func(k *kernelCell) { k.end("SystemExit", "0") },
		"aborted": func(k *kernelCell) {
			k.send(jupyter.Shell, "execute_reply", map[string]string{"status": "aborted"})
			k.state("idle")
		},
		"idle first": func(k *kernelCell) {
			k.state("idle")
			k.print("stdout", "late")
			k.send(jupyter.Shell, "execute_reply", map[string]string{"status": "ok"})
		},
		"restarts": func(k *kernelCell) { k.state("restarting"); k.end("", "") },
		"dies": func(k *kernelCell) {
			k.send(jupyter.Shell, "execute_reply", map[string]string{"status": "error", "ename": "KernelDied",
				"evalue": "its memory was full"})
			k.state("idle")
		},
	}
	runEnds(t, fails, []endCase{
		{"all cells", []string{"a", "idle first", "b"}, false, Result{Status: Completed}, 3},
		{"an error", []string{"a", "bad", "b"}, false, Result{Failed, 2, "ValueError: no", false}, 2},
		{"errors are allowed", []string{"bad", "b"}, true, Result{Status: Completed}, 2},
		{"the cell allows errors", []string{"#tag raises-exception bad", "b"}, false, Result{Status: Completed}, 2},
		{"cells that are skipped", []string{" ", "#tag skip-execution bad", "b"}, false, Result{Status: Completed}, 1},
		{"exit", []string{"exit", "b"}, false, Result{Status: Completed}, 1},
		{"aborted", []string{"aborted", "b"}, true, Result{Failed, 1, "the kernel has not run the cell", true}, 1},
		{"the kernel restarts", []string{"restarts", "b"}, true,
			Result{Failed, 1, "the kernel was restarted while the notebook ran", true}, 1},
		{"the kernel dies", []string{"a", "dies", "b"}, true, Result{Failed, 2, "KernelDied: its memory was full", true}, 2},
	})
}

// TestRun_Limit: output over the limit is left out with one notice in each cell, but an error is kept.
func TestRun_Limit(t *testing.T) {
	s := &script{cells: map[string]func(*kernelCell){"flood": func(k *kernelCell) {
		for range 20 {
			k.print("stdout", strings.Repeat("x", 100<<10))
		}
		k.end("ValueError", "no")
	}}}
	res, last := do(t, s, notebookOf(t, "flood"), func(r *Run) { r.OutputLimit, r.SaveEvery = 1<<20, time.Hour })
	got := outputsOf(t, last, 2) // behind the marks of the error
	if strings.Count(got, "is left out") != 1 || !strings.HasSuffix(got, "; error ValueError") || len(got) > 2<<20 {
		t.Errorf("%v: %d bytes of output end with %q", res, len(got), got[max(0, len(got)-300):])
	}
}

// TestRun_ShortLines: JSON makes a short line several times as long. However much of them a cell prints between two
// saves, in one message or in many, no piece is larger than a record can be, and no line is lost.
func TestRun_ShortLines(t *testing.T) {
	pieces := &memory{}
	r := &run{Run: &Run{Pieces: pieces, Document: notebookOf(t, "flood")}, dirty: map[int]bool{}, limit: 3 << 20}
	r.begin()
	lines, printed := strings.Repeat("é\n", maxPart/2/len("é\n")), 0
	for _, text := range []string{lines[:30000], lines[30000:], lines, lines + lines + "end"} {
		m := jupyter.Message{Content: encode(map[string]string{"name": "stdout", "text": text})}
		if changed, err := r.apply(t.Context(), 0, "stream", &m); !changed || err != nil {
			t.Fatal(changed, err)
		}
		printed += len(text)
	}
	if err := r.store(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := 0
	for _, p := range r.state.Cells[0] {
		content, err := readPart(t.Context(), pieces, p)
		if err != nil || len(content.Outputs) > 3*maxPart { // all lines in one piece have 4.7
			t.Errorf("piece %s has %d bytes: %v", p.Piece, len(content.Outputs), err)
		}
		for _, out := range parseOutputs(content.Outputs) {
			got += len(out.text)
		}
	}
	if got != printed {
		t.Errorf("%d bytes of text, not %d", got, printed)
	}
}

// mortal is pieces and saves of a gateway that dies before one of its writes.
type mortal struct {
	*memory
	left int
	last stored
}

var errDead = errors.New("the gateway is dead")

func (m *mortal) Put(ctx context.Context, data []byte) (string, error) {
	if m.left--; m.left < 0 {
		return "", errDead
	}
	return m.memory.Put(ctx, data)
}

func (m *mortal) save(_ context.Context, state *State, p Progress) error {
	if m.left--; m.left < 0 {
		return errDead
	}
	for _, name := range state.Names() {
		if _, there := m.names[name]; !there {
			return fmt.Errorf("the state names the piece %q, which is not stored", name)
		}
	}
	m.last = stored{state: encode(state), progress: p}
	return nil
}

// TestRun_Carried: a gateway dies before each of its writes in turn. Another run carries on from what was stored, on
// the same kernel. Every cell runs once, and the notebook is the same.
func TestRun_Carried(t *testing.T) {
	shown := func(k *kernelCell, msgType, value, id string) {
		k.pub(msgType, map[string]any{"data": text(value), "transient": map[string]string{"display_id": id}})
	}
	widget := func(k *kernelCell, value int) {
		k.pub("comm_msg", map[string]any{"comm_id": "m", "data": map[string]any{
			"state": map[string]any{"_model_name": "IntSliderModel", "value": value}}})
	}
	var early *kernelCell
	kernel := func() *script {
		return &script{t: t, cells: map[string]func(*kernelCell){
			"a": func(k *kernelCell) {
				early = k
				shown(k, "display_data", "early", "e")
				widget(k, 1)
				k.end("", "")
			},
			"b": func(k *kernelCell) {
				k.print("stdout", "one\n")
				shown(k, "display_data", "1", "x")
				k.pub("clear_output", map[string]any{"wait": true})
				k.print("stdout", "two\n")
				shown(k, "display_data", "2", "x")
				shown(k, "update_display_data", "3", "x")
				k.end("", "")
			},
			"c": func(k *kernelCell) {
				for i := range 5 { // it has several parts
					k.print("stdout", strings.Repeat(fmt.Sprint(i), partSize/2))
				}
				shown(k, "update_display_data", "late", "e") // of the first cell
				early.print("stderr", "from a thread")
				widget(k, 2)
				k.end("", "")
			}}}
	}
	cells := func() *Document { return notebookOf(t, "a", "b", "c", "d") }
	_, whole := do(t, kernel(), cells(), nil)
	want := []string{`display_data {"text/plain":["late"]}; stderr "from a thread"`,
		`stdout "two\n"; display_data {"text/plain":["3"]}`}
	check := func(when string, s *stored) {
		t.Helper()
		d := document(t, string(s.document))
		for at, want := range want {
			if got := shownIn(d, at); got != want {
				t.Errorf("%s: cell %d has %s, want %s", when, at+1, got, want)
			}
		}
		if got := shownIn(d, 2); len(got) != 5*(partSize/2)+len(`stdout ""`) {
			t.Errorf("%s: cell 3 has %d bytes", when, len(got))
		}
		if !strings.Contains(string(s.document), `"value": 2`) {
			t.Errorf("%s: the widget has another state", when)
		}
	}
	check("undisturbed", whole)
	for left := 0; ; left++ {
		s, pieces := kernel(), &memory{}
		first := &mortal{memory: pieces, left: left}
		run := Run{Conn: s, Pieces: first, ID: "job-1", SaveEvery: time.Nanosecond, Save: first.save}
		begins := run
		begins.Document = cells()
		if _, err := begins.Do(t.Context()); err == nil {
			if left < 20 {
				t.Errorf("a run has only %d writes", left)
			}
			return
		} else if !errors.Is(err, errDead) {
			t.Fatal(err)
		}
		when := fmt.Sprintf("dead after %d writes", left)
		second := &mortal{memory: pieces, left: 1 << 30, last: first.last}
		run.Pieces, run.Save, run.Document = second, second.save, cells()
		s.next = 0
		if first.last.state != nil {
			run.Document, run.Resume = nil, first.last.resumed(t)
			if run.Resume.Cursor != "" {
				_, _ = fmt.Sscan(run.Resume.Cursor, &s.next)
			}
		}
		res, err := run.Do(t.Context())
		if err != nil || res.Status != Completed {
			t.Fatalf("%s: %v, %v", when, res, err)
		}
		third := run
		third.Document, third.Resume = nil, second.last.resumed(t)
		if again, err := third.Do(t.Context()); err != nil || again != res {
			t.Errorf("%s: the ended run returns %v, %v", when, again, err)
		}
		second.last.document = assembled(t, *second.last.resumed(t), pieces)
		check(when, &second.last)
		ran := slices.DeleteFunc(s.seen, func(id string) bool { return !strings.HasPrefix(id, "job-1-") })
		if fmt.Sprint(ran) != "[job-1-0 job-1-1 job-1-2 job-1-3]" {
			t.Errorf("%s: ran %v", when, ran)
		}
	}
}

// TestRun_Stop: a stop interrupts the kernel. A cell that does not end is given up.
func TestRun_Stop(t *testing.T) {
	for _, obeys := range []bool{true, false} {
		t.Run(fmt.Sprint(obeys), func(t *testing.T) {
			stop := make(chan struct{})
			s := &script{cells: map[string]func(*kernelCell){"long": func(*kernelCell) { close(stop) }}}
			if obeys {
				s.onInterrupt = func(k *kernelCell) { k.end("KeyboardInterrupt", "") }
			}
			res, _ := do(t, s, notebookOf(t, "long", "b"), func(r *Run) {
				r.Stop, r.StopPatience = stop, 10*time.Millisecond
			})
			if res.Status != Stopped || res.Cell != 1 || s.interrupts != 1 || len(s.seen) != 2 {
				t.Errorf("got %+v, %d interrupts, ran %v", res, s.interrupts, s.seen)
			}
		})
	}
}

// TestRun_Input: a kernel that asks for input although it may not is interrupted, and the cell says why.
func TestRun_Input(t *testing.T) {
	s := &script{cells: map[string]func(*kernelCell){"ask": func(k *kernelCell) {
		k.send(jupyter.Stdin, "input_request", map[string]any{"prompt": "name?"})
	}}}
	s.onInterrupt = func(k *kernelCell) { k.end("KeyboardInterrupt", "") }
	res, last := do(t, s, notebookOf(t, "ask"), nil)
	got := outputsOf(t, last, 2)
	if res.Status != Failed || res.Reason != noInput || !strings.HasPrefix(got, "error StdinNotImplementedError") {
		t.Errorf("got %+v, %s", res, got)
	}
}

// TestRun_Gone: the reason of a kernel that has ended is the reason of the run.
func TestRun_Gone(t *testing.T) {
	s := &script{gone: fmt.Errorf("%w: its node was lost", ErrGone),
		cells: map[string]func(*kernelCell){"long": func(k *kernelCell) { k.print("stdout", "x") }}}
	res, last := do(t, s, notebookOf(t, "a", "long"), nil)
	if want := (Result{Failed, 2, "its node was lost", true}); res != want || outputsOf(t, last, 3) != `stdout "x"` {
		t.Errorf("got %+v", res)
	}
	if last.progress != (Progress{2, 2}) {
		t.Errorf("progress %+v", last.progress)
	}
}

// TestRun_Widgets: the states of widgets are in the notebook, as nbclient stores them.
func TestRun_Widgets(t *testing.T) {
	s := &script{cells: map[string]func(*kernelCell){"w": func(k *kernelCell) {
		k.pub("comm_open", map[string]any{"comm_id": "m", "target_name": "jupyter.widget", "data": map[string]any{
			"state": map[string]any{"_model_name": "IntSliderModel", "_model_module": "@jupyter-widgets/controls",
				"_model_module_version": "2.0.0", "value": 1}}})
		k.pub("comm_msg", map[string]any{"comm_id": "m", "data": map[string]any{"method": "update",
			"state": map[string]any{"value": 5}}})
		k.end("", "")
	}}}
	_, last := do(t, s, notebookOf(t, "w"), nil)
	got := string(document(t, string(last.document)).meta.child("widgets").append(nil))
	for _, want := range []string{`"model_name":"IntSliderModel"`, `"value":5`, `"version_major":2`} {
		if !strings.Contains(strings.Join(strings.Fields(got), ""), want) {
			t.Errorf("%s has no %s", got, want)
		}
	}
}

// A progress bar that changes for hours takes no more room than its last state.
func TestRun_WidgetStaysSmall(t *testing.T) {
	s := &script{cells: map[string]func(*kernelCell){"w": func(k *kernelCell) {
		k.pub("comm_open", map[string]any{"comm_id": "m", "target_name": "jupyter.widget", "data": map[string]any{
			"state": map[string]any{"_model_name": "FloatProgressModel", "value": 0}}})
		for i := range 1000 {
			k.pub("comm_msg", map[string]any{"comm_id": "m", "data": map[string]any{"method": "update",
				"state": map[string]any{"value": i, "description": strings.Repeat("x", 100)}}})
		}
		k.pub("stream", map[string]any{"name": "stdout", "text": "end"})
		k.end("", "")
	}}}
	_, last := do(t, s, notebookOf(t, "w"), func(r *Run) { r.OutputLimit = 4096 })
	if got := string(last.document); !strings.Contains(got, `"end"`) || strings.Contains(got, "left out") {
		t.Errorf("the notebook is %s", got)
	}
}
