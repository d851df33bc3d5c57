package supervisor

import (
	"bytes"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/google/uuid"
)

// lockAndLeave ends its goroutine's thread with the goroutine.
func lockAndLeave() { runtime.LockOSThread() }

func TestTail(t *testing.T) {
	t.Run("is the end of everything written", rapid.MakeCheck(func(t *rapid.T) {
		var (
			got tail
			all []byte
		)
		for i, n := range rapid.SliceOfN(rapid.IntRange(0, 3*tailLimit), 0, 8).Draw(t, "sizes") {
			b := bytes.Repeat([]byte{byte('a' + i)}, n)
			if _, err := got.Write(b); err != nil {
				t.Fatal(err)
			}
			all = append(all, b...)
		}
		limit := rapid.IntRange(0, 2*tailLimit).Draw(t, "limit")
		want := all[len(all)-min(len(all), limit, tailLimit):]
		if text := got.text(limit); text != string(want) {
			t.Fatalf("%d bytes, want %d", len(text), len(want))
		}
		if cap(got.buf) > 4*tailLimit {
			t.Fatalf("keeps %d", cap(got.buf))
		}
	}))
	t.Run("begins with a whole line and is text", func(t *testing.T) {
		var got tail
		got.Write([]byte("first line\nsecond l\xffine\nthird ä\n"))
		for limit, want := range map[int]string{100: "first line\nsecond line\nthird ä\n", 30: "second line\nthird ä\n", 11: "third ä\n", 4: " ä\n", 3: "ä\n", 2: "\n", 0: ""} {
			if text := got.text(limit); text != want || !utf8.ValidString(text) {
				t.Errorf("%d: got %q, want %q", limit, text, want)
			}
		}
	})
}

func TestDescribeExit(t *testing.T) {
	for _, c := range []struct {
		name  string
		info  exitInfo
		words string
		want  string
	}{
		{"code and error", exitInfo{Code: 1}, "Traceback\n  File\nModuleNotFoundError: No module named 'ipykernel_launcher'\n\n",
			"the kernel's process ended with exit code 1: ModuleNotFoundError: No module named 'ipykernel_launcher'"},
		{"code alone", exitInfo{Code: 3}, "\n \x1b[0m\n", "the kernel's process ended with exit code 3"},
		{"no code, words", exitInfo{}, "bye", "the kernel's process ended with exit code 0; the last line it wrote was: bye"},
		{"signal", exitInfo{Code: -1, Signal: syscall.SIGSEGV}, "", "the kernel's process was ended by signal 11 (segmentation fault)"},
		{"killed", exitInfo{Code: -1, Signal: syscall.SIGKILL}, "", "the kernel's process was killed (SIGKILL), which also happens when memory runs out"},
		{"memory", exitInfo{Code: -1, Signal: syscall.SIGKILL, OOM: true}, "", "the kernel's process was killed because the memory of the machine or of its container ran out"},
		{"memory, with a limit", exitInfo{Code: -1, Signal: syscall.SIGKILL, OOM: true, Limit: 512 << 20}, "", "the kernel's process was killed because it ran out of memory (limit 512 MiB)"},
		{"container", exitInfo{Code: -1, Lost: true, Told: "evicted"}, "", "evicted"},
		{"unknown", exitInfo{Code: -1}, "", "the kernel's process ended in an unknown way"},
		{"colours, links, bells", exitInfo{Code: 1}, "\x1b[31mred\x1b[0m \x1b]8;;http://x\x07link\x1b]8;;\x1b\\ \x1b(Bplain\a\x00\u202eend",
			"the kernel's process ended with exit code 1: red link plainend"},
		{"progress bar", exitInfo{Code: 1}, "start\n 10%\r 50%\r\n", "the kernel's process ended with exit code 1: 50%"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := describeExit(c.info, c.words); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
	t.Run("length", func(t *testing.T) {
		got := strings.TrimPrefix(describeExit(exitInfo{Code: 1}, strings.Repeat("ä", 400)), "the kernel's process ended with exit code 1: ")
		if len(got) > lastLineLimit || len(got) < lastLineLimit-4 || !utf8.ValidString(got) {
			t.Errorf("%d bytes: %q", len(got), got)
		}
	})
}

func TestParseOOMKills(t *testing.T) {
	if got := parseOOMKills("low 0\noom 3\noom_kill 2\noom_group_kill 0\n"); got != 2 {
		t.Errorf("got %d", got)
	}
	if got := parseOOMKills("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"); got != 4 {
		t.Errorf("cgroup v1: got %d", got)
	}
	for n, want := range map[int64]string{512 << 20: "512 MiB", 1536 << 20: "1.5 GiB", 2 << 30: "2 GiB", 100_000_000: "95.4 MiB", 4096: "4 KiB", 100: "100 bytes"} {
		if got := binarySize(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
	if got := parseOOMKills("low 0\n"); got != -1 {
		t.Errorf("without the line: %d", got)
	}
}

// orphan starts a program as a session leader whose environment is exactly env.
func orphan(t *testing.T, env []string, argv ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // killed, or not
		close(exited)
	}()
	t.Cleanup(func() {
		select {
		case <-exited: // the number may be another's
		default:
			killSession(cmd.Process.Pid)
			<-exited
		}
	})
	return cmd
}

func TestKillRemains(t *testing.T) {
	id, other := uuid.NewString(), uuid.NewString() // processes of another run of this test are none of ours
	kernel := orphan(t, []string{"EKG_KERNEL_ID=" + id}, "sh", "-c", "env -i sleep 1000 & sleep 1000 & wait")
	away := orphan(t, []string{"EKG_KERNEL_ID=" + id}, "sleep", "1000")
	stranger := orphan(t, []string{"EKG_KERNEL_ID=" + other}, "sleep", "1000")
	pid := kernel.Process.Pid
	members := func(session int) (n int) {
		for _, e := range processes() {
			if e.session == session && e.state != 'Z' {
				n++
			}
		}
		return n
	}
	eventually(t, "the kernel has its children", func() bool { return members(pid) == 3 })

	t.Run("not a session that merely has the number", func(t *testing.T) {
		if n, err := KillRemains(uuid.NewString(), stranger.Process.Pid); n != 0 || err != nil {
			t.Fatalf("killed %d, %v", n, err)
		}
		if !alive(stranger.Process.Pid) {
			t.Fatal("a stranger was killed")
		}
	})
	t.Run("all that is the kernel's", func(t *testing.T) {
		n, err := KillRemains(id, pid)
		if n != 4 || err != nil {
			t.Errorf("killed %d, %v", n, err)
		}
		if got := members(pid) + members(away.Process.Pid); got != 0 {
			t.Errorf("%d live", got)
		}
		if !alive(stranger.Process.Pid) {
			t.Error("another kernel was killed")
		}
	})
}
