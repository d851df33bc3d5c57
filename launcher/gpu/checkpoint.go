package gpu

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Command is one line on the standard input of ekg-gpu watch: what it is to do with the GPU memory of a process. The
// process has the same user, and is in the same PID namespace. It is not the process of a program that shares its
// memory with others. Exactly one of PID and Session is set.
type Command struct {
	ID      string `json:"id"` // comes back in the Answer; at most 100 bytes
	Do      Action `json:"do"`
	PID     int    `json:"pid,omitempty"`
	Session int    `json:"session,omitempty"` // stands for the only process of the session that uses CUDA
}

// Action is what a Command asks for. Each can be asked for again, also by a program that was started after the one that
// asked first has died: it does what is left to do.
type Action string

const (
	// Look changes nothing.
	Look Action = "look"
	// Save brings the process's GPU memory to the machine's memory and gives the GPU back. Until Restore, calls of CUDA
	// wait in that process. If the process computes for more than 2 s, it is left as it is.
	Save Action = "save"
	// Restore is the way back. Calls of CUDA go on.
	Restore Action = "restore"
)

// Answer is a line of ekg-gpu watch about a Command. Answers come when the driver is ready, between the lines of
// Samples, and have no devices.
type Answer struct {
	ID      string     `json:"answer"`
	State   CUDAState  `json:"state"`
	PID     int        `json:"pid,omitempty"` // of the process that uses CUDA, if a session was asked for
	Seconds float64    `json:"seconds"`       // what the driver took
	Failure *CUDAError `json:"failure,omitempty"`
}

// CUDAState is the state of a process, as the driver tells it. See CUprocessState in NVIDIA's "CUDA Driver API",
// section "CUDA Checkpointing".
type CUDAState string

// The states of a process.
const (
	CUDARunning CUDAState = "running" // it has its GPU memory
	CUDALocked  CUDAState = "locked"  // it has its GPU memory, and its calls wait
	CUDASaved   CUDAState = "saved"   // its GPU memory is in the machine's memory
	CUDAFailed  CUDAState = "failed"  // its GPU memory is lost
	CUDANone    CUDAState = "none"    // no process of the session uses CUDA
	CUDAUnknown CUDAState = "unknown" // the driver was not asked, and nothing was done: see Answer.Failure

	// CUDAUnanswered is no answer of ekg-gpu: it has ended before. What it has done is to be looked at.
	CUDAUnanswered CUDAState = "unanswered"
)

// CUDAError is a call of the driver that did not do what it was called for.
type CUDAError struct {
	Call string `json:"call"`           // such as "cuCheckpointProcessLock"; "": it was not called
	Code int    `json:"code,omitempty"` // CUresult; 0 if it was not called
	Text string `json:"text"`           // the driver's own words, or why it was not called

	NoRoom    bool `json:"no_room,omitempty"`   // it was not called since there is no memory for what it would save
	Processes int  `json:"processes,omitempty"` // of the kernel, which are why it was not called; 0: that was not why
}

// Error returns one sentence without a full stop.
func (e *CUDAError) Error() string {
	if e.Call == "" {
		return e.Text
	}
	return fmt.Sprintf("NVIDIA's driver answers %s with %d (%s)", e.Call, e.Code, e.Text)
}

// Computes reports whether the process was not saved because it computes. 600 is CUDA_ERROR_NOT_READY.
func (e *CUDAError) Computes() bool { return e.Call == "cuCheckpointProcessLock" && e.Code == 600 }

const (
	maxCommandID   = 100  // bytes of Command.ID
	maxFailureText = 1000 // bytes of a text of CUDAError
)

// ParseCommand reads a line of the standard input of ekg-gpu watch.
func ParseCommand(b []byte) (Command, error) {
	var c Command
	if err := json.Unmarshal(b, &c); err != nil {
		return Command{}, fmt.Errorf("not a command of ekg-gpu: %w", err)
	}
	switch {
	case c.ID == "" || len(c.ID) > maxCommandID:
		return Command{}, errors.New(`not a command of ekg-gpu: "id" has 1 to 100 bytes`)
	case (c.PID == 0) == (c.Session == 0):
		return Command{}, errors.New(`not a command of ekg-gpu: it has one of "pid" and "session"`)
	case c.PID == 1 || min(c.PID, c.Session) < 0:
		return Command{}, errors.New(`not a command of ekg-gpu: "pid" is a process, and not the first one`)
	case c.Do != Look && c.Do != Save && c.Do != Restore:
		return Command{}, fmt.Errorf(`not a command of ekg-gpu: "do" is %.20q, not "look", "save" or "restore"`, c.Do)
	}
	return c, nil
}

// ParseLine reads a line of ekg-gpu watch: an answer, or samples. The error says what is wrong with it.
func ParseLine(b []byte) (*Answer, Samples, error) {
	var a Answer
	if json.Unmarshal(b, &a) == nil && a.ID != "" {
		return &a, Samples{}, a.Check()
	}
	s, err := ParseSamples(b)
	return nil, s, err
}

// Check returns an error if a value is outside of its range.
func (a *Answer) Check() error {
	known := slices.Contains([]CUDAState{CUDARunning, CUDALocked, CUDASaved, CUDAFailed, CUDANone, CUDAUnknown,
		CUDAUnanswered}, a.State)
	if !known || len(a.ID) > maxCommandID || !(a.Seconds >= 0) || a.PID < 0 ||
		a.Failure != nil && max(len(a.Failure.Call), len(a.Failure.Text)) > maxFailureText {
		return errors.New("not an answer of ekg-gpu: it has impossible values")
	}
	return nil
}
