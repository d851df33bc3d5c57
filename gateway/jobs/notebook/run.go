package notebook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// Defaults of Run.
const (
	DefaultOutputLimit  = 64 << 20
	DefaultSaveEvery    = 10 * time.Second
	DefaultStopPatience = 10 * time.Second
)

// ErrGone says that a kernel has ended for good. Its text has the reason behind it.
var ErrGone = errors.New("the kernel is gone")

// Conn is the connection of a run to its kernel. One goroutine calls its methods, except that Interrupt and Receive may
// be called at the same time.
type Conn interface {
	// Send sends a message. The kernel gets a message with the same msg_id at most once, even over another Conn of the
	// same session.
	Send(ctx context.Context, m jupyter.Message) error
	// Receive returns the kernel's next message, and a cursor with which another Conn goes on after it. An error that
	// wraps ErrGone is final. Other errors mean that ctx has ended. Each request gets an idle: the supervisor makes one
	// for a kernel that sends none, and before it says in the cell that output may be lost.
	Receive(ctx context.Context) (m jupyter.Message, cursor string, err error)
	// Interrupt interrupts the kernel.
	Interrupt(ctx context.Context) error
}

// State is the record of a run: what another Run needs to carry it on. Its members are for this package only, except
// Cursor and Reached.
type State struct {
	From    int    `json:"from,omitempty"`    // index of the cell with which the run begins
	Restart int    `json:"restart,omitempty"` // index of the cell of Plan.Restart
	Reached bool   `json:"reached,omitempty"` // that cell has begun
	Again   bool   `json:"again,omitempty"`   // it runs after another one has lost its kernel; see Run.Again
	Cell    int    `json:"cell"`              // index of the cell that runs, or is the next
	Cursor  string `json:"cursor,omitempty"`
	present

	Skeleton string             `json:"skeleton,omitempty"` // name of its piece
	Shelves  []string           `json:"shelves,omitempty"`  // names of pieces with cells that Cells does not have
	Cells    map[int][]*part    `json:"cells,omitempty"`    // by index; none for cells that have not run
	Widgets  map[string]*widget `json:"widgets,omitempty"`  // by comm
	Displays map[string][]place `json:"displays,omitempty"`
	// Raised are errors in the outputs of cells whose end need not tell of them, by the cell's index.
	Raised map[int]*raised `json:"raised,omitempty"`
	// Takers are the Output widgets that take the outputs of a request, by its msg_id. The last one has them.
	Takers map[string][]string `json:"takers,omitempty"`
	// Met are the comms of widgets that the present cell has met, and whose states the run does not know yet.
	Met []string `json:"met,omitempty"`

	Result *Result `json:"result,omitempty"` // the run has ended
	Mark   *mark   `json:"mark,omitempty"`   // the notebook shows where it failed
}

// present is the part of a State about the cell that runs.
type present struct {
	Running bool   `json:"running,omitempty"` // its request may have been sent
	Replied bool   `json:"replied,omitempty"` // its reply was received
	Idled   bool   `json:"idled,omitempty"`   // its idle was received
	Reply   *Reply `json:"reply,omitempty"`
	Broken  string `json:"broken,omitempty"`  // why the kernel has lost its variables, "" if it has them
	Refused bool   `json:"refused,omitempty"` // the cell asked for input
	Clear   bool   `json:"clear,omitempty"`   // a clear_output waits for the next output
	Full    bool   `json:"full,omitempty"`    // the cell has too much output
}

// Reply is the end of a cell as the kernel reports it.
type Reply struct {
	Status string `json:"status"` // "ok", "error" or "aborted"
	Ename  string `json:"ename,omitempty"`
	Evalue string `json:"evalue,omitempty"`
}

// Progress says how far a run is.
type Progress struct {
	Cell  int // which of the cells with code runs, from 1; 0 before the first
	Cells int // how many cells have code to run
}

// Status is how a run has ended.
type Status string

// The ends of a run.
const (
	Completed Status = "completed"
	Failed    Status = "failed"
	Stopped   Status = "stopped"
)

// Result is the end of a run. The document has been finished and saved.
type Result struct {
	Status Status `json:"status"`
	Cell   int    `json:"cell,omitempty"`   // number of the cell that ended the run, from 1; 0 if none did
	Reason string `json:"reason,omitempty"` // a sentence; "" if the run is completed
	Lost   bool   `json:"lost,omitempty"`   // it failed since the kernel ended or lost its variables: another may succeed
}

// Run runs a document's cells in their order. It can be left at any moment: the cells then go on, and another Run with
// the last saved state carries on. Its fields are fixed before Do.
type Run struct {
	Conn     Conn
	Pieces   Pieces
	Document *Document // prepared; with Resume, that of the state: nil reads it
	// ID makes the msg_ids of the cells. It is the same for a run that is carried on, and no other run on the kernel has
	// it.
	ID     string
	Resume *State // nil for a run that begins
	// Again says that Resume is of a run whose kernel was lost. This one begins, on another kernel. It runs the cells with
	// parameters, and those from Plan.Restart on. The others keep their outputs.
	Again bool
	// AllowErrors makes the run go on after a cell with an error. Without it, cells with the tag raises-exception do.
	AllowErrors bool
	// Save stores the state in one step. What the state names is stored. It is called before a cell is sent to the kernel,
	// every SaveEvery while a cell changes, and at the end of the run. If it returns an error, the run is left. The state
	// changes after Save has returned.
	Save      func(ctx context.Context, s *State, p Progress) error
	SaveEvery time.Duration // 0: DefaultSaveEvery
	// Stop is closed to end the run: the kernel is interrupted. If the cell has not ended after StopPatience
	// (0: DefaultStopPatience), the run ends without it.
	Stop         <-chan struct{}
	StopPatience time.Duration
	OutputLimit  int64 // bytes of all outputs; 0: DefaultOutputLimit
	Most         int64 // bytes of the skeleton and all outputs; 0: any number
	// Budget bounds what runs hold in memory of outputs that are not stored; nil: there is no bound.
	Budget *Budget
}

// run is a Run that is being done.
type run struct {
	*Run
	doc       *Document
	state     State
	dirty     map[int]bool // cells with parts that may have changed since the last save
	size      int64        // bytes of all outputs
	fresh     int64        // at most so many bytes of outputs came into memory since the last store
	held      int64        // of these, what the budget counts
	stored    int64        // bytes of the pieces that were stored since the last save
	news      []string     // their names
	early     bool         // not all were stored by a save
	limit     int64
	total     int   // cells with code to run
	number    []int // by cell: how many of these there are up to it
	saved     time.Time
	saveEvery time.Duration
	changed   bool // since the last save
	stopped   bool
	stopAt    time.Time // when a cell that was interrupted is given up
}

// Do runs the cells. An error means that the run was left, since ctx has ended or Save failed: another Run carries on.
// A kernel that ends is a Result. A run that had ended when it was saved returns its Result again.
func (o *Run) Do(ctx context.Context) (Result, error) {
	r := &run{Run: o, dirty: map[int]bool{}, limit: o.OutputLimit, saveEvery: o.SaveEvery}
	defer r.release()
	if r.limit == 0 {
		r.limit = DefaultOutputLimit
	}
	if r.saveEvery == 0 {
		r.saveEvery = DefaultSaveEvery
	}
	if r.StopPatience == 0 {
		r.StopPatience = DefaultStopPatience
	}
	if o.Resume == nil {
		r.begin()
	} else {
		if o.Resume.Result != nil && !o.Again {
			return *o.Resume.Result, nil
		}
		r.state = *o.Resume
		if err := r.resume(ctx); err != nil {
			return Result{}, err
		}
	}
	if r.Most > 0 {
		r.limit = max(0, min(r.limit, r.Most-int64(len(r.doc.skeleton()))))
	}
	r.number = make([]int, len(r.doc.cells))
	for i, c := range r.doc.cells {
		if i >= r.state.From && c.runs {
			r.total++
		}
		r.number[i] = r.total
	}
	if r.state.Displays == nil {
		r.state.Displays = map[string][]place{}
	}
	if r.state.Widgets == nil {
		r.state.Widgets = map[string]*widget{}
	}
	if r.state.Raised == nil {
		r.state.Raised = map[int]*raised{}
	}
	if r.state.Takers == nil {
		r.state.Takers = map[string][]string{}
	}
	if r.state.Cursor == "" {
		if res, err := r.first(ctx); res != nil || err != nil {
			return r.ended(ctx, res, err)
		}
	}
	res, err := r.cells(ctx)
	return r.ended(ctx, res, err)
}

// first waits for the kernel, and asks it for its language. The answer gives a cursor, without which a run that is
// carried on could miss messages.
func (r *run) first(ctx context.Context) (*Result, error) {
	r.doc.begin(time.Now())
	ask := r.message("kernel_info_request", jupyter.NewID(), struct{}{})
	if err := r.Conn.Send(ctx, ask); err != nil {
		return r.gone(err)
	}
	h, err := jupyter.ParseHeader(ask.Header)
	if err != nil {
		return nil, fmt.Errorf("notebook: %w", err)
	}
	for {
		m, stop, err := r.receive(ctx)
		if err != nil {
			return r.gone(err)
		}
		if stop {
			return &Result{Status: Stopped, Reason: "it was stopped before its first cell"}, nil
		}
		own, parent := headers(m)
		if m.Channel == jupyter.IOPub && own.MsgType == "status" {
			r.noteStatus(m, false)
		}
		if r.state.Broken != "" { // the kernel may have forgotten the request
			return &Result{Status: Failed, Reason: r.state.Broken, Lost: true}, nil
		}
		if own.MsgType != "kernel_info_reply" || parent.MsgID != h.MsgID {
			continue
		}
		var c struct {
			LanguageInfo json.RawMessage `json:"language_info"`
		}
		if fault(m.Content, maxContentDepth) == "" && json.Unmarshal(m.Content, &c) == nil && len(c.LanguageInfo) > 0 &&
			len(c.LanguageInfo) <= maxLanguageInfo {
			r.doc.meta.set("language_info", objectOr(c.LanguageInfo))
			r.doc.changed = true
		}
		return nil, nil
	}
}

// gone turns the end of a kernel into a result.
func (r *run) gone(err error) (*Result, error) {
	if !errors.Is(err, ErrGone) {
		return nil, err
	}
	return &Result{Status: Failed, Reason: whyGone(err), Lost: true}, nil
}

func whyGone(err error) string {
	if text := strings.TrimPrefix(err.Error(), ErrGone.Error()+": "); text != "" {
		return text
	}
	return err.Error()
}

// cells runs the cells from the present one on.
func (r *run) cells(ctx context.Context) (*Result, error) {
	for r.state.Cell < len(r.doc.cells) {
		c := r.doc.cells[r.state.Cell]
		if r.state.Again && r.state.Cell < r.state.Restart && !c.hasParameters() {
			r.state.Cell++ // it has run on the kernel that was lost
			continue
		}
		r.state.Reached = r.state.Reached || r.state.Cell >= r.state.Restart
		if !r.state.Running {
			if r.isStopped() {
				return &Result{Status: Stopped, Reason: "it was stopped"}, nil
			}
			if !c.runs {
				r.state.Cell++ // Write notes that the run has passed it
				continue
			}
			c.known = true
			c.begin(time.Now())
			c.metadata().set("execution", struct{}{})
		}
		res, err := r.cell(ctx, c)
		if res != nil || err != nil {
			return res, err
		}
		r.state.present = present{}
		r.state.Cell++
	}
	return &Result{Status: Completed}, nil
}

func (r *run) isStopped() bool {
	select {
	case <-r.Stop:
		return true
	default:
		return false
	}
}

// cell runs one cell to its end.
func (r *run) cell(ctx context.Context, c *cell) (*Result, error) {
	r.state.Running = true
	if err := r.save(ctx); err != nil {
		return nil, err
	}
	if !r.state.Replied && !r.state.Idled {
		_, err := r.tell(ctx, r.state.Cell)
		if err == nil {
			err = r.Conn.Send(ctx, r.request(c))
		}
		if err != nil {
			return r.cellGone(ctx, c, err)
		}
	}
	for !r.state.Replied || !r.state.Idled {
		m, stop, err := r.receive(ctx)
		if err != nil {
			return r.cellGone(ctx, c, err)
		}
		if stop {
			return r.cellEnd(ctx, c, &Result{Status: Stopped, Reason: "the cell has not ended after an interrupt"})
		}
		if err := r.handle(ctx, m); err != nil {
			return r.cellGone(ctx, c, err)
		}
		if err := r.hold(ctx, m); err != nil {
			return nil, err
		}
		if r.changed && time.Since(r.saved) >= r.saveEvery {
			if err := r.save(ctx); err != nil {
				return nil, err
			}
		}
	}
	if err := r.learn(ctx); err != nil {
		return r.cellGone(ctx, c, err)
	}
	return r.cellEnd(ctx, c, r.judge(c)) // the next cell's beginning, or the end of the run, is saved
}

func (r *run) cellGone(ctx context.Context, c *cell, err error) (*Result, error) {
	res, err := r.gone(err)
	if res == nil {
		return nil, err
	}
	return r.cellEnd(ctx, c, res)
}

// cellEnd writes how the cell has ended. It returns res with the cell's number.
func (r *run) cellEnd(ctx context.Context, c *cell, res *Result) (*Result, error) {
	err := r.forgetAll(ctx)
	if err == nil {
		err = r.tail(ctx, r.state.Cell)
	}
	if err != nil {
		return nil, err
	}
	c.end(time.Now(), res != nil)
	r.changed = true
	if res != nil {
		res.Cell = r.state.Cell + 1
	}
	return res, nil
}

// save stores what has changed, and then the state. If that takes over a quarter of the time between two saves, later
// ones are rarer.
func (r *run) save(ctx context.Context) error {
	if r.state.Running {
		c := r.doc.cells[r.state.Cell]
		r.state.Clear, r.state.Full = c.clear, c.full
	}
	begin := time.Now()
	err := r.store(ctx)
	if err == nil {
		err = r.Save(ctx, &r.state, r.progress())
	}
	if err == nil {
		r.drop(ctx)
	}
	r.saved, r.changed = time.Now(), false
	if r.saved.Sub(begin) > r.saveEvery/4 {
		r.saveEvery *= 2
	}
	return err
}

// drop removes pieces that were stored early, and that no saved state has named since.
func (r *run) drop(ctx context.Context) {
	if r.early {
		named := map[string]bool{}
		for _, name := range r.state.Names() {
			named[name] = true
		}
		r.Pieces.Remove(ctx, slices.DeleteFunc(r.news, func(name string) bool { return named[name] }))
	}
	r.news, r.stored, r.early = nil, 0, false
}

func (r *run) progress() Progress {
	p := Progress{Cells: r.total}
	if n := min(r.state.Cell, len(r.doc.cells)-1); n >= 0 {
		p.Cell = r.number[n]
	}
	return p
}

// hold counts a message that was applied as a part of what the run has in memory. If the budget has no room for it, the
// outputs are stored, and only what is small stays. A save follows if much was stored, since only that removes what no
// state names.
func (r *run) hold(ctx context.Context, m *jupyter.Message) error {
	r.fresh += int64(outputCost + len(m.Content))
	for _, b := range m.Buffers {
		r.fresh += int64(len(b))
	}
	want := r.fresh
	if want <= freeOutputs {
		want = 0
	}
	if r.Budget.hold(r.held, want) {
		r.held = want
		return nil
	}
	if err := r.store(ctx); err != nil {
		return err
	}
	r.early = true
	if r.stored > r.limit {
		return r.save(ctx)
	}
	return nil
}

// release gives back what the budget counts, when the outputs are stored or the run ends.
func (r *run) release() {
	r.Budget.hold(r.held, 0)
	r.held, r.fresh = 0, 0
}

// request is the execute_request of a cell. Its msg_id is the same whichever gateway sends it.
func (r *run) request(c *cell) jupyter.Message {
	allowed := r.allows(c)
	m := r.message("execute_request", r.msgID(r.state.Cell), map[string]any{
		"code": c.source(), "silent": false, "store_history": true, "user_expressions": struct{}{}, "allow_stdin": false,
		"stop_on_error": !allowed,
	})
	if id := c.object().text("id"); id != "" { // as front ends do: the log of the kernel has the outputs by cell
		m.Metadata = encode(map[string]string{"cellId": id})
	}
	return m
}

func (r *run) msgID(cell int) string { return r.ID + "-" + strconv.Itoa(cell) }

// cellOf returns the index of the cell whose request has the msg_id.
func (r *run) cellOf(msgID string) (int, bool) {
	number, own := strings.CutPrefix(msgID, r.ID+"-")
	i, err := strconv.Atoi(number)
	return i, own && err == nil && i >= 0 && i <= r.state.Cell && i < len(r.doc.cells) && r.doc.cells[i].isCode
}

func (r *run) message(msgType, id string, content any) jupyter.Message {
	return jupyter.Message{
		Channel: jupyter.Shell,
		Header: encode(map[string]any{"msg_id": id, "msg_type": msgType, "session": r.ID, "username": "",
			"date": time.Now().UTC().Format(time.RFC3339Nano), "version": "5.3"}),
		Parent: []byte("{}"), Metadata: []byte("{}"), Content: encode(content),
	}
}
