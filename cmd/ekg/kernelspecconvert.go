package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/enterprise"
	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// incompleteError says that all kernelspecs were converted, and that some lines have no counterpart. The exit status
// is 3.
type incompleteError struct{ lines int }

func (e *incompleteError) Error() string {
	return fmt.Sprintf("lines without a counterpart: %d", e.lines)
}

// convertCommand is `ekg kernelspec convert`.
func convertCommand(read func(*cli.Context) (*settings.Settings, error)) *cli.Command {
	return &cli.Command{
		Name:         "convert",
		Usage:        "translate kernelspecs of Jupyter Enterprise Gateway 3 with their pod templates",
		ArgsUsage:    "DIR...",
		OnUsageError: refuseUsage,
		Description: "DIR is the folder of a kernelspec, or of several. Its scripts/kernel-pod.yaml.j2 is parsed and never " +
			"executed.\nThe output names each line that ekg has no counterpart for.\nThe exit status is 0 if everything has " +
			"a counterpart, 3 if lines were left out, 1 if a kernelspec\ncould not be converted or written, and 2 if the " +
			"command line is wrong.",
		Flags: append(settingFlags("kube-policy"),
			&cli.StringFlag{Name: "output", Usage: "write each kernelspec into a new folder of `FOLDER`"},
			&cli.BoolFlag{Name: "force", Usage: "replace files of folders that exist in --output"},
			&cli.BoolFlag{Name: "dry-run", Usage: "print each kernel.json instead"},
			&cli.BoolFlag{Name: "chart", Usage: "print values for ekg's Helm chart instead"},
			&cli.StringFlag{Name: "template", Usage: "`FILE` with the pod template, for kernelspecs without one"},
			&cli.BoolFlag{Name: "keep-launcher",
				Usage: "let the launcher in the image start the kernel, as Enterprise Gateway does"},
			&cli.StringFlag{Name: "command", Usage: "argv of the kernel in its image, as `JSON`; needed for languages other " +
				"than Python and R"}),
		Action: func(c *cli.Context) error {
			s, err := read(c)
			if err != nil {
				return err
			}
			return (&conversion{
				settings: s, output: c.String("output"), force: c.Bool("force"), dryRun: c.Bool("dry-run"),
				chart: c.Bool("chart"), template: c.String("template"), command: c.String("command"),
				keepLauncher: c.Bool("keep-launcher"),
				stdout:       c.App.Writer, stderr: c.App.ErrWriter,
			}).run(c.Context, c.Args().Slice())
		},
	}
}

// conversion is one run of the command.
type conversion struct {
	settings       *settings.Settings
	output         string
	force, dryRun  bool
	chart          bool
	template       string
	command        string
	keepLauncher   bool
	stdout, stderr io.Writer

	options enterprise.SpecOptions
	specs   enterprise.ChartSpecs
	leftOut int
}

func (v *conversion) run(ctx context.Context, args []string) error {
	const help = "; see ekg kernelspec convert --help"
	outputs := 0
	for _, given := range []bool{v.output != "", v.dryRun, v.chart} {
		if given {
			outputs++
		}
	}
	switch {
	case len(args) == 0:
		return &usageError{errors.New("ekg kernelspec convert: an argument is missing" + help)}
	case outputs != 1:
		return &usageError{errors.New("ekg kernelspec convert: give one of --output, --dry-run and --chart" + help)}
	}
	v.options.Template = v.template
	if v.command != "" && v.keepLauncher {
		return &usageError{errors.New("--command and --keep-launcher exclude each other")}
	}
	v.options.Launcher = v.keepLauncher
	if v.command != "" && (json.Unmarshal([]byte(v.command), &v.options.Argv) != nil || len(v.options.Argv) == 0) {
		return &usageError{errors.New("--command: is not a list of texts in JSON")}
	}
	dirs, err := specFolders(args)
	if err != nil {
		return err
	}
	failed := 0
	for _, dir := range dirs {
		err := ctx.Err()
		if err == nil {
			err = v.convert(dir)
		}
		if err != nil {
			failed++
			if _, err := fmt.Fprintf(v.stderr, "%s: not converted: %s\n", dir, kernelspecs.Printable(err.Error())); err != nil {
				return err
			}
		}
	}
	if v.chart {
		if err := v.specs.Write(v.stdout); err != nil {
			return err
		}
	}
	switch {
	case failed > 0:
		return fmt.Errorf("kernelspecs that were not converted: %d of %d", failed, len(dirs))
	case v.leftOut > 0:
		return &incompleteError{v.leftOut}
	}
	return nil
}

// specFolders returns the folders of kernelspecs in the arguments.
func specFolders(args []string) ([]string, error) {
	var dirs []string
	for _, arg := range args {
		if _, err := os.Stat(filepath.Join(arg, "kernel.json")); err == nil {
			dirs = append(dirs, filepath.Clean(arg))
			continue
		}
		found, err := filepath.Glob(filepath.Join(filepath.Clean(arg), "*", "kernel.json"))
		if err != nil || len(found) == 0 {
			return nil, errors.Join(fmt.Errorf("%s: has no kernel.json, and no folder with one", arg), err)
		}
		for _, file := range found {
			dirs = append(dirs, filepath.Dir(file))
		}
	}
	return dirs, nil
}

// convert translates and writes one kernelspec, and reports what it left out.
func (v *conversion) convert(dir string) error {
	if base := filepath.Base(dir); base == "." || base == ".." { // a kernelspec has the name of its folder
		var err error
		if dir, err = filepath.Abs(dir); err != nil {
			return err
		}
	}
	done, err := enterprise.ConvertSpec(dir, v.options)
	if err != nil {
		return err
	}
	notes, err := v.check(dir, done)
	if err != nil {
		return err
	}
	switch {
	case v.dryRun:
		_, err = v.stdout.Write(done.KernelJSON)
	case v.chart:
		notes, err = v.addToChart(dir, done.KernelJSON, notes)
	default:
		err = v.write(dir, done.KernelJSON)
	}
	if err != nil {
		return err
	}
	var lines []string
	for _, f := range done.LeftOut {
		lines = append(lines, "left out: "+kernelspecs.Printable(f.String()))
	}
	for _, note := range append(done.Notes, notes...) {
		lines = append(lines, "note: "+dir+": "+kernelspecs.Printable(note))
	}
	lines = append(lines, fmt.Sprintf("converted: %s; lines without a counterpart: %d", dir, len(done.LeftOut)))
	v.leftOut += len(done.LeftOut)
	_, err = fmt.Fprintln(v.stderr, strings.Join(lines, "\n"))
	return err
}

// check checks the new kernel.json as `ekg kernelspec check` does. A value that only the policy refuses becomes a note.
func (v *conversion) check(dir string, done *enterprise.Converted) ([]string, error) {
	folder, err := os.MkdirTemp("", "ekg-convert-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(folder) }() // a folder for temporary files may keep one
	folder = filepath.Join(folder, filepath.Base(dir))
	if err := os.Mkdir(folder, 0o700); err != nil {
		return nil, err
	}
	file := filepath.Join(folder, "kernel.json")
	if err := os.WriteFile(file, done.KernelJSON, 0o600); err != nil {
		return nil, err
	}
	for _, p := range kernelspecs.Check(folder, "", nil) {
		if !p.Warning && !strings.HasPrefix(p.Key, "argv") {
			p.File = "kernel.json"
			return nil, errors.New(p.String())
		}
	}
	pods, err := renderedPods(v.settings)
	if err != nil {
		return nil, err
	}
	if pods.KernelImage == "" {
		pods.KernelImage = renderedSupervisor // a note says if none is named
	}
	var notes []string
	for _, p := range kernelspecs.Check(folder, "", pods.Check()) {
		if !p.Warning && !strings.HasPrefix(p.Key, "argv") {
			notes = append(notes, "the policy refuses "+p.Key+": "+p.Message)
		}
	}
	return notes, nil
}

// addToChart adds the kernelspec to the values for the chart, which have no files. It returns the notes with one on
// that.
func (v *conversion) addToChart(dir string, kernelJSON []byte, notes []string) ([]string, error) {
	files, err := shownFiles(dir)
	if err != nil {
		return notes, err
	}
	if len(files) > 0 {
		notes = append(notes, "values of the chart have no files, so these are left out: "+strings.Join(files, ", "))
	}
	return notes, v.specs.Add(filepath.Base(dir), kernelJSON)
}

// shownFiles returns the names of the files of a kernelspec that its users see.
func shownFiles(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		name := e.Name()
		if e.Type().IsRegular() && (strings.HasPrefix(name, "logo-") || name == "kernel.js" || name == "kernel.css") {
			names = append(names, name)
		}
	}
	return names, err
}

// write writes the kernelspec and copies its logos into a folder of the output.
func (v *conversion) write(dir string, kernelJSON []byte) error {
	target, err := filepath.Abs(filepath.Join(v.output, filepath.Base(dir)))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(v.output, 0o755); err != nil {
		return err
	}
	err = os.Mkdir(target, 0o755)
	if errors.Is(err, fs.ErrExist) && v.force {
		var source, existing os.FileInfo
		if source, err = os.Stat(dir); err == nil {
			existing, err = os.Stat(target)
		}
		if err == nil && os.SameFile(source, existing) {
			err = fmt.Errorf("%s is the kernelspec itself; choose another --output", target)
		}
	} else if errors.Is(err, fs.ErrExist) {
		err = fmt.Errorf("%s exists; --force replaces its files", target)
	}
	if err != nil {
		return err
	}
	files := map[string][]byte{"kernel.json": kernelJSON}
	shown, err := shownFiles(dir)
	if err != nil {
		return err
	}
	for _, name := range shown {
		if files[name], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(target, name), files[name], 0o644); err != nil {
			return err
		}
	}
	return nil
}
