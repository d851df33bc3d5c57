//go:build !linux

package main

import (
	"errors"

	"github.com/urfave/cli/v2"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/client"
)

// program returns the program with the commands of a machine that runs no gateway.
func program() client.Program {
	return client.Program{Version: version, Commands: []*cli.Command{
		{
			Name: "serve", Usage: "runs on Linux only", SkipFlagParsing: true,
			Action: func(*cli.Context) error { return errors.New("ekg serve runs on Linux only") },
		},
		client.KernelspecCommand(client.FlagsOfSpecs()),
	}}
}
