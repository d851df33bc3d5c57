package gateway

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// pieces writes long answers in pieces of 64 KiB. A client reads one piece while the next one is made.
var pieces = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, 64<<10) }}

// writeTexts answers with a list of models.
func writeTexts(w http.ResponseWriter, texts []*modelText) error {
	beginBody(w, http.StatusOK, lengthOf(texts))
	out := pieces.Get().(*bufio.Writer)
	defer pieces.Put(out)
	defer out.Reset(nil)
	out.Reset(w)
	writeList(out, texts) // out keeps the first error until Flush
	if err := out.Flush(); err != nil {
		return &unwritten{err}
	}
	return endBody(w)
}

// writeList writes the JSON of a list of models. out has the error, if there is one.
func writeList(out interface {
	io.Writer
	io.ByteWriter
}, texts []*modelText) {
	_ = out.WriteByte('[')
	for i, t := range texts {
		if i > 0 {
			_ = out.WriteByte(',')
		}
		_, _ = out.Write(t.text)
	}
	_, _ = out.Write([]byte("]\n"))
}

// lengthOf returns how many bytes writeList writes.
func lengthOf(texts []*modelText) int {
	length := len("[]\n") + max(0, len(texts)-1)
	for _, t := range texts {
		length += len(t.text)
	}
	return length
}

// appendJSON appends what json.Marshal returns for the model, in a third of the time.
func (m *kernelModel) appendJSON(b []byte) ([]byte, error) {
	if m.SharedWith != nil {
		shared := *m // else every model would be allocated
		text, err := json.Marshal(&shared)
		return append(b, text...), err
	}
	b = appendText(append(b, `{"id":`...), m.ID)
	b = appendText(append(b, `,"name":`...), m.Name)
	b = appendText(append(b, `,"last_activity":`...), m.LastActivity)
	b = appendText(append(b, `,"execution_state":`...), string(m.ExecutionState))
	b = strconv.AppendInt(append(b, `,"connections":`...), int64(m.Connections), 10)
	b = appendOptional(b, `,"reason":`, m.Reason)
	b = appendOptional(b, `,"cull_at":`, m.CullAt)
	b = appendOptional(b, `,"keep_until":`, m.KeepUntil)
	if m.Memory != 0 {
		b = strconv.AppendInt(append(b, `,"memory":`...), m.Memory, 10)
	}
	if len(m.GPU) > 0 {
		text, err := json.Marshal(m.GPU)
		if err != nil {
			return nil, err
		}
		b = append(append(b, `,"gpu":`...), text...)
	}
	b = appendText(append(b, `,"created":`...), m.Created)
	if m.GPUs != 0 {
		b = append(append(b, `,"gpus":`...), m.GPUs.String()...)
	}
	b = appendOptional(b, `,"flavor":`, m.Flavor)
	b = appendOptional(b, `,"owner":`, m.Owner)
	if m.Job != nil {
		text, err := json.Marshal(m.Job)
		if err != nil {
			return nil, err
		}
		b = append(append(b, `,"job":`...), text...)
	}
	if m.SharedToUse {
		b = append(b, `,"shared_to_use":true`...)
	}
	return append(b, '}'), nil
}

// appendOptional appends a member unless its value is empty.
func appendOptional(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	return appendText(append(b, name...), value)
}

// appendText appends a JSON string. Most texts have no character that JSON or HTML would escape.
func appendText(b []byte, text string) []byte {
	for i := range len(text) {
		if !plain[text[i]] {
			quoted, _ := json.Marshal(text) // a string has no error
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, text...)
	return append(b, '"')
}

// plain are the bytes that stand for themselves in a JSON string, also within HTML.
var plain = func() (table [256]bool) {
	for c := byte(' '); c <= '~'; c++ {
		table[c] = !strings.ContainsRune(`"\<>&`, rune(c))
	}
	return table
}()
