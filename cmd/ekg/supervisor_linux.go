package main

import (
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/client"
	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
	"github.com/elastic-kernel-gateway/ekg/launcher/local"
)

// supervisorCommand is `ekg supervisor`.
func supervisorCommand() *cli.Command {
	return &cli.Command{
		Name: "supervisor", Usage: "replace the supervisors of running kernels: subcommand upgrade",
		Action: client.OnlySubcommands,
		Subcommands: []*cli.Command{{
			Name: "upgrade", Usage: "replace the supervisors of running kernels by the installed version",
			ArgsUsage: "[KERNEL...]",
			Description: "KERNEL is a kernel's id. The kernels of this machine keep running, with their variables. Each gets\n" +
				"a new supervisor, which runs the installed ekg-supervisor and begins with an empty log. A pod's\n" +
				"supervisor cannot be replaced: its kernel gets a new one when it is started again.",
			Flags: append([]cli.Flag{
				&cli.BoolFlag{Name: "all", Usage: "all kernels of the state directory"},
				&cli.BoolFlag{Name: "busy", Usage: "also kernels that are busy, or whose pages have not received all output. " +
					"That output is lost, and so is what the kernel prints in about 50 ms. The cells say so"},
			}, settingFlags("state-dir", "supervisor", "launcher")...),
			Action: func(c *cli.Context) error {
				s, err := read(c)
				if err != nil {
					return err
				}
				return upgradeSupervisors(c, s)
			},
		}},
	}
}

// upgradeSupervisors is `ekg supervisor upgrade`. It prints a line for each kernel.
func upgradeSupervisors(c *cli.Context, s *settings.Settings) error {
	ids, all := c.Args().Slice(), c.Bool("all")
	switch {
	case s.Launcher != "local":
		return &client.UsageError{Err: fmt.Errorf("%s: only kernels of this machine can get another supervisor; "+
			"in a pod the image fixes the program", s.Place("launcher"))}
	case all == (len(ids) > 0):
		return &client.UsageError{Err: fmt.Errorf("%s: name kernels, or all of them with --all", c.Command.HelpName)}
	}
	program, err := findSupervisor(s)
	if err != nil {
		return err
	}
	u := local.Upgrades{StateDir: s.Local.StateDir, Program: program, Busy: c.Bool("busy")}
	if all {
		if ids, err = u.Kernels(); err != nil {
			return fmt.Errorf("%s: %w", s.Place("state-dir"), err)
		}
	}
	failed := 0
	for _, id := range ids {
		done, err := u.Kernel(c.Context, id)
		text := fmt.Sprintf("upgraded from %s to %s", done.From, done.To)
		switch {
		case err != nil:
			failed++
			text = "not upgraded: " + err.Error()
		case done.Already:
			text = "runs " + done.To + " already"
		}
		if _, err := fmt.Fprintf(c.App.Writer, "%s %s\n", id, text); err != nil {
			return err
		}
	}
	if failed > 0 {
		return errors.New("some supervisors were not upgraded")
	}
	return nil
}
