package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// kernelspecCommand is `ekg kernelspec`.
func kernelspecCommand(read func(*cli.Context) (*settings, error)) *cli.Command {
	dirs, ok := optionNamed("kernelspec-dir")
	if !ok {
		panic("there is no option kernelspec-dir")
	}
	return &cli.Command{
		Name: "kernelspec", Usage: "see and check what kernels can be started", OnUsageError: refuseUsage, Action: onlySubcommands,
		Subcommands: []*cli.Command{
			{Name: "list", Usage: "list the kernels that can be started", Flags: []cli.Flag{configOption.flag(), dirs.flag()}, OnUsageError: refuseUsage,
				Action: func(c *cli.Context) error {
					s, err := command(c, 0, read)
					if err != nil {
						return err
					}
					return listSpecs(c.Context, s, c.App.Writer, c.App.ErrWriter)
				}},
			{Name: "check", Usage: "examine the kernelspec in DIR, or all kernelspecs below it", ArgsUsage: "DIR", OnUsageError: refuseUsage,
				Action: func(c *cli.Context) error {
					if err := arguments(c, 1); err != nil {
						return err
					}
					return checkSpecs(c.Context, c.Args().First(), c.App.Writer)
				}},
		},
	}
}

// openSpecs finds the kernelspecs that the settings ask for.
func openSpecs(ctx context.Context, s *settings, log *slog.Logger) (*kernelspecs.Finder, error) {
	env := kernelspecs.FindEnvironment(ctx, os.Getenv)
	return kernelspecs.Open(kernelspecs.Options{Dirs: s.kernelspecDirs, DataDirs: env.DataDirs, Prefix: env.Prefix, Log: log})
}

// listSpecs prints the usable specs, and on stderr what is wrong with others.
func listSpecs(ctx context.Context, s *settings, stdout, stderr io.Writer) (err error) {
	specs, err := openSpecs(ctx, s, discard)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, specs.Close()) }()
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	if _, err := fmt.Fprintln(table, "NAME\tDISPLAY NAME\tLANGUAGE\tDIRECTORY"); err != nil {
		return err
	}
	for _, spec := range specs.List() {
		if _, err := fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", spec.Name, spec.DisplayName, spec.Language, spec.Dir); err != nil {
			return err
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, p := range specs.Problems() {
		if _, err := fmt.Fprintln(stderr, "ekg:", p); err != nil {
			return err
		}
	}
	return nil
}

// checkSpecs prints what is wrong with the specs of a directory, which is an error.
func checkSpecs(ctx context.Context, dir string, stdout io.Writer) error {
	problems := kernelspecs.Check(dir, kernelspecs.FindEnvironment(ctx, os.Getenv).Prefix)
	for _, p := range problems {
		if _, err := fmt.Fprintln(stdout, p); err != nil {
			return err
		}
	}
	switch n := len(problems); n {
	case 0:
		_, err := fmt.Fprintf(stdout, "%s: nothing wrong\n", dir)
		return err
	case 1:
		return errors.New("1 problem")
	default:
		return fmt.Errorf("%d problems", n)
	}
}
