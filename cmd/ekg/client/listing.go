package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

// row is an entry of a list that a gateway answers with. Its values come from the gateway.
type row interface {
	id() string
	created() time.Time
	model() json.RawMessage // all of the entry
}

// listing is a list of the gateways whose entries commands name by the beginning of their ids.
type listing[T row] struct {
	path    string // of the list at a gateway
	entry   string // what an entry is; with "s" for several
	command string // that prints the list
}

// all reads the lists of all gateways. An entry that several of them have is there once, with the first of them in at.
func (l listing[T]) all(ctx context.Context, r *kernelRun) (all []T, at map[string]*gatewayClient, err error) {
	at = map[string]*gatewayClient{}
	for _, g := range r.gateways {
		var list []T
		if err := g.read(ctx, l.path, nil, "the list of "+l.entry+"s", &list); err != nil {
			return nil, nil, err
		}
		for _, e := range list {
			if at[e.id()] == nil {
				at[e.id()] = g
				all = append(all, e)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b T) int { return a.created().Compare(b.created()) })
	return all, at, nil
}

// each returns a command for each entry of its arguments.
func (l listing[T]) each(
	do func(ctx context.Context, r *kernelRun, g *gatewayClient, id string) error,
) func(context.Context, *kernelRun) error {
	return func(ctx context.Context, r *kernelRun) error {
		all, at, err := l.all(ctx, r)
		if err != nil {
			return err
		}
		return r.eachArgument(ctx, func(name string) error {
			id, err := l.match(all, name)
			if err != nil {
				return err
			}
			return do(ctx, r, at[id], id)
		})
	}
}

// match returns the id of the entry that a text begins.
func (l listing[T]) match(all []T, text string) (string, error) {
	var ids []string
	for _, e := range all {
		if strings.HasPrefix(e.id(), text) {
			ids = append(ids, e.id())
		}
	}
	switch len(ids) {
	case 0:
		return "", fmt.Errorf("no %s %q; see %s", l.entry, text, l.command)
	case 1:
		return ids[0], nil
	}
	return "", fmt.Errorf("the ids of several %ss begin with %q: %s", l.entry, text, strings.Join(ids, ", "))
}

// print prints a list. lines returns its table.
func (l listing[T]) print(w io.Writer, f outputFormat, all []T, lines func() [][]string) error {
	ids, models := make([]string, len(all)), make([]json.RawMessage, len(all))
	for i, e := range all {
		ids[i], models[i] = e.id(), e.model()
	}
	return f.print(w, models, ids, func(b *strings.Builder) {
		if len(all) == 0 {
			fmt.Fprintf(b, "No %ss.\n", l.entry)
			return
		}
		writeTable(b, lines()) //nolint:errcheck // a strings.Builder takes everything
	})
}

// changes sends a request that changes an entry, and prints the entry's id.
func (r *kernelRun) changes(ctx context.Context, g *gatewayClient, method, path string, body any, id string) error {
	if err := g.change(ctx, method, path, body, nil); err != nil {
		return err
	}
	_, err := fmt.Fprintln(r.c.App.Writer, id)
	return err
}

// giveGatewayFlags lets a command and its subcommands find their gateways as `ekg ps` does.
func giveGatewayFlags(command *cli.Command) {
	for _, c := range append([]*cli.Command{command}, command.Subcommands...) {
		c.Flags = append(c.Flags, gatewayFlags()...)
	}
}
