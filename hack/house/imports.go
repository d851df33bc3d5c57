package house

const module = "github.com/elastic-kernel-gateway/ekg"

// mayImport lists the packages of this module that each package's own code may import. Imports that are not listed
// here fail TestHouse_Imports, and so do packages without an entry. `make generate` writes the table into
// docs/architecture.md.
var mayImport = map[string][]string{
	"cmd/ekg/settings": {
		"gateway",
		"gateway/identity",
		"gateway/limits",
		"kernelspecs",
		"launcher/kube",
		"launcher/local",
		"launcher/supervisor/api",
	},
	"cmd/ekg": {
		"cmd/ekg/settings",
		"gateway",
		"gateway/identity",
		"gateway/limits",
		"gateway/metrics",
		"jupyter",
		"kernelspecs",
		"launcher",
		"launcher/atomicfile",
		"launcher/kube",
		"launcher/kube/podspec",
		"launcher/local",
		"launcher/proctree",
		"launcher/sleep",
		"launcher/supervisor/api",
	},
	"cmd/ekg-supervisor": {
		"launcher/atomicfile",
		"launcher/proctree",
		"launcher/supervisor",
		"launcher/supervisor/api",
		"launcher/supervisor/child",
		"launcher/supervisor/parent",
	},
	"cmd/ekg-gpu": {"launcher/gpu"},
	"deploy":      {},
	"e2e":         {},
	"gateway": {
		"gateway/channels",
		"gateway/identity",
		"gateway/limits",
		"gateway/metrics",
		"jupyter/framing",
		"jupyter/notice",
		"kernelspecs",
		"launcher",
		"launcher/supervisor/api",
	},
	"gateway/identity": {},
	"gateway/metrics":  {"launcher", "launcher/supervisor/api"},
	"gateway/limits":   {"gateway/identity", "kernelspecs", "launcher", "launcher/supervisor/api"},
	"hack/generate":    {"cmd/ekg/settings", "gateway/metrics", "hack/house"},
	"hack/house":       {},
	"jupyter":          {},
	"kernelspecs":      {},
	"launcher":         {"kernelspecs", "launcher/supervisor/api"},
	"launcher/logkey":  {},
	"launcher/gpu":     {},
	"launcher/local": {
		"kernelspecs",
		"launcher",
		"launcher/atomicfile",
		"launcher/follow",
		"launcher/goroutines",
		"launcher/proctree",
		"launcher/sleep",
		"launcher/logkey",
		"launcher/supervisor/api",
	},
	"launcher/kube": {
		"kernelspecs",
		"launcher",
		"launcher/follow",
		"launcher/goroutines",
		"launcher/kube/poddial",
		"launcher/kube/podspec",
		"launcher/kube/podstatus",
		"launcher/sleep",
		"launcher/logkey",
		"launcher/supervisor/api",
	},
	"launcher/supervisor": {
		"jupyter",
		"jupyter/framing",
		"jupyter/notice",
		"launcher/atomicfile",
		"launcher/proctree",
		"launcher/sleep",
		"launcher/supervisor/activity",
		"launcher/supervisor/api",
		"launcher/supervisor/cells",
		"launcher/supervisor/child",
		"launcher/supervisor/connection",
		"launcher/supervisor/connectionfile",
		"launcher/supervisor/gaps",
		"launcher/supervisor/gate",
		"launcher/supervisor/logstream",
		"launcher/supervisor/messagelog",
		"launcher/supervisor/process",
		"launcher/supervisor/prompts",
		"launcher/supervisor/requests",
		"launcher/supervisor/savedstate",
		"launcher/supervisor/session",
		"launcher/supervisor/zeromq",
	},
	"launcher/launchertest": {"jupyter", "kernelspecs", "launcher", "launcher/sleep", "launcher/supervisor/api"},

	"launcher/kube/poddial": {"launcher/goroutines", "launcher/kube/podspec", "launcher/supervisor/api"},

	// Pure parts of launcher/kube.
	"launcher/kube/podspec":   {"kernelspecs", "launcher", "launcher/supervisor/api"},
	"launcher/kube/podstatus": {"launcher", "launcher/kube/podspec", "launcher/supervisor/api"},

	// The supervisor's parts.
	"launcher/supervisor/connection": {
		"jupyter",
		"jupyter/framing",
		"jupyter/notice",
		"launcher/supervisor/flow",
		"launcher/supervisor/messagelog",
	},
	"launcher/supervisor/session":        {"jupyter", "launcher/supervisor/messagelog"},
	"launcher/supervisor/savedstate":     {"jupyter", "launcher/atomicfile", "launcher/sleep"},
	"launcher/supervisor/connectionfile": {"jupyter", "launcher/supervisor/api"},
	"launcher/supervisor/requests":       {"jupyter"},
	"launcher/supervisor/cells": {
		"jupyter",
		"launcher/supervisor/requests",
		"launcher/supervisor/session",
	},
	"launcher/supervisor/prompts": {
		"jupyter",
		"launcher/supervisor/messagelog",
		"launcher/supervisor/requests",
		"launcher/supervisor/session",
	},
	"launcher/supervisor/activity": {"jupyter", "launcher/supervisor/api"},
	"launcher/supervisor/gaps":     {},
	"launcher/supervisor/gate":     {"jupyter", "launcher/supervisor/requests"},
	"launcher/supervisor/flow":     {},
	"launcher/supervisor/logstream": {
		"jupyter",
		"launcher/supervisor/api",
		"launcher/supervisor/flow",
		"launcher/supervisor/messagelog",
	},
	"launcher/supervisor/messagelog": {"jupyter", "jupyter/framing"},
	"launcher/supervisor/api":        {"kernelspecs"},
	"launcher/supervisor/zeromq":     {"launcher/sleep"},
	"launcher/supervisor/process": {
		"launcher/gpu",
		"launcher/proctree",
		"launcher/supervisor/api",
		"launcher/logkey",
	},
	"launcher/supervisor/parent": {
		"launcher/atomicfile",
		"launcher/proctree",
		"launcher/supervisor/api",
		"launcher/supervisor/child",
		"launcher/supervisor/savedstate",
	},
	"launcher/supervisor/child": {
		"kernelspecs",
		"launcher/atomicfile",
		"launcher/proctree",
		"launcher/sleep",
		"launcher/supervisor/api",
		"launcher/supervisor/process",
		"launcher/logkey",
	},
	"launcher/atomicfile": {},
	"launcher/sleep":      {},
	"launcher/proctree":   {"launcher/atomicfile", "launcher/sleep"},

	// Parts of the protocol.
	"jupyter/notice":      {"jupyter"},
	"jupyter/framing":     {"jupyter", "jupyter/notice"},
	"launcher/goroutines": {},
	"launcher/follow":     {"launcher", "launcher/goroutines", "launcher/logkey", "launcher/supervisor/api"},
	"gateway/channels":    {"jupyter", "jupyter/framing", "jupyter/notice", "launcher", "launcher/supervisor/api"},
}

// forAll lists the packages of this module that every other may import.
var forAll = []string{"launcher/logkey"}

// doors lists the packages that may import each outside dependency: its prefix, the packages whose own code may, and
// those whose tests may as well.
var doors = []struct {
	dependency string
	code       []string
	tests      []string
}{
	{"github.com/urfave/cli/", []string{"cmd/ekg"}, nil},
	{"github.com/go-zeromq/zmq4", []string{"launcher/supervisor/zeromq", "launcher/launchertest"}, nil},
	{
		"github.com/gorilla/websocket",
		[]string{"gateway/channels", "launcher/supervisor", "launcher/supervisor/connection", "launcher/launchertest"},
		[]string{"cmd/ekg-supervisor", "e2e", "gateway", "launcher/local", "launcher/supervisor/flow"},
	},
	{
		"github.com/hashicorp/golang-lru/",
		[]string{
			"gateway/identity",
			"gateway/limits",
			"launcher/kube",
			"launcher/supervisor/cells",
			"launcher/supervisor/session",
		},
		nil,
	},
	{"github.com/NVIDIA/go-nvml/", []string{"cmd/ekg-gpu"}, nil},
	{"github.com/coreos/go-oidc/", []string{"gateway/identity"}, nil},
	{"github.com/go-jose/", nil, []string{"gateway/identity"}},
	{"golang.org/x/time/", []string{"gateway/limits"}, nil},
	{"golang.org/x/sync/", []string{"gateway/identity"}, nil},
	{"github.com/prometheus/client_golang/", []string{"gateway/metrics"}, []string{"gateway"}},
	{"github.com/getkin/kin-openapi", nil, []string{"gateway"}},
	{
		"pgregory.net/rapid",
		nil,
		[]string{
			"launcher/supervisor/process",
			"gateway",
			"jupyter",
			"launcher/kube",
			"launcher/local",
			"launcher/kube/podspec",
			"launcher/kube/podstatus",
			"launcher/supervisor",
			"launcher/supervisor/api",
			"kernelspecs",
			"launcher/supervisor/messagelog",
			"launcher/supervisor/gaps",
		},
	},
	{
		"go.yaml.in/yaml/",
		[]string{"cmd/ekg/settings", "gateway", "gateway/identity", "launcher/kube/podspec"},
		[]string{"deploy"},
	}, // it knows lines
	{"sigs.k8s.io/", []string{"launcher/kube/podspec"}, []string{"deploy"}}, // Kubernetes' own YAML
	{
		"k8s.io/",
		[]string{"launcher/kube", "launcher/kube/poddial", "launcher/kube/podspec", "launcher/kube/podstatus"},
		[]string{"deploy", "e2e"},
	},
}
