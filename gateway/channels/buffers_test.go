package channels

import "testing"

// TestBuffers: a direction reads into larger buffers while reads fill them, and a quiet one holds none. So many clients
// that do not read cannot take much memory.
func TestBuffers(t *testing.T) {
	before := hugeInUse.Load()
	b := newBuffers()
	for i, step := range []struct{ read, want int }{
		{smallBuffer - 1, smallBuffer}, {smallBuffer, largeBuffer}, {smallBuffer, largeBuffer},
		{largeBuffer, hugeBuffer}, {hugeBuffer, hugeBuffer}, {smallBuffer, hugeBuffer}, {1, smallBuffer},
		{smallBuffer, largeBuffer}, {largeBuffer, hugeBuffer},
	} {
		if b.adapt(step.read); len(b.now) != step.want {
			t.Fatalf("step %d: the next read is into %d bytes, want %d", i, len(b.now), step.want)
		}
	}
	all := []*buffers{b}
	for range hugeMost {
		b := newBuffers()
		b.adapt(smallBuffer)
		b.adapt(largeBuffer)
		all = append(all, b)
	}
	if last := all[len(all)-1]; len(last.now) != largeBuffer || hugeInUse.Load() != before+hugeMost {
		t.Errorf("the last of %d directions reads into %d bytes; %d buffers are in use", len(all), len(last.now),
			hugeInUse.Load())
	}
	for _, b := range all {
		b.release()
	}
	if n := hugeInUse.Load(); n != before {
		t.Errorf("%d buffers count as used, before it were %d", n, before)
	}
}
