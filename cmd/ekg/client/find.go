package client

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"
)

// gatewayVariables name the gateway. The second one belongs to Jupyter Server's gateway client.
var gatewayVariables = []string{"EKG_GATEWAY_URL", "JUPYTER_GATEWAY_URL"}

const jupyterTokenVariable = "JUPYTER_GATEWAY_AUTH_TOKEN"

// gatewayFlags name the gateway that a command asks.
func gatewayFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "gateway-url", DefaultText: "the gateways that this user runs on this machine",
			Usage: "`URL` of the gateway, as ekg serve prints it [$" + strings.Join(gatewayVariables, ", $") + "]"},
		&cli.StringFlag{Name: "token",
			Usage: "the gateway's `TOKEN`. Other users of this machine can read it on the command line: prefer " +
				"--token-file [$EKG_TOKEN, $" + jupyterTokenVariable + "]"},
		&cli.StringFlag{Name: "token-file", Usage: "`FILE` with the token [$EKG_TOKEN_FILE]"},
		&cli.StringFlag{Name: "state-dir", DefaultText: StateDirText,
			Usage: "`DIRECTORY` in which the gateways of this machine leave their addresses [$EKG_STATE_DIR]"},
		&cli.StringFlag{Name: "config", Usage: "YAML `FILE` of a gateway, for its state-dir [$EKG_CONFIG]"},
	}
}

// access says which gateways a command may ask, and with which token.
type access struct {
	address, place string // of one gateway, and what has named it; "" for all of this user on this machine
	stateDir       string
	token          string // of the command line; "" without
}

// readAccess reads the flags of gatewayFlags, and the variables.
func readAccess(c *cli.Context) (a access, err error) {
	a.address, a.place = c.String("gateway-url"), "--gateway-url"
	for _, name := range gatewayVariables {
		if value := os.Getenv(name); a.address == "" && value != "" {
			a.address, a.place = value, name
		}
	}
	if a.token, err = oneToken("--token", c.String("token"), "--token-file", c.String("token-file")); err != nil {
		return a, err
	}
	dir := cmp.Or(c.String("state-dir"), os.Getenv("EKG_STATE_DIR"))
	if file := cmp.Or(c.String("config"), os.Getenv("EKG_CONFIG")); dir == "" && file != "" {
		if dir, err = configuredStateDir(file); err != nil {
			return a, &UsageError{err}
		}
	}
	if dir == "" {
		if dir, err = DefaultStateDir(os.Getenv); err != nil {
			return a, &UsageError{err}
		}
	}
	a.stateDir, err = filepath.Abs(dir)
	return a, err
}

// oneToken returns the token of a setting or of its file. Both are one too many.
func oneToken(name, token, fileName, file string) (string, error) {
	switch {
	case token != "" && file != "":
		return "", &UsageError{fmt.Errorf("%s: there is also %s: give one of them", name, fileName)}
	case file == "":
		return token, nil
	}
	token, err := ReadTokenFile(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", fileName, err)
	}
	return token, nil
}

// ReadTokenFile returns the one word that a file holds.
func ReadTokenFile(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(b))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", fmt.Errorf("%s does not hold exactly one word", path)
	}
	return token, nil
}

// configuredStateDir returns the state directory that a gateway's file of settings names, or "".
func configuredStateDir(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("--config: %w", err)
	}
	var file struct {
		StateDir string `yaml:"state-dir"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return file.StateDir, nil
}

// StateDirText describes DefaultStateDir.
const StateDirText = "$XDG_STATE_HOME/ekg, else ~/.local/state/ekg"

// DefaultStateDir returns the directory with the state of this user's gateways, if no setting names one.
func DefaultStateDir(getenv func(string) string) (string, error) {
	switch {
	case filepath.IsAbs(getenv("XDG_STATE_HOME")): // the specification says to ignore relative paths
		return filepath.Join(getenv("XDG_STATE_HOME"), "ekg"), nil
	case getenv("HOME") != "":
		return filepath.Join(getenv("HOME"), ".local", "state", "ekg"), nil
	}
	return "", errors.New("--state-dir is missing: neither $XDG_STATE_HOME nor $HOME gives a default")
}

// gateways returns the gateway that was named, or the ones that run on this machine.
func (a access) gateways() ([]*gatewayClient, error) {
	running, err := RunningGateways(a.stateDir, false)
	if a.address != "" {
		client, err := newGatewayClient(a.address, "", "")
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.place, err)
		}
		client.token, err = a.tokenOf(client, running)
		return []*gatewayClient{client}, err
	}
	if len(running) == 0 {
		return nil, cmp.Or(err, fmt.Errorf("no gateway of this user runs here with the state directory %s; "+
			"name one with --gateway-url", a.stateDir))
	}
	var all []*gatewayClient
	for _, g := range running {
		client, err := newGatewayClient(g.URL, cmp.Or(a.token, g.Token), g.Certificate)
		if err != nil {
			return nil, fmt.Errorf("process %d: %w", g.PID, err)
		}
		all = append(all, client)
	}
	return all, nil
}

// tokenOf returns the token for a gateway that was named. It comes from a flag, the URL, a variable, or `ekg login`. A gateway on
// this machine may provide its own. A token in a config file belongs to one gateway and is never sent to a named one.
func (a access) tokenOf(g *gatewayClient, running []GatewayFile) (string, error) {
	if token := cmp.Or(a.token, g.token); token != "" {
		return token, nil
	}
	name := "EKG_TOKEN"
	if os.Getenv(name) == "" {
		name = "EG_AUTH_TOKEN"
	}
	token, err := oneToken(name, os.Getenv(name), "EKG_TOKEN_FILE", os.Getenv("EKG_TOKEN_FILE"))
	if err != nil || token != "" {
		return token, err
	}
	if token, err = storedToken(g.shown); err != nil || token != "" {
		return token, err
	}
	if token = os.Getenv(jupyterTokenVariable); token != "" { // it may be another gateway's
		return token, nil
	}
	for _, r := range running {
		if strings.TrimRight(r.URL, "/") == strings.TrimRight(g.shown, "/") {
			return r.Token, nil
		}
	}
	return "", nil
}
