package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/client"
	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
)

// Values that `kernelspec render` uses for missing settings. It needs no gateway and no cluster.
const (
	renderedNamespace  = "default"
	renderedSupervisor = "ekg"
	renderedKernel     = "00000000-0000-4000-8000-000000000000"
)

// kernelspecCommand is `ekg kernelspec`, with the settings of a gateway.
func kernelspecCommand() *cli.Command {
	return client.KernelspecCommand(client.KernelspecSettings{
		ListFlags: settingFlags("kernelspec-dir", "allowed-kernelspec"),
		List: func(c *cli.Context) (kernelspecs.Options, error) {
			s, err := read(c)
			if err != nil {
				return kernelspecs.Options{}, err
			}
			return specOptions(s), nil
		},
		CheckFlags: settingFlags("flavors", "kube-policy"),
		Check: func(c *cli.Context) (kernelspecs.Options, error) {
			s, err := read(c)
			if err != nil {
				return kernelspecs.Options{}, err
			}
			pods, err := renderedPods(s)
			if err != nil {
				return kernelspecs.Options{}, err
			}
			flavors, err := flavorsByName(s)
			return kernelspecs.Options{Check: pods.Check(flavors)}, err
		},
	}, &cli.Command{
		Name:      "render",
		Usage:     "print the pod and the secret of a kernel of the kernelspec NAME, without starting it",
		ArgsUsage: "NAME",
		Flags: append(settingFlags("kernelspec-dir", "flavors", "kube-policy", "supervisor-image", "kernel-image",
			"kube-namespace", "log-limit", "stop-grace"),
			&cli.StringSliceFlag{Name: "env", Usage: "variable that the client sends, as `NAME=VALUE`; repeatable"},
			&cli.StringFlag{Name: "user", Usage: "`NAME` of the client's user; default: none, as on a gateway without users"}),
		Action: func(c *cli.Context) error {
			s, err := command(c, 1)
			if err != nil {
				return err
			}
			return renderSpec(c.Context, s, c.Args().First(), c.String("user"), c.StringSlice("env"), c.App.Writer)
		},
	})
}

// openSpecs finds the kernelspecs of the settings. check returns further problems of a kernelspec; nil: it has none.
func openSpecs(
	ctx context.Context,
	s *settings.Settings,
	check func(kernelspecs.Spec) []kernelspecs.Problem,
	log *slog.Logger,
) (*kernelspecs.Finder, error) {
	o := specOptions(s)
	o.Check, o.Log = check, log
	return client.OpenSpecs(ctx, o)
}

// specOptions returns the settings of kernelspecs.
func specOptions(s *settings.Settings) kernelspecs.Options {
	o := s.Specs
	o.Users = s.SpecUsers()
	return o
}

// flavorsByName returns the flavors of the settings, nil without a file.
func flavorsByName(s *settings.Settings) (map[string]flavor.Flavor, error) {
	file, err := openFlavors(s, discard)
	if err != nil {
		return nil, &client.UsageError{Err: err}
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
func renderedPods(s *settings.Settings) (podbuild.Options, error) {
	if s.Pods.SupervisorImage == "" {
		s.Pods.SupervisorImage = renderedSupervisor
	}
	o, err := podOptions(s, renderedNamespace)
	if err != nil {
		return o, &client.UsageError{Err: err}
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
			return &client.UsageError{Err: fmt.Errorf("--user: the name %w", err)}
		}
	}
	req := launcher.Request{ID: renderedKernel, Owner: user, Env: map[string]string{}}
	for _, v := range variables {
		key, value, ok := strings.Cut(v, "=")
		if !ok || settings.CheckEnvName(key) != nil {
			return &client.UsageError{Err: fmt.Errorf("--env: %q is not NAME=VALUE", v)}
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
	text, err := podbuild.Render(pods, req, time.Time{})
	if err != nil {
		return err
	}
	_, err = stdout.Write(text)
	return err
}
