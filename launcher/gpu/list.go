package gpu

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// List is what ekg-gpu list prints: the GPUs of a machine.
type List struct {
	Devices []Listed `json:"devices"`
	Reason  string   `json:"reason,omitempty"` // why there are no devices
}

// Listed is one GPU.
type Listed struct {
	UUID        string     `json:"uuid"` // GPU-...; "" if the driver does not tell it
	Index       int        `json:"index"`
	Model       string     `json:"model,omitempty"`
	MemoryTotal int64      `json:"memory_total,omitempty"`    // bytes; 0: unknown
	Reserved    int64      `json:"memory_reserved,omitempty"` // bytes of MemoryTotal that programs cannot have
	MIG         bool       `json:"mig_mode,omitempty"`        // kernels can use only its instances
	Instances   []Instance `json:"mig,omitempty"`             // in MIG mode
	Healthy     bool       `json:"healthy"`
	Error       string     `json:"error,omitempty"` // why it is not healthy
}

// Instance is a part of a GPU in MIG mode that works like a GPU of its own.
type Instance struct {
	UUID        string `json:"uuid"`              // MIG-...
	Profile     string `json:"profile,omitempty"` // such as 1g.10gb; "": unknown
	MemoryTotal int64  `json:"memory_total,omitempty"`
	Reserved    int64  `json:"memory_reserved,omitempty"` // as in Listed
}

// ParseList reads the output of ekg-gpu list. The UUIDs in it can be names of files. The error says what is wrong.
func ParseList(b []byte) (List, error) {
	var l List
	if err := json.Unmarshal(b, &l); err != nil {
		return List{}, fmt.Errorf("not a list of ekg-gpu: %w", err)
	}
	seen := map[string]bool{}
	check := func(uuid string, memory, reserved int64) error {
		switch {
		case !isName(uuid):
			return fmt.Errorf("not a list of ekg-gpu: %.100q is not a UUID", uuid)
		case seen[uuid]:
			return fmt.Errorf("not a list of ekg-gpu: %s is there twice", uuid)
		case memory < 0:
			return fmt.Errorf("not a list of ekg-gpu: the memory of %s is negative", uuid)
		case reserved < 0 || reserved > memory:
			return fmt.Errorf("not a list of ekg-gpu: of the memory of %s, %d bytes are reserved", uuid, reserved)
		}
		seen[uuid] = true
		return nil
	}
	if len(l.Devices) > MaxDevices {
		return List{}, errors.New("not a list of ekg-gpu: it has too many devices")
	}
	for _, d := range l.Devices {
		if d.UUID == "" && !d.Healthy {
			continue
		}
		if err := check(d.UUID, d.MemoryTotal, d.Reserved); err != nil {
			return List{}, err
		}
		for _, i := range d.Instances {
			if err := check(i.UUID, i.MemoryTotal, i.Reserved); err != nil {
				return List{}, err
			}
		}
	}
	return l, nil
}

// isName reports whether a UUID can be a part of a file's name and of CUDA_VISIBLE_DEVICES. The UUIDs of instances of
// old drivers have slashes and do not count.
func isName(uuid string) bool {
	return uuid != "" && len(uuid) <= 100 && !strings.HasPrefix(uuid, ".") &&
		!strings.ContainsFunc(uuid, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.", r)
		})
}
