// Package gpu describes how busy GPUs are. ekg-gpu prints a Report, a List or Samples; the other programs parse these,
// and find the share that belongs to a kernel. An Amount counts GPUs and parts of GPUs, as limits do. Only ekg-gpu
// speaks to NVIDIA's library. The package starts no goroutine and no program.
package gpu

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// Report is what ekg-gpu measured on the GPUs of a machine or of a container.
type Report struct {
	Seconds float64  `json:"seconds"` // how long it measured
	Devices []Device `json:"devices"` // GPUs, and the instances (MIG) of partitioned ones; empty without a driver
}

// Device is one GPU, or an instance of one.
type Device struct {
	UUID      string    `json:"uuid"`
	Use       float64   `json:"use"`             // the part of the time, 0 to 1, in which it computed
	Processes []Process `json:"processes"`       // the processes that have it open; nil if they are unknown
	Error     string    `json:"error,omitempty"` // why its use is unknown
}

// Process is a process that has a device open.
type Process struct {
	PID    int      `json:"pid"`              // in the machine's own PID namespace
	Use    *float64 `json:"use,omitempty"`    // the part of the time in which the device computed for it; nil: unknown
	Memory int64    `json:"memory,omitempty"` // bytes; only in a Sample; 0: unknown
}

// ParseReport reads ekg-gpu's output. The error says what is wrong with it.
func ParseReport(b []byte) (Report, error) {
	var r Report
	if err := json.Unmarshal(b, &r); err != nil {
		return Report{}, fmt.Errorf("not a report of ekg-gpu: %w", err)
	}
	for _, d := range r.Devices {
		valid := isPart(d.Use)
		for _, p := range d.Processes {
			valid = valid && (p.Use == nil || isPart(*p.Use))
		}
		if !valid {
			return Report{}, fmt.Errorf("not a report of ekg-gpu: the use of %q is not from 0 to 1", d.UUID)
		}
	}
	return r, nil
}

func isPart(f float64) bool { return f >= 0 && f <= 1 && !math.IsNaN(f) }

// Use returns how many GPUs computed for the processes that are mine, on average over the time of the report. If the
// use of a device's processes is unknown, all of the device's use counts as theirs, provided that they have it open.
// The error names the devices whose use is unknown; they count as unused.
func (r Report) Use(mine func(pid int) bool) (float64, error) {
	var sum float64
	var unknown []error
	for _, d := range r.Devices {
		if d.Error != "" {
			unknown = append(unknown, fmt.Errorf("%s: %s", d.UUID, d.Error))
		}
		sum += d.useOf(mine)
	}
	return sum, errors.Join(unknown...)
}

func (d Device) useOf(mine func(pid int) bool) float64 {
	if d.Processes == nil {
		return d.Use
	}
	var sum float64
	for _, p := range d.Processes {
		switch {
		case !mine(p.PID):
		case p.Use == nil:
			return d.Use
		default:
			sum += *p.Use
		}
	}
	return min(sum, 1)
}
