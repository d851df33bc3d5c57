package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/enterprise"
)

// importCommand is `ekg config import`. It parses its arguments itself, since most are Enterprise Gateway's options.
func importCommand(stdin io.Reader) *cli.Command {
	return &cli.Command{
		Name:  "import",
		Usage: "translate settings of Jupyter Enterprise Gateway 3, and print a file for --config",
		UsageText: "ekg config import [--chart] [--token-file NEWFILE] " +
			"[FILE | --CLASS.TRAIT=VALUE | NAME=VALUE | -] ...",
		SkipFlagParsing: true,
		OnUsageError:    refuseUsage,
		Description: "FILE is a jupyter_enterprise_gateway_config.py or .json, or has variables as lines NAME=VALUE; " +
			"- reads such lines from stdin.\nPython is parsed and never executed. Only assignments of constants are read; " +
			"comments of the output name everything else.\nThe token is written to NEWFILE with mode 0600, and nowhere else.",
		Action: func(c *cli.Context) error {
			if first := c.Args().First(); first == "--help" || first == "-h" {
				return cli.ShowSubcommandHelp(c)
			}
			return importSettings(c.Args().Slice(), stdin, c.App.Writer, c.App.ErrWriter)
		},
	}
}

func importSettings(args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	tokenFile, args, err := cutTokenFile(args)
	if err != nil {
		return &usageError{err}
	}
	given := len(args)
	args = slices.DeleteFunc(args, func(arg string) bool { return arg == "--chart" }) // no option of Enterprise Gateway
	chart := len(args) < given
	if len(args) == 0 {
		return &usageError{errors.New("ekg config import: an argument is missing; see ekg config import --help")}
	}
	var im enterprise.Import
	if err := im.Arguments(args, stdin); err != nil {
		return &usageError{err}
	}
	if tokenFile != "" {
		if err := writeToken(&im, tokenFile); err != nil {
			return err
		}
	}
	write := im.Write
	if chart {
		write = im.WriteChart
	}
	done, err := write(stdout, tokenFile)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stderr, "ekg: settings: %d; without a counterpart: %d; not read: %d\n",
		done.Settings, done.Unmatched, done.Unreadable)
	return err
}

// cutTokenFile takes --token-file out of the arguments. The path is made absolute.
func cutTokenFile(args []string) (file string, rest []string, err error) {
	for i := 0; i < len(args); i++ {
		v, ok := strings.CutPrefix(args[i], "--token-file=")
		switch {
		case ok:
		case args[i] == "--token-file" && i+1 < len(args):
			i++
			v = args[i]
		default:
			rest = append(rest, args[i])
			continue
		}
		if v == "" {
			return "", nil, errors.New("--token-file: is empty")
		}
		if file, err = filepath.Abs(v); err != nil {
			return "", nil, err
		}
	}
	return file, rest, nil
}

// writeToken creates a file with the token that only this user can read. It replaces no file.
func writeToken(im *enterprise.Import, path string) error {
	token, _ := im.Token()
	if token == "" {
		return errors.New("--token-file: no token was given")
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("--token-file: %w", err)
	}
	_, err = io.WriteString(f, token+"\n")
	return errors.Join(err, f.Close())
}
