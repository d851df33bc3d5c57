package messagelog

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"sort"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// A record of a segment, in little endian:
//
//	0      u32  bytes of the cell id and of the lengths, which follow the fixed part
//	4      u64  bytes of the rest: the message's parts
//	12     u64  Seq, 20 u64 Out: the position
//	28     u64  number of the session that it is for, 0 for everyone
//	36     i64  time, in Unix nanoseconds, 44 u64 epoch
//	52     u8   channel, 53 u8 1 if it is essential
//	54     u16  bytes of the cell id, which comes next
//	56     cell id; u64 lengths of header, parent_header, metadata, content and of each buffer; then these
const (
	recordFixed = 56
	fileBuffer  = 64 << 10 // bytes of one read or write
	markEvery   = 64 << 10 // least bytes of a segment between two places at which reading can begin
)

// segment is a part of the log on disk. Its records do not change; more may be written behind them.
type segment struct {
	file  *os.File
	every int64    // bytes between two marks, if more than markEvery
	last  Position // of its newest
	size  int64    // bytes
	count uint64   // of its entries
	marks []mark
	users int // the log, the writer and readers; at 0 the file is closed

	// The segment's essential entries are in memory too, since an append that has to make room cannot wait for the disk.
	// All segments together have at most 1/keptShare of the memory. Entries of the oldest segments are dropped first.
	essential []*Entry
}

// mark is where a record begins.
type mark struct {
	seq    uint64
	offset int64
}

// write writes entries behind those of the segment, and returns the segment's new fields. Only one goroutine writes.
func (g *segment) write(batch []*Entry) (segment, error) {
	out := segment{size: g.size, marks: g.marks, count: g.count + uint64(len(batch))}
	every := max(g.every, markEvery)
	w := bufio.NewWriterSize(io.NewOffsetWriter(g.file, g.size), fileBuffer)
	var buf []byte
	for _, e := range batch {
		if n := len(out.marks); n == 0 || out.size-out.marks[n-1].offset >= every {
			out.marks = append(out.marks, mark{e.At.Seq, out.size})
		}
		buf = appendRecordHead(buf[:0], e)
		n := int64(len(buf))
		if _, err := w.Write(buf); err != nil {
			return out, err
		}
		for part := range messageParts(&e.Message) {
			if _, err := w.Write(part); err != nil {
				return out, err
			}
			n += int64(len(part))
		}
		out.size += n
		out.last = e.At
	}
	return out, w.Flush()
}

// messageParts yields the parts of a message in the order of a record.
func messageParts(m *jupyter.Message) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for _, part := range [...][]byte{m.Header, m.Parent, m.Metadata, m.Content} {
			if !yield(part) {
				return
			}
		}
		for _, part := range m.Buffers {
			if !yield(part) {
				return
			}
		}
	}
}

func appendRecordHead(b []byte, e *Entry) []byte {
	flags := byte(0)
	if e.Essential {
		flags = 1
	}
	lengths := 8 * (4 + len(e.Message.Buffers))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(e.Stamp.Cell)+lengths))
	b = binary.LittleEndian.AppendUint64(b, uint64(e.Message.Size()))
	b = binary.LittleEndian.AppendUint64(b, e.At.Seq)
	b = binary.LittleEndian.AppendUint64(b, e.At.Out)
	b = binary.LittleEndian.AppendUint64(b, e.To)
	b = binary.LittleEndian.AppendUint64(b, uint64(e.Stamp.Time.UnixNano()))
	b = binary.LittleEndian.AppendUint64(b, e.Stamp.Epoch)
	b = append(b, byte(e.Message.Channel), flags)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(e.Stamp.Cell)))
	b = append(b, e.Stamp.Cell...)
	for part := range messageParts(&e.Message) {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(part)))
	}
	return b
}

// action says what to do with an entry whose head was read. The head is everything but the message and the stamp.
type action int

const (
	passOver action = iota // skip it
	fillIn                 // read the rest of it
	stopHere               // end before it
)

// read goes through the segment's entries behind the one numbered after. It calls ask with the head of each, and take
// with the entries for which ask returned fillIn.
func (g *segment) read(after uint64, ask func(head *Entry) action, take func(*Entry)) error {
	i := max(0, sort.Search(len(g.marks), func(i int) bool { return g.marks[i].seq > after+1 })-1)
	r := segmentReader{file: g.file, next: g.marks[i].offset}
	r.buf = bufio.NewReaderSize(io.NewSectionReader(g.file, r.next, g.size-r.next), fileBuffer)
	var fixed [recordFixed]byte
	for {
		if err := r.full(fixed[:]); err != nil {
			return err
		}
		more, parts := int(binary.LittleEndian.Uint32(fixed[:])), int64(binary.LittleEndian.Uint64(fixed[4:]))
		e := &Entry{At: Position{binary.LittleEndian.Uint64(fixed[12:]), binary.LittleEndian.Uint64(fixed[20:])},
			To: binary.LittleEndian.Uint64(fixed[28:]), size: parts + entryOverhead, Essential: fixed[53] == 1}
		what := passOver
		if e.At.Seq > after {
			what = ask(e)
		}
		switch what {
		case stopHere:
			return nil
		case fillIn:
			if err := e.fill(&r, fixed[:], more, parts); err != nil {
				return err
			}
			take(e)
		default:
			r.skip(int64(more)+parts, g.size)
		}
		if e.At.Seq >= g.last.Seq {
			return nil
		}
	}
}

// fill reads the rest of a record.
func (e *Entry) fill(r *segmentReader, fixed []byte, more int, parts int64) error {
	cell := int(binary.LittleEndian.Uint16(fixed[54:]))
	b := make([]byte, int64(more)+parts)
	if err := r.full(b); err != nil {
		return err
	}
	e.Stamp = Stamp{Time: time.Unix(0, int64(binary.LittleEndian.Uint64(fixed[36:]))).UTC(),
		Epoch: binary.LittleEndian.Uint64(fixed[44:]), Cell: string(b[:cell])}
	n := (more - cell) / 8
	lengths, b := b[cell:more], b[more:]
	split := make([][]byte, n)
	for i := range split {
		size := binary.LittleEndian.Uint64(lengths[8*i:])
		if size > uint64(len(b)) {
			return fmt.Errorf("a record claims %d bytes where %d are left", size, len(b))
		}
		split[i], b = b[:size:size], b[size:]
	}
	e.Message = jupyter.Message{
		Channel:  jupyter.Channel(fixed[52]),
		Header:   split[0],
		Parent:   split[1],
		Metadata: split[2],
		Content:  split[3],
	}
	if n > 4 {
		e.Message.Buffers = split[4:]
	}
	return nil
}

// segmentReader reads a file from an offset on, and skips large parts without reading them.
type segmentReader struct {
	file *os.File
	buf  *bufio.Reader
	next int64 // the present offset
}

func (r *segmentReader) full(p []byte) error {
	n, err := io.ReadFull(r.buf, p)
	r.next += int64(n)
	return err
}

func (r *segmentReader) skip(n, size int64) {
	r.next += n
	if n > int64(r.buf.Buffered()) {
		r.buf.Reset(io.NewSectionReader(r.file, r.next, size-r.next))
		return
	}
	r.buf.Discard(int(n)) //nolint:errcheck // n bytes are buffered
}
