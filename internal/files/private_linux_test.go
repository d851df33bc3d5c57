package files

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMakePrivate(t *testing.T) {
	const stranger = 54321
	other := func(t *testing.T, path string) {
		t.Helper()
		if os.Getuid() != 0 {
			t.Skip("only root can give a file to another user")
		}
		if err := os.Lchown(path, stranger, stranger); err != nil {
			t.Fatal(err)
		}
	}
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		prepare func(t *testing.T, dir, target string)
		want    string // part of the error; "" for no error
	}{
		"missing": {func(*testing.T, string, string) {}, ""},
		"readable by others": {func(t *testing.T, dir, _ string) {
			must(t, os.Mkdir(dir, 0o755))
			must(t, os.WriteFile(filepath.Join(dir, "x"), nil, 0o600))
		}, ""},
		"another user's": {func(t *testing.T, dir, _ string) { must(t, os.Mkdir(dir, 0o700)); other(t, dir) },
			"belongs to another user, with the id 54321"},
		"a link of this user": {func(t *testing.T, dir, target string) { must(t, os.Symlink(target, dir)) }, ""},
		"another user's link to a folder of this user": {func(t *testing.T, dir, target string) {
			must(t, os.Symlink(target, dir))
			other(t, dir)
		}, "is a symbolic link of another user, with the id 54321"},
		"a link to another user's folder": {func(t *testing.T, dir, target string) {
			must(t, os.Symlink(target, dir))
			other(t, target)
		}, "belongs to another user"},
		"a link to nothing": {func(t *testing.T, dir, target string) { must(t, os.Symlink(target+"x", dir)) },
			"file exists"},
		"a file": {func(t *testing.T, dir, _ string) { must(t, os.WriteFile(dir, nil, 0o600)) }, "directory"},
		"writable by others, empty": {func(t *testing.T, dir, _ string) {
			must(t, os.Mkdir(dir, 0o700))
			must(t, os.Chmod(dir, 0o777))
		}, ""},
		"writable by others, not empty": {func(t *testing.T, dir, _ string) {
			must(t, os.Mkdir(dir, 0o700))
			must(t, os.Chmod(dir, 0o777))
			must(t, os.WriteFile(filepath.Join(dir, "x"), nil, 0o600))
		}, "has the mode 0777, so other users could write into it"},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			dir, target := filepath.Join(parent, "ekg-0"), filepath.Join(parent, "target")
			must(t, os.Mkdir(target, 0o700))
			c.prepare(t, dir, target)
			for range 2 { // a refused folder is refused again
				err := MakePrivate(dir)
				switch {
				case c.want == "" && err != nil:
					t.Fatal(err)
				case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) ||
					!strings.Contains(err.Error(), dir)):
					t.Fatalf("got %v, want %q and the folder's name", err, c.want)
				}
			}
			if c.want != "" {
				return
			}
			if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
				t.Errorf("got %v, %v", st.Mode(), err)
			}
		})
	}
}
