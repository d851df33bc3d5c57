package supervisor

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/child"
)

// recordEnding writes the reason of the kernel's end to the files that the Config names. If a kernel that was
// culled or died is removed later, its record still says so.
func (s *Supervisor) recordEnding(e api.Ending) error {
	e.KernelID, e.At = s.cfg.KernelID, s.now().UTC()
	if s.diedAt.IsZero() {
		s.diedAt = e.At
	}
	s.mu.Lock()
	e.Started = s.started.UTC()
	e.GPUUse, e.GPUs = s.gpus.use, len(s.cfg.GPUSamples.Devices)
	s.mu.Unlock()
	e.Seconds = max(0, int64(s.diedAt.Sub(e.Started).Round(time.Second)/time.Second))
	if e.Stopped && s.ownEnding != nil {
		e = s.ownEnding.Removed()
	}
	if !e.Stopped {
		s.ownEnding = &e
	}
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	s.endingJSON = b
	if s.cfg.TerminationFile != "" {
		if err := api.WriteTermination(s.cfg.TerminationFile, e); err != nil {
			return err
		}
	}
	if s.cfg.EndFile == "" {
		return nil
	}
	return files.Write(s.cfg.EndFile, b)
}

// removeEndingRecord removes what recordEnding wrote, because the kernel is started again.
func (s *Supervisor) removeEndingRecord() error {
	s.endingJSON, s.ownEnding, s.diedAt = nil, nil, time.Time{}
	if s.cfg.TerminationFile != "" {
		if err := api.WriteInPlace(s.cfg.TerminationFile, nil); err != nil {
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

// endedBefore reports whether an earlier supervisor of this pod has ended the kernel for good. It writes that Ending
// again, since the earlier supervisor may have been killed before it did.
func (s *Supervisor) endedBefore() (bool, error) {
	b, err := os.ReadFile(child.EndedFile(s.cfg.ChildSocket))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	s.logger.Info("the kernel has ended before")
	var e api.Ending
	if s.cfg.TerminationFile == "" || json.Unmarshal(b, &e) != nil {
		return true, nil
	}
	return true, api.WriteTermination(s.cfg.TerminationFile, e)
}
