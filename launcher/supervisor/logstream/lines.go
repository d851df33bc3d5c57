package logstream

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
)

// lineWriter writes the log's lines to a reader. Each chunk has a deadline of its own, so that lines may be of any size
// as long as the reader reads.
type lineWriter struct {
	// Fixed.
	w        http.ResponseWriter
	control  *http.ResponseController
	patience time.Duration

	buf *bufio.Writer // owned by the handler

	mu    sync.Mutex
	final time.Time // guarded by mu; no deadline is later than this; zero: not set
}

func newLineWriter(w http.ResponseWriter, patience time.Duration) *lineWriter {
	o := &lineWriter{w: w, control: http.NewResponseController(w), patience: patience}
	o.buf = bufio.NewWriterSize((*chunkWriter)(o), lineChunk)
	return o
}

// hurry gives the reader restTimeout to take the rest. It may be called concurrently.
func (o *lineWriter) hurry() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.final = time.Now().Add(restTimeout)
	o.control.SetWriteDeadline(o.final) //nolint:errcheck // a connection that is gone needs none
}

func (o *lineWriter) extend() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	deadline := time.Now().Add(o.patience)
	if !o.final.IsZero() && o.final.Before(deadline) {
		deadline = o.final
	}
	return o.control.SetWriteDeadline(deadline)
}

// chunkWriter is the lineWriter's way to the network.
type chunkWriter lineWriter

func (c *chunkWriter) Write(p []byte) (int, error) {
	o := (*lineWriter)(c)
	written := 0
	for written < len(p) {
		if err := o.extend(); err != nil {
			return written, err
		}
		n, err := o.w.Write(p[written:min(len(p), written+lineChunk)])
		written += n
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

func (o *lineWriter) flush() error {
	if err := o.buf.Flush(); err != nil {
		return err
	}
	if err := o.extend(); err != nil {
		return err
	}
	return o.control.Flush()
}

// blank writes an empty line, which shows that the stream is alive.
func (o *lineWriter) blank() error {
	if err := o.buf.WriteByte('\n'); err != nil {
		return err
	}
	return o.flush()
}

// line writes one line of the log. bufio.Writer keeps its first error, so that only the last call needs a check.
func (o *lineWriter) line(l messagelog.Line) error {
	b := append(o.buf.AvailableBuffer(), `{"number":`...)
	b = strconv.AppendUint(b, l.Number, 10)
	if l.Entry == nil {
		b = append(b, `,"lost":`...)
		b = strconv.AppendUint(b, l.Lost, 10)
		_, err := o.buf.Write(append(b, "}\n"...))
		return err
	}
	m := &l.Entry.Message
	b = append(b, `,"time":"`...)
	b = l.Entry.Stamp.Time.AppendFormat(b, api.TimeFormat)
	b = append(b, `","epoch":`...)
	b = strconv.AppendUint(b, l.Entry.Stamp.Epoch, 10)
	b = append(b, `,"channel":"`...)
	b = append(b, m.Channel.String()...)
	o.buf.Write(append(b, '"')) //nolint:errcheck // see above
	if cell := l.Entry.Stamp.Cell; cell != "" {
		text, err := json.Marshal(cell)
		if err != nil {
			return err // a string never fails
		}
		o.member("cell", text)
	}
	o.member("header", m.Header)
	o.member("parent_header", m.Parent)
	o.member("metadata", m.Metadata)
	o.member("content", m.Content)
	o.buffers(m.Buffers)
	_, err := o.buf.WriteString("}\n")
	return err
}

// member writes a part of a message on one line. A part that is not JSON becomes null, so that the rest of the log
// stays readable.
func (o *lineWriter) member(name string, raw []byte) {
	o.buf.WriteString(`,"` + name + `":`) //nolint:errcheck // see line
	if !utf8.Valid(raw) {
		raw = bytes.ToValidUTF8(raw, []byte("\uFFFD"))
	}
	raw, _ = jupyter.NullNaN(raw)
	switch {
	case !json.Valid(raw):
		raw = []byte("null")
	case bytes.ContainsAny(raw, "\r\n"):
		var compact bytes.Buffer
		if err := json.Compact(&compact, raw); err != nil {
			compact.WriteString("null") // never happens, since raw is valid
		}
		raw = compact.Bytes()
	}
	o.buf.Write(raw) //nolint:errcheck // see line
}

func (o *lineWriter) buffers(all [][]byte) {
	for i, b := range all {
		if i == 0 {
			o.buf.WriteString(`,"buffers":["`) //nolint:errcheck // see line
		} else {
			o.buf.WriteString(`","`) //nolint:errcheck // see line
		}
		enc := base64.NewEncoder(base64.StdEncoding, o.buf)
		enc.Write(b) //nolint:errcheck // see line
		enc.Close()  //nolint:errcheck // see line
	}
	if len(all) > 0 {
		o.buf.WriteString(`"]`) //nolint:errcheck // see line
	}
}
