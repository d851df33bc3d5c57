// Package cells remembers which notebook cell each request of a kernel ran. Front ends name the cell in the metadata of
// an execute_request. The supervisor asks a Table for it, and names the cell in the log of each message that the
// request caused. A Table takes no lock: its callers guard it.
package cells

import (
	"bytes"

	lru "github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/session"
)

const (
	maxID = 128 // bytes; longer ids are ignored
	// Past is how many finished requests have cells that are remembered.
	Past = 4096
)

// Table holds the ids of cells by msg_id, including those of finished requests. Make one with NewTable.
type Table struct {
	cells *lru.LRU[session.IDHash, string]
	last  struct { // of the last call of Of
		parent []byte
		id     string
	}
}

// NewTable returns an empty Table.
func NewTable() Table {
	c, err := lru.NewLRU[session.IDHash, string](Past, nil)
	if err != nil {
		panic(err) // only for a size below 1
	}
	return Table{cells: c}
}

// Note returns the id of the cell that an execute_request is for, or "". JupyterLab and Notebook write it into the
// metadata. Note keeps the id, since messages with this parent may come long after the request has ended.
func (t *Table) Note(m *jupyter.Message, h jupyter.Header) string {
	if h.MsgType != "execute_request" {
		return ""
	}
	raw := jupyter.RawField(m.Metadata, "cellId")
	if len(raw) == 0 || len(raw) > 6*maxID { // one byte is at most six bytes of JSON
		return ""
	}
	id := jupyter.Unquote(raw)
	if id == "" || len(id) > maxID {
		return "" // it is only a label
	}
	t.cells.Add(session.HashID(h.MsgID), id)
	t.last.parent = nil
	return id
}

// Of returns the id of the cell that caused a message with this parent_header, or "". open has the unfinished requests.
// Most messages have the parent of the previous one.
func (t *Table) Of(parent []byte, open *requests.Table) string {
	if t.last.parent != nil && bytes.Equal(parent, t.last.parent) {
		return t.last.id
	}
	id := jupyter.StringField(parent, "msg_id")
	cell, _ := t.cells.Get(session.HashID(id))
	if list := open.ByID(id); len(list) > 0 {
		cell = list[0].Cell
	}
	t.last.parent, t.last.id = parent, cell
	return cell
}

// Len returns how many cells are remembered.
func (t *Table) Len() int { return t.cells.Len() }
