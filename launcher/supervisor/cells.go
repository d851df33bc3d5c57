package supervisor

import (
	"bytes"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/session"
)

const (
	maxCellID   = 128  // bytes; longer ids are ignored
	cellsOfPast = 4096 // finished requests whose cells are remembered
)

// noteCellLocked returns the id of the cell that an execute_request is for, as JupyterLab and Notebook write it into
// the metadata, or "". It keeps the id, since messages with this parent may come long after the request has ended.
func (s *Supervisor) noteCellLocked(m *jupyter.Message, h jupyter.Header) string {
	if h.MsgType != "execute_request" {
		return ""
	}
	raw := jupyter.RawField(m.Metadata, "cellId")
	if len(raw) == 0 || len(raw) > 6*maxCellID { // one byte is at most six bytes of JSON
		return ""
	}
	id := jupyter.Unquote(raw)
	if id == "" || len(id) > maxCellID {
		return "" // it is only a label
	}
	s.cells.Add(session.HashID(h.MsgID), id)
	s.lastCell.parent = nil
	return id
}

// cellOfLocked returns the id of the cell that caused a message with this parent_header, or "". Most messages have the
// parent of the previous one.
func (s *Supervisor) cellOfLocked(parent []byte) string {
	if s.lastCell.parent != nil && bytes.Equal(parent, s.lastCell.parent) {
		return s.lastCell.id
	}
	id := jupyter.StringField(parent, "msg_id")
	cell, _ := s.cells.Get(session.HashID(id))
	if list := s.requests.ByID(id); len(list) > 0 {
		cell = list[0].Cell
	}
	s.lastCell.parent, s.lastCell.id = parent, cell
	return cell
}

// stampLocked returns the marks of an entry that is appended to the log. Entries are appended with the lock held.
func (s *Supervisor) stampLocked(parent []byte) messagelog.Stamp {
	return messagelog.Stamp{Time: s.now().UTC(), Epoch: s.epoch, Cell: s.cellOfLocked(parent)}
}

func newCells() *lru.Cache[session.IDHash, string] {
	c, err := lru.New[session.IDHash, string](cellsOfPast)
	if err != nil {
		panic(err) // only for a size below 1
	}
	return c
}
