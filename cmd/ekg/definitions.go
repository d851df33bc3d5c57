package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
	"github.com/elastic-kernel-gateway/ekg/gateway/jobs"
)

// definitionsCommand is `ekg jobs definitions`.
func definitionsCommand(read func(*cli.Context) (*settings.Settings, error)) *cli.Command {
	each := func(do func(context.Context, *kernelRun, *gatewayClient, string) error) cli.ActionFunc {
		return func(c *cli.Context) error { return onGateways(c, read, 1, -1, eachDefinition(do)) }
	}
	command := &cli.Command{
		Name: "definitions", Usage: "list job definitions, as schedules, and change them",
		Flags:  []cli.Flag{outputFlag},
		Action: func(c *cli.Context) error { return onKernels(c, read, 0, 0, listDefinitions) },
		Subcommands: []*cli.Command{
			{Name: "pause", Usage: "stop the schedules of definitions", Action: each(activate(false))},
			{Name: "resume", Usage: "let the schedules of definitions begin again", Action: each(activate(true))},
			{Name: "run", Usage: "make a job of each definition now, and print its id", Action: each(runDefinition)},
			{Name: "rm", Usage: "remove definitions. Jobs that they have made stay", Action: each(removeDefinition)},
		},
	}
	for _, sub := range command.Subcommands {
		sub.ArgsUsage = "DEFINITION..."
		sub.Description = "DEFINITION is a definition's id or the beginning of one."
	}
	for _, c := range append([]*cli.Command{command}, command.Subcommands...) {
		c.OnUsageError = refuseUsage
		c.Flags = append(c.Flags, append(gatewayFlags(), settingFlags("state-dir")...)...)
	}
	return command
}

// definitionRow is a definition as the gateway shows it.
type definitionRow struct {
	jobs.Definition

	whole json.RawMessage
}

// UnmarshalJSON reads a definition and keeps all of it.
func (d *definitionRow) UnmarshalJSON(b []byte) error {
	d.Definition = jobs.Definition{}
	d.whole = slices.Clone(b)
	return json.Unmarshal(b, &d.Definition)
}

// allDefinitions lists the definitions of all gateways, each once.
func (r *kernelRun) allDefinitions(
	ctx context.Context,
) (all []definitionRow, at map[string]*gatewayClient, err error) {
	at = map[string]*gatewayClient{}
	for _, g := range r.gateways {
		var list []definitionRow
		if err := g.read(ctx, "api/jobs/definitions", nil, "the list of job definitions", &list); err != nil {
			return nil, nil, err
		}
		for _, d := range list {
			if at[d.ID] == nil {
				at[d.ID] = g
				all = append(all, d)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b definitionRow) int { return a.Created.Compare(b.Created) })
	return all, at, nil
}

// listDefinitions is `ekg jobs definitions`.
func listDefinitions(ctx context.Context, r *kernelRun) error {
	all, _, err := r.allDefinitions(ctx)
	if err != nil {
		return err
	}
	return r.format.printDefinitions(r.c.App.Writer, all, time.Now())
}

// eachDefinition returns a command for each definition of its arguments. It goes on after a failure.
func eachDefinition(
	do func(ctx context.Context, r *kernelRun, g *gatewayClient, id string) error,
) func(context.Context, *kernelRun) error {
	return func(ctx context.Context, r *kernelRun) error {
		all, at, err := r.allDefinitions(ctx)
		if err != nil {
			return err
		}
		var errs []error
		for _, name := range r.c.Args().Slice() {
			id, err := matchDefinition(all, name)
			if err == nil {
				err = do(ctx, r, at[id], id)
			}
			if errs = append(errs, err); ctx.Err() != nil {
				break
			}
		}
		return errors.Join(errs...)
	}
}

// matchDefinition returns the id of the definition that a text begins.
func matchDefinition(all []definitionRow, text string) (string, error) {
	var ids []string
	for _, d := range all {
		if strings.HasPrefix(d.ID, text) {
			ids = append(ids, d.ID)
		}
	}
	switch len(ids) {
	case 0:
		return "", fmt.Errorf("no job definition %q; see ekg jobs definitions", text)
	case 1:
		return ids[0], nil
	}
	return "", fmt.Errorf("%q is the beginning of several job definitions: %s", text, strings.Join(ids, ", "))
}

func activate(active bool) func(context.Context, *kernelRun, *gatewayClient, string) error {
	return func(ctx context.Context, r *kernelRun, g *gatewayClient, id string) error {
		body := map[string]any{"active": active}
		if err := g.change(ctx, http.MethodPatch, "api/jobs/definitions/"+id, body, nil); err != nil {
			return err
		}
		_, err := fmt.Fprintln(r.c.App.Writer, id)
		return err
	}
}

func runDefinition(ctx context.Context, r *kernelRun, g *gatewayClient, id string) error {
	var job jobRow
	err := g.change(ctx, http.MethodPost, "api/jobs/definitions/"+id+"/jobs", map[string]any{}, &job)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(r.c.App.Writer, job.ID)
	return err
}

func removeDefinition(ctx context.Context, r *kernelRun, g *gatewayClient, id string) error {
	if err := g.change(ctx, http.MethodDelete, "api/jobs/definitions/"+id, nil, nil); err != nil {
		return err
	}
	_, err := fmt.Fprintln(r.c.App.Writer, id)
	return err
}

// printDefinitions prints a list of definitions.
func (f outputFormat) printDefinitions(w io.Writer, all []definitionRow, now time.Time) error {
	ids, whole := make([]string, len(all)), make([]json.RawMessage, len(all))
	for i, d := range all {
		ids[i], whole[i] = d.ID, d.whole
	}
	if printed, err := f.printModels(w, ids, whole); printed {
		return err
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "No job definitions.")
		return err
	}
	head := []string{"DEFINITION", "NAME", "SCHEDULE", "TIMEZONE", "STATE", "NEXT", "LAST", "REASON"}
	if f == formatWide {
		head = []string{"DEFINITION", "NAME", "SCHEDULE", "TIMEZONE", "STATE", "NEXT", "LAST", "OWNER", "SPEC", "FLAVOR",
			"JOB", "REASON"}
	}
	lines := [][]string{head}
	for _, d := range all {
		state := "active"
		if !d.Active {
			state = "paused"
		}
		zone, next, last := "-", "-", "-"
		if d.Schedule != "" {
			zone = cmp.Or(d.Timezone, "UTC")
		}
		if !d.Next.IsZero() {
			next = d.Next.Local().Format("2006-01-02 15:04 MST")
		}
		if !d.Due.IsZero() {
			last = age(now, d.Due) + " ago"
		}
		cells := []string{d.ID, d.Name, cmp.Or(d.Schedule, "-"), zone, state, next, last}
		if f == formatWide {
			cells = append(cells, cmp.Or(d.Owner, "-"), d.Kernelspec, cmp.Or(d.Flavor, "-"), cmp.Or(d.Job, "-"))
		}
		lines = append(lines, append(cells, cmp.Or(d.Reason, "-")))
	}
	return writeTable(w, lines)
}
