package notebook

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// Tags of papermill and nbclient.
const (
	tagParameters = "parameters"
	tagInjected   = "injected-parameters"
	tagError      = "papermill-error-cell-tag"
	tagSkip       = "skip-execution"
	tagRaises     = "raises-exception"
)

var knownTags = []string{tagParameters, tagInjected, tagError, tagSkip, tagRaises}

// maxDocument bounds what a notebook takes in memory while it runs, in bytes: a Budget has no more for all notebooks.
const maxDocument = DefaultBudget / budgetParts

// The states of a cell in metadata.papermill.
const (
	statusPending   = "pending"
	statusRunning   = "running"
	statusCompleted = "completed"
	statusFailed    = "failed"
)

// writer is the version in metadata.papermill of notebooks that no papermill has written.
const writer = "ekg"

// Plan says with what a notebook is run.
type Plan struct {
	Parameters []Parameter
	// KernelName is the kernelspec that runs the notebook, and Language its language. "" means those that the notebook
	// names. Parameters need one of the two.
	KernelName, Language string
	// InputPath and OutputPath are written to the notebook. "" is written as null.
	InputPath, OutputPath string
	// From is the first cell to run, as its number, from 1, or its id. The kernel has run the cells before it already, and
	// they stay as they are. "" means the first cell, in a new kernel.
	From string
	// Restart is a cell, written as From. If the kernel is lost after the run has reached this cell, the next run begins
	// here, on another kernel; see Document.Again. "" means that it begins at the first cell.
	Restart string
}

// Prepare makes the notebook ready to be run: it removes outputs, counts and the marks of earlier runs, injects the
// parameters, and writes the metadata that papermill writes. The error is an *InvalidError; the notebook may have
// changed then.
func (d *Document) Prepare(p Plan) error {
	papermill := d.meta.child("papermill")
	if len(papermill.keys) == 0 {
		papermill = newObject(map[string]any{"default_parameters": struct{}{}, "environment_variables": struct{}{},
			"parameters": struct{}{}, "version": writer})
	}
	from, err := d.place(p.From)
	if err != nil {
		return err
	}
	restart, err := d.place(p.Restart)
	if err != nil {
		return err
	}
	d.from, d.restart = len(withoutMarks(d.cells[:from])), len(withoutMarks(d.cells[:restart]))
	d.cells = withoutMarks(d.cells)
	if len(p.Parameters) > 0 {
		at, inserted, err := d.inject(p)
		if err != nil {
			return err
		}
		if inserted && at <= d.restart && p.Restart != "" {
			d.restart++
		}
		values := newObject(nil)
		for _, v := range p.Parameters {
			values.set(v.Name, v.Value)
		}
		papermill.set("parameters", values)
	}
	papermill.set("input_path", orNull(p.InputPath))
	papermill.set("output_path", orNull(p.OutputPath))
	d.meta.set("papermill", papermill)
	d.reset()
	for _, c := range d.cells[:d.from] {
		c.raw = bytes.Clone(c.raw) // it does not keep the rest of the text
	}
	for _, c := range d.cells[d.from:] {
		c.reset()
	}
	if n := d.cost(); n > maxDocument {
		return invalid("the notebook has %d cells and takes %d MiB of memory while it runs, and at most %d MiB are "+
			"possible: divide it", len(d.cells), (n+1<<20-1)>>20, maxDocument>>20)
	}
	return nil
}

// again makes the notebook ready for another run, after the kernel of a run was lost. It returns the state in which the
// new run begins. That runs the cells with parameters, and the cells from Plan.Restart on. The others keep their
// outputs. last is the state of the run that was lost, with all its cells, from which those that run again are removed.
func (d *Document) again(last State, cells map[int][]*part) State {
	d.reset()
	next := State{Restart: last.Restart, Again: true, Widgets: last.Widgets, Shelves: last.Shelves,
		Cells: map[int][]*part{}, Raised: map[int]*raised{}}
	for i, parts := range cells {
		onShelf := len(parts) == 1 && parts[0].shelf != ""
		if i >= last.Restart || i >= len(d.cells) || d.cells[i].hasParameters() {
			if delete(cells, i); onShelf {
				next.Cells[i] = nil // it is not where the shelf has it
			}
			continue
		}
		if !onShelf {
			next.Cells[i] = parts
		}
		if e := last.Raised[i]; e != nil {
			next.Raised[i] = e
		}
	}
	return next
}

// reset removes what an earlier run has noted of itself.
func (d *Document) reset() {
	for _, name := range []string{"start_time", "end_time", "duration", "exception"} {
		d.note(name, nil)
	}
}

// reset removes what an earlier run has left in the cell.
func (c *cell) reset() {
	o, meta := c.object(), c.metadata()
	if tagsOf(meta) == nil {
		meta.set("tags", []string{})
	}
	meta.set("papermill", map[string]any{"start_time": nil, "end_time": nil, "duration": nil, "exception": nil,
		"status": statusPending})
	if c.isCode {
		o.set("execution_count", nil)
		o.set("outputs", []any{})
	}
	o.set("metadata", meta)
	c.raw, c.meta = bytes.Clone(o.append(nil)), nil
}

// hasParameters reports whether the cell has the parameters, or their defaults.
func (c *cell) hasParameters() bool { return c.tagged(tagParameters) || c.tagged(tagInjected) }

// withoutMarks returns the cells without those that an earlier run that failed has added.
func withoutMarks(cells []*cell) []*cell {
	return slices.DeleteFunc(slices.Clone(cells), func(c *cell) bool { return c.tagged(tagError) })
}

// place returns the index of the cell that a Plan.From names: an id before a number. It is 0 for "".
func (d *Document) place(from string) (int, error) {
	if from == "" {
		return 0, nil
	}
	i := slices.IndexFunc(d.cells, func(c *cell) bool { return c.object().text("id") == from })
	if i >= 0 {
		return i, nil
	}
	if n, err := strconv.Atoi(from); err == nil && n >= 1 && n <= len(d.cells) {
		return n - 1, nil
	}
	return 0, invalid("the notebook has no cell %.50q", from)
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// inject puts the cell with the parameters in the place of an earlier one, behind the defaults, or on top. It returns
// the cell's index.
func (d *Document) inject(p Plan) (at int, inserted bool, err error) {
	kernel, lang := p.KernelName, d.Language()
	if kernel == "" {
		kernel = d.KernelName()
	}
	if p.Language != "" {
		lang = p.Language
	}
	source, err := code(kernel, lang, p.Parameters)
	if err != nil {
		return 0, false, err
	}
	c := newCell("code", source, d.newID(), tagInjected)
	if at = d.firstTagged(tagInjected); at >= 0 {
		d.cells[at] = c
		return at, false, nil
	}
	at = d.firstTagged(tagParameters) + 1
	d.cells = slices.Insert(d.cells, at, c)
	return at, true, nil
}

func (d *Document) firstTagged(tag string) int {
	return slices.IndexFunc(d.cells, func(c *cell) bool { return c.tagged(tag) })
}

// newID returns an id for a new cell, "" if the notebook's format has none.
func (d *Document) newID() string {
	if d.minor < 5 {
		return ""
	}
	var b [4]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

// stamp is a time as Python writes it.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000-07:00") }

// begin notes that the notebook's run begins.
func (d *Document) begin(now time.Time) { d.note("start_time", stamp(now)) }

func (d *Document) note(name string, value any) {
	papermill := d.meta.child("papermill")
	papermill.set(name, value)
	d.meta.set("papermill", papermill)
	d.changed = true
}

func (c *cell) note(name string, value any) {
	papermill := c.metadata().child("papermill")
	papermill.set(name, value)
	c.meta.set("papermill", papermill)
}

func (c *cell) begin(now time.Time) {
	c.note("start_time", stamp(now))
	c.note("status", statusRunning)
	c.note("exception", false)
}

func (c *cell) end(now time.Time, failed bool) {
	if failed {
		c.note("exception", true)
		c.note("status", statusFailed)
	} else {
		c.note("status", statusCompleted)
	}
	c.note("end_time", stamp(now))
	c.note("duration", seconds(c.metadata(), now))
}

// pass notes that a run has passed a cell that it does not run.
func (c *cell) pass(at string) {
	for name, value := range map[string]any{"start_time": at, "end_time": at, "duration": 0.0, "exception": false,
		"status": statusCompleted} {
		c.note(name, value)
	}
}

// time notes when the kernel has sent a message, as front ends do.
func (c *cell) time(what string, m *jupyter.Message) {
	var h struct {
		Date time.Time `json:"date"`
	}
	if json.Unmarshal(m.Header, &h) != nil {
		return // a kernel without dates
	}
	times := c.metadata().child("execution")
	times.set(what, h.Date.UTC().Format("2006-01-02T15:04:05.000000Z"))
	c.meta.set("execution", times)
}

// end finishes the metadata of the run.
func (d *Document) end(now time.Time, failed bool) {
	d.note("end_time", stamp(now))
	d.note("duration", seconds(d.meta, now))
	if failed {
		d.note("exception", true)
	}
}

// seconds returns how long ago the start is that the metadata have.
func seconds(meta *object, now time.Time) float64 {
	start, err := time.Parse(time.RFC3339Nano, meta.child("papermill").text("start_time"))
	if err != nil {
		return 0
	}
	return math.Round(now.Sub(start).Seconds()*1e6) / 1e6
}

// The notes that papermill writes about an error. Viewers look for the anchor.
const (
	errorStyle  = `style="color:red; font-family:Helvetica Neue, Helvetica, Arial, sans-serif; font-size:2em;"`
	errorTop    = `<span ` + errorStyle + `>An Exception was encountered at '<a href="#papermill-error-cell">In [`
	errorTopEnd = `]</a>'.</span>`
	errorAnchor = `<span id="papermill-error-cell" ` + errorStyle + `>Execution using papermill encountered an ` +
		`exception here and stopped:</span>`
)

// mark says which cell has failed, for the notes that a notebook gets then.
type mark struct {
	Cell  int       `json:"cell"`          // index
	Count string    `json:"count"`         // of its execution
	IDs   [2]string `json:"ids,omitempty"` // of the cells with the notes; "" if the notebook's format has none
}

// marked returns the mark of a cell that has failed.
func (d *Document) marked(failed int) *mark {
	count := "None"
	var n *int64
	if json.Unmarshal(d.cells[failed].count, &n) == nil && n != nil {
		count = string(encode(*n))
	}
	return &mark{Cell: failed, Count: count, IDs: [2]string{d.newID(), d.newID()}}
}

// top returns the cell on top of the notebook, and above the one above the cell that failed.
func (m *mark) top() *cell {
	return newCell("markdown", errorTop+m.Count+errorTopEnd, m.IDs[0], tagError)
}
func (m *mark) above() *cell { return newCell("markdown", errorAnchor, m.IDs[1], tagError) }
