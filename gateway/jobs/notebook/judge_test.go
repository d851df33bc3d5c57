package notebook

import "testing"

// An interrupt for the end of a job does not make its cell fail. An earlier gateway may have sent the interrupt.
func TestRun_JudgeInterrupted(t *testing.T) {
	stop := make(chan struct{})
	c := newCell("code", "1", "id")
	r := &run{Run: &Run{Stop: stop}}
	r.state.Reply = &Reply{Status: "error", Ename: "KeyboardInterrupt"}
	if res := r.judge(c); res == nil || res.Status != Failed {
		t.Errorf("without a stop, the result is %+v", res)
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
