package supervisor

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

// Bounds of those who read the log.
const (
	maxLogReaders = 64               // at a time
	logPage       = 256 << 10        // bytes taken out of the log at once, or one entry
	logChunk      = 32 << 10         // bytes of one write, each with a deadline of its own
	logPatience   = 60 * time.Second // for a reader to take a chunk
	logSign       = 15 * time.Second // an empty line after so much silence shows that the stream lives
	logFarewell   = time.Second      // for a reader to take the rest when the kernel is gone; less than shutdownLimit
)

// logQuery is what a reader of the log asks for.
type logQuery struct {
	log    string // name of the log that after is of; "": any
	after  uint64 // number of the last entry that it has
	limit  uint64 // greatest number of lines; 0: any
	parent string // only what this request caused; "": everything
	follow bool
}

func parseLogQuery(q url.Values) (logQuery, error) {
	var out logQuery
	var err error
	if text := q.Get("after"); q.Has("after") {
		if out.after, err = strconv.ParseUint(text, 10, 63); err != nil {
			return out, httpError{http.StatusBadRequest, "after: not the number of a line"}
		}
	}
	if text := q.Get("limit"); q.Has("limit") {
		if out.limit, err = strconv.ParseUint(text, 10, 63); err != nil || out.limit == 0 {
			return out, httpError{http.StatusBadRequest, "limit: not a number from 1 on"}
		}
	}
	switch text := q.Get("follow"); text {
	case "true", "1":
		out.follow = true
	case "", "false", "0":
	default:
		return out, httpError{http.StatusBadRequest, "follow: neither true nor false"}
	}
	out.log, out.parent = q.Get("log"), q.Get("parent")
	return out, nil
}

// getLog gives what the log holds, of all sessions, as JSON lines; with follow also what comes, until the kernel has
// ended or its reader goes. It is the owner's: who may only look would see others' input and replies.
func (s *Supervisor) getLog(w http.ResponseWriter, r *http.Request) error {
	if r.Header.Get(HeaderRight) == "read" {
		return httpError{http.StatusForbidden, "you may only look at this kernel; its log is its owner's"}
	}
	q, err := parseLogQuery(r.URL.Query())
	if err != nil {
		return err
	}
	name := hex.EncodeToString(s.log.id[:])
	if q.log != "" && q.log != name {
		return httpError{http.StatusConflict, "log: the kernel was started again by another supervisor and has a new log; read it from its beginning"}
	}
	if end := s.log.tail().seq; q.after > end {
		// It would wait for messages that it would not be shown.
		return httpError{http.StatusBadRequest,
			fmt.Sprintf("after: this log ends at number %d; %d is of one that was lost with an earlier supervisor, or of none", end, q.after)}
	}
	if err := s.admitLogReader(); err != nil {
		return err
	}
	defer s.dismissLogReader()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set(HeaderLog, name)
	w.Header().Set("Connection", "close") // the last deadline would be that of the next request
	if r.Method == http.MethodHead {
		return nil
	}
	out := newLineWriter(w, s.deaf)
	ended, hurried := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(hurried)
		select {
		case <-s.over:
			out.hurry()
		case <-ended:
		}
	}()
	defer func() { close(ended); <-hurried }()
	if err := s.writeLog(r, q, out); err != nil {
		s.logger.Debug("a reader of the log has gone", "err", err)
		// Else the answer would end as if it were complete.
		panic(http.ErrAbortHandler)
	}
	return nil
}

func (s *Supervisor) admitLogReader() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.logReaders >= maxLogReaders {
		return httpError{http.StatusServiceUnavailable, "too many readers of this kernel's log"}
	}
	s.logReaders++
	return nil
}

func (s *Supervisor) dismissLogReader() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logReaders--
}

// ended reports whether the kernel is dead, though it may still be started again, or gone for good.
func (s *Supervisor) ended() bool {
	select {
	case <-s.over:
		return true
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clock.state == stateDead
}

// writeLog writes what was asked for. The error is that of a reader that is gone or does not read.
func (s *Supervisor) writeLog(r *http.Request, q logQuery, out *lineWriter) error {
	news := newReader()
	if q.follow {
		s.log.watch(news)
		defer s.log.unwatch(news)
	}
	last := s.log.tail().seq
	at := q.after
	writer := logWriter{q: q, out: out, filter: parentFilter{id: q.parent}}
	sign := time.NewTimer(logSign)
	defer sign.Stop()
	var lines []pageLine
	var pace pacer
	if err := out.flush(); err != nil { // the header: a client that follows a silent kernel sees that it does
		return err
	}
	for {
		final := !q.follow || s.ended() // asked before the log is, so that what a kernel said last is not missed
		var now uint64
		lines, now = s.log.page(at, logPage, lines)
		moved := now != at
		at = now
		n, before := len(lines), writer.written
		if !q.follow { // what came while this was read is left out
			if late := slices.IndexFunc(lines, func(l pageLine) bool { return l.e != nil && l.number > last }); late >= 0 {
				n = late
			}
		}
		full, err := writer.page(lines[:n])
		if ferr := out.flush(); err == nil {
			err = ferr
		}
		if err != nil || full || final && (!moved || n < len(lines)) {
			return err
		}
		clear(lines)
		var paused <-chan time.Time
		wake := news.wake
		if moved {
			wait := pace.wrote(n, time.Now())
			if wait == 0 || !q.follow {
				continue
			}
			wake, paused = nil, time.After(wait)
		}
		if writer.written > before {
			sign.Reset(logSign)
		}
		select {
		case <-r.Context().Done():
			return r.Context().Err()
		case <-s.over:
		case <-wake:
		case <-news.urgent:
		case <-paused:
		case <-sign.C:
			sign.Reset(logSign)
			if err := out.blank(); err != nil {
				return err
			}
		}
	}
}

// logWriter writes pages of the log as they were asked for.
type logWriter struct {
	q       logQuery
	out     *lineWriter
	filter  parentFilter
	written uint64
}

// page writes the lines that were asked for. It reports whether there are as many now as were wanted.
func (w *logWriter) page(lines []pageLine) (full bool, err error) {
	var missing pageLine // what is lost on both sides of a line that was not asked for is told once
	for _, l := range lines {
		switch {
		case l.e == nil:
			missing.number, missing.lost = l.number, missing.lost+l.lost
			continue
		case !w.filter.takes(l.e):
			continue
		}
		if full, err = w.line(missing); err == nil && !full {
			full, err = w.line(l)
		}
		if err != nil || full {
			return full, err
		}
		missing = pageLine{}
	}
	return w.line(missing)
}

func (w *logWriter) line(l pageLine) (full bool, err error) {
	if l.number == 0 {
		return false, nil // nothing is missing
	}
	w.written++
	return w.written == w.q.limit, w.out.line(l)
}

// parentFilter passes on what one request caused.
type parentFilter struct {
	id    string
	last  []byte // the parent_header asked about before
	taken bool   // the answer
}

// lineWriter writes the log's lines to a reader. Each chunk that leaves it has a deadline of its own, so that a line of
// any size is no matter as long as its reader reads.
type lineWriter struct {
	// Fixed.
	w        http.ResponseWriter
	control  *http.ResponseController
	patience time.Duration

	buf *bufio.Writer // of the handler

	mu    sync.Mutex
	final time.Time // guarded by mu: no deadline is later; zero: none yet
}

func newLineWriter(w http.ResponseWriter, patience time.Duration) *lineWriter {
	o := &lineWriter{w: w, control: http.NewResponseController(w), patience: patience}
	o.buf = bufio.NewWriterSize((*chunkWriter)(o), logChunk)
	return o
}

// hurry leaves the reader logFarewell for all that is still to be written. It may be called by anyone.
func (o *lineWriter) hurry() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.final = time.Now().Add(logFarewell)
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
		n, err := o.w.Write(p[written:min(len(p), written+logChunk)])
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

// blank writes the empty line that shows a silent reader's peer that somebody is there.
func (o *lineWriter) blank() error {
	if err := o.buf.WriteByte('\n'); err != nil {
		return err
	}
	return o.flush()
}

// line writes one line of the log. Errors of buf stay, so that only the last one has to be looked at.
func (o *lineWriter) line(l pageLine) error {
	b := append(o.buf.AvailableBuffer(), `{"number":`...)
	b = strconv.AppendUint(b, l.number, 10)
	if l.e == nil {
		b = append(b, `,"lost":`...)
		b = strconv.AppendUint(b, l.lost, 10)
		_, err := o.buf.Write(append(b, "}\n"...))
		return err
	}
	m := &l.e.msg
	b = append(b, `,"time":"`...)
	b = l.e.stamp.time.AppendFormat(b, TimeFormat)
	b = append(b, `","epoch":`...)
	b = strconv.AppendUint(b, l.e.stamp.epoch, 10)
	b = append(b, `,"channel":"`...)
	b = append(b, m.Channel.String()...)
	o.buf.Write(append(b, '"')) //nolint:errcheck // see above
	if cell := l.e.stamp.cell; cell != "" {
		text, err := json.Marshal(cell)
		if err != nil {
			return err // a string has none
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

// member writes what a client or the kernel wrote as JSON, on one line. What is no JSON becomes null: the rest of the
// log must stay readable.
func (o *lineWriter) member(name string, raw []byte) {
	o.buf.WriteString(`,"` + name + `":`) //nolint:errcheck // see line
	if !utf8.Valid(raw) {
		raw = bytes.ToValidUTF8(raw, []byte("\uFFFD"))
	}
	switch {
	case !json.Valid(raw):
		raw = []byte("null")
	case bytes.ContainsAny(raw, "\r\n"):
		var compact bytes.Buffer
		if err := json.Compact(&compact, raw); err != nil {
			compact.WriteString("null") // cannot be: it is valid
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

// takes reports whether the entry was caused by the request, or whether none was asked for.
func (f *parentFilter) takes(e *entry) bool {
	if f.id == "" {
		return true
	}
	if f.last == nil || !bytes.Equal(f.last, e.msg.Parent) {
		f.last = e.msg.Parent
		raw := wire.RawField(e.msg.Parent, "msg_id")
		f.taken = string(raw) == f.id || bytes.IndexByte(raw, '\\') >= 0 && unquote(raw) == f.id
	}
	return f.taken
}

// unquote is the text that a JSON string of this inside stands for, or "".
func unquote(raw []byte) string {
	var text string
	if err := json.Unmarshal(append(append([]byte{'"'}, raw...), '"'), &text); err != nil {
		return "" // what is no text is no id, either
	}
	return text
}
