// Package ending keeps the record of a kernel's end, in the files that the Config names. Gateways read it when the
// supervisor has gone. Package supervisor writes it. It starts no goroutine.
package ending

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Record is the record of one kernel's end. The goroutine that runs the kernel owns it.
type Record struct {
	cfg     *api.Config // fixed; only fields that an assignment does not change
	written []byte
	own     *api.Ending // not nil: the Ending of a kernel that was culled or died
	died    time.Time   // when the first Ending of this end was written
}

// New returns the Record of a kernel that has not ended.
func New(cfg *api.Config) Record { return Record{cfg: cfg} }

// Write writes the reason of the kernel's end. Its caller has set At and Started. If a kernel that was culled or died
// is removed later, its record still says so.
func (r *Record) Write(e api.Ending) error {
	e.KernelID, e.GPUs = r.cfg.KernelID, len(r.cfg.GPUSamples.Devices)
	if r.died.IsZero() {
		r.died = e.At
	}
	e.Seconds = max(0, int64(r.died.Sub(e.Started).Round(time.Second)/time.Second))
	if e.Stopped && r.own != nil {
		e = r.own.Removed()
	}
	if !e.Stopped {
		r.own = &e
	}
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	r.written = b
	if r.cfg.TerminationFile != "" {
		if err := api.WriteTermination(r.cfg.TerminationFile, e); err != nil {
			return err
		}
	}
	if r.cfg.EndFile == "" {
		return nil
	}
	return files.Write(r.cfg.EndFile, b)
}

// JSON returns the last Ending that was written; nil: there is none.
func (r *Record) JSON() []byte { return r.written }

// Remove removes what Write wrote, because the kernel is started again.
func (r *Record) Remove() error {
	*r = New(r.cfg)
	if r.cfg.TerminationFile != "" {
		if err := api.WriteInPlace(r.cfg.TerminationFile, nil); err != nil {
			return err
		}
	}
	if r.cfg.EndFile == "" {
		return nil
	}
	if err := os.Remove(r.cfg.EndFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Earlier reports whether an earlier supervisor of this pod has ended the kernel for good: the child has kept its
// Ending in a file. Earlier writes that Ending again, since the earlier supervisor may have been killed before it did.
func (r *Record) Earlier(file string) (bool, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var e api.Ending
	if r.cfg.TerminationFile == "" || json.Unmarshal(b, &e) != nil {
		return true, nil
	}
	return true, api.WriteTermination(r.cfg.TerminationFile, e)
}
