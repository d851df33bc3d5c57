package enterprise

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// chartValues are the settings that ekg's chart sets itself, and which of its values stand for them.
var chartValues = map[string]string{
	"kube-namespace": "kernels.namespace stands for it. By default that is the release's namespace with -kernels",
	"tls-cert":       "tls.existingSecret stands for it: a secret with certificate and key",
	"tls-key":        "tls.existingSecret stands for it: a secret with certificate and key",
}

// chartExamples are the kernelspecs of the chart itself.
var chartExamples = []string{"python3", "python3-gpu"}

// WriteChart writes values for ekg's chart instead of a configuration file. The token is not among them: helm reads it
// from tokenFile.
func (im *Import) WriteChart(w io.Writer, tokenFile string) (Result, error) {
	return im.write(w, tokenFile, &output{chart: true})
}

// servicePort writes the port of the Service. Gateways in the chart listen on all addresses of their pods.
func (o *output) servicePort(port, source string) {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		o.rejected = append(o.rejected, source+": is not a port")
		return
	}
	o.service = fmt.Sprintf("service:\n  port: %-34d # %s\n", n, kernelspecs.Printable(source))
	o.Settings++
}

// chartToken says how helm reads the token.
func (o *output) chartToken(g given, file string) {
	how := "helm install --set-file authToken=FILE reads it. --token-file FILE of this command writes it"
	if file != "" {
		how = "helm install --set-file authToken=" + file + " reads it"
	}
	o.others = append(o.others, fmt.Sprintf("%s: %s: is a secret and is not written here; %s", g.place, g.name, how))
	o.Settings++
}

// replaced lists the settings that other values of the chart stand for.
func (o *output) replaced() {
	if len(o.others) == 0 {
		return
	}
	o.section("Not in this file:")
	for _, text := range o.others {
		o.comment("%s", text)
	}
}

// values makes values of the chart of the lines of a configuration file.
func (o *output) values(file string) string {
	var b strings.Builder
	b.WriteString(o.service)
	empty := true
	for line := range strings.Lines(file) {
		empty = empty && (line == "\n" || strings.HasPrefix(line, "#"))
	}
	if empty {
		return o.service + "settings: {}\n" + file
	}
	b.WriteString("settings:\n")
	for line := range strings.Lines(file) {
		if line != "\n" {
			b.WriteString("  ")
		}
		b.WriteString(line)
	}
	return b.String()
}

// ChartSpecs are kernelspecs for the value kernelspecs.specs of ekg's chart.
type ChartSpecs struct {
	names []string
	specs map[string]any
}

// Add adds a kernel.json. An error is a name that another kernelspec has in some case.
func (c *ChartSpecs) Add(name string, kernelJSON []byte) error {
	for _, other := range c.names {
		if strings.EqualFold(name, other) {
			return fmt.Errorf("there is a kernelspec %s already, and names must differ in more than case", other)
		}
	}
	d := json.NewDecoder(bytes.NewReader(kernelJSON))
	d.UseNumber() // to keep large integers
	var spec any
	if err := d.Decode(&spec); err != nil {
		return err
	}
	if c.specs == nil {
		c.specs = map[string]any{}
	}
	c.names = append(c.names, name)
	c.specs[name] = plainNumbers(spec)
	return nil
}

// plainNumbers returns a value of JSON with numbers that YAML writes as such.
func plainNumbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, item := range v {
			v[key] = plainNumbers(item)
		}
	case []any:
		for i, item := range v {
			v[i] = plainNumbers(item)
		}
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		if f, err := v.Float64(); err == nil {
			return f
		}
	}
	return v
}

// Write writes the values as YAML, without the examples of the chart. It writes nothing if no kernelspec was added.
func (c *ChartSpecs) Write(w io.Writer) error {
	if len(c.names) == 0 {
		return nil
	}
	for _, name := range chartExamples {
		if !slices.Contains(c.names, name) {
			c.specs[name] = nil
		}
	}
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	if err := e.Encode(map[string]any{"kernelspecs": map[string]any{"specs": c.specs}}); err != nil {
		return err
	}
	return e.Close()
}
