package supervisor

import (
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
)

// TestSupervisor_NaN: browsers get null for numbers that they do not read, and one line in the cell. So does a reader
// of the log. A relay that asks for it gets the numbers. Text is as the kernel has sent it.
func TestSupervisor_NaN(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	const line = notice.Prefix + notice.NaNLine + "\n"
	shown := func(all []got) (text string) {
		for _, g := range all {
			if g.msgType == "display_data" {
				before, _, _ := strings.Cut(string(g.Content), "},")
				text += before + " "
			}
		}
		return text
	}
	for name, o := range map[string]dialOption{
		"v1": {session: "v1", v1: true}, "JSON": {session: "json"}, "relay": {session: "relay", relay: true},
		"as it is": {session: "is", relay: true, nan: true},
	} {
		c := r.dial(o)
		id := c.execute("show [NaN,-Infinity,\"NaN\"]\necho NaN\nshow Infinity")
		all := c.result(id)
		want := `{"data":{"application/json":[null,null,"NaN"] {"data":{"application/json":null `
		if o.nan {
			want = `{"data":{"application/json":[NaN,-Infinity,"NaN"] {"data":{"application/json":Infinity `
		}
		if data := shown(all); data != want {
			t.Errorf("%s: the displays are %s, want %s", name, data, want)
		}
		if text := output(all, id); text != line+"NaN\n" {
			t.Errorf("%s: the text is %q", name, text)
		}
		if all = c.result(c.execute("echo NaN")); output(all, "") != "NaN\n" {
			t.Errorf("%s: the text of the next cell is %q", name, output(all, ""))
		}
	}
	for _, l := range r.readLog("") {
		if l.msgType() == "display_data" && !strings.Contains(string(l.Content), "null") {
			t.Errorf("the log has %s", l.Content)
		}
	}
}
