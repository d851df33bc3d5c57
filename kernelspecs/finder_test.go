package kernelspecs

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/transcript"
)

// found returns the specs of a Finder as name=directory, relative to base.
func found(f *Finder, base string) []string {
	var got []string
	for _, s := range f.List() {
		got = append(got, s.Name+"="+strings.TrimPrefix(s.Dir, base+"/"))
	}
	return got
}

func messages(f *Finder, base string) []string {
	var got []string
	for _, p := range f.Problems() {
		got = append(got, strings.TrimPrefix(p.String(), base+"/"))
	}
	return got
}

func TestFinder_Order(t *testing.T) {
	base := t.TempDir()
	for file, text := range map[string]string{
		"first/A/kernel.json":             plain,
		"first/broken/kernel.json":        `{"argv": 1}`,
		"first/bad name/kernel.json":      plain,
		"first/.hidden/kernel.json":       plain,
		"first/no-spec/readme":            "",
		"first/file":                      "",
		"first/dup/kernel.json":           plain,
		"first/Dup/kernel.json":           plain,
		"second/kernels/a/kernel.json":    plain,
		"second/kernels/b/kernel.json":    plain,
		"data/kernels/broken/kernel.json": plain,
		"data/kernels/b/kernel.json":      plain,
		"data/kernels/c/kernel.json":      plain,
		"data/d/kernel.json":              plain,
	} {
		write(t, filepath.Join(base, file), text)
	}
	f, err := Open(Options{
		Dirs:     []string{filepath.Join(base, "first"), filepath.Join(base, "second"), filepath.Join(base, "gone")},
		DataDirs: []string{filepath.Join(base, "data"), filepath.Join(base, "also-gone")},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"a=first/A", "b=second/kernels/b", "c=data/kernels/c", "dup=first/Dup"}
	if got := found(f, base); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	wantProblems := []string{
		"first/bad name: cannot be the name of a kernelspec: only letters, digits, '.', '_' and '-' can be in a URL of " +
			"Jupyter",
		"first/broken/kernel.json:1: argv: is a number, not an array",
		"first/dup: is hidden by Dup beside it: names must differ in more than case",
		"gone: no such directory",
	}
	if got := messages(f, base); !slices.Equal(got, wantProblems) {
		t.Errorf("got  %q\nwant %q", got, wantProblems)
	}
	if s, ok := f.Get("dUP"); !ok || s.Name != "dup" {
		t.Errorf("Get in another case: got %+v, %t", s, ok)
	}
	if _, ok := f.Get("broken"); ok {
		t.Error("a broken spec in front let the one behind it through")
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if len(f.List()) != 4 {
		t.Error("a closed Finder has forgotten its specs")
	}
}

// A name of the operator's list without a kernelspec is one problem, until the kernelspec appears. One that is broken
// exists. Lists of users of a kernelspec that is left out hold for its kernels.
func TestFinder_Allowed(t *testing.T) {
	base := t.TempDir()
	const limited = `{"argv": ["x", "{connection_file}"], "display_name": "X", "language": "x",
		"metadata": {"process_proxy": {"config": {"authorized_users": "ann", "unauthorized_users": "bob"}}}}`
	write(t, filepath.Join(base, "Shown/kernel.json"), plain)
	write(t, filepath.Join(base, "broken/kernel.json"), `{"argv": 1}`)
	write(t, filepath.Join(base, "Hidden/kernel.json"), limited)
	write(t, filepath.Join(base, "hidden-broken/kernel.json"), `{"argv": 1}`)
	var log transcript.Buffer
	f, err := Open(Options{Dirs: []string{base}, Allowed: []string{"sHown", "Broken", "Mis\nspelt", "mis\nspelt", "later"},
		Users: Users{Authorized: []string{"eve"}, Unauthorized: []string{"root"}},
		Log:   slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	const broken = "broken/kernel.json:1: argv: is a number, not an array"
	want := []string{broken, `the kernelspec "Mis\nspelt" of --allowed-kernelspec does not exist`,
		`the kernelspec "later" of --allowed-kernelspec does not exist`}
	if got := messages(f, base); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if got := found(f, base); !slices.Equal(got, []string{"shown=Shown"}) {
		t.Errorf("got %q", got)
	}
	if got := log.String(); strings.Count(got, "level=WARN") != 3 || !strings.Contains(got, "spec=later") {
		t.Errorf("the log is %s", got)
	}
	for _, tt := range []struct {
		name string
		want Users
	}{
		{"HIDDEN", Users{Authorized: []string{"ann"}, Unauthorized: []string{"bob", "root"}}},
		{"broken", Users{Authorized: []string{"eve"}, Unauthorized: []string{"root"}}},
		{"hidden-broken", Users{Authorized: []string{"eve"}, Unauthorized: []string{"root"}}},
		{"gone", Users{Authorized: []string{"eve"}, Unauthorized: []string{"root"}}},
	} {
		if got := f.Users(tt.name); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, tt.want)
		}
	}
	write(t, filepath.Join(base, "later/kernel.json"), plain)
	if !eventually(2*time.Second, func() bool { return slices.Equal(messages(f, base), want[:2]) }) {
		t.Errorf("got %q", messages(f, base))
	}
	if got := found(f, base); !slices.Equal(got, []string{"later=later", "shown=Shown"}) {
		t.Errorf("got %q", got)
	}
}

// A spec that becomes broken keeps its lists of users, also if they cannot be read any more. A change of them counts.
func TestFinder_UsersOfBroken(t *testing.T) {
	base := t.TempDir()
	file := filepath.Join(base, "gpu/kernel.json")
	const users = `"metadata": {"process_proxy": {"config": {"authorized_users": `
	write(t, file, `{"argv": ["a", "{connection_file}"], `+users+`"ann"}}}}`)
	f := &Finder{roots: []root{{dir: base}}, log: slog.New(slog.DiscardHandler),
		users: Users{Authorized: []string{"eve"}, Unauthorized: []string{"root"}}}
	f.current.Store(&catalog{})
	f.reread()
	if spec, ok := f.Get("gpu"); !ok || !slices.Equal(spec.Users.Authorized, []string{"ann"}) {
		t.Fatalf("got %+v", spec)
	}
	for _, tt := range []struct{ text, want string }{
		{`{"argv": 1, ` + users + `"ann"}}}}`, "ann"},
		{`{"argv": 1, ` + users + `"bob"}}}}`, "bob"},
		{`{"argv": `, "bob"},
		{`{"argv": 1, "metadata": 3}`, "bob"},
		{`{"argv": 1, ` + users + `4}}}}`, "bob"},
		{`{"argv": 1}`, "eve"},
		{`{"argv": `, "eve"},
	} {
		write(t, file, tt.text)
		f.reread()
		want := Users{Authorized: []string{tt.want}, Unauthorized: []string{"root"}}
		if _, usable := f.Get("gpu"); usable || !reflect.DeepEqual(f.Users("GPU"), want) {
			t.Errorf("%s: usable %v, got %+v, want %+v", tt.text, usable, f.Users("gpu"), want)
		}
	}
}

// Every change of a spec is seen within two seconds, with inotify and without it.
func TestFinder_Follows(t *testing.T) {
	watchers := map[string]func() (*fsnotify.Watcher, error){
		"watching":   fsnotify.NewWatcher,
		"re-reading": func() (*fsnotify.Watcher, error) { return nil, errors.New("no instance left") },
	}
	for name, newWatcher := range watchers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			follow(t, newWatcher)
		})
	}
}

func follow(t *testing.T, newWatcher func() (*fsnotify.Watcher, error)) {
	base := t.TempDir()
	write(t, filepath.Join(base, "given/a/kernel.json"), plain)
	var log transcript.Buffer
	f, err := open(Options{Dirs: []string{filepath.Join(base, "given")}, DataDirs: []string{filepath.Join(base, "x/y")},
		Log: slog.New(slog.NewTextHandler(&log, nil))}, newWatcher, 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	names := func(want ...string) func() bool {
		return func() bool { return slices.Equal(found(f, base), want) }
	}
	path := func(p string) string { return filepath.Join(base, p) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	steps := []struct {
		name string
		do   func()
		seen func() bool
	}{
		{"as opened", func() {}, names("a=given/a")},
		{"added", func() { write(t, path("given/b/kernel.json"), plain) }, names("a=given/a", "b=given/b")},
		{"changed", func() { write(t, path("given/b/kernel.json"), strings.Replace(plain, "Plain", "Other", 1)) },
			func() bool { s, _ := f.Get("b"); return s.DisplayName == "Other" }},
		{"a logo added", func() { write(t, path("given/b/logo-64x64.png"), "png") },
			func() bool { s, _ := f.Get("b"); return s.Resources()["logo-64x64"] == "logo-64x64.png" }},
		{"broken", func() { write(t, path("given/b/kernel.json"), `{"argv": [`) },
			func() bool { return names("a=given/a")() && len(f.Problems()) == 1 }},
		{"mended", func() { write(t, path("given/b/kernel.json"), plain) },
			func() bool { return names("a=given/a", "b=given/b")() && len(f.Problems()) == 0 }},
		{"kernel.json removed", func() { must(os.Remove(path("given/b/kernel.json"))) }, names("a=given/a")},
		{"kernel.json back", func() { write(t, path("given/b/kernel.json"), plain) }, names("a=given/a", "b=given/b")},
		{"directory replaced", func() {
			must(os.RemoveAll(path("given/b")))
			write(t, path("given/b/kernel.json"), strings.Replace(plain, "Plain", "Third", 1))
		}, func() bool { s, _ := f.Get("b"); return s.DisplayName == "Third" }},
		{"and still followed", func() { write(t, path("given/b/kernel.json"), plain) },
			func() bool { s, _ := f.Get("b"); return s.DisplayName == "Plain" }},
		{"renamed", func() { must(os.Rename(path("given/b"), path("given/c"))) }, names("a=given/a", "c=given/c")},
		{"a data directory appears", func() { write(t, path("x/y/kernels/z/kernel.json"), plain) },
			names("a=given/a", "c=given/c", "z=x/y/kernels/z")},
		{"a root is removed", func() { must(os.RemoveAll(path("given"))) },
			func() bool { return names("z=x/y/kernels/z")() && len(f.Problems()) == 1 }},
		{"and comes back", func() { write(t, path("given/kernels/q/kernel.json"), plain) },
			func() bool { return names("q=given/kernels/q", "z=x/y/kernels/z")() && len(f.Problems()) == 0 }},
		{"linked, as a volume of Kubernetes", func() {
			write(t, path("v1/kernel.json"), plain)
			must(os.MkdirAll(path("given/k"), 0o755))
			must(os.Symlink(path("v1"), path("given/k/..data")))
			must(os.Symlink("..data/kernel.json", path("given/k/kernel.json")))
		}, func() bool { s, _ := f.Get("k"); return s.DisplayName == "Plain" }},
		{"and published again", func() {
			write(t, path("v2/kernel.json"), strings.Replace(plain, "Plain", "V2", 1))
			must(os.Symlink(path("v2"), path("given/k/..tmp")))
			must(os.Rename(path("given/k/..tmp"), path("given/k/..data")))
		}, func() bool { s, _ := f.Get("k"); return s.DisplayName == "V2" }},
		{"a linked directory", func() { must(os.Symlink(path("v1"), path("given/l"))) },
			func() bool { s, _ := f.Get("l"); return s.DisplayName == "Plain" }},
		{"changed behind its link", func() { write(t, path("v1/kernel.json"), strings.Replace(plain, "Plain", "V1", 1)) },
			func() bool { s, _ := f.Get("l"); return s.DisplayName == "V1" }},
		{"linked elsewhere", func() { must(os.Remove(path("given/l"))); must(os.Symlink(path("v2"), path("given/l"))) },
			func() bool { s, _ := f.Get("l"); return s.DisplayName == "V2" }},
	}
	for _, step := range steps {
		step.do()
		began := time.Now()
		if !eventually(2*time.Second, step.seen) {
			t.Fatalf("%s: not seen after 2 s: %q, problems %q", step.name, found(f, base), messages(f, base))
		}
		t.Logf("%s: seen after %v", step.name, time.Since(began).Round(time.Millisecond))
	}
	// A broken file is reported once, even if it was read several times.
	if n := strings.Count(log.String(), "b/kernel.json:1: not valid JSON"); n != 1 {
		t.Errorf("the broken spec was logged %d times", n)
	}
}

// eventually waits until seen returns true, for a limited time.
func eventually(within time.Duration, seen func() bool) bool {
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if seen() {
			return true
		}
		select {
		case <-deadline.C:
			return seen()
		case <-tick.C:
		}
	}
}

// Two names of one directory share an inotify watch. If one name is watched for a single entry, the other name still
// gets events of all entries.
func TestFinder_SameDirectoryTwice(t *testing.T) {
	base := t.TempDir()
	write(t, filepath.Join(base, "real/readme"), "")
	if err := os.Symlink("real", filepath.Join(base, "link")); err != nil {
		t.Fatal(err)
	}
	for range 8 { // the order of watching is random
		f, err := Open(Options{Dirs: []string{filepath.Join(base, "link")}, DataDirs: []string{filepath.Join(base, "real")}})
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(base, "real/a/kernel.json"), plain)
		if !eventually(2*time.Second, func() bool { return slices.Equal(found(f, base), []string{"a=link/a"}) }) {
			t.Errorf("got %q", found(f, base))
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(filepath.Join(base, "real/a")); err != nil {
			t.Fatal(err)
		}
	}
}

// Events in a directory that is watched only for one child cause no reading.
func TestFinder_Counts(t *testing.T) {
	f := &Finder{watched: map[string]interest{"/home": {children: []string{"jupyter"}}, "/specs": {all: true}}}
	for name, want := range map[string]bool{
		"/home/jupyter": true, "/home/other": false, "/home": true, "/specs/x": true, "/specs/x/y": false,
		"/": false,
	} {
		if got := f.counts(fsnotify.Event{Name: name}); got != want {
			t.Errorf("%s: got %t, want %t", name, got, want)
		}
	}
}
