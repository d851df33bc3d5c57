package notebook

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// speaker is a kernel behind a websocket, with a log from which each connection goes on at its cursor. Each cell sends
// the same contents.
type speaker struct {
	msgType  string
	contents []json.RawMessage
	url      string
	ended    chan struct{} // has an element for each connection that has ended

	mu    sync.Mutex
	log   []func() jupyter.Message
	more  chan struct{} // closed when log has grown
	dials int
}

func newSpeaker(t testing.TB, msgType string, contents ...json.RawMessage) *speaker {
	s := &speaker{msgType: msgType, contents: contents, more: make(chan struct{}), ended: make(chan struct{}, 1000)}
	up := websocket.Upgrader{Subprotocols: []string{jupyter.SubprotocolRelay}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := up.Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		next := 0
		if cursor, err := hex.DecodeString(r.FormValue("cursor")); err == nil && len(cursor) == jupyter.RelayCursor {
			next = int(binary.LittleEndian.Uint64(cursor))
		}
		var reads sync.WaitGroup
		gone := make(chan struct{})
		reads.Go(func() {
			defer close(gone)
			s.read(ws)
		})
		s.write(ws, next, gone)
		_ = ws.Close()
		reads.Wait()
		s.ended <- struct{}{}
	}))
	t.Cleanup(server.Close)
	s.url = "ws" + strings.TrimPrefix(server.URL, "http")
	return s
}

func (s *speaker) read(ws *websocket.Conn) {
	for {
		_, frame, err := ws.ReadMessage()
		if err != nil {
			return
		}
		m, err := jupyter.DecodeV1(frame)
		if err != nil {
			return
		}
		s.mu.Lock()
		say := func(channel jupyter.Channel, msgType string, content any) {
			s.log = append(s.log, func() jupyter.Message { return jupyter.New(channel, msgType, "kernel", m.Header, content) })
		}
		if own, _ := headers(&m); own.MsgType == "kernel_info_request" {
			say(jupyter.Shell, "kernel_info_reply", map[string]any{"language_info": struct{}{}})
		} else {
			say(jupyter.IOPub, "status", map[string]any{"execution_state": "busy"})
			for _, content := range s.contents {
				s.log = append(s.log, func() jupyter.Message {
					big := jupyter.New(jupyter.IOPub, s.msgType, "kernel", m.Header, nil)
					big.Content = content
					return big
				})
			}
			say(jupyter.Shell, "execute_reply", map[string]any{"status": "ok"})
			say(jupyter.IOPub, "status", map[string]any{"execution_state": "idle"})
		}
		close(s.more)
		s.more = make(chan struct{})
		s.mu.Unlock()
	}
}

func (s *speaker) write(ws *websocket.Conn, next int, gone <-chan struct{}) {
	for {
		s.mu.Lock()
		log, more := s.log, s.more
		s.mu.Unlock()
		for ; next < len(log); next++ {
			head := binary.LittleEndian.AppendUint64(nil, uint64(next+1))
			head = append(head, make([]byte, jupyter.RelayCursor-len(head))...)
			m := log[next]()
			content := m.Content
			m.Content = nil
			head = jupyter.AppendV1(head, &m)
			last := head[jupyter.RelayCursor:] // the last offset is the length
			last = last[8*binary.LittleEndian.Uint64(last):]
			binary.LittleEndian.PutUint64(last, binary.LittleEndian.Uint64(last)+uint64(len(content)))
			to, err := ws.NextWriter(websocket.BinaryMessage)
			if err == nil {
				_, headErr := to.Write(head)
				_, err = to.Write(content)
				err = errors.Join(headErr, err, to.Close())
			}
			if err != nil {
				return
			}
		}
		select {
		case <-more:
		case <-gone:
			return
		}
	}
}

func (s *speaker) dial(ctx context.Context, query url.Values) (*websocket.Conn, error) {
	s.mu.Lock()
	s.dials++
	s.mu.Unlock()
	d := websocket.Dialer{Subprotocols: []string{jupyter.SubprotocolRelay}}
	ws, answer, err := d.DialContext(ctx, s.url+"?"+query.Encode(), nil)
	if answer != nil {
		_ = answer.Body.Close()
	}
	return ws, err
}

// onDisk is the pieces of a test, in a folder.
type onDisk struct {
	dir     string
	count   int
	largest int // bytes of a piece
}

func (d *onDisk) Put(_ context.Context, data []byte) (string, error) {
	d.count, d.largest = d.count+1, max(d.largest, len(data))
	return fmt.Sprint(d.count), os.WriteFile(filepath.Join(d.dir, fmt.Sprint(d.count)), data, 0o600)
}

func (d *onDisk) Get(_ context.Context, name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(d.dir, name))
}

func (d *onDisk) Remove(_ context.Context, names []string) {
	for _, name := range names {
		_ = os.Remove(filepath.Join(d.dir, name))
	}
}

// many are runs at once, over relays, with one budget.
type many struct {
	runs   int
	budget *Budget
	kernel *speaker
}

// do returns the states in which the runs have ended, and how much memory was in use at most.
func (m *many) do(t testing.TB) (states []State, pieces []*onDisk, peak uint64) {
	states, pieces = make([]State, m.runs), make([]*onDisk, m.runs)
	runtime.GC()
	var before, now runtime.MemStats
	runtime.ReadMemStats(&before)
	var all, watch sync.WaitGroup
	for i := range m.runs {
		pieces[i] = &onDisk{dir: t.TempDir()}
		kernel := newSpeaker(t, m.kernel.msgType, m.kernel.contents...)
		d, err := Read([]byte(`{"nbformat":4,"nbformat_minor":4,"metadata":{},"cells":[{"cell_type":"code","metadata":{},
			"source":"c","outputs":[],"execution_count":null}]}`))
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			relay := OpenRelay(RelayOptions{Dial: kernel.dial, Session: "s", Budget: m.budget, patience: time.Millisecond})
			defer relay.Close()
			r := &Run{Conn: relay, Document: d, ID: "job-1", Pieces: pieces[i], Budget: m.budget}
			r.Save = func(_ context.Context, s *State, _ Progress) error {
				states[i] = *s
				return nil
			}
			if res, err := r.Do(t.Context()); err != nil || res.Status != Completed {
				t.Error(res, err)
			}
		})
	}
	ended := make(chan struct{})
	watch.Go(func() {
		for {
			runtime.ReadMemStats(&now)
			peak = max(peak, now.HeapAlloc-min(now.HeapAlloc, before.HeapAlloc))
			select {
			case <-ended:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	all.Wait()
	close(ended)
	watch.Wait()
	return states, pieces, peak
}

func stream(size int) json.RawMessage {
	line := strings.Repeat("x", 79) + "\n"
	return encode(map[string]any{"name": "stdout", "text": strings.Repeat(line, size/len(line))})
}

func picture(mediaType string, size int) json.RawMessage {
	return encode(map[string]any{"metadata": struct{}{},
		"data": map[string]any{mediaType: strings.Repeat(strings.Repeat("x", 79)+"\n", size/80)}})
}

// TestBudget_Runs: runs whose outputs are together many times as large as the budget keep within it, and lose nothing.
// Each of them ends.
func TestBudget_Runs(t *testing.T) {
	const runs, size = 4, 256 << 10
	for name, kernel := range map[string]*speaker{
		"text":    {msgType: "stream", contents: []json.RawMessage{stream(size), stream(size), stream(100), stream(size)}},
		"lines":   {msgType: "stream", contents: slices.Repeat([]json.RawMessage{stream(4000)}, 125)},
		"display": {msgType: "display_data", contents: slices.Repeat([]json.RawMessage{picture("image/png", size)}, 3)},
	} {
		t.Run(name, func(t *testing.T) {
			m := many{runs: runs, budget: NewBudget(1 << 20), kernel: kernel}
			states, pieces, _ := m.do(t)
			want := 0
			for _, content := range kernel.contents {
				want += len(content)
			}
			for i := range states {
				var b strings.Builder
				err := Write(t.Context(), &b, states[i], pieces[i], func(_ context.Context, err error) (State, error) {
					return State{}, err
				})
				if err != nil || b.Len() < want*9/10 {
					t.Errorf("the notebook has %d bytes of %d, %v", b.Len(), want, err)
				}
				named := len(states[i].Names()) + 1 // with a skeleton that an earlier state has named
				if files, err := os.ReadDir(pieces[i].dir); err != nil || len(files) != named {
					t.Errorf("%d pieces are kept, %v; the states name %d", len(files), err, named)
				}
			}
			if used := m.budget.used; used.messages != 0 || used.outputs != 0 || used.peak < 100<<10 || used.peak > 1<<20 {
				t.Errorf("the budget was used so: %+v", used)
			}
		})
	}
}

// TestRelay_NoRoom: a relay without room for a message closes its connection. It goes on at its cursor when there is
// room. It reads small messages without room.
func TestRelay_NoRoom(t *testing.T) {
	budget := NewBudget(8 << 20)
	if err := budget.take(t.Context(), budget.most); err != nil {
		t.Fatal(err)
	}
	kernel := newSpeaker(t, "stream", stream(100), stream(1<<20))
	relay := OpenRelay(RelayOptions{Dial: kernel.dial, Session: "s", Budget: budget, patience: time.Millisecond})
	defer relay.Close()
	ask := (&run{Run: &Run{ID: "job-1"}}).message("execute_request", "job-1-0", map[string]any{"code": "c"})
	if err := relay.Send(t.Context(), ask); err != nil {
		t.Fatal(err)
	}
	next := func(msgType string, least int) {
		m, _, err := relay.Receive(t.Context())
		if own, _ := headers(&m); err != nil || own.MsgType != msgType || len(m.Content) < least {
			t.Fatalf("got %s of %d bytes, %v; want %s", own.MsgType, len(m.Content), err, msgType)
		}
	}
	next("status", 1)
	next("stream", 100)
	<-kernel.ended
	budget.give(budget.most)
	next("stream", 1<<20)
	if budget.used.messages < 3<<20 {
		t.Errorf("a message that is used takes %d bytes", budget.used.messages)
	}
	next("execute_reply", 1)
	if budget.used.messages != 0 || kernel.dials != 2 {
		t.Errorf("%d bytes are taken after %d connections", budget.used.messages, kernel.dials)
	}
}

// BenchmarkBudget shows the memory of runs at once with 50 MB of output each.
func BenchmarkBudget(b *testing.B) {
	const size = 50 << 20
	for name, kernel := range map[string]*speaker{
		"text":     {msgType: "stream", contents: []json.RawMessage{stream(size)}},
		"texts":    {msgType: "stream", contents: slices.Repeat([]json.RawMessage{stream(1 << 20)}, 50)},
		"picture":  {msgType: "display_data", contents: []json.RawMessage{picture("image/png", size)}},
		"page":     {msgType: "display_data", contents: []json.RawMessage{picture("text/html", size)}},
		"pictures": {msgType: "display_data", contents: slices.Repeat([]json.RawMessage{picture("image/png", 1<<20)}, 50)},
	} {
		for _, runs := range []int{1, 3, 8} {
			b.Run(fmt.Sprintf("%s/runs=%d", name, runs), func(b *testing.B) {
				m := many{runs: runs, kernel: kernel}
				var peak uint64
				for b.Loop() {
					m.budget = NewBudget(DefaultBudget)
					_, _, most := m.do(b)
					peak = max(peak, most)
				}
				b.ReportMetric(float64(peak>>20), "peak-MiB")
				b.ReportMetric(float64(m.budget.used.peak>>20), "budget-MiB")
			})
		}
	}
}
