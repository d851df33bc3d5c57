package api

import "time"

// Seat is what a supervisor in a pod says of its kernel's turn at a GPU that the kernels of several pods share. A
// gateway grants the GPU, since a pod has no rights in the cluster. Each grant has a number, and later ones have higher
// numbers.
type Seat struct {
	GPU      string    `json:"gpu,omitempty"`      // UUID; "": not known yet
	Last     bool      `json:"last,omitempty"`     // a job's: it waits behind all others
	Since    time.Time `json:"since,omitzero"`     // UTC; since when it waits for the GPU; zero: it does not
	Holds    int64     `json:"holds,omitempty"`    // number of the grant by which it has the GPU; 0: it has not
	Returned int64     `json:"returned,omitempty"` // number of the last grant that it has given back
	Until    time.Time `json:"until,omitzero"`     // UTC; until when it keeps the GPU that it has
	News     SeatNews  `json:"news,omitzero"`      // what a gateway has told it last
}

// SeatNews is what a gateway tells a supervisor of its kernel's turn: PUT /api/kernels/{id}/seat. The same may be told
// again. Times are UTC.
type SeatNews struct {
	Grant   int64     `json:"grant,omitempty"`   // the GPU is the kernel's by the grant of this number; 0: it is not
	Wanted  bool      `json:"wanted,omitempty"`  // another kernel waits for the GPU
	Before  int       `json:"before,omitempty"`  // kernels that wait before this one
	Kept    time.Time `json:"kept,omitzero"`     // until when another kernel keeps the GPU
	Problem string    `json:"problem,omitempty"` // why the gateway does not know whose turn it is
}

// Same reports whether both say the same.
func (n SeatNews) Same(o SeatNews) bool {
	kept := n.Kept.Equal(o.Kept)
	n.Kept, o.Kept = time.Time{}, time.Time{}
	return kept && n == o
}
