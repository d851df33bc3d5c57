package notebook

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// raw sends a message on iopub whose content a test has spelled.
func (k *kernelCell) raw(msgType, content string) {
	m := jupyter.New(jupyter.IOPub, msgType, "kernel", k.parent, struct{}{})
	m.Content = []byte(content)
	k.s.log = append(k.s.log, m)
}

func nested(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

// TestRun_Unreadable: what Python's json would not read back never enters a notebook, by whatever message it comes. Its
// cell says so, the run goes on, and another run can resume it.
func TestRun_Unreadable(t *testing.T) {
	long := strings.Repeat("1", 5000)
	values := []struct{ name, value, want string }{
		{"9,996 deep", nested(9996), "values are nested more than 190 times"},
		{"10,500 deep", nested(10500), "values are nested more than 190 times"},
		{"250 deep", nested(250), "values are nested more than 190 times"},
		{"180 deep", nested(180), ""},
		{"a long integer", long, "a number has more than 4300 digits"},
		{"a long number", "0." + long, "a number has more than 4300 digits"},
		{"no UTF-8", "\"caf\xe9\"", ""},
		{"no JSON", `{"a": }`, "it is not JSON"},
	}
	messages := []struct{ msgType, content string }{
		{"display_data", `{"data": {"application/json": %s}, "metadata": {}}`},
		{"display_data", `{"data": {}, "metadata": {"x": %s}}`},
		{"execute_result", `{"data": {"application/json": %s}, "metadata": {}, "execution_count": 1}`},
		{"update_display_data", `{"data": {"application/json": %s}, "metadata": {}, "transient": {"display_id": "d"}}`},
		{"comm_open", `{"comm_id": "w", "data": {"state": {"_model_name": "M", "x": %s}}}`},
		{"comm_msg", `{"comm_id": "old", "data": {"state": {"x": %s}}}`},
		{"comm_msg", `{"comm_id": "old", "data": {"state": {}, "buffer_paths": [%s]}}`},
		{"execute_input", `{"code": "", "execution_count": 1, "more": %s}`},
		{"stream", `{"name": "stdout", "text": "t", "more": %s}`},
		{"error", `{"ename": "E", "evalue": "", "traceback": [], "more": %s}`},
	}
	var all []string
	for _, m := range messages {
		for _, v := range values {
			name := strings.Join([]string{m.msgType, v.name}, ", ")
			s := &script{cells: map[string]func(*kernelCell){"show": func(k *kernelCell) {
				k.pub("display_data", map[string]any{"data": text("first"), "transient": map[string]any{"display_id": "d"}})
				k.raw("comm_open", `{"comm_id": "old", "data": {"state": {"_model_name": "M"}}}`)
				k.raw(m.msgType, fmt.Sprintf(m.content, v.value))
				k.print("stdout", "after")
				k.end("", "")
			}}}
			res, last := do(t, s, notebookOf(t, "show", "1"), func(r *Run) { r.AllowErrors = true })
			if got := outputsOf(t, last, 0); res.Status != Completed || !strings.Contains(got, "after") ||
				!strings.Contains(got, v.want) || strings.Contains(got, "is left out") != (v.want != "") {
				t.Errorf("%s: %v: %.300s", name, res, got)
			}
			again := &run{Run: &Run{Pieces: last.pieces}, state: *last.resumed(t), dirty: map[int]bool{}}
			if err := again.resume(t.Context()); err != nil {
				t.Errorf("%s: it cannot be resumed: %v", name, err)
			}
			all = append(all, string(last.document))
		}
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no Python to read the notebooks")
	}
	read := exec.Command(python, "-c", "import json, sys\nfor n in sys.stdin.read().split('\\0'): json.loads(n)")
	read.Stdin = strings.NewReader(strings.Join(all, "\x00"))
	if out, err := read.CombinedOutput(); err != nil {
		t.Errorf("Python cannot read a notebook: %v: %.300s", err, out)
	}
}

// TestRun_LanguageUnreadable: the kernel's own metadata are judged as outputs are.
func TestRun_LanguageUnreadable(t *testing.T) {
	long := `"` + strings.Repeat("x", maxLanguageInfo) + `"`
	for name, value := range map[string]string{"deep": nested(250), "long": long} {
		m := jupyter.New(jupyter.Shell, "kernel_info_reply", "kernel", []byte(`{"msg_id": "1"}`), struct{}{})
		m.Content = []byte(`{"language_info": {"name": "python", "x": ` + value + `}}`)
		s := &script{}
		_, last := do(t, s, notebookOf(t, "1"), func(r *Run) { r.Conn = &introduced{s, m} })
		if strings.Contains(string(last.document), "language_info") {
			t.Errorf("%s: it is kept", name)
		}
	}
}

// introduced is a script whose kernel_info_reply has other content.
type introduced struct {
	*script
	reply jupyter.Message
}

func (i *introduced) Receive(ctx context.Context) (jupyter.Message, string, error) {
	m, cursor, err := i.script.Receive(ctx)
	if own, _ := headers(&m); own.MsgType == "kernel_info_reply" {
		m.Content = i.reply.Content
	}
	return m, cursor, err
}

// TestRun_LongMembers: no member of a message is longer than what it is for. A reason is part of each list of jobs.
func TestRun_LongMembers(t *testing.T) {
	long := strings.Repeat("é", 1<<20)
	s := &script{cells: map[string]func(*kernelCell){"show": func(k *kernelCell) {
		k.print(long, "text")
		k.raw("execute_result", `{"data": {}, "metadata": {}, "execution_count": `+strings.Repeat("1", 4000)+`}`)
		k.raw("execute_result", `{"data": {}, "metadata": {}, "execution_count": ["`+long+`"]}`)
		k.pub("display_data", map[string]any{"data": text("d"), "transient": map[string]any{"display_id": long}})
		k.raw("comm_open", `{"comm_id": "`+long+`", "data": {"state": {"_model_name": "M"}}}`)
		k.end(long, long)
	}}}
	res, last := do(t, s, notebookOf(t, "show"), nil)
	if len(res.Reason) > maxNameSize+maxSentence+10 || !strings.HasSuffix(res.Reason, "é…") {
		t.Errorf("the reason has %d bytes", len(res.Reason))
	}
	if len(last.state) > 16<<10 || len(last.document) > maxErrorValue+32<<10 {
		t.Errorf("the state has %d bytes, the notebook %d", len(last.state), len(last.document))
	}
	var whole struct {
		Cells []struct {
			Count json.RawMessage `json:"execution_count"`
		} `json:"cells"`
	}
	if err := json.Unmarshal(last.document, &whole); err != nil || len(whole.Cells[2].Count) > 10 {
		t.Errorf("the cell's count: %v, %d bytes", err, len(whole.Cells[2].Count))
	}
}
