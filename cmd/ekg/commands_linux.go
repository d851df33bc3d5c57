package main

import (
	"flag"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/client"
	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
)

// program returns the program with the commands of a machine that runs gateways.
func program() client.Program {
	return client.Program{Version: version, Commands: commands(), Removed: settings.Removed}
}

// commands are those of a machine that runs gateways.
func commands() []*cli.Command {
	all := settingFlags()
	return []*cli.Command{
		{
			Name:        "serve",
			Usage:       "serve Jupyter's kernel API and print its URL",
			Description: "--help shows the settings that people use first, and --help-all shows all.",
			Flags: append(slices.Clone(all), &cli.BoolFlag{Name: "help-all",
				Usage: "show all settings, by task", DisableDefaultText: true}),
			Action: func(c *cli.Context) error {
				if c.Bool("help-all") {
					return printSettings(c.App.Writer)
				}
				s, err := command(c, 0)
				if err != nil {
					return err
				}
				return newServer(s, c.App.Writer, newLogger(c.App.ErrWriter, s)).Run(c.Context)
			},
		},
		{
			Name:        "config",
			Usage:       "print the settings that serve would use, and where each comes from",
			Description: "ekg serve --help-all shows all settings.",
			Flags:       all,
			Subcommands: []*cli.Command{client.MovedCommand("import", "ekg-migrate config")},
			Action: func(c *cli.Context) error {
				s, err := command(c, 0)
				if err != nil {
					return err
				}
				return settings.Print(c.App.Writer, s)
			},
		},
		kernelspecCommand(),
		supervisorCommand(),
	}
}

// printSettings prints the help of all settings, under the headings of docs/configuration.md.
func printSettings(w io.Writer) error {
	var texts []string
	for _, g := range settings.Groups() {
		help := &cli.Command{}
		for _, o := range g.Options {
			help.Flags = append(help.Flags, flagOf(o, false))
		}
		var text strings.Builder
		cli.HelpPrinter(&text, `{{template "visibleFlagTemplate" .}}`, help)
		texts = append(texts, strings.ToUpper(g.Heading)+":"+text.String()+"\n")
	}
	_, err := io.WriteString(w, strings.Join(texts, "\n"))
	return err
}

// command checks the number of arguments and reads the settings.
func command(c *cli.Context, args int) (*settings.Settings, error) {
	if err := client.Arguments(c, args); err != nil {
		return nil, err
	}
	return read(c)
}

// read reads the settings.
func read(c *cli.Context) (*settings.Settings, error) {
	s, err := settings.Load(settings.Sources{Flags: flagsOf(c), Getenv: os.Getenv})
	if err != nil {
		return nil, &client.UsageError{Err: err}
	}
	return s, nil
}

// settingFlags returns --config and the flags of the named settings, or of all settings if no name is given.
func settingFlags(names ...string) []cli.Flag {
	var flags []cli.Flag
	for _, o := range settings.Options() {
		if len(names) == 0 || o.Name == "config" || slices.Contains(names, o.Name) {
			flags = append(flags, flagOf(o, len(names) == 0 && !o.First()))
		}
	}
	return flags
}

// flagOf returns the command line's flag for an option. Load reads variables and defaults, since only it can tell them
// apart. The help leaves out a hidden flag.
func flagOf(o settings.Option, hidden bool) cli.Flag {
	usage := o.Usage
	if len(o.Env) > 0 {
		usage += " [$" + strings.Join(o.Env, ", $") + "]"
	}
	switch o.Shape() {
	case settings.Many:
		return &cli.StringSliceFlag{Name: o.Name, Usage: usage, DefaultText: o.Default(), Hidden: hidden}
	case settings.Toggle:
		return &toggleFlag{cli.BoolFlag{Name: o.Name, Usage: usage, DefaultText: o.Default(), Hidden: hidden}}
	}
	return &cli.StringFlag{Name: o.Name, Usage: usage, DefaultText: o.Default(), Hidden: hidden}
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
