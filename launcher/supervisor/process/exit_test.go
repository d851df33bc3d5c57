package process

import (
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"
)

func TestExit_Describe(t *testing.T) {
	for _, c := range []struct {
		name   string
		exit   Exit
		output string
		want   string
	}{
		{"code and error", Exit{Code: 1}, "Traceback\n  File\nModuleNotFoundError: No module named 'ipykernel_launcher'\n\n",
			"the kernel's process ended with exit code 1: ModuleNotFoundError: No module named 'ipykernel_launcher'"},
		{"code alone", Exit{Code: 3}, "\n \x1b[0m\n", "the kernel's process ended with exit code 3"},
		{"no code, words", Exit{}, "bye", "the kernel's process ended with exit code 0; the last line it wrote was: bye"},
		{"signal", Exit{Code: -1, Signal: syscall.SIGSEGV}, "",
			"the kernel's process was ended by signal 11 (segmentation fault)"},
		{"killed", Exit{Code: -1, Signal: syscall.SIGKILL}, "",
			"the kernel's process was killed (SIGKILL), which also happens when memory runs out"},
		{"memory", Exit{Code: -1, Signal: syscall.SIGKILL, OOM: true}, "",
			"the kernel's process was killed because the memory of the machine or of its container ran out"},
		{"memory, with a limit", Exit{Code: -1, Signal: syscall.SIGKILL, OOM: true, MemoryLimit: 512 << 20}, "",
			"the kernel's process was killed because it ran out of memory (limit 512 MiB)"},
		{"container", Exit{Code: -1, Lost: true, LostReason: "evicted"}, "", "evicted"},
		{"unknown", Exit{Code: -1}, "", "the kernel's process ended in an unknown way"},
		{"colours, links, bells", Exit{Code: 1},
			"\x1b[31mred\x1b[0m \x1b]8;;http://x\x07link\x1b]8;;\x1b\\ \x1b(Bplain\a\x00\u202eend",
			"the kernel's process ended with exit code 1: red link plainend"},
		{"progress bar", Exit{Code: 1}, "start\n 10%\r 50%\r\n", "the kernel's process ended with exit code 1: 50%"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.exit.Describe(c.output); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
	t.Run("length", func(t *testing.T) {
		got := strings.TrimPrefix(
			Exit{Code: 1}.Describe(strings.Repeat("ä", 400)),
			"the kernel's process ended with exit code 1: ",
		)
		if len(got) > lastLineLimit || len(got) < lastLineLimit-4 || !utf8.ValidString(got) {
			t.Errorf("%d bytes: %q", len(got), got)
		}
	})
}
