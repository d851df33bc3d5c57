package supervisor

import (
	"bytes"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// tailLimit bounds what is kept of one stream. Two halves of 64 KiB rather than one ring: a program that floods stdout
// must not push out what it said on stderr.
const tailLimit = 32 << 10

// tail keeps the newest bytes written to it. The zero value is ready; all methods may be called concurrently.
type tail struct {
	// Guarded by mu.
	mu  sync.Mutex
	buf []byte // at most 2*tailLimit long, so that bytes are moved once per tailLimit and not at every write
	cut bool   // the beginning of the output has been dropped
}

// Write never fails.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(b)
	if len(b) > tailLimit {
		b, t.cut = b[len(b)-tailLimit:], true
	}
	if len(t.buf)+len(b) > 2*tailLimit {
		keep := tailLimit - len(b)
		copy(t.buf, t.buf[len(t.buf)-keep:])
		t.buf, t.cut = t.buf[:keep], true
	}
	t.buf = append(t.buf, b...)
	return n, nil
}

// forget drops what was written so far.
func (t *tail) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf, t.cut = t.buf[:0], false
}

// text returns the end of what was written: at most limit bytes, beginning with a whole line where there is one.
func (t *tail) text(limit int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	limit = max(0, min(limit, tailLimit))
	b, cut := t.buf, t.cut
	if len(b) > limit {
		b, cut = b[len(b)-limit:], true
	}
	if cut {
		if i := bytes.IndexByte(b, '\n'); i >= 0 && i < len(b)-1 {
			b = b[i+1:]
		}
	}
	return strings.ToValidUTF8(string(b), "")
}

// readers copy a process's output into tails: one goroutine per stream, ended by finish.
type readers struct {
	files   []*os.File
	running sync.WaitGroup
}

// openReaders makes stdin, stdout and stderr for a process, as descriptors that the caller closes, and starts to read
// the latter two.
func openReaders(stdout, stderr io.Writer) (*readers, [3]uintptr, error) {
	var theirs [3]uintptr
	null, err := syscall.Open("/dev/null", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, theirs, err
	}
	theirs[0] = uintptr(null)
	var ours [2]int
	for i := range ours {
		var pipe [2]int
		if err := syscall.Pipe2(pipe[:], syscall.O_CLOEXEC); err != nil {
			syscall.Close(null)
			if i == 1 {
				syscall.Close(ours[0])
				syscall.Close(int(theirs[1]))
			}
			return nil, theirs, err
		}
		ours[i], theirs[i+1] = pipe[0], uintptr(pipe[1])
	}
	r := new(readers)
	for i, t := range []io.Writer{stdout, stderr} {
		// Non-blocking at our end, or a read could not be broken off.
		if err := syscall.SetNonblock(ours[i], true); err != nil {
			panic("supervisor: a pipe refuses to be non-blocking: " + err.Error()) // fcntl of a valid descriptor
		}
		f := os.NewFile(uintptr(ours[i]), "output")
		r.files = append(r.files, f)
		r.running.Go(func() { copyOutput(t, f) })
	}
	return r, theirs, nil
}

// copyOutput reads until the last writer has gone or finish breaks it off.
func copyOutput(t io.Writer, f *os.File) {
	buf := make([]byte, 4<<10)
	for {
		n, err := f.Read(buf)
		t.Write(buf[:n]) //nolint:errcheck // a tail takes all; a copy that is lost is no reason to stop reading
		if err != nil {
			return
		}
	}
}

// both is a writer to t and, as far as that takes it, to the copy, if there is one.
func both(t *tail, to io.Writer) io.Writer {
	if to == nil {
		return t
	}
	return io.MultiWriter(t, to)
}

// finish waits until all output is read, for grace at most, and ends the goroutines.
func (r *readers) finish(grace time.Duration) {
	deadline := time.Now().Add(grace)
	for _, f := range r.files {
		if err := f.SetReadDeadline(deadline); err != nil {
			f.Close() // no deadline, no waiting
		}
	}
	r.running.Wait()
	for _, f := range r.files {
		f.Close()
	}
}
