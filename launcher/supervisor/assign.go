package supervisor

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/routes"
)

// A warm kernel has no owner. Its supervisor serves no user until a gateway has assigned the kernel. The assignment is
// written to disk before anything of it takes effect: from then on the supervisor, or a later one of the kernel,
// accepts this assignment again, and no other. So no kernel is ever used for two owners.

// assignTime bounds the wait for a warm kernel that is still starting, and for its answer.
const assignTime = 20 * time.Second

// storedAssignment is api.AssignmentFile.
type storedAssignment struct {
	api.Assignment
	Done bool `json:"done"` // the kernel has got all of it
}

// assigning is the state of a warm kernel's assignment. The zero value is that of a kernel that is not warm.
type assigning struct {
	turn chan struct{} // fixed; capacity 1: held while a request assigns
	done chan struct{} // fixed; closed when the kernel is assigned

	// Guarded by Supervisor.mu.
	warm  bool              // it has no owner yet
	begun *storedAssignment // nil: none was begun
}

// readAssignment prepares a supervisor of a kernel that is or was warm.
func (s *Supervisor) readAssignment() {
	if s.cfg.Warm == "" {
		return
	}
	s.assign = assigning{turn: make(chan struct{}, 1), done: make(chan struct{}), warm: true}
	b, err := os.ReadFile(s.assignmentFile())
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var stored storedAssignment
	if err == nil {
		err = json.Unmarshal(b, &stored)
	}
	if err != nil {
		// Another assignment must not follow one that may have begun.
		s.logger.Error("the kernel's assignment cannot be read; it can be ended only", logkey.Err, err)
	}
	s.assign.begun = &stored
	if stored.Done {
		s.applyLocked()
	}
}

func (s *Supervisor) assignmentFile() string {
	return filepath.Join(s.cfg.SpillDir, api.AssignmentFile)
}

// Warm implements routes.Kernel.
func (s *Supervisor) Warm() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.assign.warm
}

// Assign implements routes.Kernel.
func (s *Supervisor) Assign(ctx context.Context, a api.Assignment) error {
	if s.cfg.Warm == "" {
		return routes.Error{Status: http.StatusConflict, Text: "this kernel was started for its owner"}
	}
	ctx, cancel := context.WithTimeout(ctx, assignTime)
	defer cancel()
	select {
	case s.assign.turn <- struct{}{}:
		defer func() { <-s.assign.turn }()
	case <-ctx.Done():
		return routes.Error{Status: http.StatusServiceUnavailable, Text: "another assignment is in progress"}
	}
	return s.assignTo(ctx, a)
}

// assignTo does what Assign promises. The turn is held.
func (s *Supervisor) assignTo(ctx context.Context, a api.Assignment) error {
	s.mu.Lock()
	begun := s.assign.begun
	s.mu.Unlock()
	switch {
	case begun != nil && begun.ID != a.ID:
		return routes.Error{Status: http.StatusConflict, Text: "this kernel was assigned before"}
	case begun != nil && begun.Done:
		return nil
	case begun == nil:
		begun = &storedAssignment{Assignment: a}
		if err := s.storeAssignment(begun); err != nil {
			return err
		}
	}
	if s.cfg.Warm == api.WarmProcess {
		if err := s.setInKernel(ctx, begun.Assignment); err != nil {
			return routes.Error{Status: http.StatusBadGateway,
				Text: "the kernel could not be given to its owner: " + err.Error()}
		}
	}
	done := *begun
	done.Done = true
	if err := s.storeAssignment(&done); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applyLocked()
	s.use.Started = s.now()
	s.recordOwnerLocked()
	s.use.Used()
	s.logger.Info("kernel has got its owner")
	return nil
}

// storeAssignment writes an assignment to disk, and from then on rejects every other.
func (s *Supervisor) storeAssignment(a *storedAssignment) error {
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	if err := files.Write(s.assignmentFile(), b); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.assign.begun = a
	return nil
}

// applyLocked makes the assignment count for every further request and for every further process of the kernel. New
// calls it without the lock.
func (s *Supervisor) applyLocked() {
	a := s.assign.begun
	s.cfg.Owner = a.Owner
	s.cfg.Env = maps.Clone(s.cfg.Env)
	if s.cfg.Env == nil {
		s.cfg.Env = map[string]string{}
	}
	maps.Copy(s.cfg.Env, a.Env)
	if a.WorkingDir != "" {
		s.cfg.WorkingDir = a.WorkingDir
	}
	s.assign.warm = false
	close(s.assign.done)
}

// processSettings returns the variables and the working directory of the kernel's next process.
func (s *Supervisor) processSettings() (env map[string]string, dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cfg.Env, s.cfg.WorkingDir
}

// awaitOwner waits until a kernel whose process is not started before has its owner. It returns the stop that came
// meanwhile, or nil.
func (s *Supervisor) awaitOwner(ctx context.Context) *operation {
	if s.cfg.Warm != api.WarmContainer {
		return nil
	}
	for {
		select {
		case <-s.assign.done:
			return nil
		case op := <-s.operations.requested:
			if op.stop {
				return op
			}
			s.operations.settle(op, routes.ErrNotRunning)
		case <-ctx.Done():
			return stopBySignal()
		}
	}
}

// setInKernel sets variables and working directory in the running kernel, and waits for its answer.
func (s *Supervisor) setInKernel(ctx context.Context, a api.Assignment) error {
	b, err := s.awaitReadyBridge(ctx)
	if err != nil {
		return err
	}
	code, err := pythonAssignment(a)
	if err != nil {
		return err
	}
	content, err := s.own.execute(ctx, b, code)
	if err != nil {
		return err
	}
	if status := jupyter.StringField(content, "status"); status != "ok" {
		return fmt.Errorf("it answered %q to its new variables", api.PlainText(status, maxStatusText))
	}
	return nil
}

// maxStatusText bounds the part of a kernel's answer that an error quotes.
const maxStatusText = 20

// awaitReadyBridge waits until the kernel has answered for the first time. The error says that it is not a Python
// kernel.
func (s *Supervisor) awaitReadyBridge(ctx context.Context) (*bridge, error) {
	for {
		_, changed := s.Status()
		s.mu.Lock()
		b, info := s.kernel.bridge, s.kernel.info
		ready := s.kernel.connected()
		s.mu.Unlock()
		if ready && info != nil {
			if err := isPython(info); err != nil {
				return nil, err
			}
			return b, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, errors.New("it did not answer in time")
		case <-s.over:
			return nil, routes.ErrOver
		}
	}
}

// isPython returns an error unless the content of a kernel_info_reply is that of a Python kernel.
func isPython(info []byte) error {
	var language struct {
		Info struct {
			Name string `json:"name"`
		} `json:"language_info"`
	}
	if err := json.Unmarshal(info, &language); err != nil {
		return fmt.Errorf("its kernel_info_reply cannot be read: %w", err)
	}
	if !strings.EqualFold(language.Info.Name, "python") {
		return errors.New("its language is not Python, as its kernelspec says")
	}
	return nil
}

// pythonProgram sets the variables and the working directory. A folder that cannot be entered is ignored, as when the
// process is started.
const pythonProgram = `import os
os.environ.update(env)
if dir:
    try:
        os.chdir(dir)
    except OSError:
        pass
`

// pythonAssignment returns code that leaves no name in the kernel's namespace. What a client has sent is data in it,
// and base64.
func pythonAssignment(a api.Assignment) (string, error) {
	env := a.Env
	if env == nil {
		env = map[string]string{}
	}
	data, err := json.Marshal(map[string]any{"env": env, "dir": a.WorkingDir})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("exec(__import__('base64').b64decode('%s'), "+
		"__import__('json').loads(__import__('base64').b64decode('%s')))",
		base64.StdEncoding.EncodeToString([]byte(pythonProgram)), base64.StdEncoding.EncodeToString(data)), nil
}
