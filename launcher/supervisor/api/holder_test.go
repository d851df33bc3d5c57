package api

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if _, err := ReadHolder(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	for _, tc := range []struct {
		text string
		pid  int
		bad  bool
	}{
		{text: ""},
		{text: "17 \n", pid: 17},
		{text: "-1\n", bad: true},
		{text: "1\n", bad: true},
		{text: "soon\n", bad: true},
		{text: strings.Repeat("9", 40), bad: true},
	} {
		if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if pid, err := ReadHolder(path); pid != tc.pid || (err != nil) != tc.bad {
			t.Errorf("%q is %d, %v", tc.text, pid, err)
		}
	}
	lock, err := os.OpenFile(path, os.O_RDWR|os.O_TRUNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.WriteString("1234567 "); err != nil { // of an earlier holder
		t.Fatal(err)
	}
	if err := NoteHolder(lock); err != nil {
		t.Fatal(err)
	}
	_ = lock.Close()
	if pid, err := ReadHolder(path); pid != os.Getpid() || err != nil {
		t.Errorf("this process is %d, not %d: %v", os.Getpid(), pid, err)
	}
}
