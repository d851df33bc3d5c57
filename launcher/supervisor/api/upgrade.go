package api

// UpgradeFile is the file beside a Config on one machine that holds an Upgrade. A supervisor's parent reads it on
// SIGHUP.
const UpgradeFile = "upgrade.json"

// Upgrade is a request to replace a supervisor by another one, which adopts its kernel.
type Upgrade struct {
	Program string `json:"program"`        // absolute path of ekg-supervisor
	Busy    bool   `json:"busy,omitempty"` // also if clients would miss output
}
