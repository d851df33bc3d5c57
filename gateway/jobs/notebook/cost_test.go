package notebook

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestRun_UpdateCost: an update of a display reads and encodes its data once, in however many places it is shown.
func TestRun_UpdateCost(t *testing.T) {
	allocations := func(places int) float64 {
		r := &run{Run: &Run{Pieces: &memory{}, Document: notebookOf(t, "show")}, dirty: map[int]bool{}, limit: 1 << 30}
		r.begin()
		r.state.Displays = map[string][]place{}
		c := &content{Data: json.RawMessage(`{"text/plain": "` + strings.Repeat(`line\n`, 20) + `"}`),
			Metadata: json.RawMessage("{}")}
		c.Transient = &struct {
			DisplayID string `json:"display_id"`
		}{"d"}
		for i := range places {
			r.put(0, &output{other: newObject(map[string]any{"output_type": "display_data", "data": c.Data, "metadata": nil})})
			r.state.Displays["d"] = append(r.state.Displays["d"], place{0, i})
		}
		return testing.AllocsPerRun(5, func() {
			if changed, err := r.update(t.Context(), c); err != nil || !changed {
				t.Error(changed, err)
			}
		})
	}
	if few, many := allocations(10), allocations(1000); many > few+10 {
		t.Errorf("an update of 10 places makes %v allocations, one of 1000 makes %v", few, many)
	}
}
