package child

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// makeWritable points HOME, TMPDIR and IPYTHONDIR into home if they are missing or this user may not write there: the
// image may be made for another user, or be mounted read-only. TMPDIR and IPYTHONDIR may stay unset as long as their
// defaults, /tmp and .ipython in HOME, are writable.
func makeWritable(env map[string]string, home string) error {
	fall := func(name, sub string) error {
		dir := filepath.Join(home, sub)
		if home == "" {
			return nil
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("the kernel's user can write neither to %s nor to %s: %w", name, home, err)
		}
		env[name] = dir
		return nil
	}
	if !writable(env["HOME"]) {
		if err := fall("HOME", "home"); err != nil {
			return err
		}
	}
	if tmp := env["TMPDIR"]; tmp != "" && !writable(tmp) || tmp == "" && !writable("/tmp") {
		if err := fall("TMPDIR", "tmp"); err != nil {
			return err
		}
	}
	if dir := env["IPYTHONDIR"]; dir != "" && !creatable(dir) ||
		dir == "" && !creatable(filepath.Join(env["HOME"], ".ipython")) {
		return fall("IPYTHONDIR", "ipython")
	}
	return nil
}

// writable reports whether this user may create files in a folder.
func writable(dir string) bool {
	return filepath.IsAbs(dir) && unix.Access(dir, unix.W_OK|unix.X_OK) == nil && existingDir(dir) != ""
}

// creatable reports whether a folder is writable or can be created.
func creatable(dir string) bool {
	if _, err := os.Stat(dir); os.IsNotExist(err) && filepath.Dir(dir) != dir {
		return creatable(filepath.Dir(dir))
	}
	return writable(dir)
}

// existingDir returns dir if it is a folder that this user may enter, else "".
func existingDir(dir string) string {
	if st, err := os.Stat(dir); dir == "" || err != nil || !st.IsDir() || unix.Access(dir, unix.X_OK) != nil {
		return ""
	}
	return dir
}

// imageSpec is how a kernelspec of the image starts its kernel.
type imageSpec struct {
	argv          []string // with {connection_file}
	env           map[string]string
	interruptMode string
}

// findImageSpec finds the kernelspec of a name where Jupyter would look with the kernel's environment. An empty name
// means python3, or else the only kernelspec. The error is one sentence for the kernel's owner.
func findImageSpec(ctx context.Context, name string, env map[string]string) (imageSpec, error) {
	where := kernelspecs.FindEnvironment(ctx, func(v string) string { return env[v] })
	finder, err := kernelspecs.Open(kernelspecs.Options{DataDirs: where.DataDirs, Prefix: where.Prefix})
	if err != nil {
		return imageSpec{}, fmt.Errorf("the image's kernelspecs cannot be read: %w", err)
	}
	defer finder.Close() //nolint:errcheck // the specs are read
	specs := finder.List()
	i := slices.IndexFunc(specs, func(s kernelspecs.Spec) bool { return s.Name == strings.ToLower(name) })
	if name == "" {
		i = slices.IndexFunc(specs, func(s kernelspecs.Spec) bool { return s.Name == "python3" })
		if i < 0 && len(specs) == 1 {
			i = 0
		}
	}
	if i < 0 {
		return imageSpec{}, noImageSpec(name, specs, finder.Problems())
	}
	s := specs[i]
	return imageSpec{argv: s.Command(nil), env: s.ExpandEnv(maps.Clone(env)), interruptMode: s.InterruptMode}, nil
}

// noImageSpec names the missing kernelspec and those that exist.
func noImageSpec(name string, specs []kernelspecs.Spec, problems []kernelspecs.Problem) error {
	var found []string
	for _, s := range specs {
		found = append(found, s.Name)
	}
	text := "none"
	if len(found) > 0 {
		text = strings.Join(found, ", ")
	}
	if len(problems) > 0 {
		text += "; " + problems[0].String()
	}
	text = api.PlainText(text, quoteLimit)
	switch {
	case name != "":
		return fmt.Errorf("the image has no kernelspec %q; it has: %s", name, text)
	case len(found) > 1:
		return fmt.Errorf("the image has several kernelspecs and the request names none of them: %s", text)
	}
	return fmt.Errorf("the image has no kernelspec, and the request names no command: %s", text)
}
