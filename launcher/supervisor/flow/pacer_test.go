package flow

import (
	"testing"
	"time"
)

func TestPacer_Wrote(t *testing.T) {
	now := time.Unix(1e9, 0)
	var p Pacer
	for i := range burst {
		if d := p.Wrote(1, 500, now); d != 0 {
			t.Fatalf("write %d after a pause has to wait %v", i, d)
		}
	}
	if d := p.Wrote(1, 500, now); d != writePause {
		t.Errorf("the write after a burst has to wait %v", d)
	}
	if d := p.Wrote(manyEntries, 500, now); d != 0 {
		t.Errorf("a write of many entries has to wait %v", d)
	}
	if d := p.Wrote(1, manyBytes, now); d != 0 {
		t.Errorf("a write of many bytes has to wait %v", d)
	}
	if d := p.Wrote(0, 0, now); d != 0 {
		t.Errorf("where nothing was written one has to wait %v", d)
	}
	if d := p.Wrote(1, 500, now.Add(writePause)); d != 0 {
		t.Errorf("a write in its time has to wait %v", d)
	}
}
