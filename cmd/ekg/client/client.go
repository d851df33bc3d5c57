// Package client is what ekg does on a user's machine: the command line, and the commands that ask a running gateway or
// need none. It imports no server and no launcher, so it can be built for macOS and Windows too.
//
// Program.Run runs one command line. Commands are the client's own; cmd/ekg adds those of a gateway's machine.
// kernels.go, jobs.go, log.go and top.go have the commands. find.go finds the gateways that a command asks, and
// gateway.go sends requests to them. gateways_linux.go is the file in which a running gateway gives its address to
// other commands.
//
// The package starts no goroutine of its own; `ekg relay` is package relay. Each command closes what it opens.
package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/elastic-kernel-gateway/ekg/cmd/buildinfo"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// Program is the program ekg, as one machine has it.
type Program struct {
	Version  string
	Commands []*cli.Command // besides the client's own
	// Removed returns what to use in place of a flag that earlier builds had, or "". It may be nil.
	Removed func(flag string) string
}

// Run runs a command line and returns its exit status: 0, 1 after a failure, or 2 if the command line or a setting is
// wrong. It prints errors on stderr.
func (p Program) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	app := p.App(stdout, stderr)
	if last := len(args) - 1; last > 0 && args[last] == completionFlag {
		if complete(ctx, app, args[:last]) != nil {
			return 1 // the shell shows no errors
		}
		return 0
	}
	err := app.RunContext(ctx, flagsFirst(app, parameterPairs(args)))
	if err == nil {
		return 0
	}
	report(stderr, err)
	var usage *UsageError
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

// report prints an error, one line for each of its lines. It escapes control characters, since the text may come from a
// foreign file or variable.
func report(w io.Writer, err error) {
	for line := range strings.Lines(err.Error()) {
		if _, err := fmt.Fprintf(w, "ekg: %s\n", kernelspecs.Printable(strings.TrimSuffix(line, "\n"))); err != nil {
			return // stderr cannot be written
		}
	}
}

// UsageError is a mistake on the command line or in a setting.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap returns the mistake.
func (e *UsageError) Unwrap() error { return e.Err }

// App returns the command line's description.
func (p Program) App(stdout, stderr io.Writer) *cli.App {
	printVersion := func(c *cli.Context) error {
		if err := Arguments(c, 0); err != nil {
			return err
		}
		_, err := fmt.Fprintln(c.App.Writer, buildinfo.Line("ekg", p.Version))
		return err
	}
	app := &cli.App{
		Name:                      "ekg",
		Usage:                     "Elastic Kernel Gateway: runs Jupyter kernels for any Jupyter front end",
		Writer:                    stdout,
		ErrWriter:                 stderr,
		HideVersion:               true,
		EnableBashCompletion:      true,
		DisableSliceFlagSeparator: true, // a path may contain a comma
		OnUsageError:              p.refuseUsage,
		ExitErrHandler:            func(*cli.Context, error) {}, // Run reports errors
		Flags:                     []cli.Flag{&cli.BoolFlag{Name: "version", Usage: "print version and commit"}},
		Before: func(c *cli.Context) error {
			if c.Bool("version") && c.NArg() > 0 {
				return &UsageError{fmt.Errorf("--version: unexpected argument %q", c.Args().First())}
			}
			return nil
		},
		Action: func(c *cli.Context) error {
			if c.Bool("version") {
				return printVersion(c)
			}
			return OnlySubcommands(c)
		},
		Commands: slices.Concat(p.Commands,
			[]*cli.Command{logCommand(), tokenCommand(), loginCommand()},
			kernelCommands(),
			[]*cli.Command{runCommand(), jobsCommand(), usageCommand(), topCommand(), relayCommand(), completionCommand(),
				{Name: "version", Usage: "print version and commit", Action: printVersion}},
		),
	}
	p.refuseUsages(app.Commands)
	return app
}

// refuseUsages lets commands and their subcommands refuse mistakes of the command line alike.
func (p Program) refuseUsages(commands []*cli.Command) {
	for _, c := range commands {
		c.OnUsageError = p.refuseUsage
		p.refuseUsages(c.Subcommands)
	}
}

// refuseUsage returns an error of the parser. For a flag that earlier builds had, it says what to use instead, and
// for a duration how one is written.
func (p Program) refuseUsage(c *cli.Context, err error, _ bool) error {
	for _, f := range c.Command.Flags {
		d, ok := f.(*cli.DurationFlag)
		if ok && strings.HasSuffix(err.Error(), "for flag -"+d.Name+": parse error") {
			err = fmt.Errorf("%w: a duration needs a unit, as in 5s", err)
		}
	}
	if name, unknown := strings.CutPrefix(err.Error(), "flag provided but not defined: -"); unknown && p.Removed != nil {
		if instead := p.Removed(name); instead != "" {
			err = fmt.Errorf("--%s: was removed: %s", name, instead)
		}
	}
	return &UsageError{err}
}

// Arguments returns an error if a command has another number of arguments.
func Arguments(c *cli.Context, want int) error {
	if c.NArg() > want {
		return &UsageError{fmt.Errorf("%s: unexpected argument %q", c.Command.HelpName, c.Args().Get(want))}
	}
	if c.NArg() < want {
		return &UsageError{fmt.Errorf("%s: an argument is missing; see %s --help", c.Command.HelpName, c.Command.HelpName)}
	}
	return nil
}

// OnlySubcommands is the action of a command that does nothing by itself.
func OnlySubcommands(c *cli.Context) error {
	if c.NArg() > 0 {
		return &UsageError{fmt.Errorf("no command %q; see ekg --help", c.Args().First())}
	}
	return cli.ShowSubcommandHelp(c)
}

// MovedCommand answers a command that another program has now.
func MovedCommand(name, to string) *cli.Command {
	return &cli.Command{
		Name: name, Hidden: true, SkipFlagParsing: true,
		Action: func(c *cli.Context) error {
			return &UsageError{fmt.Errorf("%s was removed: use %s of the Python package ekg-migrate", c.Command.HelpName, to)}
		},
	}
}

// flagsFirst moves flags before a command's argument, as in `ekg log KERNEL --follow`. The parser expects them there,
// and users write them behind it.
func flagsFirst(p *cli.App, args []string) []string {
	command, n := commandOf(p, args)
	if command == nil || command.ArgsUsage == "" {
		return args
	}
	takesValue := valueFlags(command)
	flags, rest := slices.Clone(args[:n]), []string{}
	for i := n; i < len(args); i++ {
		a := args[i]
		if a == "--" {
			rest = append(rest, args[i:]...)
			break
		}
		if a == "-" || !strings.HasPrefix(a, "-") {
			rest = append(rest, a)
			continue
		}
		flags = append(flags, a)
		if takesValue[strings.TrimLeft(a, "-")] && i+1 < len(args) {
			i++
			flags = append(flags, args[i])
		}
	}
	return append(flags, rest...)
}

// commandOf returns the command that the arguments name, nil for none, and how many of them do, the program included.
func commandOf(p *cli.App, args []string) (command *cli.Command, n int) {
	n = 1
	for commands := p.Commands; n < len(args); n++ {
		i := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.HasName(args[n]) })
		if i < 0 {
			break
		}
		command = commands[i]
		commands = command.Subcommands
	}
	return command, n
}

// valueFlags returns the names of a command's flags, and whether each takes a value.
func valueFlags(command *cli.Command) map[string]bool {
	takesValue := map[string]bool{}
	for _, f := range command.Flags {
		shown, ok := f.(cli.DocGenerationFlag)
		for _, name := range f.Names() {
			takesValue[name] = ok && shown.TakesValue()
		}
	}
	return takesValue
}
