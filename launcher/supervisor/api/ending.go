package api

import (
	"encoding/json"
	"errors"
	"os"
	"time"
)

// MaxTermination bounds Config.TerminationFile, in bytes. The kubelet reads no more of a termination message.
const MaxTermination = 4096

// Ending says how a kernel ended. A supervisor writes it to Config.EndFile and Config.TerminationFile.
type Ending struct {
	KernelID  string    `json:"kernel_id"`
	Reason    string    `json:"reason"`               // one sentence for the owner
	At        time.Time `json:"at"`                   // UTC
	Stopped   bool      `json:"stopped"`              // on request: it is 404 from now on; false: it died
	Culled    bool      `json:"culled,omitempty"`     // ended by Config.Cull; with Stopped: and removed afterwards
	Failed    bool      `json:"failed,omitempty"`     // only with Stopped: it died, and was removed afterwards
	CulledFor string    `json:"culled_for,omitempty"` // LimitIdle, LimitBusy or LimitAge
	Started   time.Time `json:"started,omitzero"`     // UTC; the last start; zero: unknown
	Seconds   int64     `json:"seconds,omitempty"`    // lifetime; At may be a little later
	GPUUse    GPUUse    `json:"gpu_use,omitzero"`     // until its end
	GPUs      int       `json:"gpus,omitempty"`       // how many Config.GPUSamples names; 0 in a pod
}

// Removed returns the ending of a kernel that is removed on request after it has ended. The reason of its end stays.
func (e Ending) Removed() Ending {
	e.Failed, e.Stopped = e.Died(), true
	return e
}

// Died reports whether the kernel ended neither on request nor by Config.Cull.
func (e Ending) Died() bool { return e.Failed || !e.Culled && !e.Stopped }

// Unrequested reports whether the kernel was culled or died.
func (e Ending) Unrequested() bool { return e.Culled || e.Died() }

// WriteTermination writes an Ending to a container's termination message. The file is written in place, because it is a
// mount of its own. The reason is shortened until the JSON fits MaxTermination bytes.
func WriteTermination(path string, e Ending) error {
	b, err := json.Marshal(e)
	// JSON may write one byte as six.
	for limit := MaxTermination; err == nil && len(b) > MaxTermination && limit > 0; limit -= 64 {
		e.Reason = PlainText(e.Reason, limit)
		b, err = json.Marshal(e)
	}
	if err != nil {
		return err
	}
	return WriteInPlace(path, b)
}

// WriteInPlace replaces the content of a file, which is created with mode 0644 if it is missing.
func WriteInPlace(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

// SignalReason is the reason of an Ending after a signal to the supervisor. A launcher that knows the sender replaces
// it.
const SignalReason = "its supervisor was told to end by a signal"
