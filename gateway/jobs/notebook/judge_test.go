package notebook

import "testing"

// A cell that was interrupted for the end of its job is no failed cell, also if an earlier gateway has interrupted it.
func TestRun_JudgeInterrupted(t *testing.T) {
	stop := make(chan struct{})
	c := newCell("code", "1", "id")
	r := &run{Run: &Run{Stop: stop}}
	r.state.Reply = &Reply{Status: "error", Ename: "KeyboardInterrupt"}
	if res := r.judge(c); res == nil || res.Status != Failed {
		t.Errorf("nobody has stopped it: %+v", res)
	}
	close(stop)
	for _, name := range []string{"KeyboardInterrupt", "SystemExit"} {
		r.state.Reply.Ename = name
		if res := r.judge(c); res == nil || res.Status != Stopped {
			t.Errorf("%s: %+v", name, res)
		}
	}
	r.state.Reply = &Reply{Status: "ok"}
	if res := r.judge(c); res != nil {
		t.Errorf("it has run to its end: %+v", res)
	}
}
