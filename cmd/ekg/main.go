// Command ekg is the Elastic Kernel Gateway: it runs Jupyter kernels for any Jupyter front end.
//
//	ekg serve                  serve Jupyter's kernel API and print its URL
//	ekg ps                     list kernels
//	ekg start [KERNELSPEC]     start a kernel and print its id
//	ekg stop KERNEL...         end kernels
//	ekg restart KERNEL...      restart kernels: their variables are lost
//	ekg interrupt KERNEL...    interrupt the running cells of kernels
//	ekg keep KERNEL...         keep kernels from being culled
//	ekg log KERNEL             print a kernel's output
//	ekg run NOTEBOOK           submit a notebook as a job, and print its id
//	ekg jobs                   list jobs; subcommands: follow, logs, notebook, stop, rm
//	ekg jobs definitions       list job definitions; subcommands: pause, resume, run, rm
//	ekg usage                  show how long GPUs were held, and how long they were busy
//	ekg top                    show who holds GPUs, and whether they compute; subcommands: nodes, kernels, users
//	ekg token                  create a token for a user, and its hash for the file of users
//	ekg config                 print the settings that serve would use, with their sources
//	ekg kernelspec list        list the kernels that can be started
//	ekg kernelspec check DIR   check kernelspecs before their use
//	ekg kernelspec render NAME print the pod that a kernelspec would create on Kubernetes
//	ekg supervisor upgrade     replace the supervisors of running kernels by the installed version
//	ekg completion SHELL       print a script for the completion of a shell
//	ekg version                print version and commit, as ekg --version does
//
// A setting is a flag (--start-wait 10s), a variable (EKG_START_WAIT=10s) or a key of the YAML file that --config names
// (start-wait: 10s). The first of these that is present counts. Package settings has all settings, including the
// variables of Jupyter Enterprise Gateway with the same meaning. `ekg serve --help` prints them. An error in a setting
// names the flag, the variable or the line, and the gateway does not start.
//
// The program also reads some variables without a setting. Jupyter's variables for the search of kernelspecs are
// JUPYTER_PATH, JUPYTER_DATA_DIR, JUPYTER_PREFER_ENV_PATH, VIRTUAL_ENV, CONDA_PREFIX, CONDA_DEFAULT_ENV,
// PYTHONUSERBASE, IPYTHONDIR and PATH. XDG_STATE_HOME, XDG_RUNTIME_DIR, XDG_DATA_HOME, HOME and TMPDIR give the place
// of the state. systemd sets INVOCATION_ID. Commands about kernels find their gateway by --gateway-url, EKG_GATEWAY_URL
// or JUPYTER_GATEWAY_URL, and else among this user's gateways on this machine. The token may be in EKG_TOKEN,
// EKG_TOKEN_FILE or JUPYTER_GATEWAY_AUTH_TOKEN.
//
// SIGTERM and SIGINT end the gateway in order: /readyz fails, the listener closes, and websockets close so that their
// clients reconnect. Kernels go on, or are stopped with --stop-kernels-on-exit. A second signal ends the program at
// once. With --audit-log FILE a SIGHUP reopens that file. The exit status is 0 after an orderly end, 1 after a failure,
// and 2 if the command line or a setting is wrong.
//
// Of the code, begin with server.serve in serve.go: it starts all parts of the gateway, and lists how they stop.
// launcher.go opens the launcher. client.go asks gateways for the commands about kernels and jobs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/elastic-kernel-gateway/ekg/cmd/buildinfo"
	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
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
		// A second signal has its default effect: it ends the program at once. Signals are reset before the program shows
		// that it is ending.
		signal.Stop(signals)
		end()
	}()
	os.Exit(run(ctx, os.Args, os.Stdout, os.Stderr))
}

// run is main without the process.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	p := program(stdout, stderr)
	if last := len(args) - 1; last > 0 && args[last] == completionFlag {
		if complete(ctx, p, args[:last]) != nil {
			return 1 // the shell shows no errors
		}
		return 0
	}
	err := p.RunContext(ctx, flagsFirst(p, parameterPairs(args)))
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

// report prints an error, one line for each of its lines. It escapes control characters, since the text may come from a
// foreign file or variable.
func report(w io.Writer, err error) {
	for line := range strings.Lines(err.Error()) {
		if _, err := fmt.Fprintf(w, "ekg: %s\n", kernelspecs.Printable(strings.TrimSuffix(line, "\n"))); err != nil {
			return // stderr cannot be written
		}
	}
}

// usageError is a mistake on the command line or in a setting.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// program returns the commands.
func program(stdout, stderr io.Writer) *cli.App {
	read := func(c *cli.Context) (*settings.Settings, error) {
		s, err := settings.Load(settings.Sources{Flags: flagsOf(c), Getenv: os.Getenv})
		if err != nil {
			return nil, &usageError{err}
		}
		return s, nil
	}
	all := settingFlags()
	app := &cli.App{
		Name:                      "ekg",
		Usage:                     "Elastic Kernel Gateway: runs Jupyter kernels for any Jupyter front end",
		Writer:                    stdout,
		ErrWriter:                 stderr,
		HideVersion:               true,
		EnableBashCompletion:      true,
		DisableSliceFlagSeparator: true, // a path may contain a comma
		OnUsageError:              refuseUsage,
		ExitErrHandler:            func(*cli.Context, error) {}, // run reports errors
		Flags:                     []cli.Flag{&cli.BoolFlag{Name: "version", Usage: "print version and commit"}},
		Before: func(c *cli.Context) error {
			if c.Bool("version") && c.NArg() > 0 {
				return &usageError{fmt.Errorf("--version: unexpected argument %q", c.Args().First())}
			}
			return nil
		},
		Action: func(c *cli.Context) error {
			if c.Bool("version") {
				return printVersion(c)
			}
			return onlySubcommands(c)
		},
		Commands: []*cli.Command{
			{
				Name:         "serve",
				Usage:        "serve Jupyter's kernel API and print its URL",
				Flags:        all,
				OnUsageError: refuseUsage,
				Action: func(c *cli.Context) error {
					s, err := command(c, 0, read)
					if err != nil {
						return err
					}
					return newServer(s, c.App.Writer, newLogger(c.App.ErrWriter, s)).Run(c.Context)
				},
			},
			{
				Name:         "config",
				Usage:        "print the settings that serve would use, and where each comes from",
				Flags:        all,
				OnUsageError: refuseUsage,
				Subcommands:  []*cli.Command{movedCommand("import", "ekg-migrate config")},
				Action: func(c *cli.Context) error {
					s, err := command(c, 0, read)
					if err != nil {
						return err
					}
					return settings.Print(c.App.Writer, s)
				},
			},
			logCommand(read),
			tokenCommand(),
			kernelspecCommand(read),
			supervisorCommand(read),
			{Name: "version", Usage: "print version and commit", OnUsageError: refuseUsage, Action: printVersion},
		},
	}
	app.Commands = append(app.Commands, kernelCommands(read)...)
	app.Commands = append(app.Commands, runCommand(read), jobsCommand(read))
	app.Commands = append(app.Commands, usageCommand(read), topCommand(read), completionCommand())
	return app
}

func printVersion(c *cli.Context) error {
	if err := arguments(c, 0); err != nil {
		return err
	}
	_, err := fmt.Fprintln(c.App.Writer, buildinfo.Line("ekg", version))
	return err
}

// command checks the number of arguments and reads the settings.
func command(
	c *cli.Context,
	args int,
	read func(*cli.Context) (*settings.Settings, error),
) (*settings.Settings, error) {
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

// refuseUsage returns an error of the parser. For a flag that earlier builds had, it says what to use instead.
func refuseUsage(_ *cli.Context, err error, _ bool) error {
	if name, unknown := strings.CutPrefix(err.Error(), "flag provided but not defined: -"); unknown {
		if instead := settings.Removed(name); instead != "" {
			err = fmt.Errorf("--%s: was removed: %s", name, instead)
		}
	}
	return &usageError{err}
}

// onlySubcommands is the action of a command that does nothing by itself.
func onlySubcommands(c *cli.Context) error {
	if c.NArg() > 0 {
		return &usageError{fmt.Errorf("no command %q; see ekg --help", c.Args().First())}
	}
	return cli.ShowSubcommandHelp(c)
}

// movedCommand answers a command that another program has now.
func movedCommand(name, to string) *cli.Command {
	return &cli.Command{
		Name: name, Hidden: true, SkipFlagParsing: true,
		Action: func(c *cli.Context) error {
			return &usageError{fmt.Errorf("%s is no command: use %s, of the Python package ekg-migrate", c.Command.HelpName, to)}
		},
	}
}

// settingFlags returns --config and the flags of the named settings, or of all settings if no name is given.
func settingFlags(names ...string) []cli.Flag {
	var flags []cli.Flag
	for _, o := range settings.Options() {
		if len(names) == 0 || o.Name == "config" || slices.Contains(names, o.Name) {
			flags = append(flags, flagOf(o))
		}
	}
	return flags
}

// flagOf returns the command line's flag for an option. Load reads variables and defaults, since only it can tell them
// apart.
func flagOf(o settings.Option) cli.Flag {
	usage := o.Usage
	if len(o.Env) > 0 {
		usage += " [$" + strings.Join(o.Env, ", $") + "]"
	}
	switch o.Shape() {
	case settings.Many:
		return &cli.StringSliceFlag{Name: o.Name, Usage: usage, DefaultText: o.Default()}
	case settings.Toggle:
		return &toggleFlag{cli.BoolFlag{Name: o.Name, Usage: usage, DefaultText: o.Default()}}
	}
	return &cli.StringFlag{Name: o.Name, Usage: usage, DefaultText: o.Default()}
}

// toggleFlag is the flag of a setting that needs no value, such as --no-auth. It may have one: --no-auth=remote.
type toggleFlag struct{ cli.BoolFlag }

// Apply adds the flag to a set.
func (f *toggleFlag) Apply(set *flag.FlagSet) error {
	set.Var(new(toggleValue), f.Name, f.Usage)
	return nil
}

// toggleValue is the text of a toggleFlag. settings.Load checks it.
type toggleValue string

// Set implements flag.Value. The text is "true" without a value.
func (v *toggleValue) Set(t string) error { *v = toggleValue(t); return nil }

// Get implements flag.Getter.
func (v *toggleValue) Get() any { return string(*v) }

// String implements flag.Value.
func (v *toggleValue) String() string { return string(*v) }

// IsBoolFlag says to the parser that the flag needs no value.
func (v *toggleValue) IsBoolFlag() bool { return true }

// flagsOf returns a function that gives the texts of the command line's flags.
func flagsOf(c *cli.Context) func(name string) ([]string, bool) {
	return func(name string) ([]string, bool) {
		if !c.IsSet(name) {
			return nil, false
		}
		switch v := c.Value(name).(type) {
		case cli.StringSlice:
			return v.Value(), true
		case string:
			return []string{v}, true
		}
		return nil, false
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
