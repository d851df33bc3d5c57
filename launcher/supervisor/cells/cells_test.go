package cells_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/cells"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
)

// TestTable: a client's name of a cell is only a label. Its length and the number of labels are bounded.
func TestTable(t *testing.T) {
	table, open := cells.NewTable(), requests.NewTable()
	note := func(id, metadata string) string {
		m := jupyter.Message{Channel: jupyter.Shell, Metadata: []byte(metadata)}
		return table.Note(&m, jupyter.Header{MsgID: id, MsgType: "execute_request"})
	}
	for metadata, want := range map[string]string{
		`{"cellId":"a-b"}`: "a-b", `{"cellId":"\u00e4\""}`: `ä"`, `{"cellId":7}`: "", `{}`: "", ``: "", `{"cellId":"\x"}`: "",
		`{"cellId":"` + strings.Repeat("x", 128) + `"}`: strings.Repeat("x", 128),
		`{"cellId":"` + strings.Repeat("x", 129) + `"}`: "",
	} {
		if got := note("id", metadata); got != want {
			t.Errorf("%s: got %q", metadata, got)
		}
	}
	for n := range cells.Past + 1 {
		note(fmt.Sprint(n), `{"cellId":"c"}`)
	}
	if got := table.Of([]byte(`{"msg_id":"0"}`), &open); got != "" || table.Len() != cells.Past {
		t.Errorf("%d cells are known, of the oldest %q", table.Len(), got)
	}
	if got := table.Of([]byte(`{"msg_id":"1"}`), &open); got != "c" {
		t.Errorf("of the second: %q", got)
	}
}
