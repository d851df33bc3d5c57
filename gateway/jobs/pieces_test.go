package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs/notebook"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
)

// printer is a kernel whose cells print lines, one each second. It survives gateways. It runs a request once, as a
// supervisor does.
type printer struct {
	cluster
	lines int           // of a cell
	width int           // bytes of a line
	quiet time.Duration // for which a cell computes after its lines

	lock sync.Mutex
	log  []jupyter.Message
	more chan struct{} // closed when log has grown
	ran  map[string]int
	seen map[string]bool
}

func newPrinter(lines, width int) *printer {
	return &printer{cluster: *newCluster(9), lines: lines, width: width, more: make(chan struct{}), ran: map[string]int{},
		seen: map[string]bool{}}
}

func (p *printer) say(parent []byte, channel jupyter.Channel, msgType string, content any) {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.log = append(p.log, jupyter.New(channel, msgType, "kernel", parent, content))
	close(p.more)
	p.more = make(chan struct{})
}

func (p *printer) line(cell string, i int) string {
	line := fmt.Sprintf("%s %d ", cell, i)
	return line + strings.Repeat("x", max(0, p.width-len(line)-1)) + "\n"
}

// run runs a request.
func (p *printer) run(m jupyter.Message) {
	var c struct {
		Code string `json:"code"`
	}
	if json.Unmarshal(m.Content, &c) != nil || c.Code == "" {
		p.say(m.Header, jupyter.Shell, "kernel_info_reply", map[string]any{"language_info": struct{}{}})
		return
	}
	p.lock.Lock()
	p.ran[c.Code]++
	p.lock.Unlock()
	p.say(m.Header, jupyter.IOPub, "status", map[string]string{"execution_state": "busy"})
	for i := range p.lines {
		time.Sleep(time.Second)
		p.say(m.Header, jupyter.IOPub, "stream", map[string]string{"name": "stdout", "text": p.line(c.Code, i)})
	}
	time.Sleep(p.quiet)
	p.say(m.Header, jupyter.Shell, "execute_reply", map[string]string{"status": "ok"})
	p.say(m.Header, jupyter.IOPub, "status", map[string]string{"execution_state": "idle"})
}

// connection is the connection of a run to a printer.
type connection struct {
	p    *printer
	next int // in its log
}

func (c *connection) Send(_ context.Context, m jupyter.Message) error {
	h, err := jupyter.ParseHeader(m.Header)
	if err != nil {
		return err
	}
	c.p.lock.Lock()
	defer c.p.lock.Unlock()
	if !c.p.seen[h.MsgID] {
		c.p.seen[h.MsgID] = true
		go c.p.run(m)
	}
	return nil
}

func (c *connection) Receive(ctx context.Context) (jupyter.Message, string, error) {
	for {
		c.p.lock.Lock()
		log, more := c.p.log, c.p.more
		c.p.lock.Unlock()
		if c.next < len(log) {
			c.next++
			return log[c.next-1], strconv.Itoa(c.next), nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return jupyter.Message{}, "", ctx.Err()
		}
	}
}

func (c *connection) Interrupt(context.Context) error { return nil }

// runs makes a manager run cells in the printer.
func (p *printer) runs(m *Manager) {
	m.perform = func(ctx context.Context, r *notebook.Run) (notebook.Result, error) {
		c := &connection{p: p}
		if r.Resume != nil && r.Resume.Cursor != "" {
			c.next, _ = strconv.Atoi(r.Resume.Cursor)
		}
		r.Conn = c
		return r.Do(ctx)
	}
}

// cells is a submission of a notebook with cells whose sources are their numbers.
func cells(n int) Submission {
	s := submission("ann", "job")
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf(`{"cell_type":"code","id":"c%d","metadata":{},"source":"%d","outputs":[],`+
			`"execution_count":null}`, i, i))
	}
	s.Notebook = []byte(`{"nbformat":4,"nbformat_minor":5,"metadata":{},"cells":[` + strings.Join(list, ",") + `]}`)
	return s
}

// check checks that each cell has run once, and that the job's notebook has all lines.
func (p *printer) check(t *testing.T, m *Manager, id string, cells int) {
	t.Helper()
	text, err := notebookText(t.Context(), m, id, false)
	if err != nil {
		t.Fatal(err)
	}
	var made struct {
		Cells []struct {
			Outputs []struct {
				Text []string `json:"text"`
			} `json:"outputs"`
		} `json:"cells"`
	}
	if err := json.Unmarshal([]byte(text), &made); err != nil || len(made.Cells) != cells {
		t.Fatalf("%d cells, %v", len(made.Cells), err)
	}
	for at, c := range made.Cells {
		var want []string
		for i := range p.lines {
			want = append(want, p.line(strconv.Itoa(at), i))
		}
		if len(c.Outputs) != 1 || !slices.Equal(c.Outputs[0].Text, want) {
			t.Errorf("cell %d has the outputs %.300q", at+1, fmt.Sprint(c.Outputs))
		}
		if n := p.ran[strconv.Itoa(at)]; n != 1 {
			t.Errorf("cell %d has run %d times", at+1, n)
		}
	}
}

// onlyNamed checks that the records have the pieces of a job and no others, after two sweeps.
func onlyNamed(t *testing.T, m *Manager, id string) {
	t.Helper()
	for range 2 {
		if err := m.sweep(t.Context()); err != nil {
			t.Error(err)
		}
	}
	s, err := m.store.job(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	named, err := s.pieces()
	if err != nil {
		t.Fatal(err)
	}
	wantIDs(t, m.store.keeper, kindNotebook, slices.Collect(maps.Keys(named))...)
}

// newRunner returns a manager that runs cells in the printer until end is called.
func (p *printer) newRunner(keeper launcher.RecordKeeper) (m *Manager, end func()) {
	m = New(keeper, p, Policy{}, slog.New(slog.DiscardHandler))
	p.runs(m)
	return m, started(m)
}

// A gateway dies before each of its writes in turn: of a piece, of the record, and of the removal of a piece. The job
// goes on from the record. Each cell is run once, no output is lost, and no piece is left.
func TestPieces_DeadAnywhere(t *testing.T) {
	for left, ended := 0, false; !ended; left++ {
		t.Run(fmt.Sprint(left), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				records, kernel := &launchertest.MemoryRecords{}, newPrinter(12, 4000)
				id := submit(t, New(records, kernel, Policy{}, slog.New(slog.DiscardHandler)), cells(3))
				dying := &mortal{MemoryRecords: records, left: left}
				_, endA := kernel.newRunner(dying)
				time.Sleep(2 * time.Minute)
				b, endB := kernel.newRunner(records)
				time.Sleep(2 * time.Minute)
				endA()
				if j := wantState(t, b, id, Succeeded, ""); j.Attempt != 1 || kernel.living() != 0 {
					t.Errorf("%d attempts, and %d kernels live", j.Attempt, kernel.living())
				}
				endB()
				kernel.check(t, b, id, 3)
				onlyNamed(t, b, id)
				if ended = !dying.dead; ended && left < 20 {
					t.Errorf("a job has only %d writes", left)
				}
			})
		})
	}
}

// The same around the moments in which the outputs of many cells are put on a shelf.
func TestPieces_DeadWithShelves(t *testing.T) {
	const n = 140
	shelves := 0
	for left := 150; left < 700; left += 97 {
		synctest.Test(t, func(t *testing.T) {
			records, kernel := &launchertest.MemoryRecords{}, newPrinter(1, 100)
			id := submit(t, New(records, kernel, Policy{}, slog.New(slog.DiscardHandler)), cells(n))
			_, endA := kernel.newRunner(&mortal{MemoryRecords: records, left: left})
			time.Sleep(3 * time.Minute)
			b, endB := kernel.newRunner(records)
			time.Sleep(4 * time.Minute)
			endA()
			wantState(t, b, id, Succeeded, "")
			endB()
			kernel.check(t, b, id, n)
			onlyNamed(t, b, id)
			s, err := b.store.job(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			state, err := parseState(s.Run)
			if err != nil {
				t.Fatal(err)
			}
			shelves += len(state.Shelves)
		})
	}
	if shelves == 0 {
		t.Error("no job has a shelf")
	}
}

// failing is records with one write that fails. With applied it is carried out, and its answer is lost.
type failing struct {
	*mortal
	applied bool
	failed  bool
}

func (f *failing) fails() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left--
	if f.failed || f.left >= 0 {
		return false
	}
	f.failed = true
	return true
}

func (f *failing) CreateRecord(ctx context.Context, r launcher.Record) (launcher.Record, error) {
	if !f.fails() {
		return f.MemoryRecords.CreateRecord(ctx, r)
	}
	if f.applied {
		_, _ = f.MemoryRecords.CreateRecord(ctx, r)
	}
	return r, launcher.ErrUnavailable
}

func (f *failing) ReplaceRecord(ctx context.Context, r launcher.Record) (launcher.Record, error) {
	if !f.fails() {
		return f.MemoryRecords.ReplaceRecord(ctx, r)
	}
	if f.applied {
		_, _ = f.MemoryRecords.ReplaceRecord(ctx, r)
	}
	return r, launcher.ErrUnavailable
}

func (f *failing) RemoveRecord(ctx context.Context, kind, id string) error {
	if !f.fails() {
		return f.MemoryRecords.RemoveRecord(ctx, kind, id)
	}
	return launcher.ErrUnavailable
}

// A write fails, each in turn, or its answer is lost. The gateway goes on.
func TestPieces_FailAnywhere(t *testing.T) {
	for _, applied := range []bool{false, true} {
		for left, ended := 0, false; !ended; left++ {
			t.Run(fmt.Sprint(applied, " ", left), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					records, kernel := &launchertest.MemoryRecords{}, newPrinter(12, 4000)
					id := submit(t, New(records, kernel, Policy{}, slog.New(slog.DiscardHandler)), cells(3))
					once := &failing{mortal: &mortal{MemoryRecords: records, left: left}, applied: applied}
					m, end := kernel.newRunner(once)
					time.Sleep(2 * time.Minute)
					if j := wantState(t, m, id, Succeeded, ""); j.Attempt != 1 {
						t.Errorf("%d attempts", j.Attempt)
					}
					end()
					ended = !once.failed
					kernel.check(t, m, id, 3)
					onlyNamed(t, m, id)
				})
			})
		}
	}
}

// The notebook can be read at each moment of a run. It has whole lines, and never fewer than before.
func TestPieces_ReadMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, kernel := &launchertest.MemoryRecords{}, newPrinter(30, 2000)
		m, end := kernel.newRunner(records)
		defer end()
		id := submit(t, m, cells(2))
		before := 0
		for range 80 {
			time.Sleep(time.Second)
			text, err := notebookText(t.Context(), m, id, false)
			n := strings.Count(text, "xx\\n")
			if err != nil || n < before {
				t.Fatalf("%d lines behind %d, %v", n, before, err)
			}
			before = n
		}
		kernel.check(t, m, id, 2)
	})
}

// losing calls lose when a piece is read for the first time.
type losing struct {
	*launchertest.MemoryRecords
	lose func()
}

func (l *losing) Record(ctx context.Context, kind, id string) (launcher.Record, error) {
	if lose := l.lose; kind == kindNotebook && lose != nil {
		l.lose = nil
		lose()
	}
	return l.MemoryRecords.Record(ctx, kind, id)
}

// A notebook that is read while its attempt is lost is cut off: it is never whole without the outputs.
func TestPieces_ReadLostAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, kernel := &losing{MemoryRecords: &launchertest.MemoryRecords{}}, newPrinter(30, 2000)
		m, end := kernel.newRunner(records)
		id := submit(t, m, cells(2))
		time.Sleep(40 * time.Second) // the first cell has ended
		end()
		records.lose = func() {
			s, err := m.store.change(t.Context(), id, func(e *entry) error {
				e.Run, e.Before = nil, nil
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			ids, err := records.RecordIDs(t.Context(), kindNotebook)
			for _, piece := range ids {
				if piece != s.Source {
					err = errors.Join(err, records.RemoveRecord(t.Context(), kindNotebook, piece))
				}
			}
			if err != nil {
				t.Error(err)
			}
		}
		if text, err := notebookText(t.Context(), m, id, false); !errors.Is(err, launcher.ErrRecordChanged) {
			t.Errorf("%d bytes, %v", len(text), err)
		}
		time.Sleep(time.Minute) // the kernel prints on
	})
}

// away is records that do not answer about notebooks.
type away struct{ *launchertest.MemoryRecords }

func (a away) Record(ctx context.Context, kind, id string) (launcher.Record, error) {
	if kind == kindNotebook {
		return launcher.Record{}, launcher.ErrUnavailable
	}
	return a.MemoryRecords.Record(ctx, kind, id)
}

// A download ends with an error when records are unavailable for long.
func TestPieces_ReadUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, kernel := &launchertest.MemoryRecords{}, newPrinter(2, 100)
		m, end := kernel.newRunner(records)
		id := submit(t, m, cells(1))
		time.Sleep(time.Minute)
		wantState(t, m, id, Succeeded, "")
		end()
		m.store.keeper = away{records}
		began := time.Now()
		_, err := notebookText(t.Context(), m, id, false)
		if took := time.Since(began); !errors.Is(err, launcher.ErrUnavailable) || took != downloadPatience {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

// A job that an earlier build has stored ends with a sentence, and its kernel with it.
func TestManager_EarlierForm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, kernels := &launchertest.MemoryRecords{}, newCluster(9)
		kernels.alive["k"] = "ann"
		for id, rest := range map[string]string{"1": `"state":"running","kernel_id":"k","saved":"1-a","before":"1-b"`,
			"2": `"state":"queued"`} {
			id = "00000000-0000-0000-0000-00000000000" + id
			data := fmt.Sprintf(`{"id":%q,"name":"old","kernelspec":"python3","author":{},"start":{},"source":"s",%s}`, id, rest)
			r := launcher.Record{Kind: kindJob, ID: id, Data: []byte(data)}
			if _, err := records.CreateRecord(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			m, end := gatewayOf(records, kernels, Policy{}, time.Hour)
			time.Sleep(time.Minute)
			end()
			wantState(t, m, id, Failed, "an earlier build of the gateway has stored it")
			if _, err := notebookText(t.Context(), m, id, false); err == nil {
				t.Error("it has a notebook")
			}
			if err := m.Remove(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
		if kernels.living() != 0 {
			t.Error("its kernel lives")
		}
	})
}
