// Package gpu says how busy GPUs are: what the program ekg-gpu tells, which alone speaks to NVIDIA's library, and which part of that
// is a kernel's.
package gpu

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// Report is what ekg-gpu has seen of the GPUs of a machine, or of those that a container has.
type Report struct {
	Seconds float64  `json:"seconds"` // for which it has looked
	Devices []Device `json:"devices"` // GPUs, and in place of one that is partitioned its instances (MIG); none without a driver
}

// Device is one GPU, or an instance of one.
type Device struct {
	UUID      string    `json:"uuid"`
	Use       float64   `json:"use"`             // the part of the time, 0 to 1, in which it computed for anybody
	Processes []Process `json:"processes"`       // those that have it open; nil where they cannot be told
	Error     string    `json:"error,omitempty"` // why its use is not known
}

// Process is one that has a device open.
type Process struct {
	PID int      `json:"pid"`           // as this machine counts
	Use *float64 `json:"use,omitempty"` // the part of the time in which the device computed for it; nil: that is not known apart
}

// ParseReport reads what ekg-gpu has printed.
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

// Use is how many GPUs computed for the processes that are mine, on average over the time of the report. Where a device's processes
// cannot be told apart all that it does counts as theirs, as far as they have it open. The error names the devices of which nothing is known, which
// count as unused.
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
