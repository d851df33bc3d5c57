package notebook

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// cellsText returns a notebook of cells with a source of some bytes each, and a picture of some bytes in their outputs.
func cellsText(cells, source, output int) []byte {
	var b strings.Builder
	b.WriteString(`{"nbformat":4,"nbformat_minor":4,"metadata":{},"cells":[`)
	for i := range cells {
		if i > 0 {
			b.WriteByte(',')
		}
		outputs := ""
		if output > 0 {
			outputs = `{"output_type":"display_data","metadata":{},"data":{"image/png":"` + strings.Repeat("y", output) + `"}}`
		}
		fmt.Fprintf(&b, `{"cell_type":"code","metadata":{},"source":%q,"outputs":[%s],"execution_count":null}`,
			strings.Repeat("x", source), outputs)
	}
	b.WriteString(`]}`)
	return []byte(b.String())
}

// heap returns the bytes that are in use.
func heap() int64 {
	runtime.GC()
	runtime.GC() // of what was being swept
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestDocument_Cost: a prepared notebook takes what its cost says, whatever its text is.
func TestDocument_Cost(t *testing.T) {
	for name, shape := range map[string]struct{ cells, source, output int }{
		"small cells":   {20_000, 1, 0},
		"usual cells":   {2_000, 700, 0},
		"with outputs":  {200, 700, 50_000},
		"one long cell": {1, 10 << 20, 0},
	} {
		t.Run(name, func(t *testing.T) {
			text := cellsText(shape.cells, shape.source, shape.output)
			before := heap()
			d, err := Read(text)
			if err == nil {
				err = d.Prepare(Plan{})
			}
			if err != nil {
				t.Fatal(err)
			}
			r := &run{Run: &Run{Pieces: &memory{}, Document: d}}
			r.begin()
			for i, c := range d.cells { // as after a run
				c.parts = []*part{{Piece: fmt.Sprintf("piece-%d", i/shelfCells), shelf: fmt.Sprint(i)}}
			}
			takes, cost := heap()-before, d.cost()
			t.Logf("%d KiB of text take %d KiB, and cost %d KiB", len(text)>>10, takes>>10, cost>>10)
			if takes > cost*3/2 || cost > takes*3/2 {
				t.Errorf("the notebook takes %d bytes, and its cost is %d", takes, cost)
			}
			runtime.KeepAlive(r)
			runtime.KeepAlive(text)
		})
	}
}

// TestRun_CellsForgotten: what a run notes of a cell is in memory only until the cell is stored.
func TestRun_CellsForgotten(t *testing.T) {
	d := notebookOf(t, "1", "2", "3")
	if res, _ := do(t, &script{}, d, nil); res.Status != Completed {
		t.Fatal(res)
	}
	for i, c := range d.cells {
		if c.meta != nil || c.count != nil || c.parts[0].list != nil {
			t.Errorf("of cell %d are in memory: %v, %s, %v", i+1, c.meta, c.count, c.parts[0].list)
		}
	}
}

// TestPrepare_TooLarge: a notebook that would take too much memory is refused before it has a job.
func TestPrepare_TooLarge(t *testing.T) {
	var wrong *InvalidError
	err := document(t, string(cellsText(100_000, 1, 0))).Prepare(Plan{})
	if !errors.As(err, &wrong) || !strings.Contains(err.Error(), "100000 cells") ||
		!strings.Contains(err.Error(), "at most 32 MiB") {
		t.Errorf("got %v", err)
	}
	if err := document(t, string(cellsText(100, 1, 400_000))).Prepare(Plan{}); err != nil { // outputs do not count
		t.Errorf("a notebook of 40 MB of outputs: %v", err)
	}
}

// TestBudget_Document: an owner has at most half of the room for notebooks. One who waits has no room, and does not
// hold up smaller notebooks.
func TestBudget_Document(t *testing.T) {
	b := NewBudget(8 << 20) // 1 MiB for notebooks
	reads := 0
	take := func(ctx context.Context, owner string, size int, waits *bool) (func(), error) {
		_, release, err := b.Document(t.Context(), owner, func() (*Document, error) {
			reads++
			return document(t, string(cellsText(1, size, 0))), nil
		}, func(room func(context.Context) error) error {
			*waits = true
			return room(ctx)
		})
		return release, err
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	var waits bool
	want := func(what string, err error, waited bool) {
		t.Helper()
		if (err != nil) != waited || waits != waited {
			t.Errorf("%s: %v, it waited: %v", what, err, waits)
		}
		waits = false
	}
	first, err := take(ended, "ann", 400<<10, &waits)
	want("the first", err, false)
	_, err = take(ended, "ann", 200<<10, &waits)
	want("another one of the same owner", err, true)
	_, err = take(ended, "ann", 30<<10, &waits)
	want("a small one", err, false)
	second, err := take(ended, "bob", 400<<10, &waits)
	want("one of another owner", err, false)
	_, err = take(ended, "cid", 300<<10, &waits)
	want("one without room", err, true)
	third, err := take(ended, "cid", 100<<10, &waits)
	want("one with room", err, false)
	reads = 0
	done := make(chan error)
	waiting := make(chan struct{})
	go func() {
		_, release, err := b.Document(t.Context(), "dan", func() (*Document, error) {
			reads++
			return document(t, string(cellsText(1, 4<<20, 0))), nil
		}, func(room func(context.Context) error) error {
			close(waiting)
			return room(t.Context())
		})
		if err == nil {
			release()
		}
		done <- err
	}()
	<-waiting
	first()
	second()
	third()
	if err := <-done; err != nil || reads != 2 {
		t.Errorf("one that takes all room: %v, it was read %d times", err, reads)
	}
	if b.used.cells != 0 || b.cells != 1<<20 || len(b.of) != 0 {
		t.Errorf("at the end %d bytes are used, %d are left, and owners have %v", b.used.cells, b.cells, b.of)
	}
	_, _, err = b.Document(t.Context(), "ann", func() (*Document, error) { return nil, errors.New("unreadable") }, nil)
	if err == nil || len(b.reading) != 0 {
		t.Errorf("a notebook that cannot be read: %v", err)
	}
}

// BenchmarkDocument shows what a notebook costs by the number of its cells, and by their size.
func BenchmarkDocument(b *testing.B) {
	for _, source := range []int{1, 1000} {
		for _, cells := range []int{100, 1000, 10_000} {
			b.Run(fmt.Sprintf("source=%d/cells=%d", source, cells), func(b *testing.B) {
				text := cellsText(cells, source, 0)
				var d *Document
				before := heap()
				for b.Loop() {
					var err error
					if d, err = Read(text); err == nil {
						err = d.Prepare(Plan{})
					}
					if err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*cells), "ns/cell")
				b.ReportMetric(float64(heap()-before)/float64(cells), "held-B/cell")
				b.ReportMetric(float64(d.cost())/float64(cells), "cost-B/cell")
				runtime.KeepAlive(text)
			})
		}
	}
}
