package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/gorilla/websocket"
	"github.com/urfave/cli/v2"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/relay"
	"github.com/elastic-kernel-gateway/ekg/gateway/jobs/notebook"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// The values of --on-exit.
const (
	onExitDelete = "delete"
	onExitKeep   = "keep"
)

// onExitFlag says what happens to the kernel of a program that dies.
func onExitFlag() cli.Flag {
	return &cli.StringFlag{Name: "on-exit", DefaultText: "delete, and keep with --existing",
		Usage: "`WHAT` happens to the kernel if the program that uses it dies: delete or keep"}
}

// relayCommand is `ekg relay`.
func relayCommand() *cli.Command {
	return &cli.Command{
		Name: "relay", Usage: "be the process of a kernel that runs at a gateway",
		Description: "Programs start this command by a kernelspec that `ekg kernelspec add` has written.\n" +
			"See docs/clients.md.",
		Flags: append(append([]cli.Flag{
			&cli.StringFlag{Name: "f", Usage: "connection `FILE` of Jupyter", Required: true},
			&cli.StringFlag{Name: "kernel", Aliases: []string{"k"}, Usage: "`KERNELSPEC` at the gateway; default: the gateway's"},
			&cli.StringFlag{Name: "existing", Usage: "take the running kernel with this `ID`, or the beginning of one"},
			onExitFlag(),
		}, startFlags()...), gatewayFlags()...),
		Action: func(c *cli.Context) error { return onKernels(c, 0, 0, runRelay) },
	}
}

// runRelay is `ekg relay`. One SIGINT is one interrupt of the kernel, and SIGTERM a shutdown. So no signal ends ctx.
func runRelay(ctx context.Context, r *kernelRun) error {
	signal.Reset(os.Interrupt, syscall.SIGTERM) // main ends the program by the first one
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	keep, err := keeps(r.c.String("on-exit"), r.c.IsSet("existing"))
	if err != nil {
		return err
	}
	env, err := variables(r.c.StringSlice("env"))
	if err != nil {
		return err
	}
	at := &relayGateway{gatewayClient: r.gateways[0], body: map[string]any{"env": relayVariables(os.Environ(), env)}}
	for member, flag := range map[string]string{"name": "kernel", "flavor": "flavor"} {
		if value := r.c.String(flag); value != "" {
			at.body[member] = value
		}
	}
	o := relay.Options{File: r.c.String("f"), Gateway: at, Keep: keep, ParentGone: parentGone(), Signals: signals,
		Say: func(text string) { _ = r.note("%s", text) }} // stderr may be closed
	if kernel := r.c.String("existing"); kernel != "" {
		g, id, err := locate(ctx, r.gateways, kernel)
		if err != nil {
			return err
		}
		at.gatewayClient, o.Existing = g, id
	}
	return relay.Run(o)
}

// keeps reports whether a kernel is kept when the program that uses it dies.
func keeps(onExit string, existing bool) (bool, error) {
	switch onExit {
	case "":
		return existing, nil
	case onExitDelete, onExitKeep:
		return onExit == onExitKeep, nil
	}
	return false, &UsageError{fmt.Errorf("--on-exit %q is neither %s nor %s", onExit, onExitDelete, onExitKeep)}
}

// relayVariables returns the kernel's variables: those of the command line, and what the environment has for kernels.
// The kernel runs in this folder, if it sees it.
func relayVariables(environ []string, given map[string]string) map[string]string {
	env := map[string]string{}
	if folder, err := os.Getwd(); err == nil {
		if id := folderID(folder); id != "" {
			env["KERNEL_WORKING_DIR"], env["KERNEL_WORKING_DIR_ID"] = folder, id
		}
	}
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		// A relay in a kernel would else name that kernel, and its folder.
		inKernel := name == "KERNEL_ID" || name == "KERNEL_WORKING_DIR_ID"
		if strings.HasPrefix(name, "KERNEL_") && !inKernel || name == "JPY_SESSION_NAME" {
			if name == "KERNEL_WORKING_DIR" {
				delete(env, "KERNEL_WORKING_DIR_ID")
			}
			env[name] = value
		}
	}
	for name, value := range given {
		env[name] = value
	}
	return env
}

// relayGateway is the relay.Gateway of a gateway.
type relayGateway struct {
	*gatewayClient

	body map[string]any // of the request that starts a kernel
}

// Name implements relay.Gateway.
func (g *relayGateway) Name() string { return g.shown }

// Start implements relay.Gateway.
func (g *relayGateway) Start(ctx context.Context) (string, error) {
	var k listedKernel
	err := g.change(ctx, http.MethodPost, "api/kernels", g.body, &k)
	var refused *refusedError
	if errors.As(err, &refused) && g.token == "" &&
		(refused.status == http.StatusForbidden || refused.status == http.StatusUnauthorized) {
		return "", fmt.Errorf("%w To store a token: ekg login %s", err, g.shown)
	}
	return k.ID, err
}

// Restart implements relay.Gateway.
func (g *relayGateway) Restart(ctx context.Context, id string) error {
	return goneError(g.change(ctx, http.MethodPost, "api/kernels/"+id+"/restart", nil, nil))
}

// Interrupt implements relay.Gateway.
func (g *relayGateway) Interrupt(ctx context.Context, id string) error {
	return goneError(g.change(ctx, http.MethodPost, "api/kernels/"+id+"/interrupt", nil, nil))
}

// Stop implements relay.Gateway.
func (g *relayGateway) Stop(ctx context.Context, id string) error {
	return goneError(g.change(ctx, http.MethodDelete, "api/kernels/"+id, nil, nil))
}

// State implements relay.Gateway.
func (g *relayGateway) State(ctx context.Context, id string) (state, reason string, err error) {
	var k kernelRow
	err = g.read(ctx, "api/kernels/"+id, nil, "the kernel", &k)
	return k.State, k.Reason, goneError(err)
}

// goneError returns the error of a request. A kernel that does not exist is reported by notebook.ErrGone.
func goneError(err error) error {
	var refused *refusedError
	if errors.As(err, &refused) && refused.status == http.StatusNotFound {
		return fmt.Errorf("%w: %s", notebook.ErrGone, refused.message)
	}
	return err
}

// Dial implements relay.Gateway.
func (g *relayGateway) Dial(ctx context.Context, id string, query url.Values) (*websocket.Conn, error) {
	transport := g.http.Transport.(*http.Transport)
	d := websocket.Dialer{Proxy: transport.Proxy, NetDialContext: transport.DialContext,
		TLSClientConfig: transport.TLSClientConfig, HandshakeTimeout: askTime,
		Subprotocols: []string{jupyter.SubprotocolRelay}}
	header := http.Header{}
	if g.token != "" {
		header.Set("Authorization", "token "+g.token)
	}
	at := strings.Replace(g.base, "http", "ws", 1) + "api/kernels/" + id + "/channels?" + query.Encode()
	ws, resp, err := d.DialContext(ctx, at, header)
	if err == nil {
		return ws, nil
	}
	if resp != nil {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal)) // a part of it will do
		err = fmt.Errorf("%s: %s", g.shown, cmp.Or(strings.TrimSpace(string(text)), resp.Status))
	}
	// The error of a dial does not decide whether the kernel exists.
	state, reason, lost := g.State(ctx, id)
	switch {
	case errors.Is(lost, notebook.ErrGone):
		return nil, lost
	case lost == nil && state == "dead":
		return nil, fmt.Errorf("%w: %s", notebook.ErrGone, reason)
	}
	return nil, err
}
