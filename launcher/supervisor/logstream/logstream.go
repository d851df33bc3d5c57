// Package logstream writes a message log to a reader as JSON lines: the route /log, which `ekg log` reads. With
// Query.Follow it goes on with new messages until the kernel has ended. Package supervisor decides who may read, and
// how many readers there may be.
//
// A stream runs in its handler's goroutine. Another goroutine hurries the reader when the kernel is gone; Stream waits
// for it.
package logstream

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/flow"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
)

const (
	// PageBytes is how much of the log is read at once, or one entry.
	PageBytes = 256 << 10
	// Patience is how long a reader may take for a chunk of 32 KiB.
	Patience = 60 * time.Second

	lineChunk   = 32 << 10         // bytes of one write, each with a deadline of its own
	aliveSign   = 15 * time.Second // after so much silence an empty line shows that the stream is alive
	restTimeout = time.Second      // for a reader to take the rest when the kernel is gone
)

// Query says which part of the log a reader wants.
type Query struct {
	Log    string // name of the log whose numbers After refers to; "": any
	After  uint64 // number of the last entry that the reader has
	Limit  uint64 // greatest number of lines; 0: any
	Parent string // msg_id: only messages that this request caused; "": all
	Follow bool
}

// ParseQuery reads a Query from a URL's parameters. The error is a text for the client.
func ParseQuery(q url.Values) (Query, error) {
	var out Query
	var err error
	if text := q.Get("after"); q.Has("after") {
		if out.After, err = strconv.ParseUint(text, 10, 63); err != nil {
			return out, errors.New("after: not the number of a line")
		}
	}
	if text := q.Get("limit"); q.Has("limit") {
		if out.Limit, err = strconv.ParseUint(text, 10, 63); err != nil || out.Limit == 0 {
			return out, errors.New("limit: not a number from 1 on")
		}
	}
	switch text := q.Get("follow"); text {
	case "true", "1":
		out.Follow = true
	case "", "false", "0":
	default:
		return out, errors.New("follow: neither true nor false")
	}
	out.Log, out.Parent = q.Get("log"), q.Get("parent")
	return out, nil
}

// Source is a log and the life of its kernel.
type Source struct {
	Log      *messagelog.Log
	Over     <-chan struct{} // closed when the kernel is gone for good
	Ended    func() bool     // whether the kernel is dead, though it may be started again, or gone for good
	Patience time.Duration   // see the constant
}

// Stream writes the lines that q selects. It returns an error if its reader is gone or does not read; the response is
// incomplete then. Without Query.Follow it leaves out entries that are appended while it writes.
func (s Source) Stream(ctx context.Context, w http.ResponseWriter, q Query) error {
	out := newLineWriter(w, s.Patience)
	ended, hurried := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(hurried)
		select {
		case <-s.Over:
			out.hurry()
		case <-ended:
		}
	}()
	defer func() { close(ended); <-hurried }()
	reader := messagelog.NewReader()
	if q.Follow {
		s.Log.Watch(reader)
		defer s.Log.Unwatch(reader)
	}
	st := stream{Source: s, q: q, out: out, reader: reader, last: s.Log.Tail().Seq,
		lines: pageWriter{q: q, out: out, filter: parentFilter{id: q.Parent}}, at: q.After}
	return st.run(ctx)
}

// stream is one reader's way through the log.
type stream struct {
	Source
	q      Query
	out    *lineWriter
	reader *messagelog.Reader
	last   uint64 // number of the newest entry at the beginning
	lines  pageWriter
	at     uint64 // number of the last entry that was read
	page   []messagelog.Line
	bytes  int64 // of page
	pace   flow.Pacer
}

// run writes pages until there is nothing more to write, or the reader or the kernel has gone.
func (st *stream) run(ctx context.Context) error {
	sign := time.NewTimer(aliveSign)
	defer sign.Stop()
	if err := st.out.flush(); err != nil { // the header: a client that follows a silent kernel sees an answer
		return err
	}
	for {
		before := st.lines.written
		moved, done, err := st.writePage()
		if done || err != nil {
			return err
		}
		var paused <-chan time.Time
		wake := st.reader.Wake
		if moved {
			wait := st.pace.Wrote(len(st.page), st.bytes, time.Now())
			if wait == 0 || !st.q.Follow {
				continue
			}
			wake, paused = nil, time.After(wait)
		}
		if st.lines.written > before {
			sign.Reset(aliveSign)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-st.Over:
		case <-wake:
		case <-st.reader.Urgent:
		case <-paused:
		case <-sign.C:
			sign.Reset(aliveSign)
			if err := st.out.blank(); err != nil {
				return err
			}
		}
	}
}

// writePage writes one page of the log. It reports whether there was one, and whether it was the last.
func (st *stream) writePage() (moved, done bool, err error) {
	final := !st.q.Follow || st.Ended() // before the log is read, so that no last message is missed
	var now uint64
	st.page, now = st.Log.Page(st.at, PageBytes, st.page)
	moved = now != st.at
	st.at = now
	n := len(st.page)
	if !st.q.Follow {
		late := slices.IndexFunc(st.page, func(l messagelog.Line) bool { return l.Entry != nil && l.Number > st.last })
		if late >= 0 {
			n = late
		}
	}
	full, err := st.lines.write(st.page[:n])
	if ferr := st.out.flush(); err == nil {
		err = ferr
	}
	done = full || final && (!moved || n < len(st.page))
	st.bytes = 0
	for _, l := range st.page {
		if l.Entry != nil {
			st.bytes += int64(l.Entry.Message.Size())
		}
	}
	clear(st.page)
	return moved, done, err
}

// pageWriter writes the lines that the Query selects.
type pageWriter struct {
	q       Query
	out     *lineWriter
	filter  parentFilter
	written uint64
}

// write writes a page. It reports whether Query.Limit is reached. Losses on both sides of a line that is left out are
// one line.
func (w *pageWriter) write(lines []messagelog.Line) (full bool, err error) {
	var missing messagelog.Line
	for _, l := range lines {
		switch {
		case l.Entry == nil:
			missing.Number, missing.Lost = l.Number, missing.Lost+l.Lost
			continue
		case !w.filter.takes(l.Entry):
			continue
		}
		if full, err = w.line(missing); err == nil && !full {
			full, err = w.line(l)
		}
		if err != nil || full {
			return full, err
		}
		missing = messagelog.Line{}
	}
	return w.line(missing)
}

func (w *pageWriter) line(l messagelog.Line) (full bool, err error) {
	if l.Number == 0 {
		return false, nil // nothing is missing
	}
	w.written++
	return w.written == w.q.Limit, w.out.line(l)
}

// parentFilter takes the entries that one request caused.
type parentFilter struct {
	id    string // msg_id; "": all entries are taken
	last  []byte // the parent_header of the last entry
	taken bool   // whether its entry was taken
}

func (f *parentFilter) takes(e *messagelog.Entry) bool {
	if f.id == "" {
		return true
	}
	if f.last == nil || !bytes.Equal(f.last, e.Message.Parent) {
		f.last = e.Message.Parent
		raw := jupyter.RawField(e.Message.Parent, "msg_id")
		f.taken = string(raw) == f.id || bytes.IndexByte(raw, '\\') >= 0 && jupyter.Unquote(raw) == f.id
	}
	return f.taken
}
