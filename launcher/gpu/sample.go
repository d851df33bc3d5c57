package gpu

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Samples is one line of ekg-gpu watch: the state of devices since the line before.
type Samples struct {
	Seconds float64  `json:"seconds"` // since the line before, or since the program was started
	Devices []Sample `json:"devices"` // as in Report; empty without a driver
	Error   string   `json:"error,omitempty"`
}

// Sample is the state of one device, or of an instance (MIG) of one.
type Sample struct {
	UUID        string    `json:"uuid"`
	Model       string    `json:"model,omitempty"`
	MemoryTotal int64     `json:"memory_total,omitempty"` // bytes; 0: unknown
	MemoryUsed  int64     `json:"memory_used"`            // bytes
	Utilization *float64  `json:"utilization"`            // as Device.Use, over Samples.Seconds; nil: unknown
	Processes   []Process `json:"processes"`              // as in Device
	Closed      bool      `json:"closed,omitempty"`       // no process has it open, so the driver was not asked
	Error       string    `json:"error,omitempty"`        // why something is unknown
}

// Bounds of a line of samples, which may come from a kernel's container.
const (
	MaxDevices    = 64
	maxProcesses  = 4096
	maxSampleText = 300 // bytes
)

// ParseSamples reads a line of ekg-gpu watch. The error says what is wrong with it.
func ParseSamples(b []byte) (Samples, error) {
	var s Samples
	if err := json.Unmarshal(b, &s); err != nil {
		return Samples{}, fmt.Errorf("not a line of ekg-gpu: %w", err)
	}
	return s, s.Check()
}

// Check returns an error if a value is outside of its range.
func (s Samples) Check() error {
	if !(s.Seconds >= 0) || len(s.Devices) > MaxDevices || len(s.Error) > maxSampleText {
		return errors.New("not a line of ekg-gpu: it has impossible values")
	}
	for _, d := range s.Devices {
		valid := d.MemoryTotal >= 0 && d.MemoryUsed >= 0 && (d.Utilization == nil || isPart(*d.Utilization)) &&
			len(d.Processes) <= maxProcesses && max(len(d.UUID), len(d.Model), len(d.Error)) <= maxSampleText
		for _, p := range d.Processes {
			valid = valid && p.Memory >= 0 && (p.Use == nil || isPart(*p.Use))
		}
		if !valid {
			return fmt.Errorf("not a line of ekg-gpu: the values of %.100q are impossible", d.UUID)
		}
	}
	return nil
}

// Of returns the sample as it is for the processes that are mine, without the list of processes. Use and memory that
// the driver does not tell apart are those of the device. That holds also for a process that it does not name.
func (s Sample) Of(mine func(pid int) bool) Sample {
	if s.Processes == nil {
		return s
	}
	own := s
	own.MemoryUsed, own.Processes = 0, nil
	known := true
	for _, p := range s.Processes {
		if mine(p.PID) {
			own.MemoryUsed += p.Memory
			known = known && p.Memory > 0
		}
	}
	if !known {
		own.MemoryUsed = s.MemoryUsed
	}
	if s.Utilization != nil {
		use := Device{Use: *s.Utilization, Processes: s.Processes}.useOf(mine)
		own.Utilization = &use
	}
	return own
}
