// Package kernelspecs finds, reads and checks Jupyter kernelspecs (directories with a kernel.json).
package kernelspecs

import "encoding/json"

// Spec is one kernelspec that can be started.
type Spec struct {
	Name          string            // lower-case directory name
	Dir           string            // absolute resource directory
	Argv          []string          // as in kernel.json, placeholders unsubstituted
	Env           map[string]string // as in kernel.json, ${VAR} unsubstituted
	DisplayName   string
	Language      string
	InterruptMode string          // "signal" or "message"
	Metadata      json.RawMessage // an object; {} if absent
}
