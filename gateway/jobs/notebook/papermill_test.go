package notebook

import (
	"strings"
	"testing"
)

// TestRun_Count: a cell's count is that of its execute_input and its reply, never that of an execute_result.
func TestRun_Count(t *testing.T) {
	s := &script{cells: map[string]func(*kernelCell){"5": func(k *kernelCell) {
		k.pub("execute_result", map[string]any{"data": text("6"), "metadata": struct{}{}, "execution_count": 6})
		k.end("", "")
	}}}
	_, last := do(t, s, notebookOf(t, "5"), nil)
	d := document(t, string(last.document))
	if count := string(d.cells[0].obj.values["execution_count"]); count != "1" ||
		!strings.Contains(string(d.cells[0].obj.values["outputs"]), `"execution_count": 6`) {
		t.Errorf("the cell has the count %s", count)
	}
}
