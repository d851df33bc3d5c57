package supervisor

import (
	"bytes"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

const (
	maxCellID   = 128  // bytes; longer ones are none
	cellsOfPast = 4096 // finished requests whose cell is still known
)

// noteCell returns the id of the cell that an execute_request is for, as JupyterLab and Notebook write it into the
// metadata, or "". What the request causes may come long after it has ended, so the id outlives it. s.mu is held.
func (s *Supervisor) noteCell(m *wire.Message, h wire.Header) string {
	if h.MsgType != "execute_request" {
		return ""
	}
	raw := wire.RawField(m.Metadata, "cellId")
	if len(raw) == 0 || len(raw) > 6*maxCellID { // at most six bytes of JSON for one
		return ""
	}
	id := unquote(raw)
	if id == "" || len(id) > maxCellID {
		return "" // it is the client's, and nothing but a label
	}
	s.cells.Add(hashID(h.MsgID), id)
	s.lastCell.parent = nil
	return id
}

// cellOf returns the id of the cell that caused a message with this parent_header, or "". Most messages have the parent
// of the one before. s.mu is held.
func (s *Supervisor) cellOf(parent []byte) string {
	if s.lastCell.parent != nil && bytes.Equal(parent, s.lastCell.parent) {
		return s.lastCell.id
	}
	id := wire.StringField(parent, "msg_id")
	cell, _ := s.cells.Get(hashID(id))
	if list := s.requests[id]; len(list) > 0 {
		cell = list[0].cell
	}
	s.lastCell.parent, s.lastCell.id = parent, cell
	return cell
}

// stamp marks what is appended to the log now. s.mu is held, as it is by everyone who appends.
func (s *Supervisor) stamp(parent []byte) stamp {
	return stamp{time: s.now().UTC(), epoch: s.epoch, cell: s.cellOf(parent)}
}

func newCells() *lru.Cache[idHash, string] {
	c, err := lru.New[idHash, string](cellsOfPast)
	if err != nil {
		panic(err) // it has no other than a size that is not positive
	}
	return c
}
