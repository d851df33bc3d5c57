package client

import (
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

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// Bounds of the commands about kernels.
const (
	// changeTime is longer than a gateway takes for a start, a restart or a stop.
	changeTime = 2 * time.Minute
	// refreshPause is the time between two tables of --watch.
	refreshPause = 2 * time.Second
)

// startFlags are those of commands that start a kernel.
func startFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "flavor", Usage: "`NAME` of the flavor, the GPU that the kernel gets; see docs/gpus.md"},
		&cli.StringSliceFlag{Name: "env", Usage: "a variable of the kernel, `NAME=VALUE`. Can be repeated"},
	}
}

// kernelCommands are `ekg ps` and the commands that change kernels.
func kernelCommands() []*cli.Command {
	all := []*cli.Command{
		{
			Name: "ps", Usage: "list kernels",
			Flags: []cli.Flag{&cli.BoolFlag{Name: "watch", Aliases: []string{"w"},
				Usage: "print the list again every 2 seconds, until Ctrl-C"}},
			Action: func(c *cli.Context) error { return onKernels(c, 0, 0, refreshed(listKernels)) },
		},
		{
			Name: "start", Usage: "start a kernel and print its id", ArgsUsage: "[KERNELSPEC]",
			Description: "Without KERNELSPEC, the gateway starts its default kernelspec. The command ends when the kernel is\n" +
				"up, or after the gateway's --start-wait, when the kernel may still be starting. --wait waits longer.",
			Flags: append(startFlags(),
				&cli.BoolFlag{Name: "wait", Usage: "wait until the kernel is up or has failed"}),
			Action: func(c *cli.Context) error { return onKernels(c, 0, 1, startKernel) },
		},
		{
			Name: "stop", Usage: "end kernels", ArgsUsage: "KERNEL...",
			Action: func(c *cli.Context) error { return onKernels(c, 1, -1, eachKernel(stopKernel)) },
		},
		{
			Name: "restart", Usage: "restart kernels: their variables are lost", ArgsUsage: "KERNEL...",
			Action: func(c *cli.Context) error { return onKernels(c, 1, -1, eachKernel(restartKernel)) },
		},
		{
			Name: "interrupt", Usage: "interrupt the running cells of kernels", ArgsUsage: "KERNEL...",
			Action: func(c *cli.Context) error { return onKernels(c, 1, -1, eachKernel(interruptKernel)) },
		},
		{
			Name: "keep", Usage: "keep kernels from being culled", ArgsUsage: "KERNEL...",
			Flags: []cli.Flag{
				&cli.DurationFlag{Name: "for", Value: 8 * time.Hour, Usage: "how `LONG`, at most the gateway's --cull-keep-limit"},
				&cli.BoolFlag{Name: "off", Usage: "let them be culled again"},
				&cli.DurationFlag{Name: "gpu", Usage: "keep only their GPUs for so `LONG`: they are not parked; 0 ends that"},
			},
			Action: func(c *cli.Context) error { return onKernels(c, 1, -1, eachKernel(keepKernel)) },
		},
	}
	for _, command := range all {
		if strings.HasPrefix(command.ArgsUsage, "KERNEL") {
			command.Description += "KERNEL is a kernel's id or the beginning of one."
			command.BashComplete = completeKernels
		}
		command.Flags = append(command.Flags, outputFlag)
		command.Flags = append(command.Flags, gatewayFlags()...)
	}
	return all
}

// kernelRun is one run of a command about kernels.
type kernelRun struct {
	c        *cli.Context
	format   outputFormat
	gateways []*gatewayClient
}

// onKernels runs a command about kernels with the gateways that are asked. At most is the largest number of arguments,
// or -1 for any. A command without outputFlag has the format of a table.
func onKernels(c *cli.Context, atLeast, atMost int, do func(context.Context, *kernelRun) error) error {
	format := formatTable
	if slices.Contains(c.Command.Flags, cli.Flag(outputFlag)) {
		var err error
		if format, err = parseFormat(c.String("output")); err != nil {
			return &UsageError{err}
		}
	}
	want := max(c.NArg(), atLeast)
	if atMost >= 0 {
		want = min(want, atMost)
	}
	if err := Arguments(c, want); err != nil {
		return err
	}
	if slices.Contains(c.Args().Slice(), "") {
		return &UsageError{fmt.Errorf("%s: an argument is empty", c.Command.HelpName)}
	}
	at, err := readAccess(c)
	if err != nil {
		return err
	}
	r := &kernelRun{c: c, format: format}
	if r.gateways, err = at.gateways(); err != nil {
		return err
	}
	defer func() {
		for _, g := range r.gateways {
			g.close()
		}
	}()
	return do(c.Context, r)
}

var kernelList = listing[kernelRow]{"api/kernels", "kernel", "ekg ps"}

// kernelRow is a kernel's model, as much of it as tables show.
type kernelRow struct {
	listedKernel

	Owner        string    `json:"owner"`
	Created      time.Time `json:"created"`
	LastActivity time.Time `json:"last_activity"`
	Connections  int       `json:"connections"`
	Reason       string    `json:"reason"`
	CullAt       time.Time `json:"cull_at"`
	KeepUntil    time.Time `json:"keep_until"`
	GPUs         float64   `json:"gpus"`
	Flavor       string    `json:"flavor"`
	Parked       struct {
		State        string    `json:"state"`
		Since        time.Time `json:"since"`
		Reason       string    `json:"reason"`
		KeepGPUUntil time.Time `json:"keep_gpu_until"`
	} `json:"parked"`
	Job *struct {
		Name  string `json:"name"`
		Cell  int    `json:"cell"`
		Cells int    `json:"cells"`
	} `json:"job"`

	whole json.RawMessage // the model as the gateway sent it
}

// UnmarshalJSON reads a model and keeps all of it. Members that are absent become empty.
func (k *kernelRow) UnmarshalJSON(b []byte) error {
	type fields kernelRow // without this method
	*k = kernelRow{whole: slices.Clone(b)}
	return json.Unmarshal(b, (*fields)(k))
}

func (k kernelRow) id() string             { return k.ID }
func (k kernelRow) created() time.Time     { return k.Created }
func (k kernelRow) model() json.RawMessage { return k.whole }

// listKernels is `ekg ps`.
func listKernels(ctx context.Context, r *kernelRun, w io.Writer) error {
	all, _, err := kernelList.all(ctx, r)
	if err != nil {
		return err
	}
	return r.format.printKernels(w, all, time.Now())
}

// startKernel is `ekg start`.
func startKernel(ctx context.Context, r *kernelRun) error {
	body := map[string]any{"env": map[string]string{}}
	if name := r.c.Args().First(); name != "" {
		body["name"] = name
	}
	if flavor := r.c.String("flavor"); flavor != "" {
		body["flavor"] = flavor
	}
	env, err := variables(r.c.StringSlice("env"))
	if err != nil {
		return err
	}
	body["env"] = env
	var k kernelRow
	g := r.gateways[0]
	if err := g.change(ctx, http.MethodPost, "api/kernels", body, &k); err != nil {
		return err
	}
	said := ""
	for r.c.Bool("wait") && (k.State == "starting" || k.State == "restarting") {
		if k.Reason != "" && k.Reason != said {
			said = k.Reason
			if err := r.note("%s waits: %s", k.ID, k.Reason); err != nil {
				return err
			}
		}
		if err := goroutines.Sleep(ctx, time.Second); err != nil {
			return fmt.Errorf("interrupted; the kernel %s is still starting", k.ID)
		}
		if err := g.change(ctx, http.MethodGet, "api/kernels/"+k.ID, nil, &k); err != nil {
			return err
		}
	}
	if k.State == "dead" {
		return fmt.Errorf("%s: kernel %s is dead: %s", g.shown, k.ID, k.Reason)
	}
	return r.format.printChange(r.c.App.Writer, k, k.ID)
}

// note prints a line on stderr.
func (r *kernelRun) note(format string, args ...any) error {
	_, err := fmt.Fprintf(r.c.App.ErrWriter, "ekg: %s\n", kernelspecs.Printable(fmt.Sprintf(format, args...)))
	return err
}

// eachArgument calls do with each argument of the command, until ctx ends. It goes on after a failure.
func (r *kernelRun) eachArgument(ctx context.Context, do func(argument string) error) error {
	var errs []error
	for _, argument := range r.c.Args().Slice() {
		if errs = append(errs, do(argument)); ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// eachKernel returns a command that changes each kernel of its arguments.
func eachKernel(
	do func(ctx context.Context, r *kernelRun, g *gatewayClient, id string) error,
) func(context.Context, *kernelRun) error {
	return func(ctx context.Context, r *kernelRun) error {
		return r.eachArgument(ctx, func(kernel string) error {
			g, id, err := locate(ctx, r.gateways, kernel)
			if err != nil {
				return err
			}
			return do(ctx, r, g, id)
		})
	}
}

func stopKernel(ctx context.Context, r *kernelRun, g *gatewayClient, id string) error {
	if err := r.format.onlyName("stop"); err != nil {
		return err
	}
	if err := g.change(ctx, http.MethodDelete, "api/kernels/"+id, nil, nil); err != nil {
		return err
	}
	return r.format.printChange(r.c.App.Writer, kernelRow{listedKernel: listedKernel{ID: id}}, id+" stopped")
}

func interruptKernel(ctx context.Context, r *kernelRun, g *gatewayClient, id string) error {
	if err := r.format.onlyName("interrupt"); err != nil {
		return err
	}
	if err := g.change(ctx, http.MethodPost, "api/kernels/"+id+"/interrupt", nil, nil); err != nil {
		return err
	}
	return r.format.printChange(r.c.App.Writer, kernelRow{listedKernel: listedKernel{ID: id}}, id+" interrupted")
}

func restartKernel(ctx context.Context, r *kernelRun, g *gatewayClient, id string) error {
	var k kernelRow
	if err := g.change(ctx, http.MethodPost, "api/kernels/"+id+"/restart", nil, &k); err != nil {
		return err
	}
	return r.format.printChange(r.c.App.Writer, k, id+" restarted")
}

func keepKernel(ctx context.Context, r *kernelRun, g *gatewayClient, id string) error {
	member, flag, what := "keep_until", "--for", ""
	length, off := r.c.Duration("for"), r.c.Bool("off")
	if r.c.IsSet("gpu") {
		if off || r.c.IsSet("for") {
			return &UsageError{errors.New("--gpu goes neither with --for nor with --off")}
		}
		member, flag, what, length = "keep_gpu_until", "--gpu", "the GPU of ", r.c.Duration("gpu")
		off = length == 0
	}
	body := map[string]any{member: nil}
	if !off {
		if length <= 0 {
			return &UsageError{fmt.Errorf("%s %v is not a positive duration", flag, length)}
		}
		body[member] = time.Now().Add(length).UTC().Format(time.RFC3339)
	}
	var k kernelRow
	if err := g.change(ctx, http.MethodPatch, "api/kernels/"+id, body, &k); err != nil {
		return err
	}
	text, until := what+id+" is kept no longer", k.KeepUntil
	if member == "keep_gpu_until" {
		until = k.Parked.KeepGPUUntil
	}
	if !until.IsZero() {
		text = what + id + " is kept until " + until.Local().Format(time.DateTime)
	}
	return r.format.printChange(r.c.App.Writer, k, text)
}

// completeKernels prints the ids of kernels, for a shell's completion. It prints nothing if they cannot be had.
func completeKernels(c *cli.Context) {
	const patience = 2 * time.Second
	ctx, cancel := context.WithTimeout(c.Context, patience)
	defer cancel()
	at, err := readAccess(c)
	if err != nil {
		return
	}
	gateways, err := at.gateways()
	if err != nil {
		return
	}
	for _, g := range gateways {
		kernels, err := g.kernels(ctx)
		g.close()
		if err != nil {
			continue
		}
		for _, k := range kernels {
			if validID(k.ID) {
				_, _ = fmt.Fprintln(c.App.Writer, k.ID) // the shell shows what it gets
			}
		}
	}
}
