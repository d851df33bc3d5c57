package api

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// UpgradeFile is the file beside a Config on one machine that holds an Upgrade. A supervisor's parent reads it on
// SIGHUP, and renames it to UpgradingFile. Parents of earlier versions remove it.
const UpgradeFile = "upgrade.json"

// UpgradingFile is the file beside a Config on one machine that holds the last Upgrade that the parent has read.
const UpgradingFile = "upgrading.json"

// Upgrade is a request to replace a supervisor by another one, which adopts its kernel.
type Upgrade struct {
	ID      string `json:"id,omitempty"`   // chosen for this request; its Refused has the same
	Program string `json:"program"`        // absolute path of ekg-supervisor
	Busy    bool   `json:"busy,omitempty"` // also if clients would miss output
}

// RefusedFile is the file beside a Config on one machine that holds the Refused of the last Upgrade. The program that
// requests an Upgrade removes the file first.
const RefusedFile = "upgrade-refused.json"

// Refused says why a supervisor was not replaced.
type Refused struct {
	ID     string `json:"id,omitempty"` // of the Upgrade; "" if it is not known, as in earlier versions
	Reason string `json:"reason"`       // a sentence without a period
}

// CheckProgram returns an error if the file at path does not exist, is not a regular file or is not executable.
func CheckProgram(path string) error {
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the program %s does not exist", path)
	}
	if err != nil {
		return fmt.Errorf("the program cannot be used: %w", err)
	}
	return CheckProgramFile(path, st)
}

// CheckProgramFile is CheckProgram for a file that was looked at already.
func CheckProgramFile(path string, st os.FileInfo) error {
	switch {
	case !st.Mode().IsRegular():
		return fmt.Errorf("the program %s is not a regular file", path)
	case st.Mode()&0o111 == 0:
		return fmt.Errorf("the program %s is not executable", path)
	}
	return nil
}
