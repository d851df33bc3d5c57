package settings

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/elastic-kernel-gateway/ekg/gateway"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
)

// Print writes all settings except secrets as a config file. Each has a comment with its source.
func Print(w io.Writer, s *Settings) error {
	for _, o := range options {
		texts := o.value.show(s)
		line := o.Name + ": "
		switch {
		case o.secret && texts[0] != "":
			line += `"********"`
		case o.Name == "token":
			line = "# " + o.Name + ": " + kernelspecs.Printable(s.absentToken())
		default:
			var err error
			if line, err = yamlLine(o, texts); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintf(w, "%-40s # %s\n", line, s.origins[o.Name].short); err != nil {
			return err
		}
	}
	return nil
}

// absentToken returns the reason why the settings hold no token.
func (s *Settings) absentToken() string {
	switch {
	case s.NoAuth:
		return "none, authentication is off"
	case len(s.UserSources()) > 0:
		return "none, users have their own"
	case s.TokenFile != "":
		return "read from --token-file"
	}
	return "generated once, kept in " + TokenPath(s.Local.StateDir)
}

// yamlLine returns one line of a config file, quoted where YAML requires it.
func yamlLine(o Option, texts []string) (string, error) {
	value := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	if o.value.shape != Many {
		value = &yaml.Node{}
	}
	if o.value.shape == Toggle {
		// YAML has fewer spellings than a flag.
		if on, err := strconv.ParseBool(texts[0]); err == nil {
			value.Kind, value.Tag, value.Value = yaml.ScalarNode, "!!bool", strconv.FormatBool(on)
		} else {
			value.SetString(texts[0])
		}
	} else if o.value.shape == Single {
		value.SetString(texts[0])
	} else {
		for _, t := range texts {
			item := &yaml.Node{}
			item.SetString(t)
			value.Content = append(value.Content, item)
		}
	}
	key := &yaml.Node{}
	key.SetString(o.Name)
	out, err := yaml.Marshal(&yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{key, value}})
	if err != nil {
		return "", fmt.Errorf("%s: %w", o.Name, err)
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// GatewayOptions returns those options of package gateway that are settings. The caller adds the others, such as the
// launcher.
func (s *Settings) GatewayOptions() gateway.Options {
	o := s.Gateway
	o.CheckHost = s.checksHost()
	return o
}

// checksHost reports whether a request's Host header is checked. On loopback a web page could reach the gateway by a
// host name that resolves to 127.0.0.1. On a unix socket clients send any name.
func (s *Settings) checksHost() bool {
	if strings.HasPrefix(s.Listen, "unix:") {
		return false
	}
	return IsLocal(s.Listen) || len(s.Gateway.AllowHosts) > 0
}

// checkGateway validates the options of package gateway. An error names the place of the rejected setting.
func (s *Settings) checkGateway() error {
	if s.NoAuth && slices.Contains(s.Gateway.AllowOrigins, gateway.AnyOrigin) {
		return fmt.Errorf("%s: %q needs a token: without one, any page could run code", s.Place("allow-origin"),
			gateway.AnyOrigin)
	}
	o := s.GatewayOptions()
	return s.WithPlace(o.Validate())
}

// WithPlace returns an error of package gateway about one of its options with the place of the rejected setting. It
// returns other errors as they are.
func (s *Settings) WithPlace(err error) error {
	var wrong *kernels.OptionError
	if !errors.As(err, &wrong) {
		return err
	}
	for _, option := range options {
		if option.field == wrong.Option {
			return fmt.Errorf("%s: %s", s.origins[option.Name].place, wrong.Text)
		}
	}
	return err
}

// TokenPath returns the path of the generated token. The token outlives the gateway, as kernels do, so that clients can
// keep it after a restart.
func TokenPath(stateDir string) string { return filepath.Join(stateDir, "token") }

// PodOptions returns the settings of kernels' pods in a namespace, unless the settings name another.
func (s *Settings) PodOptions(namespace string) podbuild.Options {
	o, l := s.Pods, &s.Local
	o.Namespace = cmp.Or(o.Namespace, namespace)
	o.LogLimit, o.StopGrace, o.Cull, o.Park = l.LogLimit, l.StopGrace, l.Cull, l.Park
	return o
}
