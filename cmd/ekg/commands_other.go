//go:build !linux

package main

import (
	"errors"

	"github.com/urfave/cli/v2"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/client"
)

// removed is for flags of serve, which this machine does not run.
func removed(string) string { return "" }

// commands are those of a machine that runs no gateway.
func commands() []*cli.Command {
	return []*cli.Command{
		{
			Name: "serve", Usage: "runs on Linux only", SkipFlagParsing: true,
			Action: func(*cli.Context) error { return errors.New("ekg serve runs on Linux only") },
		},
		client.KernelspecCommand(client.FlagsOfSpecs()),
	}
}
