package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube"
)

// What `kernelspec render` shows where nothing is said: it needs no gateway and no cluster.
const (
	renderedNamespace  = "default"
	renderedSupervisor = "ekg"
	renderedKernel     = "00000000-0000-4000-8000-000000000000"
)

// kernelspecCommand is `ekg kernelspec`.
func kernelspecCommand(read func(*cli.Context) (*settings, error)) *cli.Command {
	flags := func(names ...string) []cli.Flag {
		list := []cli.Flag{configOption.flag()}
		for _, name := range names {
			o, ok := optionNamed(name)
			if !ok {
				panic("there is no option " + name)
			}
			list = append(list, o.flag())
		}
		return list
	}
	return &cli.Command{
		Name: "kernelspec", Usage: "see and check what kernels can be started", OnUsageError: refuseUsage, Action: onlySubcommands,
		Subcommands: []*cli.Command{
			{Name: "list", Usage: "list the kernels that can be started", Flags: flags("kernelspec-dir"), OnUsageError: refuseUsage,
				Action: func(c *cli.Context) error {
					s, err := command(c, 0, read)
					if err != nil {
						return err
					}
					return listSpecs(c.Context, s, c.App.Writer, c.App.ErrWriter)
				}},
			{Name: "check", Usage: "examine the kernelspec in DIR, or all kernelspecs below it", ArgsUsage: "DIR", Flags: flags("kube-policy"),
				OnUsageError: refuseUsage,
				Action: func(c *cli.Context) error {
					s, err := command(c, 1, read)
					if err != nil {
						return err
					}
					return checkSpecs(c.Context, s, c.Args().First(), c.App.Writer)
				}},
			{Name: "render", Usage: "print the pod and the secret that a client would get for the kernelspec NAME", ArgsUsage: "NAME", OnUsageError: refuseUsage,
				Flags: append(flags("kernelspec-dir", "kube-policy", "supervisor-image", "kernel-image", "kube-namespace", "log-limit", "stop-grace"),
					&cli.StringSliceFlag{Name: "env", Usage: "variable that the client sends, as `NAME=VALUE`; repeatable"}),
				Action: func(c *cli.Context) error {
					s, err := command(c, 1, read)
					if err != nil {
						return err
					}
					return renderSpec(c.Context, s, c.Args().First(), c.StringSlice("env"), c.App.Writer)
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
		if _, err := fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", spec.Name, kernelspecs.Printable(spec.DisplayName),
			kernelspecs.Printable(spec.Language), kernelspecs.Printable(spec.Dir)); err != nil {
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
func checkSpecs(ctx context.Context, s *settings, dir string, stdout io.Writer) error {
	pods, err := s.renderedPods()
	if err != nil {
		return err
	}
	problems := kernelspecs.Check(dir, kernelspecs.FindEnvironment(ctx, os.Getenv).Prefix, pods.Check())
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

// renderedPods are the options of pods that nobody starts.
func (s *settings) renderedPods() (kube.PodOptions, error) {
	if s.supervisorImage == "" {
		s.supervisorImage = renderedSupervisor
	}
	o, err := s.podOptions(renderedNamespace)
	if err != nil {
		return o, &usageError{err}
	}
	return o, nil
}

// renderSpec prints what a request for a kernelspec would make of it.
func renderSpec(ctx context.Context, s *settings, name string, variables []string, stdout io.Writer) (err error) {
	pods, err := s.renderedPods()
	if err != nil {
		return err
	}
	req := launcher.Request{ID: renderedKernel, Env: map[string]string{}}
	for _, v := range variables {
		key, value, ok := strings.Cut(v, "=")
		if !ok || checkEnvName(key) != nil {
			return &usageError{fmt.Errorf("--env: %q is not NAME=VALUE", v)}
		}
		req.Env[key] = value
	}
	if dir := req.Env["KERNEL_WORKING_DIR"]; filepath.IsAbs(dir) {
		req.WorkingDir = dir
	}
	specs, err := openSpecs(ctx, s, discard)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, specs.Close()) }()
	found := false
	if req.Spec, found = specs.Get(name); !found {
		err := fmt.Errorf("there is no kernelspec %s", name)
		for _, p := range specs.Problems() {
			if p.Spec == strings.ToLower(name) {
				err = errors.Join(err, errors.New(p.String()))
			}
		}
		return err
	}
	text, err := kube.Render(pods, req, time.Time{})
	if err != nil {
		return err
	}
	_, err = stdout.Write(text)
	return err
}
