package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// Values that `kernelspec render` uses for missing settings. It needs no gateway and no cluster.
const (
	renderedNamespace  = "default"
	renderedSupervisor = "ekg"
	renderedKernel     = "00000000-0000-4000-8000-000000000000"
)

// kernelspecCommand is `ekg kernelspec`.
func kernelspecCommand(read func(*cli.Context) (*settings.Settings, error)) *cli.Command {
	return &cli.Command{
		Name: "kernelspec", Usage: "list, check and render kernelspecs",
		OnUsageError: refuseUsage, Action: onlySubcommands,
		Subcommands: []*cli.Command{
			movedCommand("convert", "ekg-migrate kernelspec"),
			{
				Name:         "list",
				Usage:        "list the kernels that can be started",
				Flags:        settingFlags("kernelspec-dir", "allowed-kernelspec"),
				OnUsageError: refuseUsage,
				Action: func(c *cli.Context) error {
					s, err := command(c, 0, read)
					if err != nil {
						return err
					}
					return listSpecs(c.Context, s, c.App.Writer, c.App.ErrWriter)
				},
			},
			{
				Name:      "check",
				Usage:     "check the kernelspec in DIR, or all kernelspecs below it",
				ArgsUsage: "DIR",
				Flags: append(settingFlags("flavors", "kube-policy"),
					&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT`: json, for programs"}),
				OnUsageError: refuseUsage,
				Action: func(c *cli.Context) error {
					s, err := command(c, 1, read)
					if err != nil {
						return err
					}
					if format := c.String("output"); format != "" && format != string(formatJSON) {
						return &usageError{fmt.Errorf("--output %q is not json", format)}
					}
					return checkSpecs(c.Context, s, c.Args().First(), c.String("output") != "", c.App.Writer)
				},
			},
			{
				Name:         "render",
				Usage:        "print the pod and the secret of a kernel of the kernelspec NAME, without starting it",
				ArgsUsage:    "NAME",
				OnUsageError: refuseUsage,
				Flags: append(settingFlags("kernelspec-dir", "flavors", "kube-policy", "supervisor-image", "kernel-image",
					"kube-namespace", "log-limit", "stop-grace"),
					&cli.StringSliceFlag{Name: "env", Usage: "variable that the client sends, as `NAME=VALUE`; repeatable"},
					&cli.StringFlag{Name: "user", Usage: "`NAME` of the client's user; default: none, as on a gateway without users"}),
				Action: func(c *cli.Context) error {
					s, err := command(c, 1, read)
					if err != nil {
						return err
					}
					return renderSpec(c.Context, s, c.Args().First(), c.String("user"), c.StringSlice("env"), c.App.Writer)
				},
			},
		},
	}
}

// openSpecs finds the kernelspecs of the settings. check returns further problems of a kernelspec; nil: it has none.
func openSpecs(
	ctx context.Context,
	s *settings.Settings,
	check func(kernelspecs.Spec) []kernelspecs.Problem,
	log *slog.Logger,
) (*kernelspecs.Finder, error) {
	env := kernelspecs.FindEnvironment(ctx, os.Getenv)
	return kernelspecs.Open(kernelspecs.Options{
		Dirs: s.KernelspecDirs, DataDirs: env.DataDirs, Prefix: env.Prefix, Check: check, Log: log, Users: s.SpecUsers(),
		Allowed: s.AllowedKernelspecs,
	})
}

// listSpecs prints the usable specs on stdout, and faults of other specs on stderr.
func listSpecs(ctx context.Context, s *settings.Settings, stdout, stderr io.Writer) (err error) {
	specs, err := openSpecs(ctx, s, nil, discard)
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
	problems := specs.Problems()
	for _, spec := range specs.List() {
		problems = append(slices.Clip(problems), spec.Warnings...)
	}
	for _, p := range problems {
		if _, err := fmt.Fprintln(stderr, "ekg:", p); err != nil {
			return err
		}
	}
	return nil
}

// checkSpecs prints the faults of the specs in a directory, and warnings. It returns an error if there are any faults.
func checkSpecs(ctx context.Context, s *settings.Settings, dir string, asJSON bool, stdout io.Writer) error {
	pods, err := renderedPods(s)
	if err != nil {
		return err
	}
	flavors, err := flavorsByName(s)
	if err != nil {
		return err
	}
	problems := kernelspecs.Check(dir, kernelspecs.FindEnvironment(ctx, os.Getenv).Prefix, pods.CheckWith(flavors))
	if err := printProblems(stdout, problems, asJSON); err != nil {
		return err
	}
	n := 0
	for _, p := range problems {
		if !p.Warning {
			n++
		}
	}
	switch n {
	case 0:
		if len(problems) > 0 || asJSON {
			return nil
		}
		_, err := fmt.Fprintf(stdout, "%s: nothing wrong\n", dir)
		return err
	case 1:
		return errors.New("1 problem")
	default:
		return fmt.Errorf("%d problems", n)
	}
}

// printedProblem is a kernelspecs.Problem in JSON.
type printedProblem struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Key     string `json:"key"`
	Message string `json:"message"`
	Warning bool   `json:"warning"`
}

// printProblems prints a line for each problem, or one array in JSON.
func printProblems(w io.Writer, problems []kernelspecs.Problem, asJSON bool) error {
	if !asJSON {
		for _, p := range problems {
			if _, err := fmt.Fprintln(w, p); err != nil {
				return err
			}
		}
		return nil
	}
	list := make([]printedProblem, len(problems))
	for i, p := range problems {
		list[i] = printedProblem{p.File, p.Line, p.Key, p.Message, p.Warning}
	}
	return json.NewEncoder(w).Encode(list)
}

// flavorsByName returns the flavors of the settings, nil without a file.
func flavorsByName(s *settings.Settings) (map[string]flavor.Flavor, error) {
	file, err := openFlavors(s, discard)
	if err != nil {
		return nil, &usageError{err}
	}
	if file == nil {
		return nil, nil
	}
	all := map[string]flavor.Flavor{}
	for _, f := range file.List() {
		all[f.Name] = f
	}
	return all, nil
}

// setFlavor gives a start the flavor that the client or the kernelspec names. Without --flavors it does nothing.
func setFlavor(s *settings.Settings, req *launcher.Request) error {
	flavors, err := flavorsByName(s)
	if flavors == nil || err != nil {
		return err
	}
	ext, err := req.Spec.Extension()
	if err != nil {
		return err
	}
	name := cmp.Or(req.Env["KERNEL_FLAVOR"], ext.Flavor)
	if name == "" {
		return nil
	}
	f, known := flavors[name]
	if !known {
		return fmt.Errorf("the flavor %q is not in %s", name, s.Flavors)
	}
	req.Flavor = &f
	return nil
}

// renderedPods returns the options of pods that are only printed.
func renderedPods(s *settings.Settings) (podspec.Options, error) {
	if s.SupervisorImage == "" {
		s.SupervisorImage = renderedSupervisor
	}
	o, err := podOptions(s, renderedNamespace)
	if err != nil {
		return o, &usageError{err}
	}
	return o, nil
}

// renderSpec prints the pod that a user's request for a kernelspec would create.
func renderSpec(
	ctx context.Context,
	s *settings.Settings,
	name string,
	user string,
	variables []string,
	stdout io.Writer,
) (err error) {
	pods, err := renderedPods(s)
	if err != nil {
		return err
	}
	if user != "" {
		if err := identity.CheckName(user); err != nil {
			return &usageError{fmt.Errorf("--user: the name %w", err)}
		}
	}
	req := launcher.Request{ID: renderedKernel, Owner: user, Env: map[string]string{}}
	for _, v := range variables {
		key, value, ok := strings.Cut(v, "=")
		if !ok || settings.CheckEnvName(key) != nil {
			return &usageError{fmt.Errorf("--env: %q is not NAME=VALUE", v)}
		}
		req.Env[key] = value
	}
	if user != "" {
		req.Env["KERNEL_USERNAME"] = user
	}
	if err := req.ParseEnv(); err != nil {
		return fmt.Errorf("--env: %w", err)
	}
	specs, err := openSpecs(ctx, s, nil, discard)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, specs.Close()) }()
	found := false
	if req.Spec, found = specs.Get(name); !found {
		err := fmt.Errorf("no kernelspec %s", name)
		for _, p := range specs.Problems() {
			if p.Spec == strings.ToLower(name) {
				err = errors.Join(err, errors.New(p.String()))
			}
		}
		return err
	}
	if profile := req.Env[kernelspecs.ProfileVariable]; profile != "" && len(req.Spec.Profiles()) > 0 {
		with, ok, err := req.Spec.WithProfile(profile)
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("the kernelspec %s has no profile %q", name, profile)
		}
		req.Spec = with
	}
	if err := setFlavor(s, &req); err != nil {
		return err
	}
	text, err := podspec.Render(pods, req, time.Time{})
	if err != nil {
		return err
	}
	_, err = stdout.Write(text)
	return err
}
