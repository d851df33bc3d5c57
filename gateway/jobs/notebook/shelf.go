package notebook

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

const (
	// shelfCells is how many cells a shelf gets. A State names each cell that is on no shelf, and is written with each.
	shelfCells = 64
	// shelfSize is the size of a cell's outputs from which on they stay in a piece of their own.
	shelfSize = 16 << 10
)

// shelved is one cell on a shelf. A shelf is a piece with the outputs of many cells, by the cell's index. It makes
// States short: a cell of a long notebook costs no more than one of a short notebook.
type shelved struct {
	Outputs int             `json:"n"`
	Size    int64           `json:"s"`
	Content json.RawMessage `json:"c"` // of the cell's only part
}

// fits reports whether a cell's outputs may be put on a shelf.
func (c *cell) fits() bool {
	return len(c.parts) == 1 && c.parts[0].Piece != "" && c.parts[0].Size < shelfSize
}

// shelve puts cells on a shelf if there are enough that do not run. What was stored for them by themselves is no longer
// named. Neither is a shelf whose cells have all left it.
func (r *run) shelve(ctx context.Context) error {
	if len(r.state.Cells) <= shelfCells {
		return nil
	}
	var ready []int
	for at := range r.state.Cells {
		if at != r.state.Cell && r.doc.cells[at].fits() {
			ready = append(ready, at)
		}
	}
	if len(ready) < shelfCells {
		return nil
	}
	shelf := map[string]shelved{}
	for _, at := range ready {
		p := r.doc.cells[at].parts[0]
		raw, err := p.raw(ctx, r.Pieces)
		if err != nil {
			return err
		}
		shelf[strconv.Itoa(at)] = shelved{p.Outputs, p.Size, raw}
	}
	name, err := r.keep(ctx, encode(shelf))
	if err != nil {
		return err
	}
	for _, at := range ready {
		p := r.doc.cells[at].parts[0]
		p.Piece, p.shelf = name, strconv.Itoa(at)
		delete(r.state.Cells, at)
	}
	used := map[string]bool{}
	for _, c := range r.doc.cells {
		if len(c.parts) == 1 && c.parts[0].shelf != "" {
			used[c.parts[0].Piece] = true
		}
	}
	r.state.Shelves = slices.DeleteFunc(append(slices.Clone(r.state.Shelves), name),
		func(name string) bool { return !used[name] })
	return nil
}

// cells returns the parts of all cells, those on shelves, too. A cell is where the newest shelf has it, unless Cells
// has it.
func (s *State) cells(ctx context.Context, pieces Pieces) (map[int][]*part, error) {
	all := map[int][]*part{}
	for _, name := range s.Shelves {
		raw, err := pieces.Get(ctx, name)
		if err != nil {
			return nil, err
		}
		shelf := map[int]shelved{}
		if err := json.Unmarshal(raw, &shelf); err != nil {
			return nil, fmt.Errorf("notebook: shelf %s: %w", name, err)
		}
		for at, c := range shelf {
			all[at] = []*part{{Piece: name, Outputs: c.Outputs, Size: c.Size, shelf: strconv.Itoa(at)}}
		}
	}
	maps.Copy(all, s.Cells)
	return all, nil
}

// raw returns the content of a part that is stored.
func (p *part) raw(ctx context.Context, pieces Pieces) (json.RawMessage, error) {
	if p.Piece == "" {
		return p.Inline, nil
	}
	raw, err := pieces.Get(ctx, p.Piece)
	if err != nil || p.shelf == "" {
		return raw, err
	}
	shelf, err := viewObject(raw)
	if err != nil {
		return nil, fmt.Errorf("notebook: shelf %s: %w", p.Piece, err)
	}
	c, err := viewObject(shelf.values[p.shelf])
	if err != nil {
		return nil, fmt.Errorf("notebook: cell %s of shelf %s: %w", p.shelf, p.Piece, err)
	}
	return c.values["c"], nil
}

// lastRead is pieces of which the last one that was read is in memory: cells that follow each other are on one shelf.
type lastRead struct {
	Pieces
	name string
	data []byte
}

// Get returns a piece.
func (l *lastRead) Get(ctx context.Context, name string) ([]byte, error) {
	if name == l.name {
		return l.data, nil
	}
	data, err := l.Pieces.Get(ctx, name)
	if l.name = ""; err == nil && len(data) <= shelfCells*2*shelfSize {
		l.name, l.data = name, data
	}
	return data, err
}
