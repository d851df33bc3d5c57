package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// addedSpec is a kernel.json whose process is `ekg relay`.
type addedSpec struct {
	Argv          []string       `json:"argv"`
	DisplayName   string         `json:"display_name"`
	Language      string         `json:"language"`
	InterruptMode string         `json:"interrupt_mode"`
	Metadata      map[string]any `json:"metadata"`
}

// addedFrom says where the kernel of an addedSpec runs. It is the member kernelspecs.RelayKey of the metadata.
type addedFrom struct {
	Gateway string `json:"gateway"`
	Spec    string `json:"kernelspec"`
}

// specCommands are the subcommands of `ekg kernelspec` for kernelspecs whose kernels run at a gateway.
func specCommands() []*cli.Command {
	return []*cli.Command{
		{
			Name: "add", ArgsUsage: "[SPEC]",
			Usage: "let Jupyter's programs of this machine use the kernelspec SPEC of a gateway",
			Description: "The command writes a kernelspec for this user. Its kernels run at the gateway. Store your token\n" +
				"with `ekg login URL`: it is not in the kernelspec. See docs/clients.md.",
			Flags: slices.Concat([]cli.Flag{
				&cli.BoolFlag{Name: "all", Usage: "add all kernelspecs of the gateway, as SPEC-at-HOST"},
				&cli.StringFlag{Name: "name", Usage: "`NAME` of the kernelspec on this machine; default: SPEC"},
				onExitFlag(),
			}, startFlags(), gatewayFlags()),
			Action: func(c *cli.Context) error { return onKernels(c, 0, 1, addSpecs) },
		},
		{
			Name: "remove", Usage: "remove kernelspecs that `ekg kernelspec add` has written", ArgsUsage: "NAME...",
			Action: func(c *cli.Context) error {
				if c.NArg() == 0 {
					return Arguments(c, 1)
				}
				var errs []error
				for _, name := range c.Args().Slice() {
					errs = append(errs, removeSpec(name))
				}
				return errors.Join(errs...)
			},
		},
	}
}

// addSpecs is `ekg kernelspec add`.
func addSpecs(ctx context.Context, r *kernelRun) error {
	all, wanted := r.c.Bool("all"), r.c.Args().First()
	switch {
	case all == (wanted != ""):
		return &UsageError{errors.New("name one kernelspec of the gateway, or give --all")}
	case all && r.c.IsSet("name"):
		return &UsageError{errors.New("--all names the kernelspecs by itself: leave out --name")}
	}
	if _, err := keeps(r.c.String("on-exit"), false); err != nil {
		return err
	}
	if _, err := variables(r.c.StringSlice("env")); err != nil {
		return err
	}
	g := r.gateways[0]
	offered, err := g.specs(ctx)
	if err != nil {
		return err
	}
	names := []string{wanted}
	if all {
		names = slices.Sorted(maps.Keys(offered))
	} else if _, there := offered[wanted]; !there {
		return fmt.Errorf("%s has no kernelspec %q; it has: %s", g.shown, wanted,
			strings.Join(slices.Sorted(maps.Keys(offered)), ", "))
	}
	var errs []error
	for _, spec := range names {
		name := cmp.Or(r.c.String("name"), spec)
		if all {
			name = spec + "-at-" + g.host()
		}
		path, err := r.addSpec(ctx, g, name, spec, offered[spec])
		if err == nil {
			_, err = fmt.Fprintln(r.c.App.Writer, path)
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, r.noteToken(g))...)
}

// noteToken says how the token gets to the kernelspecs, if the command line has it.
func (r *kernelRun) noteToken(g *gatewayClient) error {
	stored, err := storedToken(g.shown)
	if err != nil || stored == g.token {
		return err
	}
	return r.note("the token is not in a kernelspec; this stores it, if it is not in the environment of your programs: "+
		"ekg login %s", g.shown)
}

// offeredSpec is a kernelspec as the gateway describes it.
type offeredSpec struct {
	Spec struct {
		DisplayName string         `json:"display_name"`
		Language    string         `json:"language"`
		Metadata    map[string]any `json:"metadata"`
	} `json:"spec"`
}

// specs returns the gateway's kernelspecs by name.
func (g *gatewayClient) specs(ctx context.Context) (map[string]offeredSpec, error) {
	var answer struct {
		Specs map[string]offeredSpec `json:"kernelspecs"`
	}
	return answer.Specs, g.read(ctx, "api/kernelspecs", nil, "the list of kernelspecs", &answer)
}

// notInName matches what a kernelspec's name may not have.
var notInName = regexp.MustCompile(`[^a-zA-Z0-9._-]+`)

// host returns the gateway's host and port as a part of a kernelspec's name.
func (g *gatewayClient) host() string {
	host := "this-machine"
	if u, err := url.Parse(g.shown); err == nil && !strings.Contains(u.Scheme, "unix") {
		host = u.Host
	}
	return strings.ToLower(strings.Trim(notInName.ReplaceAllString(host, "-"), "-"))
}

// addSpec writes one kernelspec, and returns its file.
func (r *kernelRun) addSpec(ctx context.Context, g *gatewayClient, name, spec string, o offeredSpec) (string, error) {
	if name == "" || notInName.MatchString(name) {
		return "", &UsageError{fmt.Errorf("%q is not a kernelspec's name: it may have letters, digits, - . and _", name)}
	}
	name = strings.ToLower(name)
	program, err := os.Executable()
	if err != nil {
		return "", err
	}
	// A kernelspec of this name may be in another of Jupyter's folders, whose programs would then see only one of them.
	for _, dir := range kernelspecs.FindEnvironment(ctx, os.Getenv).DataDirs {
		if err := mayReplace(filepath.Join(dir, "kernels", name)); err != nil {
			return "", err
		}
	}
	dir, err := specDir(name)
	if err == nil {
		err = mayReplace(dir)
	}
	if err != nil {
		return "", err
	}
	argv := []string{program, "relay", "-f", "{connection_file}", "--gateway-url", g.shown, "--kernel", spec}
	for _, flag := range []string{"flavor", "on-exit"} {
		if value := r.c.String(flag); value != "" {
			argv = append(argv, "--"+flag, value)
		}
	}
	for _, variable := range r.c.StringSlice("env") {
		argv = append(argv, "--env", variable)
	}
	added := addedSpec{Argv: argv, Language: o.Spec.Language, InterruptMode: "message",
		DisplayName: cmp.Or(o.Spec.DisplayName, spec) + " at " + g.host(),
		Metadata:    map[string]any{kernelspecs.RelayKey: addedFrom{g.shown, spec}}}
	if debugger, there := o.Spec.Metadata["debugger"]; there {
		added.Metadata["debugger"] = debugger
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "kernel.json")
	return path, files.WriteJSON(path, added)
}

// specDir returns the folder of a kernelspec of this user.
func specDir(name string) (string, error) {
	data, err := dataDir(runtime.GOOS, os.Getenv)
	return filepath.Join(data, "kernels", name), err
}

// dataDir returns Jupyter's data folder of this user.
func dataDir(system string, getenv func(string) string) (string, error) {
	at := func(base string, rest ...string) (string, error) {
		if base == "" {
			return "", errors.New("no variable says where your home is")
		}
		return filepath.Join(append([]string{base}, rest...)...), nil
	}
	switch {
	case getenv("JUPYTER_DATA_DIR") != "":
		return getenv("JUPYTER_DATA_DIR"), nil
	case system == "windows":
		return at(getenv("APPDATA"), "jupyter")
	case system == "darwin":
		return at(getenv("HOME"), "Library", "Jupyter")
	case getenv("XDG_DATA_HOME") != "":
		return at(getenv("XDG_DATA_HOME"), "jupyter")
	}
	return at(getenv("HOME"), ".local", "share", "jupyter")
}

// readAdded reads a kernelspec that `ekg kernelspec add` has written. The error for a missing kernelspec wraps
// fs.ErrNotExist.
func readAdded(dir string) (from addedFrom, err error) {
	path := filepath.Join(dir, "kernel.json")
	text, err := os.ReadFile(path)
	if err != nil {
		return from, err
	}
	var spec struct {
		Metadata map[string]json.RawMessage `json:"metadata"`
	}
	if err := json.Unmarshal(text, &spec); err != nil {
		return from, fmt.Errorf("%s: %w", path, err)
	}
	if json.Unmarshal(spec.Metadata[kernelspecs.RelayKey], &from) != nil || from.Gateway == "" {
		return from, fmt.Errorf("%s was not written by ekg kernelspec add", path)
	}
	return from, nil
}

// mayReplace returns an error if a folder has a kernelspec that ekg has not written.
func mayReplace(dir string) error {
	if _, err := readAdded(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w, and stays; --name gives another name", err)
	}
	return nil
}

// removeSpec removes a kernelspec that `ekg kernelspec add` has written.
func removeSpec(name string) error {
	if name == "" || notInName.MatchString(name) || strings.Trim(name, ".") == "" {
		return &UsageError{fmt.Errorf("%q is not a kernelspec's name", name)}
	}
	dir, err := specDir(strings.ToLower(name))
	if err != nil {
		return err
	}
	if _, err := readAdded(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// listAdded prints the kernelspecs that `ekg kernelspec add` has written.
func listAdded(w io.Writer) error {
	dir, err := specDir("")
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	lines := [][]string{{"NAME", "KERNELSPEC", "GATEWAY"}}
	for _, e := range entries {
		if from, err := readAdded(filepath.Join(dir, e.Name())); err == nil {
			lines = append(lines, []string{e.Name(), from.Spec, from.Gateway})
		}
	}
	return writeTable(w, lines)
}
