package process

import (
	"bytes"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// tailLimit bounds the text that a Tail returns, in bytes. A process has one Tail for each stream. A program that
// floods stdout must not push out its text on stderr.
const tailLimit = 32 << 10

// Tail keeps the newest bytes written to it, at most 64 KiB. The zero value is ready. All methods may be called
// concurrently.
type Tail struct {
	// Guarded by mu.
	mu   sync.Mutex
	buf  []byte    // at most 2*tailLimit long, so that bytes are moved once per tailLimit and not at every write
	cut  bool      // the beginning of the output was dropped
	said time.Time // of the last write with text; zero: there was no text
}

// Write never fails.
func (t *Tail) Write(b []byte) (int, error) {
	t.WriteAt(b, time.Now())
	return len(b), nil
}

// WriteAt writes output whose last text was written at said.
func (t *Tail) WriteAt(b []byte, said time.Time) {
	text := hasText(string(b))
	t.mu.Lock()
	defer t.mu.Unlock()
	if text {
		t.said = said
	}
	if len(b) > tailLimit {
		b, t.cut = b[len(b)-tailLimit:], true
	}
	if len(t.buf)+len(b) > 2*tailLimit {
		keep := tailLimit - len(b)
		copy(t.buf, t.buf[len(t.buf)-keep:])
		t.buf, t.cut = t.buf[:keep], true
	}
	t.buf = append(t.buf, b...)
}

// Said returns when text was last written, zero if none was.
func (t *Tail) Said() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.said
}

// Text returns the end of the output as valid UTF-8: at most limit bytes, from the beginning of a line if one fits.
func (t *Tail) Text(limit int) string {
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

// LastOutput returns the text of stderr or, if that is blank, of stdout: at most limit bytes. A stream whose last text
// was written before since counts as blank.
func LastOutput(stdout, stderr *Tail, limit int, since time.Time) string {
	if s := stderr.Text(limit); hasText(s) && !stderr.Said().Before(since) {
		return s
	}
	if stdout.Said().Before(since) {
		return ""
	}
	return stdout.Text(limit)
}

// readers copy a process's output, with one goroutine per stream. finish ends them.
type readers struct {
	files   []*os.File
	running sync.WaitGroup
}

// openReaders makes stdin, stdout and stderr for a process, and starts to read stdout and stderr. The caller closes the
// descriptors.
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
			_ = syscall.Close(null)
			if i == 1 {
				_ = syscall.Close(ours[0])
				_ = syscall.Close(int(theirs[1]))
			}
			return nil, theirs, err
		}
		ours[i], theirs[i+1] = pipe[0], uintptr(pipe[1])
	}
	r := new(readers)
	for i, to := range []io.Writer{stdout, stderr} {
		// Our end is non-blocking, or finish could not interrupt a read.
		if err := syscall.SetNonblock(ours[i], true); err != nil {
			panic("process: a pipe cannot be made non-blocking: " + err.Error()) // fcntl of a valid descriptor
		}
		f := os.NewFile(uintptr(ours[i]), "output")
		r.files = append(r.files, f)
		r.running.Go(func() { copyOutput(to, f) })
	}
	return r, theirs, nil
}

// copyOutput reads until the last writer has closed the pipe or finish interrupts it.
func copyOutput(to io.Writer, f *os.File) {
	buf := make([]byte, 4<<10)
	for {
		n, err := f.Read(buf)
		to.Write(buf[:n]) //nolint:errcheck // a Tail takes everything; a lost copy is no reason to stop reading
		if err != nil {
			return
		}
	}
}

// both returns a writer to t and to the copy, which may be nil.
func both(t *Tail, to io.Writer) io.Writer {
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
			_ = f.Close() // without a deadline it must not wait
		}
	}
	r.running.Wait()
	for _, f := range r.files {
		_ = f.Close() // it was only read
	}
}
