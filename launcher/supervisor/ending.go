package supervisor

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"time"
)

// writeEnding records why the kernel has ended, wherever that is asked for. That it was culled stays on record when it is removed.
func (s *Supervisor) writeEnding(e Ending) error {
	e.KernelID, e.At = s.cfg.KernelID, s.now().UTC()
	if s.died.IsZero() {
		s.died = e.At
	}
	s.mu.Lock()
	e.Started = s.started
	s.mu.Unlock()
	e.Seconds = max(0, int64(s.died.Sub(e.Started).Round(time.Second)/time.Second))
	if e.Stopped && s.culled != nil {
		e = *s.culled
		e.Stopped = true
	}
	if e.Culled {
		s.culled = &e
	}
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	s.ending = b
	if s.cfg.TerminationFile != "" {
		if err := WriteTermination(s.cfg.TerminationFile, e); err != nil {
			return err
		}
	}
	if s.cfg.EndFile == "" {
		return nil
	}
	return writeFile(s.cfg.EndFile, b)
}

// removeEnding takes back what writeEnding has written: the kernel is started again.
func (s *Supervisor) removeEnding() error {
	s.ending, s.culled, s.died = nil, nil, time.Time{}
	if s.cfg.TerminationFile != "" {
		if err := writeInPlace(s.cfg.TerminationFile, nil); err != nil {
			return err
		}
	}
	if s.cfg.EndFile == "" {
		return nil
	}
	if err := os.Remove(s.cfg.EndFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// alreadyEnded reports whether an earlier supervisor of this pod has ended the kernel for good, and tells its Ending again
// if it has: that one may have been killed before its own end.
func (s *Supervisor) alreadyEnded() (bool, error) {
	b, err := os.ReadFile(s.cfg.ChildSocket + endedSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	s.logger.Info("the kernel has ended before")
	var e Ending
	if s.cfg.TerminationFile == "" || json.Unmarshal(b, &e) != nil {
		return true, nil
	}
	return true, WriteTermination(s.cfg.TerminationFile, e)
}

// WriteTermination writes an Ending into a container's termination message: in place, since the file is mounted on its own,
// and in at most MaxTermination bytes, for which the reason is cut.
func WriteTermination(path string, e Ending) error {
	b, err := json.Marshal(e)
	for limit := MaxTermination; err == nil && len(b) > MaxTermination && limit > 0; limit -= 64 { // a byte may take six in JSON
		e.Reason = plainText(e.Reason, limit)
		b, err = json.Marshal(e)
	}
	if err != nil {
		return err
	}
	return writeInPlace(path, b)
}

// writeInPlace replaces a file's content, and makes the file if need be.
func writeInPlace(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644) //nolint:gosec // it is for others to read
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}
