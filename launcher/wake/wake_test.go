package wake

import "testing"

// TestReader: any number of calls leaves one value, and none of them blocks.
func TestReader(t *testing.T) {
	c := make(chan struct{}, 1)
	for range 3 {
		Reader(c)
	}
	<-c
	if len(c) != 0 {
		t.Errorf("%d values are left", len(c))
	}
	Reader(c)
	if len(c) != 1 {
		t.Error("a reader that looked before is not woken")
	}
}
