package main

import (
	"encoding/binary"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// asking is a series of cells that a client executes one after the other. Each is sent when the reply and the idle of
// the one before have come.
type asking struct {
	codes    []string
	pace     time.Duration // least time between two cells
	limit    time.Duration // no cell is sent after it; 0: no limit
	deadline time.Duration // the series is given up after it
	pauseAt  int           // after this number of outputs the client reads nothing for a while; 0: never
	pause    time.Duration
}

// answer is what came of an asking.
type answer struct {
	complete bool            // false: it was given up
	outputs  int             // messages of type display_data
	bytes    int64           // of outputs
	took     time.Duration   // all of it
	times    []time.Duration // of each cell, until its reply
}

// client is a connection to a kernel. Only one ask may run at a time. After an error or an answer that is not complete
// it must not be used again.
type client interface {
	ask(a asking) (answer, error)
	close()
}

// repeat returns n equal cells.
func repeat(code string, n int) []string {
	codes := make([]string, n)
	for i := range codes {
		codes[i] = code
	}
	return codes
}

func executeRequest(session, code string) jupyter.Message {
	return jupyter.New(jupyter.Shell, "execute_request", session, nil, map[string]any{
		"code": code, "silent": false, "store_history": true, "user_expressions": map[string]any{}, "allow_stdin": false,
		"stop_on_error": true,
	})
}

// appendWire appends a signed message in the form that hack/bench/libzmq/direct.c reads.
func appendWire(b []byte, m *jupyter.Message, s *jupyter.Signer) []byte {
	frames := m.Frames(s)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(frames)))
	for _, f := range frames {
		b = append(binary.LittleEndian.AppendUint32(b, uint32(len(f))), f...)
	}
	return b
}
