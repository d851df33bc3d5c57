package gpumemory

import (
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// Only messages that run the user's code wake a kernel.
func TestNeeds(t *testing.T) {
	for text, want := range map[string]bool{
		"execute_request": true, "comm_msg": true, "comm_open": true, "comm_close": true, "complete_request": true,
		"inspect_request": true, "kernel_info_request": false, "history_request": false, "is_complete_request": false,
		"comm_info_request": false, "interrupt_request": false, "shutdown_request": false, "debug_request": false,
		"debug_request evaluate": true, "debug_request variables": true, "debug_request setBreakpoints": false,
	} {
		msgType, command, _ := strings.Cut(text, " ")
		m := jupyter.New(jupyter.Control, msgType, "s", nil, map[string]string{"command": command})
		if got := Needs(&m, msgType); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}
