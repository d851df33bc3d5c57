// Command ekg is the Elastic Kernel Gateway: it runs Jupyter kernels for any Jupyter front end.
//
//	ekg serve                  serve Jupyter's kernel API and print its URL
//	ekg log KERNEL             print what a kernel has said
//	ekg token                  make a token for a user, and the hash of it for the file of users
//	ekg config                 print the settings that serve would use, and where each comes from
//	ekg kernelspec list        list the kernels that can be started
//	ekg kernelspec check DIR   examine kernelspecs before anybody starts them
//	ekg kernelspec render NAME print the pod that a kernelspec would be on Kubernetes
//	ekg version                print the version
//
// A setting is a flag (--start-wait 10s), a variable (EKG_START_WAIT=10s) or a key of the YAML file that --config names
// (start-wait: 10s); the first of these that is there counts. flags.go has all of them, with the variables of Jupyter
// Enterprise Gateway that mean the same; `ekg serve --help` prints them. What is wrong with a setting is told with the
// flag, the variable or the line it comes from, and nothing is started.
//
// Besides those it reads what Jupyter reads to find kernelspecs (JUPYTER_PATH, JUPYTER_DATA_DIR, JUPYTER_PREFER_ENV_PATH,
// VIRTUAL_ENV, CONDA_PREFIX, CONDA_DEFAULT_ENV, PYTHONUSERBASE, IPYTHONDIR, PATH), where the state is kept
// (XDG_STATE_HOME, XDG_RUNTIME_DIR, XDG_DATA_HOME, HOME, TMPDIR), and INVOCATION_ID, which systemd sets. `ekg log` finds its
// gateway by EKG_GATEWAY_URL or JUPYTER_GATEWAY_URL, with EKG_TOKEN, EKG_TOKEN_FILE or JUPYTER_GATEWAY_AUTH_TOKEN; by
// --gateway-url; or else among those that this user runs on this machine.
//
// SIGTERM and SIGINT end the gateway in order: /readyz fails, the listener closes, websockets end so that their clients
// come back, and the kernels go on (or are stopped, with --stop-kernels-on-exit). A second signal ends it at once. With
// --audit-log FILE a SIGHUP opens that file anew. The
// exit status is 0 after that, 1 if something failed and 2 if the command line or a setting is wrong.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, end := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	go func() {
		<-signals
		// From here on another one has its usual effect: it ends the program at once. Whoever sees it ending can rely on that.
		signal.Stop(signals)
		end()
	}()
	os.Exit(run(ctx, os.Args, os.Stdout, os.Stderr))
}

// run is main without a process around it.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	p := program(stdout, stderr)
	err := p.RunContext(ctx, flagsFirst(p, args))
	if err == nil {
		return 0
	}
	report(stderr, err)
	var usage *usageError
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

// report prints an error, each of its lines by itself. What is in a file or a variable may be anybody's, and is not for the terminal to obey.
func report(w io.Writer, err error) {
	for line := range strings.Lines(err.Error()) {
		if _, err := fmt.Fprintf(w, "ekg: %s\n", kernelspecs.Printable(strings.TrimSuffix(line, "\n"))); err != nil {
			return // nobody reads it
		}
	}
}

// usageError is a mistake of whoever wrote the command line or a setting.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// program describes the commands.
func program(stdout, stderr io.Writer) *cli.App {
	read := func(c *cli.Context) (*settings, error) {
		s, err := load(sources{flags: flagsOf(c), getenv: os.Getenv})
		if err != nil {
			return nil, &usageError{err}
		}
		return s, nil
	}
	all := allFlags()
	return &cli.App{
		Name:                      "ekg",
		Usage:                     "Elastic Kernel Gateway: runs Jupyter kernels for any Jupyter front end",
		Writer:                    stdout,
		ErrWriter:                 stderr,
		HideVersion:               true,
		DisableSliceFlagSeparator: true, // a path may contain a comma
		OnUsageError:              refuseUsage,
		ExitErrHandler:            func(*cli.Context, error) {}, // run reports errors
		Action:                    onlySubcommands,
		Commands: []*cli.Command{
			{Name: "serve", Usage: "serve Jupyter's kernel API and print its URL", Flags: all, OnUsageError: refuseUsage, Action: func(c *cli.Context) error {
				s, err := command(c, 0, read)
				if err != nil {
					return err
				}
				return newServer(s, c.App.Writer, newLogger(c.App.ErrWriter, s)).Run(c.Context)
			}},
			{Name: "config", Usage: "print the settings that serve would use, and where each comes from", Flags: all, OnUsageError: refuseUsage, Action: func(c *cli.Context) error {
				s, err := command(c, 0, read)
				if err != nil {
					return err
				}
				return printSettings(c.App.Writer, s)
			}},
			logCommand(read),
			tokenCommand(),
			kernelspecCommand(read),
			{Name: "version", Usage: "print the version", OnUsageError: refuseUsage, Action: func(c *cli.Context) error {
				if err := arguments(c, 0); err != nil {
					return err
				}
				_, err := fmt.Fprintf(c.App.Writer, "ekg %s %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
				return err
			}},
			{Name: "docs", Hidden: true, OnUsageError: refuseUsage, Action: onlySubcommands, Subcommands: []*cli.Command{
				flagsTable.command("print the table of settings"),
				metricsTable.command("print the table of metrics"),
			}},
		},
	}
}

// command prints a table, or writes it into a file.
func (t table) command(usage string) *cli.Command {
	return &cli.Command{Name: t.name, Usage: usage + ", or write it into a file between the lines " + t.begin() + " and " + t.end(),
		Flags: []cli.Flag{&cli.StringFlag{Name: "into", Usage: "`FILE` to write into"}}, OnUsageError: refuseUsage,
		Action: func(c *cli.Context) error {
			if file := c.String("into"); file != "" {
				return t.write(file)
			}
			_, err := io.WriteString(c.App.Writer, t.text())
			return err
		}}
}

// command checks the number of arguments and reads the settings.
func command(c *cli.Context, args int, read func(*cli.Context) (*settings, error)) (*settings, error) {
	if err := arguments(c, args); err != nil {
		return nil, err
	}
	return read(c)
}

func arguments(c *cli.Context, want int) error {
	if c.NArg() > want {
		return &usageError{fmt.Errorf("%s: unexpected argument %q", c.Command.HelpName, c.Args().Get(want))}
	}
	if c.NArg() < want {
		return &usageError{fmt.Errorf("%s: an argument is missing; see %s --help", c.Command.HelpName, c.Command.HelpName)}
	}
	return nil
}

func refuseUsage(_ *cli.Context, err error, _ bool) error { return &usageError{err} }

// onlySubcommands is the action of a command that does nothing by itself.
func onlySubcommands(c *cli.Context) error {
	if c.NArg() > 0 {
		return &usageError{fmt.Errorf("there is no command %q; see ekg --help", c.Args().First())}
	}
	return cli.ShowSubcommandHelp(c)
}

// allFlags are the flags of commands that need every setting.
func allFlags() []cli.Flag {
	flags := []cli.Flag{configOption.flag()}
	for _, o := range options {
		flags = append(flags, o.flag())
	}
	return flags
}

// flag makes the command line's view of an option. Environment and defaults are left to load, which can tell them apart.
func (o option) flag() cli.Flag {
	usage := o.usage
	if len(o.env) > 0 {
		usage += " [$" + strings.Join(o.env, ", $") + "]"
	}
	switch o.value.shape {
	case many:
		return &cli.StringSliceFlag{Name: o.name, Usage: usage, DefaultText: o.shownDefault()}
	case toggle:
		return &cli.BoolFlag{Name: o.name, Usage: usage, DefaultText: o.shownDefault()}
	}
	return &cli.StringFlag{Name: o.name, Usage: usage, DefaultText: o.shownDefault()}
}

func (o option) shownDefault() string {
	if o.defDoc != "" {
		return o.defDoc
	}
	return o.def
}

// flagsOf gives what the command line says, as texts.
func flagsOf(c *cli.Context) func(name string) ([]string, bool) {
	return func(name string) ([]string, bool) {
		if !c.IsSet(name) {
			return nil, false
		}
		switch v := c.Value(name).(type) {
		case cli.StringSlice:
			return v.Value(), true
		case bool:
			return []string{fmt.Sprint(v)}, true
		case string:
			return []string{v}, true
		}
		return nil, false
	}
}

// flagsFirst puts the flags of `ekg log KERNEL --follow`, and of every other command with an argument, before the argument,
// where the command line's parser expects them, since everybody writes them behind it.
func flagsFirst(p *cli.App, args []string) []string {
	command, n := (*cli.Command)(nil), 1
	for commands := p.Commands; n < len(args); n++ {
		i := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.HasName(args[n]) })
		if i < 0 {
			break
		}
		command = commands[i]
		commands = command.Subcommands
	}
	if command == nil || command.ArgsUsage == "" {
		return args
	}
	takesValue := map[string]bool{}
	for _, f := range command.Flags {
		_, toggled := f.(*cli.BoolFlag)
		for _, name := range f.Names() {
			takesValue[name] = !toggled
		}
	}
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
