package api

import "fmt"

// Values of Config.Warm.
const (
	// WarmProcess: the kernel's process is started at once. It gets variables and working directory while it runs, as
	// only Python kernels can.
	WarmProcess = "process"
	// WarmContainer: the kernel's process is started when the kernel has an owner.
	WarmContainer = "container"
)

// AssignmentFile is the file in Config.SpillDir that keeps an Assignment. Every later supervisor of the kernel reads
// it.
const AssignmentFile = "assignment.json"

// Assignment gives a warm kernel to its owner, once and for good.
type Assignment struct {
	// ID names it. A supervisor that has begun one rejects every other.
	ID         string            `json:"id"`
	Owner      string            `json:"owner,omitempty"` // as Config.Owner
	Env        map[string]string `json:"env,omitempty"`   // added to Config.Env
	WorkingDir string            `json:"working_dir,omitempty"`
}

// Validate says what is wrong with it.
func (a *Assignment) Validate() error {
	if a.ID == "" {
		return fmt.Errorf("id is missing")
	}
	return nil
}
