package client

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/elastic-kernel-gateway/ekg/gateway/gpus"
)

// usageCommand is `ekg usage`.
func usageCommand() *cli.Command {
	return &cli.Command{
		Name: "usage", Usage: "show how long GPUs were held, and how long they were busy",
		Description: "You see your own kernels. Admins see all kernels. docs/gpus.md says what is counted.",

		Flags: slices.Concat([]cli.Flag{
			&cli.StringFlag{Name: "since", Value: "24h", Usage: "a `TIME` like 2006-01-02T15:04:05Z, or how long ago"},
			&cli.StringFlag{Name: "by", Value: gpus.UsageByUser,
				Usage: "`GROUP`: " + strings.Join(gpus.UsageGroups, ", ")},
			outputFlag,
		}, gatewayFlags()),
		Action: func(c *cli.Context) error { return onKernels(c, 0, 0, showUsage) },
	}
}

// showUsage asks each gateway for the usage of kernels, and groups it here: gateways of one state directory or cluster
// have the same kernels.
func showUsage(ctx context.Context, r *kernelRun) error {
	by := r.c.String("by")
	if !slices.Contains(gpus.UsageGroups, by) {
		return &UsageError{fmt.Errorf("--by %q is not %s", by, strings.Join(gpus.UsageGroups, ", "))}
	}
	var all []gpus.UsageRow
	known := map[string]bool{}
	for _, g := range r.gateways {
		answer, err := g.usage(ctx, r.c.String("since"))
		if err != nil {
			return err
		}
		for _, row := range answer {
			if !known[row.Name] {
				known[row.Name] = true
				all = append(all, row)
			}
		}
	}
	return r.format.printUsage(r.c.App.Writer, gpus.GroupUsage(all, by), by)
}

// usage asks for the usage of each kernel.
func (g *gatewayClient) usage(ctx context.Context, since string) ([]gpus.UsageRow, error) {
	query := url.Values{"since": {since}, "by": {gpus.UsageByKernel}}
	var answer struct{ Usage []gpus.UsageRow }
	err := g.read(ctx, "api/usage", query, "the usage", &answer)
	return answer.Usage, err
}

// printUsage prints usage that is grouped.
func (f outputFormat) printUsage(w io.Writer, rows []gpus.UsageRow, by string) error {
	if rows == nil {
		rows = []gpus.UsageRow{}
	}
	var names []string
	head := []string{strings.ToUpper(by), "KERNELS", "GPU HOURS", "BUSY HOURS", "BUSY"}
	if f == formatWide {
		head = append(head, "MEASURED")
		if by == gpus.UsageByKernel {
			head = append(head, "USER", "SPEC", "FLAVOR", "ENDED")
		}
	}
	lines := [][]string{head}
	for _, row := range rows {
		names = append(names, row.Name)
		cells := []string{row.Name, strconv.Itoa(row.Kernels), hours(row.Held), hours(row.Busy),
			percent(row.Busy, row.Measured)}
		if f == formatWide {
			cells = append(cells, percent(row.Measured, row.Held))
			if by == gpus.UsageByKernel {
				cells = append(cells, row.Owner, row.Spec, row.Flavor, row.Ended)
			}
		}
		last := &cells[len(cells)-1]
		*last = cmp.Or(*last, "-")
		lines = append(lines, cells)
	}
	return f.print(w, rows, names, func(b *strings.Builder) {
		if len(rows) == 0 {
			b.WriteString("No GPUs were held.\n")
			return
		}
		writeTable(b, lines) //nolint:errcheck // a strings.Builder takes everything
	})
}

func hours(seconds float64) string { return strconv.FormatFloat(seconds/3600, 'f', 2, 64) }

// percent returns a part of a whole, or "" if the whole is 0.
func percent(part, whole float64) string {
	if whole <= 0 {
		return ""
	}
	return fmt.Sprintf("%.0f%%", 100*part/whole)
}
