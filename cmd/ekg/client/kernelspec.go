package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// KernelspecSettings reads what `ekg kernelspec` needs.
type KernelspecSettings struct {
	ListFlags, CheckFlags []cli.Flag
	List, Check           func(*cli.Context) (kernelspecs.Options, error)
}

// FlagsOfSpecs reads the command line only. It is for a machine without a gateway, whose kernelspecs no pod checks.
func FlagsOfSpecs() KernelspecSettings {
	return KernelspecSettings{
		ListFlags: []cli.Flag{&cli.StringSliceFlag{Name: "kernelspec-dir",
			Usage: "`DIRECTORY` with kernelspecs, searched before Jupyter's own; repeatable"}},
		List: func(c *cli.Context) (kernelspecs.Options, error) {
			return kernelspecs.Options{Dirs: c.StringSlice("kernelspec-dir")}, nil
		},
		Check: func(*cli.Context) (kernelspecs.Options, error) { return kernelspecs.Options{}, nil },
	}
}

// KernelspecCommand is `ekg kernelspec`, with further subcommands.
func KernelspecCommand(s KernelspecSettings, more ...*cli.Command) *cli.Command {
	return &cli.Command{
		Name: "kernelspec", Usage: "list, check, render and add kernelspecs", Action: OnlySubcommands,
		Subcommands: append([]*cli.Command{
			MovedCommand("convert", "ekg-migrate kernelspec"),
			{
				Name:  "list",
				Usage: "list the kernels that can be started",
				Flags: append(s.ListFlags,
					&cli.BoolFlag{Name: "added", Usage: "list what ekg kernelspec add has written instead"}),
				Action: func(c *cli.Context) error {
					if err := Arguments(c, 0); err != nil {
						return err
					}
					if c.Bool("added") {
						return listAdded(c.App.Writer)
					}
					specs, err := s.List(c)
					if err != nil {
						return err
					}
					return listSpecs(c.Context, specs, c.App.Writer, c.App.ErrWriter)
				},
			},
			{
				Name:      "check",
				Usage:     "check the kernelspec in DIR, or all kernelspecs below it",
				ArgsUsage: "DIR",
				Flags: append(s.CheckFlags,
					&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT`: json, for programs"}),
				Action: func(c *cli.Context) error {
					if err := Arguments(c, 1); err != nil {
						return err
					}
					if format := c.String("output"); format != "" && format != string(formatJSON) {
						return &UsageError{fmt.Errorf("--output %q is not json", format)}
					}
					specs, err := s.Check(c)
					if err != nil {
						return err
					}
					return checkSpecs(c.Context, specs, c.Args().First(), c.String("output") != "", c.App.Writer)
				},
			},
		}, append(specCommands(), more...)...),
	}
}

// OpenSpecs finds kernelspecs, with those of Jupyter in this environment.
func OpenSpecs(ctx context.Context, o kernelspecs.Options) (*kernelspecs.Finder, error) {
	env := kernelspecs.FindEnvironment(ctx, os.Getenv)
	o.DataDirs, o.Prefix = env.DataDirs, env.Prefix
	return kernelspecs.Open(o)
}

// listSpecs prints the usable specs on stdout, and faults of other specs on stderr.
func listSpecs(ctx context.Context, o kernelspecs.Options, stdout, stderr io.Writer) (err error) {
	o.Log = slog.New(slog.DiscardHandler)
	specs, err := OpenSpecs(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, specs.Close()) }()
	lines := [][]string{{"NAME", "DISPLAY NAME", "LANGUAGE", "DIRECTORY"}}
	problems := slices.Clone(specs.Problems())
	for _, spec := range specs.List() {
		lines = append(lines, []string{spec.Name, spec.DisplayName, spec.Language, spec.Dir})
		problems = append(problems, spec.Warnings...)
	}
	if err := writeTable(stdout, lines); err != nil {
		return err
	}
	for _, p := range problems {
		if _, err := fmt.Fprintln(stderr, "ekg:", p); err != nil {
			return err
		}
	}
	return nil
}

// checkSpecs prints the faults of the specs in a directory, and warnings. It returns an error if there are any faults.
func checkSpecs(ctx context.Context, o kernelspecs.Options, dir string, asJSON bool, stdout io.Writer) error {
	problems := kernelspecs.Check(dir, kernelspecs.FindEnvironment(ctx, os.Getenv).Prefix, o.Check)
	if err := printProblems(stdout, problems, asJSON); err != nil {
		return err
	}
	n := 0
	for _, p := range problems {
		if !p.Warning {
			n++
		}
	}
	switch n {
	case 0:
		if len(problems) > 0 || asJSON {
			return nil
		}
		_, err := fmt.Fprintf(stdout, "%s: nothing wrong\n", dir)
		return err
	case 1:
		return errors.New("1 problem")
	default:
		return fmt.Errorf("%d problems", n)
	}
}

// printProblems prints a line for each problem, or one array in JSON.
func printProblems(w io.Writer, problems []kernelspecs.Problem, asJSON bool) error {
	if !asJSON {
		for _, p := range problems {
			if _, err := fmt.Fprintln(w, p); err != nil {
				return err
			}
		}
		return nil
	}
	if problems == nil {
		problems = []kernelspecs.Problem{}
	}
	return json.NewEncoder(w).Encode(problems)
}
