package settings

import (
	"slices"

	"github.com/elastic-kernel-gateway/ekg/python/ekg-migrate/ekg_migrate/enterprise"
)

// Option is one setting. The command line, the environment, the config file, the help, `ekg config` and
// docs/configuration.md are generated from its fields.
type Option struct {
	Name   string   // of the flag (with --) and of the key in the config file
	Env    []string // variables; the first non-empty one counts, and commas separate the texts of a list
	Usage  string   // meaning and unit
	def    string   // default; commas separate the texts of a list
	defDoc string   // description of a default that depends on the machine
	value  value    // reads, stores and shows the setting
	secret bool     // the value is never shown
	// enterpriseLists says that Enterprise Gateway's variables hold lists in JSON or in Python.
	enterpriseLists bool
	field           string // field of gateway.Options that also checks the value
}

// Group holds the settings for one task of an operator.
type Group struct {
	Heading string // in docs/configuration.md
	Options []Option
}

// groups holds all settings except --config, in the order of the documentation. Each has Enterprise Gateway's variables
// after its own, but --listen, which two of them give.
var groups = func() []Group {
	all := slices.Concat(gatewaySettings, kernelSettings, idleSettings, kubernetesSettings, operationSettings)
	for _, g := range all {
		for i := range g.Options {
			if o := &g.Options[i]; o.Name != "listen" {
				o.Env = append(o.Env, enterpriseTable.Variables(o.Name)...)
			}
		}
	}
	return all
}()

// enterpriseTable lists the variables of Enterprise Gateway.
var enterpriseTable = enterprise.Read()

// options holds the settings of all groups.
var options = func() []Option {
	var all []Option
	for _, g := range groups {
		all = append(all, g.Options...)
	}
	return all
}()

// configOption names the file with the other settings. The file itself cannot set it.
var configOption = Option{Name: "config", Env: []string{"EKG_CONFIG"},
	value: text(func(s *Settings) *string { return &s.Config }),
	Usage: "YAML file with any of these settings. Its keys are the names of flags without the dashes"}

// first are the settings that `ekg serve --help` shows, in any order: those that people use first.
var first = []string{"config",
	"listen", "allow-origin", "tls-cert", "tls-key", "token-file", "users-file", "oidc-issuer", "hub-api-url", "no-auth",
	"max-kernels", "max-kernels-per-user", "max-gpus-per-user", "cull-idle-timeout", "cull-connected", "cull-busy",
	"launcher", "kernelspec-dir", "default-kernel", "start-wait", "client-env", "state-dir", "flavors", "kube-policy",
	"metrics-listen",
}

// First reports whether the setting is one of those that people use first.
func (o Option) First() bool { return slices.Contains(first, o.Name) }

// Groups returns all settings in the order of the documentation, --config first.
func Groups() []Group {
	return append([]Group{{"Read settings from a file", []Option{configOption}}}, groups...)
}

// Options returns all settings in the order of the documentation, --config first.
func Options() []Option { return append([]Option{configOption}, options...) }

// Shape returns the number of texts that the setting takes.
func (o Option) Shape() Shape { return o.value.shape }

// Default returns the default for the documentation.
func (o Option) Default() string {
	if o.defDoc != "" {
		return o.defDoc
	}
	return o.def
}
