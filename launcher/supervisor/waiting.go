package supervisor

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	waitingText  = 1000             // bytes of what is shown of a Waiting
	firstComing  = time.Hour        // for a kernel's container to come for the first time, after the last word of it
	secondComing = 10 * time.Minute // likewise, to come back: the kubelet backs off for at most 5 minutes
)

// The classes of Waiting.
const (
	WaitingClass = "waiting" // the container is not there yet, or not again
	NeverClass   = "never"   // it will not come: a kernel that waits for it is dead
	DiedClass    = "died"    // it has ended
)

// Waiting is what a cluster tells of the kernel's container: why it is not there, or why it has ended.
type Waiting struct {
	Class   string `json:"class"`
	Text    string `json:"text"`    // one sentence for the kernel's owner; "" takes back what was said before
	Version uint64 `json:"version"` // grows; what is not newer than the last is ignored
}

// UnmarshalJSON takes a version as a number or as a text that holds one.
func (w *Waiting) UnmarshalJSON(b []byte) error {
	var raw struct {
		Class   string          `json:"class"`
		Text    string          `json:"text"`
		Version json.RawMessage `json:"version"`
	}
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	version, err := strconv.ParseUint(strings.Trim(string(raw.Version), `"`), 10, 64)
	if err != nil {
		return err
	}
	*w = Waiting{Class: raw.Class, Text: raw.Text, Version: version}
	return nil
}

func (s *Supervisor) putWaiting(w http.ResponseWriter, r *http.Request) error {
	if s.container == nil {
		return httpError{http.StatusNotFound, "the kernel has no container of its own"}
	}
	var said Waiting
	b, err := readBody(w, r, 16<<10)
	if err == nil {
		err = json.Unmarshal(b, &said)
	}
	if err != nil || said.Class != WaitingClass && said.Class != NeverClass && said.Class != DiedClass {
		return httpError{http.StatusBadRequest, `the body is not {"class": "waiting", "never" or "died", "text": "...", "version": number}`}
	}
	said.Text = plainText(said.Text, waitingText)
	s.noteWaiting(said)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// noteWaiting takes what the cluster says.
func (s *Supervisor) noteWaiting(said Waiting) {
	s.mu.Lock()
	if said.Version <= s.waiting.Version {
		s.mu.Unlock()
		return
	}
	s.waiting = said
	s.showWaiting()
	s.changed()
	s.mu.Unlock()
	if said.Class == DiedClass && said.Text != "" {
		s.container.diedBecause(said.Text)
	}
	poke(s.news)
}

// waitingText is why the kernel's container is not there, or "" if it is or nobody has said why. s.mu is held.
func (s *Supervisor) waitingText() string {
	if s.proc != nil || s.clock.state != stateStarting && s.clock.state != stateRestarting {
		return ""
	}
	return s.waiting.Text
}

// showWaiting brings what waiting cells show up to date: the first cell of each session, since the others wait for that.
// s.mu is held.
func (s *Supervisor) showWaiting() {
	text := s.waitingText()
	if text == "" {
		s.clearWaiting()
		return
	}
	text = "The kernel is not there yet: " + text
	shown := map[*session]bool{}
	for _, l := range s.lines {
		shown[l.session] = true
		s.say(l, text)
	}
	for _, r := range s.order {
		if r.msgType != "execute_request" || r.finished() || r.session == nil || shown[r.session] {
			continue
		}
		shown[r.session] = true
		l := newLine(r.session, r.header)
		s.lines = append(s.lines, l)
		s.say(l, text)
	}
}

// clearWaiting takes away what waiting cells show. s.mu is held.
func (s *Supervisor) clearWaiting() {
	for _, l := range s.lines {
		s.say(l, "")
	}
	s.lines = nil
}

// awaitContainer waits for a child, and reports false if there will be none: out says why then.
func (s *Supervisor) awaitContainer(ctx context.Context, out *outcome) bool {
	patience := secondComing
	s.mu.Lock()
	if s.kernelInfo == nil && !s.adopted {
		patience = firstComing
	}
	s.mu.Unlock()
	t := time.NewTimer(patience)
	defer t.Stop()
	for !s.container.connected() {
		select {
		case <-s.container.changed:
		case <-s.news:
			if out.reason = s.neverComes(); out.reason != "" {
				out.fatal = true
				s.closeLife(out)
				return false
			}
			t.Reset(patience)
		case op := <-s.ops:
			if op.stop {
				out.op = op
				s.closeLife(out)
				return false
			}
			// It is as good as done: what was asked before is not, and the container comes when it comes.
			s.closeLife(&outcome{op: op})
			s.begin(nil, op)
			s.settle(op, nil)
		case <-ctx.Done():
			out.op = s.terminated()
			s.closeLife(out)
			return false
		case <-t.C:
			out.reason, out.fatal = "the kernel's container did not come within "+patience.String(), true
			s.mu.Lock()
			if s.waiting.Text != "" {
				out.reason += ": " + s.waiting.Text
			}
			s.mu.Unlock()
			s.closeLife(out)
			return false
		}
	}
	return true
}

// neverComes is why the kernel's container will not come, or "".
func (s *Supervisor) neverComes() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting.Class != NeverClass {
		return ""
	}
	return s.waiting.Text
}

// launchRemote has the child start the kernel, or adopts the one that it runs already.
func (s *Supervisor) launchRemote(ctx context.Context) (c connection, p kernelProcess, adopted bool, err error) {
	if !s.container.connected() {
		return c, nil, false, errNoChild
	}
	if k := s.container.inherited(); k != nil && s.firstLife() {
		if ports, ok := portsOf(k.Connection); ok {
			if c, err = connectionTo(&s.cfg, ports); err != nil {
				return c, nil, false, err
			}
			s.inherit(true)
			return c, s.container.adopt(k), true, nil
		}
	}
	if s.firstLife() {
		s.inherit(false)
	}
	if c, err = newConnection(&s.cfg); err != nil {
		return c, nil, false, err
	}
	r, err := s.container.start(ctx, childStart{KernelID: s.cfg.KernelID, Argv: s.cfg.Argv, ImageKernelspec: s.cfg.ImageKernelspec,
		Env: s.cfg.Env, WorkingDir: s.cfg.WorkingDir, Connection: c.content})
	if err != nil {
		return c, nil, false, err
	}
	return c, r, false, nil
}
