package notebook

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"testing"
)

// TestRun_Shelves: a run that is left at each of its saves, and carried on, has the outputs of all cells, those on
// shelves, too. Displays on shelves are updated.
func TestRun_Shelves(t *testing.T) {
	const cells = 3*shelfCells + 10
	show := func(id, value string) map[string]any {
		return map[string]any{"data": text(value), "metadata": struct{}{}, "transient": map[string]any{"display_id": id}}
	}
	s, sources := &script{cells: map[string]func(*kernelCell){}}, []string{}
	for i := range cells {
		source := strconv.Itoa(i)
		sources = append(sources, source)
		s.cells[source] = func(k *kernelCell) {
			k.pub("display_data", show(source, "first"))
			if i == 2*shelfCells+5 {
				for old := range shelfCells + 9 { // a whole shelf, and some of another one
					k.pub("update_display_data", show(strconv.Itoa(old), "updated "+strconv.Itoa(old)))
				}
			}
			k.end("", "")
		}
	}
	d, left := notebookOf(t, sources...), fmt.Errorf("the gateway dies")
	pieces := &memory{}
	var state *State
	for saves := 0; ; saves++ {
		r := &Run{Conn: s, Document: d, ID: "job-1", Pieces: pieces, Resume: state}
		s.t = t
		if state != nil {
			r.Document = nil
			s.next, _ = strconv.Atoi(state.Cursor)
		}
		most := 1 + saves%7
		r.Save = func(_ context.Context, now *State, _ Progress) error {
			state = &State{}
			if err := json.Unmarshal(encode(now), state); err != nil {
				t.Fatal(err)
			}
			if most--; most == 0 && now.Result == nil {
				return left
			}
			return nil
		}
		res, err := r.Do(t.Context())
		if err == nil {
			if res.Status != Completed {
				t.Fatal(res)
			}
			break
		}
	}
	whole := document(t, string(assembled(t, *state, pieces)))
	for i := range cells {
		want := `display_data {"text/plain":["first"]}`
		if i < shelfCells+9 {
			want = fmt.Sprintf(`display_data {"text/plain":["updated%d"]}`, i)
		}
		if got := shownIn(whole, i); got != want {
			t.Errorf("cell %d has the outputs %s, want %s", i, got, want)
		}
		if n := len(whole.cells[i].metadata().child("papermill").text("end_time")); n == 0 {
			t.Errorf("cell %d has no end", i)
		}
	}
	if n := len(state.Shelves); n < 2 || n > 3 {
		t.Errorf("there are %d shelves", n)
	}

	// The kernel of another run was lost: cells before the restart keep their outputs, the others have none.
	again := *state
	again.Restart, again.Result = shelfCells+20, nil
	all, err := again.cells(t.Context(), pieces)
	if err != nil {
		t.Fatal(err)
	}
	skeleton, err := Read([]byte(pieces.names[again.Skeleton]))
	if err != nil {
		t.Fatal(err)
	}
	next := skeleton.again(again, all)
	next.Skeleton = again.Skeleton
	next = *(&stored{state: encode(next)}).resumed(t)
	whole = document(t, string(assembled(t, next, pieces)))
	for i := range cells {
		if got := shownIn(whole, i); (got != "") != (i < again.Restart) {
			t.Errorf("again: cell %d has the outputs %q", i, got)
		}
	}
}
