package starter

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/child"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
)

// TestStart_Machine: the process has its variables and its folder, and the connection file is there before it. A second
// start gives it another key.
func TestStart_Machine(t *testing.T) {
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "connection.json")
	s := Starter{Logger: slog.New(slog.DiscardHandler), Config: &api.Config{
		KernelID: "k", ConnectionFile: file, Transport: "tcp",
		Argv: []string{"/bin/sh", "-c", `cat "$0" && pwd && echo "$COLOR"`, "{connection_file}"}}}
	key := ""
	for range 2 {
		st, err := s.Start(t.Context(), Life{Dir: dir, First: true, Env: map[string]string{"COLOR": "blue",
			"PATH": os.Getenv("PATH")}})
		if err != nil {
			t.Fatal(err)
		}
		if err := st.Await(t.Context()); err != nil || st.Adopted || IsLaunched(st.Process) {
			t.Errorf("it waits for a launcher: %v, %+v", err, st)
		}
		<-st.Process.Done()
		out := st.Process.LastOutput(4096, st.Process.Exit().At.AddDate(-1, 0, 0))
		if !strings.Contains(out, string(bytes.TrimSpace(st.Connection.File))) || !strings.HasSuffix(out, dir+"\nblue\n") {
			t.Errorf("it prints %q", out)
		}
		var content struct{ Key string }
		if err := json.Unmarshal(st.Connection.File, &content); err != nil || content.Key == "" || content.Key == key {
			t.Errorf("the key is %q after %q, %v", content.Key, key, err)
		}
		key = content.Key
	}
}

// TestNewLaunched_Signal: the kernelspec's signal goes to the launcher in place of SIGINT. An unknown name is ignored,
// with a line in the log.
func TestNewLaunched_Signal(t *testing.T) {
	for name, want := range map[string]syscall.Signal{"": syscall.SIGINT, "USR1": syscall.SIGUSR1,
		"SIGUSR2": syscall.SIGUSR2, "NONE": syscall.SIGINT} {
		var log bytes.Buffer
		s := Starter{Logger: slog.New(slog.NewTextHandler(&log, nil))}
		p := s.newLaunched(&child.Process{}, map[string]string{alternateInterrupt: name})
		if p.interrupt != want || strings.Contains(log.String(), "ignored") != (name == "NONE") {
			t.Errorf("%q: %v; the log says %q", name, p.interrupt, log.String())
		}
		if !IsLaunched(p) || HasListener(p) || IsLaunched(&process.Process{}) {
			t.Errorf("%q: not a launcher's process", name)
		}
	}
}
