package child

import (
	"fmt"
	"path/filepath"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// shellStatus is read by bash before the bootstrap script of an image of Enterprise Gateway. That script returns 0
// however its kernel ended. With this text it returns the status of the kernel's program. The program itself does not
// get the variable by which bash finds the text. It ends the script's trace, which would be the last line of output.
const shellStatus = `unset BASH_ENV
python() { { set +x; } 2>/dev/null; command python "$@"; ekg_status=$?; return $ekg_status; }
Rscript() { { set +x; } 2>/dev/null; command Rscript "$@"; ekg_status=$?; return $ekg_status; }
trap 'exit ${ekg_status:-$?}' EXIT
`

// keepStatus makes bash return the status of the kernel's program. It writes a file into dir. An image that has a
// BASH_ENV of its own keeps it.
func keepStatus(env map[string]string, dir string) error {
	if env["BASH_ENV"] != "" {
		return nil
	}
	file := filepath.Join(dir, api.ShellStatusFile)
	if err := files.Write(file, []byte(shellStatus)); err != nil {
		return fmt.Errorf("the file for the kernel's launcher cannot be written: %w", err)
	}
	env["BASH_ENV"] = file
	return nil
}
