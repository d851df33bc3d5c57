package notice_test

import (
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
)

func TestDisplay_Show(t *testing.T) {
	d := notice.NewDisplay([]byte(`{"msg_id":"cell"}`))
	for _, step := range []struct{ text, msgType, content string }{
		{"a", "display_data", `"text/plain":"[ekg] a"`},
		{"a", "", ""},
		{"b", "update_display_data", `"text/plain":"[ekg] b"`},
		{"", "update_display_data", `"data":{}`},
		{"c", "display_data", `"text/plain":"[ekg] c"`},
	} {
		m, changed := d.Show("kernel", step.text)
		if changed != (step.msgType != "") {
			t.Fatalf("%q: changed is %v", step.text, changed)
		}
		if !changed {
			continue
		}
		got := jupyter.StringField(m.Header, "msg_type")
		if got != step.msgType || !strings.Contains(string(m.Content), step.content) ||
			!strings.Contains(string(m.Content), d.ID) || string(m.Parent) != `{"msg_id":"cell"}` {
			t.Errorf("%q: %s of %s", step.text, got, m.Content)
		}
	}
}

func TestReply_Type(t *testing.T) {
	for request, want := range map[string]string{"execute_request": "execute_reply", "x": "x", "_request": "_reply"} {
		m := notice.Reply(jupyter.Shell, request, "s", nil,
			notice.Failure{Status: "error", Name: "KernelDied", Reason: "why"})
		got := jupyter.StringField(m.Header, "msg_type")
		if got != want || jupyter.StringField(m.Content, "evalue") != "why" {
			t.Errorf("%s: %s of %s", request, got, m.Content)
		}
	}
}

func TestLeftOut_StillEndsARequest(t *testing.T) {
	output := jupyter.New(jupyter.IOPub, "display_data", "s", []byte(`{"msg_id":"a"}`), struct{}{})
	if m := notice.LeftOut(&output, 2, "it is too large"); jupyter.StringField(m.Header, "msg_type") != "stream" ||
		!strings.HasPrefix(jupyter.StringField(m.Content, "text"), "[ekg] A message of type display_data and ") {
		t.Errorf("output became %s %s", m.Header, m.Content)
	}
	reply := jupyter.New(jupyter.Shell, "execute_reply", "s", []byte(`{"msg_id":"a"}`), struct{}{})
	if m := notice.LeftOut(&reply, 2, "it is too large"); jupyter.StringField(m.Header, "msg_type") != "execute_reply" ||
		m.Channel != jupyter.Shell ||
		jupyter.StringField(m.Content, "status") != "error" {
		t.Errorf("a reply became %s %s", m.Header, m.Content)
	}
}
