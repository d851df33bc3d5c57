package supervisor

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
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

// assigning gives a kernel to its owner. A kernel that was not warm has its owner from the start.
type assigning struct {
	// Fixed.
	kind string // of api.Config.Warm; "": it was not warm
	file string // where a begun assignment is stored
	mu   *stateMutex
	turn chan struct{} // capacity 1: held while a request assigns
	done chan struct{} // closed when the kernel is assigned; nil if kind is ""

	// Guarded by mu, which is Supervisor.mu. The first three do not change once the kernel has its owner.
	owner string // "": everyone
	env   map[string]string
	dir   string
	warm  bool              // it has no owner yet
	begun *storedAssignment // nil: none was begun
}

// newAssigning takes over an assignment that an earlier supervisor of the kernel has begun.
func newAssigning(cfg *api.Config, mu *stateMutex, logger *slog.Logger) assigning {
	a := assigning{kind: cfg.Warm, mu: mu, owner: cfg.Owner, env: cfg.Env, dir: cfg.WorkingDir}
	if a.kind == "" {
		return a
	}
	a.file = filepath.Join(cfg.SpillDir, api.AssignmentFile)
	a.turn, a.done, a.warm = make(chan struct{}, 1), make(chan struct{}), true
	b, err := files.Read(a.file, files.MaxState)
	if errors.Is(err, fs.ErrNotExist) {
		return a
	}
	var stored storedAssignment
	if err == nil {
		err = json.Unmarshal(b, &stored)
	}
	if err != nil {
		// Another assignment must not follow one that may have begun.
		logger.Error("the kernel's assignment cannot be read; it can be ended only", logkey.Err, err)
	}
	a.begun = &stored
	if stored.Done {
		a.applyLocked()
	}
	return a
}

// assign does what routes.Kernel promises of Assign. give sets variables and working directory in the running kernel.
// taken is called with mu held when the kernel has got its owner.
func (a *assigning) assign(
	ctx context.Context, to api.Assignment, give func(context.Context, api.Assignment) error, taken func(),
) error {
	if a.kind == "" {
		return routes.Error{Status: http.StatusConflict, Text: "this kernel was started for its owner"}
	}
	ctx, cancel := context.WithTimeout(ctx, assignTime)
	defer cancel()
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		return routes.Error{Status: http.StatusServiceUnavailable, Text: "another assignment is in progress"}
	}
	a.mu.Lock()
	begun := a.begun
	a.mu.Unlock()
	switch {
	case begun != nil && begun.ID != to.ID:
		return routes.Error{Status: http.StatusConflict, Text: "this kernel was assigned before"}
	case begun != nil && begun.Done:
		return nil
	case begun == nil:
		begun = &storedAssignment{Assignment: to}
		if err := a.store(begun); err != nil {
			return err
		}
	}
	if a.kind == api.WarmProcess {
		if err := give(ctx, begun.Assignment); err != nil {
			return routes.Error{Status: http.StatusBadGateway,
				Text: "the kernel could not be given to its owner: " + err.Error()}
		}
	}
	done := *begun
	done.Done = true
	if err := a.store(&done); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.applyLocked()
	taken()
	return nil
}

// store writes an assignment to disk, and from then on rejects every other.
func (a *assigning) store(to *storedAssignment) error {
	b, err := json.Marshal(to)
	if err != nil {
		return err
	}
	if err := files.Write(a.file, b); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.begun = to
	return nil
}

// applyLocked makes the assignment count for every further request and for every further process of the kernel.
func (a *assigning) applyLocked() {
	a.owner = a.begun.Owner
	env := map[string]string{}
	maps.Copy(env, a.env)
	maps.Copy(env, a.begun.Env)
	a.env = env
	if a.begun.WorkingDir != "" {
		a.dir = a.begun.WorkingDir
	}
	a.warm = false
	close(a.done)
}

// settings returns the variables and the working directory of the kernel's next process.
func (a *assigning) settings() (env map[string]string, dir string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.env, a.dir
}

// await waits until a kernel whose process is not started before has its owner. It returns the stop that came
// meanwhile, or nil.
func (a *assigning) await(ctx context.Context, o *operations) *operation {
	if a.kind != api.WarmContainer {
		return nil
	}
	for {
		select {
		case <-a.done:
			return nil
		case op := <-o.requested:
			if op.stop {
				return op
			}
			o.settle(op, routes.ErrNotRunning)
		case <-ctx.Done():
			return stopBySignal()
		}
	}
}

// Warm implements routes.Kernel.
func (s *Supervisor) Warm() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.assigning.warm
}

// Assign implements routes.Kernel.
func (s *Supervisor) Assign(ctx context.Context, a api.Assignment) error {
	return s.assigning.assign(ctx, a, s.setInKernel, func() {
		s.use.Started = s.now()
		s.timeline.owner(s.use.Started, s.kernel.process != nil)
		s.use.Used()
		s.logger.Info("kernel has got its owner")
	})
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
// process is started, and so is another folder of the same path. ipykernel reads the session's file when it starts.
const pythonProgram = `import os, sys
os.environ.update(env)
if 'JPY_SESSION_NAME' in env and 'ipykernel' in sys.modules:
    sys.modules['IPython'].get_ipython().user_ns['__session__'] = env['JPY_SESSION_NAME']
if dir:
    try:
        st = os.stat(dir)
        if env.get('KERNEL_WORKING_DIR_ID', '') in ('', f'{st.st_dev}:{st.st_ino}'):
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
