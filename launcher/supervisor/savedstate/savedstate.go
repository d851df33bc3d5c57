// Package savedstate writes and reads the file that a supervisor keeps for a supervisor that adopts its kernel. The
// State has the clients' sessions, their requests and the use of the kernel. Package supervisor saves it, and restores
// it in restore.go. Begin with State.
package savedstate

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const (
	// FileName is the name of the file.
	FileName = "requests.json"
	// Pause is the least time between two writes.
	Pause = 20 * time.Millisecond
	// MaxRequests bounds the requests in a State.
	MaxRequests = 2000

	maxFile = 64 << 20 // bytes that are read
)

// State is the content of the file.
type State struct {
	Epoch    uint64     `json:"epoch"`
	Identity []byte     `json:"identity,omitempty"` // by which the kernel's sockets know the supervisor; empty: configured
	Sessions []Session  `json:"sessions"`
	Requests []*Request `json:"requests"` // in order of arrival
	Use      Use        `json:"use,omitzero"`
	// The kernel's last death, and whether a client has run a cell since.
	LastDeath api.Death `json:"last_death,omitzero"`
	DeathSeen bool      `json:"death_seen,omitempty"`
	// MarkFailed removes these two by their names in JSON.
	Left     bool `json:"left,omitempty"`     // the supervisor has left the kernel to the next one
	Complete bool `json:"complete,omitempty"` // no output is lost: the kernel was idle, and clients had everything
}

// Use is the kernel's use. Its times are those of activity.Usage and activity.Idle.
//
// LastActivity, KeepUntil, KeepGPUUntil and CellBegan are as the wall clock showed them. A step of the wall clock does
// not change the distance between SavedAt and the other times.
type Use struct {
	SavedAt   time.Time     `json:"saved_at"`
	SinceBoot time.Duration `json:"since_boot"` // proctree.SinceBoot at SavedAt

	Started   time.Time `json:"started"`
	IdleSince time.Time `json:"idle_since"`
	LongWork  time.Time `json:"worked,omitzero"`
	// LastActivity is as models report it. It may be a few seconds old if the supervisor was killed.
	LastActivity time.Time  `json:"last_activity,omitzero"`
	Left         time.Time  `json:"left,omitzero"`
	Connected    bool       `json:"connected,omitempty"`
	KeepUntil    time.Time  `json:"keep_until,omitzero"`
	KeepGPUUntil time.Time  `json:"keep_gpu_until,omitzero"`
	CellBegan    time.Time  `json:"cell_began,omitzero"` // the last cell, or the kernel was up then
	Starting     bool       `json:"fresh,omitempty"`     // the kernel is not up yet
	GPU          api.GPUUse `json:"gpu,omitzero"`        // since Started
}

// Session is a client's session.
type Session struct {
	Key  string          `json:"key"`            // user, right and session id
	Cell json.RawMessage `json:"cell,omitempty"` // header of its last execute_request
}

// Request is a request that is not finished.
type Request struct {
	Session string          `json:"session"` // the session's key; "": it has ended
	ID      string          `json:"id"`
	Channel jupyter.Channel `json:"channel"`
	Type    string          `json:"type"`
	Header  json.RawMessage `json:"header"`
	Cell    string          `json:"cell,omitempty"`
	Main    bool            `json:"main"`
	Replied bool            `json:"replied"`
	Idled   bool            `json:"idled"`
	Since   time.Time       `json:"since,omitzero"`   // when the kernel began to work on it
	Prompt  *Prompt         `json:"prompt,omitempty"` // that waits for an answer
}

// maxPrompt bounds a saved prompt, in bytes.
const maxPrompt = 64 << 10

// Prompt is an input_request that waits for its answer.
type Prompt struct {
	Header   json.RawMessage `json:"header"`
	Metadata json.RawMessage `json:"metadata"`
	Content  json.RawMessage `json:"content"`
}

// NewPrompt returns the saved form of an input_request, or nil if it is too large or no JSON.
func NewPrompt(m *jupyter.Message) *Prompt {
	if m.Size() > maxPrompt || !json.Valid(m.Header) || !json.Valid(m.Metadata) || !json.Valid(m.Content) {
		return nil
	}
	return &Prompt{Header: m.Header, Metadata: m.Metadata, Content: m.Content}
}

// Message returns the input_request of a request with the header parent.
func (p *Prompt) Message(parent []byte) jupyter.Message {
	return jupyter.Message{Channel: jupyter.Stdin, Header: p.Header, Parent: parent, Metadata: p.Metadata,
		Content: p.Content}
}

// File is the saved state's file. Keep writes it, in a goroutine of its own, after the changes. So the last changes
// before a supervisor is killed are missing.
type File struct {
	path  string
	dirty chan struct{} // capacity 1
	save  sync.Mutex    // held while the state is taken and written, so that the file has the newest
}

// NewFile returns the File in a folder.
func NewFile(dir string) *File {
	return &File{path: filepath.Join(dir, FileName), dirty: make(chan struct{}, 1)}
}

// Changed requests a write. It does not wait, and may be called concurrently.
func (f *File) Changed() {
	goroutines.Wake(f.dirty)
}

// Dirty reports whether a write was requested and has not begun.
func (f *File) Dirty() bool { return len(f.dirty) > 0 }

// Keep writes what take returns after each Changed until ctx ends. Errors are ignored: they matter only if the
// supervisor is killed while the disk is full.
func (f *File) Keep(ctx context.Context, take func() ([]byte, error)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.dirty:
		}
		_ = f.Save(take) // see above
		if goroutines.Sleep(ctx, Pause) != nil {
			return
		}
	}
}

// Save writes what take returns. It may be called concurrently with Keep.
func (f *File) Save(take func() ([]byte, error)) error {
	f.save.Lock()
	defer f.save.Unlock()
	b, err := take()
	if err != nil {
		return err
	}
	return files.Write(f.path, b)
}

// MarkFailed notes that a supervisor has ended unexpectedly: the state is neither Left nor Complete, so that the next
// supervisor says that output is lost. If a supervisor left and the one that followed has failed, no supervisor has
// read what the kernel printed since. Other members stay, also those of a newer version.
func (f *File) MarkFailed() error {
	f.save.Lock()
	defer f.save.Unlock()
	b, err := files.Read(f.path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(b, &members); err != nil {
		return err
	}
	before := len(members)
	delete(members, "left")
	delete(members, "complete")
	if len(members) == before {
		return nil
	}
	if b, err = json.Marshal(members); err != nil {
		return err
	}
	return files.Write(f.path, b)
}

// Read returns the State of an earlier supervisor, or a zero State if there is no file.
func (f *File) Read() (left State, err error) {
	b, err := files.Read(f.path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return left, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &left)
	}
	if err != nil {
		return State{}, err
	}
	return left, nil
}
