package kernelspecs

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// maxEntries bounds how many entries of a directory are read: a larger directory holds no kernelspecs.
const maxEntries = 1000

// Options configures a Finder.
type Options struct {
	Dirs     []string     // searched first, in this order: each holds specs, or a folder kernels/ that holds specs
	DataDirs []string     // Jupyter's data directories, searched next: specs are in kernels/ of each; see FindEnvironment
	Prefix   string       // Python environment of specs that belong to no other; see FindEnvironment
	Log      *slog.Logger // nil: nothing is logged
	Users    Users        // the gateway's own lists, within which each spec's hold; see Users.Within
	Allowed  []string     // names of the only specs that are read, in any case; none: all are read

	// Check, if not nil, returns further problems of a spec that can be read. A spec with problems is not usable. It is
	// called by one goroutine at a time.
	Check func(Spec) []Problem
}

// Finder holds the specs of some directories in memory, and follows changes of the directories. If several directories
// have a spec of one name, the first directory's counts, even while it is broken: an error in the operator's spec must
// not bring back the one that it replaces. All methods may be called concurrently.
type Finder struct {
	// Fixed after Open.
	roots   []root
	prefix  string
	users   Users
	allowed []string // as they were given; empty: all are
	check   func(Spec) []Problem
	poll    time.Duration // between readings while blind
	log     *slog.Logger

	// Owned by watch, after Open.
	watcher *fsnotify.Watcher   // nil if the system has no watcher left: directories are then only polled
	watched map[string]interest // by directory, with symlinks resolved
	blind   bool                // a directory cannot be watched, or not reliably

	// Replaced by watch as a whole.
	current atomic.Pointer[catalog]

	// The end.
	closing   chan struct{} // closed by Close
	done      chan struct{} // closed when watch has returned
	closeOnce sync.Once
	closeErr  error
}

// root is a directory whose subdirectories are specs.
type root struct {
	dir    string // absolute
	wanted bool   // whether its absence is a problem: most of Jupyter's own directories never exist
}

// catalog is one reading of all directories. It is never modified.
type catalog struct {
	specs    []Spec           // by name
	users    map[string]Users // the own lists of all specs, usable or not, as far as they are known, by name
	unread   []string         // names of specs whose lists could not be read
	problems []Problem
}

// Open reads the directories and begins to follow them. A directory that does not exist yet is no error, nor is a
// broken spec, which Problems returns.
func Open(o Options) (*Finder, error) { return open(o, fsnotify.NewWatcher, pollBlind) }

func open(o Options, newWatcher func() (*fsnotify.Watcher, error), poll time.Duration) (*Finder, error) {
	f := &Finder{
		prefix:  o.Prefix,
		users:   o.Users,
		allowed: o.Allowed,
		check:   o.Check,
		poll:    poll,
		log:     o.Log,
		watched: map[string]interest{},
		closing: make(chan struct{}),
		done:    make(chan struct{}),
	}
	if f.log == nil {
		f.log = slog.New(slog.DiscardHandler)
	}
	f.log = f.log.With(logkey.Component, "kernelspecs")
	for _, d := range o.Dirs {
		abs, err := filepath.Abs(d)
		if err != nil {
			return nil, fmt.Errorf("kernelspec directory %q: %w", d, err)
		}
		f.roots = append(f.roots, root{dir: abs, wanted: true},
			root{dir: filepath.Join(abs, "kernels")})
	}
	for _, d := range o.DataDirs {
		abs, err := filepath.Abs(d)
		if err != nil {
			return nil, fmt.Errorf("jupyter data directory %q: %w", d, err)
		}
		f.roots = append(f.roots, root{dir: filepath.Join(abs, "kernels")})
	}
	w, err := newWatcher()
	if err != nil {
		// Usually the user's limit of inotify instances is reached. Polling every second replaces it at a small cost.
		f.log.Warn("directories cannot be watched and are re-read every "+f.poll.String(), logkey.Err, err)
	} else {
		f.watcher = w
	}
	f.current.Store(&catalog{})
	f.reread()
	go f.watch()
	return f, nil
}

// Close stops following the directories. The other methods still return what was read last.
func (f *Finder) Close() error {
	f.closeOnce.Do(func() {
		close(f.closing)
		<-f.done
		if f.watcher != nil {
			f.closeErr = f.watcher.Close()
		}
	})
	return f.closeErr
}

// List returns all usable specs by name. The slice must not be modified.
func (f *Finder) List() []Spec { return f.current.Load().specs }

// Get returns the usable spec with a name, whose case is ignored.
func (f *Finder) Get(name string) (Spec, bool) {
	name = strings.ToLower(name)
	for _, s := range f.current.Load().specs {
		if s.Name == name {
			return s, true
		}
	}
	return Spec{}, false
}

// Users returns the lists of users that hold for kernels of a spec that is not usable. If the spec is broken, or
// --allowed-kernelspec leaves it out, they are the spec's own lists within the gateway's. If the spec does not exist
// any more, they are the gateway's lists. If the lists of a broken spec cannot be read, those of an earlier reading
// count. The name's case is ignored.
func (f *Finder) Users(name string) Users {
	return f.current.Load().users[strings.ToLower(name)].Within(f.users)
}

// Problems returns the present problems in the order of the directories. The slice must not be modified.
func (f *Finder) Problems() []Problem { return f.current.Load().problems }

// reread reads all directories, watches new ones and publishes the result.
func (f *Finder) reread() {
	// A directory that is created after its parent was read and before its parent is watched would be missed. So the
	// directories are read again until no watch is new. A further round needs a new directory, so three rounds are
	// enough. The next poll finds the rest.
	previous := f.current.Load()
	var next *catalog
	for range 3 {
		c, places := read(f.roots, f.prefix, f.check)
		c.keepUsers(previous.users)
		f.hide(c)
		for i := range c.specs {
			c.specs[i].Users = c.specs[i].Users.Within(f.users)
		}
		next = c
		if !f.watchDirs(places) {
			break
		}
	}
	if reflect.DeepEqual(previous, next) {
		return
	}
	f.logChange(previous, next)
	f.current.Store(next)
}

// hide removes the specs that the operator's list leaves out, and their problems. A name of the list without a spec is
// a problem.
func (f *Finder) hide(c *catalog) {
	if len(f.allowed) == 0 {
		return
	}
	found := map[string]bool{} // names of the list, in lower case, and whether there is such a spec
	for _, name := range f.allowed {
		found[strings.ToLower(name)] = false
	}
	// hides reports whether the list leaves a spec out.
	hides := func(name string) bool {
		_, listed := found[name]
		if listed {
			found[name] = true
		}
		return !listed
	}
	c.specs = slices.DeleteFunc(c.specs, func(s Spec) bool { return hides(s.Name) })
	c.problems = slices.DeleteFunc(c.problems, func(p Problem) bool { return p.Spec != "" && hides(p.Spec) })
	for _, name := range f.allowed {
		if lower := strings.ToLower(name); !found[lower] {
			found[lower] = true // once
			c.problems = append(c.problems, Problem{Spec: lower,
				Message: fmt.Sprintf("the kernelspec %q of --allowed-kernelspec does not exist", name)})
		}
	}
}

// logChange logs the differences between two readings.
func (f *Finder) logChange(old, next *catalog) {
	known := map[string]Spec{}
	for _, s := range old.specs {
		known[s.Name] = s
	}
	for _, s := range next.specs {
		before, ok := known[s.Name]
		delete(known, s.Name)
		switch {
		case !ok:
			f.log.Info("kernelspec found", logkey.Spec, s.Name, logkey.Dir, s.Dir)
		case !reflect.DeepEqual(before, s):
			f.log.Info("kernelspec changed", logkey.Spec, s.Name, logkey.Dir, s.Dir)
		}
	}
	for _, s := range old.specs {
		if _, ok := known[s.Name]; ok {
			f.log.Info("kernelspec is no longer usable", logkey.Spec, s.Name, logkey.Dir, s.Dir)
		}
	}
	reported := map[Problem]bool{}
	for _, p := range slices.Concat(old.problems, old.warnings()) {
		reported[p] = true
	}
	for _, p := range slices.Concat(next.problems, next.warnings()) {
		if !reported[p] {
			f.log.Warn("kernelspec problem", logkey.Spec, p.Spec, logkey.Err, p.String())
		}
	}
}

// warnings returns those of all usable specs.
func (c *catalog) warnings() []Problem {
	var all []Problem
	for _, s := range c.specs {
		all = append(all, s.Warnings...)
	}
	return all
}

// keepUsers takes over the lists of users that an earlier reading has and this one could not read.
func (c *catalog) keepUsers(before map[string]Users) {
	for _, name := range c.unread {
		if users := before[name]; users.Limited() {
			c.users[name] = users
		}
	}
}

// read reads all specs of the roots. It also returns the places that must be watched to see a change.
func read(roots []root, prefix string, check func(Spec) []Problem) (*catalog, []place) {
	c := &catalog{users: map[string]Users{}}
	var places []place
	taken := map[string]bool{} // names, usable or not
	for _, r := range roots {
		entries, err := os.ReadDir(r.dir)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				c.report(r.dir, "cannot be read: %v", plainError(err))
			} else if r.wanted {
				c.report(r.dir, "no such directory")
			}
			places = append(places, waitFor(r.dir))
			continue
		}
		places = append(places, place{dir: r.dir})
		if len(entries) > maxEntries {
			c.report(r.dir, "has %d entries: only the first %d are read", len(entries), maxEntries)
			entries = entries[:maxEntries]
		}
		places = append(places, readDir(r.dir, entries, func(name, sub, hidden string) {
			switch {
			case hidden != "":
				c.report(sub, hiddenText, hidden)
			case !taken[name]: // else an earlier directory has it
				taken[name] = c.take(name, sub, prefix, check)
			}
		})...)
	}
	slices.SortFunc(c.specs, func(a, b Spec) int { return strings.Compare(a.Name, b.Name) })
	return c, places
}

// readDir calls spec with the name and the directory of each spec of one directory. hidden is the entry beside it that
// hides it, or "". It returns the directories that may be or become specs.
func readDir(dir string, entries []fs.DirEntry, spec func(name, sub, hidden string)) (places []place) {
	here := map[string]string{} // entries by lower-case name
	for _, e := range entries {
		sub := filepath.Join(dir, e.Name())
		if !specDir(e, sub) {
			continue
		}
		places = append(places, place{dir: sub})
		if _, err := os.Lstat(filepath.Join(sub, "kernel.json")); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		name := strings.ToLower(e.Name())
		spec(name, sub, here[name])
		if here[name] == "" {
			here[name] = e.Name()
		}
	}
	return places
}

// hiddenText is a problem of a spec whose entry another one hides.
const hiddenText = "is hidden by %s beside it: names must differ in more than case"

// report adds a problem of a directory.
func (c *catalog) report(dir, format string, args ...any) {
	c.problems = append(c.problems, Problem{File: dir, Message: fmt.Sprintf(format, args...)})
}

// RelayKey is the member of a kernelspec's metadata that `ekg kernelspec add` writes. The kernel of such a kernelspec
// runs at a gateway. So no gateway serves it: it could name the gateway itself.
const RelayKey = "ekg_relay"

// take reads one spec into the catalog. It reports false if the spec is not for gateways.
func (c *catalog) take(name, dir, prefix string, check func(Spec) []Problem) bool {
	if !validName().MatchString(name) {
		c.problems = append(c.problems, badName(name, dir))
		return true
	}
	spec, root, problems := readSpec(name, dir, prefix)
	if root.member("metadata").member(RelayKey) != nil {
		return false
	}
	if knowsUsers(root, problems) {
		c.users[name] = spec.Users
	} else {
		c.unread = append(c.unread, name)
	}
	if len(problems) == 0 && check != nil {
		problems = check(spec)
	}
	if len(problems) > 0 {
		c.problems = append(c.problems, problems...)
		return true
	}
	c.specs = append(c.specs, spec)
	return true
}

// knowsUsers reports whether the lists of users of a spec could be read, whatever else is wrong with it.
func knowsUsers(root *node, problems []Problem) bool {
	return root != nil && root.kind == "object" && !slices.ContainsFunc(problems, func(p Problem) bool {
		return slices.Contains(userPaths, p.Key)
	})
}

func badName(name, dir string) Problem {
	return Problem{Spec: name, File: dir,
		Message: "cannot be the name of a kernelspec: only letters, digits, '.', '_' and '-' can be in a URL of Jupyter"}
}

// specDir reports whether an entry may be the directory of a spec. Names with a leading dot are ignored: they belong to
// editors, to programs that rename a complete directory into place, and to Kubernetes' volumes.
func specDir(e fs.DirEntry, dir string) bool {
	if strings.HasPrefix(e.Name(), ".") {
		return false
	}
	if e.Type()&fs.ModeSymlink != 0 {
		info, err := os.Stat(dir)
		return err == nil && info.IsDir()
	}
	return e.IsDir()
}
