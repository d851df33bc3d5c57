package client

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/urfave/cli/v2"
)

// definitionsCommand is `ekg jobs definitions`.
func definitionsCommand() *cli.Command {
	each := func(do func(context.Context, *kernelRun, *gatewayClient, string) error) cli.ActionFunc {
		return func(c *cli.Context) error { return onKernels(c, 1, -1, definitionList.each(do)) }
	}
	command := &cli.Command{
		Name: "definitions", Usage: "list and change job definitions, for example schedules",
		Flags:  []cli.Flag{outputFlag},
		Action: func(c *cli.Context) error { return onKernels(c, 0, 0, listDefinitions) },
		Subcommands: []*cli.Command{
			{Name: "pause", Usage: "stop the schedules of definitions", Action: each(activate(false))},
			{Name: "resume", Usage: "start the schedules of definitions again", Action: each(activate(true))},
			{Name: "run", Usage: "submit a job of each definition now, and print its id", Action: each(runDefinition)},
			{Name: "rm", Usage: "remove definitions. Their jobs stay", Action: each(removeDefinition)},
		},
	}
	for _, sub := range command.Subcommands {
		sub.ArgsUsage = "DEFINITION..."
		sub.Description = "DEFINITION is a definition's id or the beginning of one."
	}
	giveGatewayFlags(command)
	return command
}

var definitionList = listing[definitionRow]{"api/jobs/definitions", "job definition", "ekg jobs definitions"}

// definitionRow is a definition as the gateway shows it, as much of it as tables show.
type definitionRow struct {
	ID         string    `json:"id"`
	Name       string    `json:"name"`
	Kernelspec string    `json:"kernelspec"`
	Flavor     string    `json:"flavor"`
	Owner      string    `json:"owner"`
	WorkingDir string    `json:"working_dir"`
	Schedule   string    `json:"schedule"` // "": it makes jobs on request only
	Timezone   string    `json:"timezone"` // "": UTC
	Active     bool      `json:"active"`
	Created    time.Time `json:"created"`
	Next       time.Time `json:"next"` // when it is due next
	Due        time.Time `json:"due"`  // when it was due last
	Job        string    `json:"job_id"`
	Reason     string    `json:"reason"` // why no job was made then

	whole json.RawMessage
}

// UnmarshalJSON reads a definition and keeps all of it.
func (d *definitionRow) UnmarshalJSON(b []byte) error {
	type fields definitionRow // without this method
	*d = definitionRow{whole: slices.Clone(b)}
	return json.Unmarshal(b, (*fields)(d))
}

func (d definitionRow) id() string             { return d.ID }
func (d definitionRow) created() time.Time     { return d.Created }
func (d definitionRow) model() json.RawMessage { return d.whole }

// listDefinitions is `ekg jobs definitions`.
func listDefinitions(ctx context.Context, r *kernelRun) error {
	all, _, err := definitionList.all(ctx, r)
	if err != nil {
		return err
	}
	return r.format.printDefinitions(r.c.App.Writer, all, time.Now())
}

func activate(active bool) func(context.Context, *kernelRun, *gatewayClient, string) error {
	return func(ctx context.Context, r *kernelRun, g *gatewayClient, id string) error {
		return r.changes(ctx, g, http.MethodPatch, "api/jobs/definitions/"+id, map[string]any{"active": active}, id)
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
	return r.changes(ctx, g, http.MethodDelete, "api/jobs/definitions/"+id, nil, id)
}

// printDefinitions prints a list of definitions.
func (f outputFormat) printDefinitions(w io.Writer, all []definitionRow, now time.Time) error {
	return definitionList.print(w, f, all, func() [][]string { return definitionLines(all, now, f == formatWide) })
}

func definitionLines(all []definitionRow, now time.Time, wide bool) [][]string {
	head := []string{"DEFINITION", "NAME", "SCHEDULE", "TIMEZONE", "STATE", "NEXT", "LAST", "REASON"}
	if wide {
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
		if wide {
			cells = append(cells, cmp.Or(d.Owner, "-"), d.Kernelspec, cmp.Or(d.Flavor, "-"), cmp.Or(d.Job, "-"))
		}
		lines = append(lines, append(cells, cmp.Or(d.Reason, "-")))
	}
	return lines
}
