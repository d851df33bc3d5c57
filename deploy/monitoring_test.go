package deploy_test

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	gatewaymetrics "github.com/elastic-kernel-gateway/ekg/gateway/metrics"
)

// ruleFile is a file of Prometheus rules.
type ruleFile struct {
	Groups []struct {
		Name  string `yaml:"name"`
		Rules []rule `yaml:"rules"`
	} `yaml:"groups"`
}

type rule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// strictYAML decodes a file. A key that the type does not have is an error.
func strictYAML(t *testing.T, file string, to any) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	decodeStrict(t, file, data, to)
}

// strictResource is strictYAML for what kustomize makes of an object of the Prometheus operator.
func strictResource(t *testing.T, kind string, to any) {
	t.Helper()
	for _, r := range prometheus.resources(t) {
		if r.GetKind() != kind {
			continue
		}
		data, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		decodeStrict(t, kind, data, to)
		return
	}
	t.Fatalf("no %s is created", kind)
}

func decodeStrict(t *testing.T, name string, data []byte, to any) {
	t.Helper()
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(to); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// series returns the labels of every series that a gateway may have, by its name in queries.
func series(t *testing.T) map[string][]string {
	t.Helper()
	common := []string{"job", "instance"}
	all := map[string][]string{"up": common}
	for _, m := range gatewaymetrics.List() {
		labels := slices.Concat(m.Labels, common)
		if m.Type != "histogram" {
			all[m.Name] = labels
			continue
		}
		all[m.Name+"_sum"], all[m.Name+"_count"], all[m.Name+"_bucket"] = labels, labels, append(slices.Clone(labels), "le")
	}
	// The gateway's own answer has the metrics of the runtime and the process.
	w := httptest.NewRecorder()
	gatewaymetrics.New("test").Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "go_") || strings.HasPrefix(line, "process_") {
			all[regexp.MustCompile(`^[a-z_0-9]+`).FindString(line)] = common
		}
	}
	return all
}

var (
	queryToken = regexp.MustCompile(`"[^"]*"|\[[^\]]*\]|[A-Za-z_:][A-Za-z0-9_:]*|[0-9.]+|=~|!~|!=|[^\s]`)
	identifier = regexp.MustCompile(`^[A-Za-z_:]`)
	keywords   = []string{"by", "without", "and", "or", "unless", "on", "ignoring"}
	functions  = []string{"sum", "max", "min", "rate", "increase", "histogram_quantile", "absent"}
)

// checkQuery returns what is wrong with a query: metrics and labels that no gateway has, functions that it does not
// know, counters without a range, and parentheses that do not match.
func checkQuery(query string, known map[string][]string) (wrong []string) {
	tokens := queryToken.FindAllString(query, -1)
	peek := func(i int) string {
		if i < len(tokens) {
			return tokens[i]
		}
		return ""
	}
	depth, used := 0, 0
	var last []string // labels of the metrics so far
	for i := 0; i < len(tokens); i++ {
		tok := tokens[i]
		switch {
		case tok == "(":
			depth++
		case tok == ")":
			if depth--; depth < 0 {
				return append(wrong, "one parenthesis too many")
			}
		case tok == "by" || tok == "without":
			for i++; i < len(tokens) && tokens[i] != ")"; i++ {
				if identifier.MatchString(tokens[i]) {
					last = append(last, tokens[i])
				}
			}
		case !identifier.MatchString(tok) || slices.Contains(keywords, tok):
		case peek(i+1) == "(" || (peek(i+1) == "by" || peek(i+1) == "without"):
			if !slices.Contains(functions, tok) {
				wrong = append(wrong, "unknown function "+tok)
			}
		default:
			used++
			labels, ok := known[tok]
			if !ok {
				wrong = append(wrong, "unknown metric "+tok)
			}
			for _, l := range last {
				if ok && !slices.Contains(labels, l) {
					wrong = append(wrong, tok+" has no label "+l)
				}
			}
			if peek(i+1) == "{" {
				for i += 2; i < len(tokens) && tokens[i] != "}"; i++ {
					if identifier.MatchString(tokens[i]) && ok && !slices.Contains(labels, tokens[i]) {
						wrong = append(wrong, tok+" has no label "+tokens[i])
					}
				}
			}
			ranged := strings.HasPrefix(peek(i+1), "[")
			if counts := regexp.MustCompile(`_(total|sum|count|bucket)$`).MatchString(tok); counts != ranged {
				wrong = append(wrong, tok+" is queried in the wrong way: only counters have a range")
			}
			last = nil
		}
	}
	if depth != 0 || used == 0 {
		wrong = append(wrong, "the query is not complete")
	}
	return wrong
}

func TestCheckQuery(t *testing.T) {
	known := map[string][]string{"a_total": {"x"}, "g": {"y"}}
	for query, want := range map[string]string{
		`sum by (x) (rate(a_total{x="1"}[5m])) > max(g{y=~"a|b"})`: "",
		`sum(rate(b_total[5m]))`:                                   "unknown metric b_total",
		`sum by (z) (rate(a_total[5m]))`:                           "a_total has no label z",
		`g{z="1"}`:                                                 "g has no label z",
		`rate(a_total)`: "a_total is queried in the wrong way: only counters " +
			"have a range",
		`max(g`:     "the query is not complete",
		`g)`:        "one parenthesis too many",
		`medium(g)`: "unknown function medium",
		`1 + 1`:     "the query is not complete",
	} {
		if got := strings.Join(checkQuery(query, known), "; "); got != want {
			t.Errorf("%s: got %q, want %q", query, got, want)
		}
	}
}

var duration = regexp.MustCompile(`^[0-9]+[smhd]$`)

// Every alert can fire: its query asks for metrics that gateways have.
func TestRules(t *testing.T) {
	known := series(t)
	var file ruleFile
	strictYAML(t, "monitoring/rules.yaml", &file)
	names := map[string]bool{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			for _, wrong := range checkQuery(r.Expr, known) {
				t.Errorf("%s: %s", r.Alert, wrong)
			}
			if names[r.Alert] || !strings.HasPrefix(r.Alert, "Ekg") {
				t.Errorf("%q is given twice, or has no Ekg in front", r.Alert)
			}
			names[r.Alert] = true
			if r.For != "" && !duration.MatchString(r.For) {
				t.Errorf("%s: for %q", r.Alert, r.For)
			}
			if !slices.Contains([]string{"info", "warning", "critical"}, r.Labels["severity"]) ||
				r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s: %v %v", r.Alert, r.Labels, r.Annotations)
			}
		}
	}
	if len(names) < 5 {
		t.Errorf("%d alerts: the test proves nothing", len(names))
	}
	var operator struct {
		APIVersion string   `yaml:"apiVersion"`
		Kind       string   `yaml:"kind"`
		Metadata   any      `yaml:"metadata"`
		Spec       ruleFile `yaml:"spec"`
	}
	strictResource(t, "PrometheusRule", &operator)
	if operator.Kind != "PrometheusRule" || !reflect.DeepEqual(operator.Spec, file) {
		t.Error("the operator's rules are not those of monitoring/rules.yaml")
	}
}

// The Prometheus operator scrapes the port of the gateway's pod.
func TestPodMonitor(t *testing.T) {
	var monitor struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string `yaml:"kind"`
		Metadata   any    `yaml:"metadata"`
		Spec       struct {
			Selector struct {
				MatchLabels map[string]string `yaml:"matchLabels"`
			} `yaml:"selector"`
			Endpoints []struct {
				Port        string `yaml:"port"`
				Interval    string `yaml:"interval"`
				Relabelings []struct {
					TargetLabel string `yaml:"targetLabel"`
					Replacement string `yaml:"replacement"`
				} `yaml:"relabelings"`
			} `yaml:"podMetricsEndpoints"`
		} `yaml:"spec"`
	}
	strictResource(t, "PodMonitor", &monitor)
	if monitor.Kind != "PodMonitor" || len(monitor.Spec.Endpoints) != 1 || monitor.Spec.Endpoints[0].Port != "metrics" ||
		monitor.Spec.Endpoints[0].Relabelings[0].Replacement != "ekg" ||
		monitor.Spec.Selector.MatchLabels["app.kubernetes.io/component"] != "gateway" {
		t.Errorf("got %+v", monitor)
	}
}

// Every panel's query asks for metrics that gateways have, and every metric that is not only for alerts is in a panel.
func TestDashboard(t *testing.T) {
	known := series(t)
	data, err := os.ReadFile("monitoring/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		UID    string `json:"uid"`
		Panels []struct {
			ID      int    `json:"id"`
			Title   string `json:"title"`
			GridPos struct{ X, Y, W, H int }
			Targets []struct {
				RefID string `json:"refId"`
				Expr  string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal(data, &board); err != nil {
		t.Fatal(err)
	}
	ids, shown := map[int]bool{}, ""
	for _, p := range board.Panels {
		if ids[p.ID] || p.Title == "" || len(p.Targets) == 0 || p.GridPos.W == 0 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %d %q is given twice, empty or misplaced: %+v", p.ID, p.Title, p.GridPos)
		}
		ids[p.ID] = true
		for _, q := range p.Targets {
			shown += q.Expr + "\n"
			for _, wrong := range checkQuery(q.Expr, known) {
				t.Errorf("%s, %s: %s", p.Title, q.RefID, wrong)
			}
		}
	}
	if len(board.Panels) < 5 {
		t.Errorf("%d panels: the test proves nothing", len(board.Panels))
	}
	for _, m := range gatewaymetrics.List() {
		alertOnly := []string{"ekg_kernels_stale", "ekg_audit_failures_total", "ekg_build_info",
			"ekg_websockets_opened_total"}
		if !strings.Contains(shown, m.Name) && !slices.Contains(alertOnly, m.Name) {
			t.Errorf("%s is in no panel", m.Name)
		}
	}
}
