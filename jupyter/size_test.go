package jupyter

import "testing"

// TestV1Size: the beginning of a frame says how long the frame is.
func TestV1Size(t *testing.T) {
	m := New(IOPub, "stream", "kernel", nil, map[string]string{"text": "a line"})
	m.Buffers = [][]byte{{1, 2, 3}, {4}}
	frame := EncodeV1(&m)
	offsets := v1Word * (v1MinOffsets + len(m.Buffers) + 1)
	for n := range len(frame) + 1 {
		size, ok := V1Size(frame[:n])
		if ok != (n >= offsets) || ok && size != int64(len(frame)) {
			t.Errorf("%d of %d bytes say %d, %v", n, len(frame), size, ok)
		}
	}
	for _, head := range []string{"", "\x00\x00\x00\x00\x00\x00\x00\x00", "\xff\xff\xff\xff\xff\xff\xff\xff",
		"\x01\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff"} {
		if size, ok := V1Size([]byte(head)); ok {
			t.Errorf("%q says %d", head, size)
		}
	}
}
