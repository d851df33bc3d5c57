package process

import (
	"strings"
	"syscall"
	"testing"
	"time"
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
		{"container, without a reason", Exit{Code: -1, Lost: true}, "",
			"the kernel's container ended without a known reason; that happens when it runs out of memory"},
		{"unknown", Exit{Code: -1}, "", "the kernel's process ended in an unknown way"},
		{"colours, links, bells", Exit{Code: 1},
			"\x1b[31mred\x1b[0m \x1b]8;;http://x\x07link\x1b]8;;\x1b\\ \x1b(Bplain\a\x00\u202eend",
			"the kernel's process ended with exit code 1: red link plainend"},
		{"the debugger's lines", Exit{Code: 1},
			"boom\n0.00s - Debugger warning: It seems that frozen modules are being used, which may\n" +
				"0.00s - make the debugger miss breakpoints. Please pass -Xfrozen_modules=off\n",
			"the kernel's process ended with exit code 1: boom"},
		{"only the debugger's lines", Exit{Code: -1, Signal: syscall.SIGKILL},
			"12.34s - Debugger warning: It seems that frozen modules are being used, which may\n",
			"the kernel's process was killed (SIGKILL), which also happens when memory runs out"},
		{"the warning about TCP", Exit{Code: 1},
			"boom\n[IPKernelApp] WARNING | Kernel is running over TCP without encryption. All communication (including " +
				"code and outputs) is sent in plain text and is susceptible to eavesdropping.\n",
			"the kernel's process ended with exit code 1: boom"},
		{"progress bar", Exit{Code: 1}, "start\n 10%\r 50%\r\n", "the kernel's process ended with exit code 1: 50%"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.exit.Describe(c.output, InContainer); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
	t.Run("length", func(t *testing.T) {
		got := strings.TrimPrefix(
			Exit{Code: 1}.Describe(strings.Repeat("ä", 400), OnMachine),
			"the kernel's process ended with exit code 1: ",
		)
		if len(got) > lastLineLimit || len(got) < lastLineLimit-4 || !utf8.ValidString(got) {
			t.Errorf("%d bytes: %q", len(got), got)
		}
	})
}

// TestExit_DescribeOnMachine: no sentence about a process of this machine speaks of a container.
func TestExit_DescribeOnMachine(t *testing.T) {
	for _, tc := range []struct {
		exit Exit
		want string
	}{
		{Exit{Code: -1, Lost: true}, "the kernel's process ended without a known reason"},
		{Exit{Code: -1, Signal: syscall.SIGKILL, OOM: true}, "the kernel's process was killed because the memory of the " +
			"machine ran out, or the part of it that ekg may use"},
	} {
		if got := tc.exit.Describe("", OnMachine); got != tc.want {
			t.Errorf("got  %s\nwant %s", got, tc.want)
		}
	}
	for _, said := range []string{OnMachine.Kernel(), OnMachine.Starter()} {
		if strings.Contains(said, "container") {
			t.Errorf("it says %q", said)
		}
	}
}

func TestExit_LastWordsSince(t *testing.T) {
	end := time.Now()
	e := Exit{At: end}
	for name, tt := range map[string]struct{ began, want time.Time }{
		"the kernel was not up":           {time.Time{}, time.Time{}},
		"the cell began a moment before":  {end.Add(-time.Second), end.Add(-time.Second)},
		"the cell began long before":      {end.Add(-time.Hour), end.Add(-lastWordsLimit)},
		"the clocks differ, or it is new": {end.Add(time.Second), end.Add(time.Second)},
	} {
		if got := e.LastWordsSince(tt.began); !got.Equal(tt.want) {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}
