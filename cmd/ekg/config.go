package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/elastic-kernel-gateway/ekg/gateway"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// printSettings prints all settings as a config file, each with a comment that says where it comes from. Secrets are
// not in it.
func printSettings(w io.Writer, s *settings) error {
	for _, o := range options {
		texts := o.value.show(s)
		line := o.name + ": "
		switch {
		case o.secret && texts[0] != "":
			line += `"********"`
		case o.secret:
			line = "# " + o.name + ": " + kernelspecs.Printable(s.absentToken())
		default:
			var err error
			if line, err = yamlLine(o, texts); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintf(w, "%-40s # %s\n", line, s.origins[o.name].short); err != nil {
			return err
		}
	}
	return nil
}

// absentToken says why there is no token among the settings.
func (s *settings) absentToken() string {
	switch {
	case s.noAuth:
		return "none, authentication is off"
	case len(s.userSources()) > 0:
		return "none, users have their own"
	case s.tokenFile != "":
		return "read from --token-file"
	}
	return "generated once, kept in " + tokenPath(s.stateDir)
}

// yamlLine writes one key of a config file, quoted where YAML needs it.
func yamlLine(o option, texts []string) (string, error) {
	value := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	if o.value.shape != many {
		value = &yaml.Node{}
	}
	if o.value.shape == toggle {
		value.Kind, value.Tag, value.Value = yaml.ScalarNode, "!!bool", texts[0]
	} else if o.value.shape == single {
		value.SetString(texts[0])
	} else {
		for _, t := range texts {
			item := &yaml.Node{}
			item.SetString(t)
			value.Content = append(value.Content, item)
		}
	}
	key := &yaml.Node{}
	key.SetString(o.name)
	out, err := yaml.Marshal(&yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{key, value}})
	if err != nil {
		return "", fmt.Errorf("%s: %w", o.name, err)
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// gatewayOptions is what the settings mean to package gateway.
func (s *settings) gatewayOptions() gateway.Options {
	return gateway.Options{
		Version:       version,
		Token:         s.token,
		BaseURL:       s.baseURL,
		AllowOrigins:  s.allowOrigins,
		CheckHost:     s.checksHost(),
		AllowHosts:    s.allowHosts,
		DefaultKernel: s.defaultKernel,
		StartWait:     s.startWait,
		ClientEnv:     s.clientEnv,
		MaxBody:       s.maxBody,

		StartsPerMinute:      s.startsPerMinute,
		ConnectionsPerUser:   s.connectionsPerUser,
		ConnectionsPerKernel: s.connectionsPerKernel,
	}
}

// checksHost reports whether a request's Host header matters. On loopback a web page could otherwise reach the gateway
// by a name of its own that it makes resolve to 127.0.0.1; on a unix socket clients send any name they like.
func (s *settings) checksHost() bool {
	if strings.HasPrefix(s.listen, "unix:") {
		return false
	}
	return isLocal(s.listen) || len(s.allowHosts) > 0
}

// checkGateway lets package gateway judge the settings that are its own, and names the place of one it refuses. Nothing
// is started: a gateway without a launcher only checks.
func (s *settings) checkGateway() error {
	o := s.gatewayOptions()
	o.Launcher = struct{ launcher.Launcher }{}
	o.Specs = (*kernelspecs.Finder)(nil)
	o.Log = discard
	_, err := gateway.New(o)
	if err == nil {
		return nil
	}
	text := strings.TrimPrefix(err.Error(), "gateway: ")
	field, rest, _ := strings.Cut(text, " ")
	for _, option := range options {
		if option.field == strings.TrimSuffix(field, ":") {
			return fmt.Errorf("%s: %s", s.origins[option.name].place, rest)
		}
	}
	return errors.New(text)
}
