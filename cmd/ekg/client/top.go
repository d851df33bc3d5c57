package client

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/elastic-kernel-gateway/ekg/gateway/gpus"
	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// topCommand is `ekg top`.
func topCommand() *cli.Command {
	top := &cli.Command{
		Name: "top", Usage: "show who holds GPUs, and whether they compute",
		Description: "You see totals and your own kernels. Admins see all kernels. docs/gpus.md explains the numbers.",
		Subcommands: []*cli.Command{
			{
				Name: "nodes", Usage: "GPUs by node: how many there are, how many are held, and how many compute",
				Flags: []cli.Flag{
					&cli.BoolFlag{Name: "shares", Aliases: []string{"s"},
						Usage: "only nodes whose GPUs are shared, with a column for each GPU"},
					&cli.BoolFlag{Name: "details", Aliases: []string{"d"}, Usage: "also what each kernel and pod holds"},
				},
				Action: func(c *cli.Context) error { return onKernels(c, 0, 0, refreshed(topNodes)) },
			},
			{
				Name: "kernels", Usage: "kernels with GPUs: how much these compute, and their memory",
				Action: func(c *cli.Context) error { return onKernels(c, 0, 0, refreshed(topKernels)) },
			},
			{
				Name: "users", Usage: "users with GPUs: how many they hold, and how many compute",
				Action: func(c *cli.Context) error { return onKernels(c, 0, 0, refreshed(topUsers)) },
			},
		},
	}
	for _, sub := range top.Subcommands {
		sub.Flags = slices.Concat(sub.Flags, []cli.Flag{
			&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "print it again every 2 seconds, until Ctrl-C"},
			outputFlag,
		}, gatewayFlags())
	}
	return top
}

// refreshed does something once, or with --watch again and again. On a terminal each output replaces the one before.
func refreshed(do func(context.Context, *kernelRun, io.Writer) error) func(context.Context, *kernelRun) error {
	return func(ctx context.Context, r *kernelRun) error {
		out := r.c.App.Writer
		if !r.c.Bool("watch") {
			return do(ctx, r, out)
		}
		clearScreen := ""
		if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
			clearScreen = "\x1b[H\x1b[2J"
		}
		for {
			var text strings.Builder
			err := do(ctx, r, &text)
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				return err
			}
			if _, err := io.WriteString(out, clearScreen+text.String()); err != nil {
				return err
			}
			if goroutines.Sleep(ctx, refreshPause) != nil {
				return nil
			}
		}
	}
}

// gpus asks for the view of GPUs.
func (g *gatewayClient) gpus(ctx context.Context) (answer gpus.View, err error) {
	return answer, g.read(ctx, "api/gpus", nil, "the GPUs", &answer)
}

// topNodes is `ekg top nodes`. Gateways of one cluster have the same nodes, so the first one that is asked answers.
func topNodes(ctx context.Context, r *kernelRun, w io.Writer) error {
	view, err := r.gateways[0].gpus(ctx)
	if err != nil {
		return err
	}
	return r.format.printNodes(w, view, r.c.Bool("shares"), r.c.Bool("details"), time.Now())
}

// printNodes prints the view of GPUs at a time.
func (f outputFormat) printNodes(w io.Writer, view gpus.View, shares, details bool, now time.Time) error {
	var names []string
	for _, n := range view.Nodes {
		names = append(names, n.Name)
	}
	return f.print(w, view, names, func(to *strings.Builder) {
		to.WriteString(strings.TrimPrefix(nodesText(view, f == formatWide, shares, details, now), "\n"))
	})
}

// nodesText is the view of GPUs as tables, with an empty line before the second and the next ones.
func nodesText(view gpus.View, wide, shares, details bool, now time.Time) string {
	var b strings.Builder
	switch {
	case shares && details:
		shareDetails(&b, view)
	case shares:
		shareTable(&b, view)
	default:
		nodeTable(&b, view, wide)
		if details {
			holderTable(&b, view, now)
		}
	}
	for _, t := range view.Totals {
		if shares && !isShared(t.Unit) {
			continue
		}
		fmt.Fprintf(&b, "\nAllocated/Total %s In Cluster:\n%s\n", kernelspecs.Printable(t.Resource), totalText(t))
	}
	if !shares {
		aheadTable(&b, view)
	}
	for _, text := range view.Missing {
		fmt.Fprintf(&b, "\n%s\n", kernelspecs.Printable(text))
	}
	return b.String()
}
