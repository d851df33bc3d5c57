package supervisor

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/logstream"
)

// TestCells: a client's name of a cell is only a label. Its length and the number of labels are bounded.
func TestCells(t *testing.T) {
	s := New(api.Config{LogLimit: 1 << 20}, "test", quiet())
	s.mu.Lock()
	defer s.mu.Unlock()
	note := func(id, metadata string) string {
		m := jupyter.Message{Channel: jupyter.Shell, Metadata: []byte(metadata)}
		return s.noteCellLocked(&m, jupyter.Header{MsgID: id, MsgType: "execute_request"})
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
	for n := range cellsOfPast + 1 {
		note(fmt.Sprint(n), `{"cellId":"c"}`)
	}
	if got := s.cellOfLocked([]byte(`{"msg_id":"0"}`)); got != "" || s.cells.Len() != cellsOfPast {
		t.Errorf("%d cells are known, of the oldest %q", s.cells.Len(), got)
	}
	if got := s.cellOfLocked([]byte(`{"msg_id":"1"}`)); got != "c" {
		t.Errorf("of the second: %q", got)
	}
	if _, err := logstream.ParseQuery(url.Values{"after": {"3"}, "follow": {"0"}}); err != nil {
		t.Error(err)
	}
}
