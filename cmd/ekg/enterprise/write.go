package enterprise

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// Result counts what Write has written.
type Result struct {
	Settings   int // settings of ekg, or values of its chart
	Unmatched  int // options without a counterpart, or with a value that ekg rejects
	Unreadable int // lines that could not be read
}

// Token returns the given token, and where it stands. It is "" if there is none.
func (im *Import) Token() (token, place string) {
	counts, _ := im.chosen()
	for _, g := range counts {
		if g.option.setting == "token" && !g.value.none && !g.value.list {
			return g.value.texts[0], g.place
		}
	}
	return "", ""
}

// Write writes a configuration file of ekg. tokenFile is the file that holds the token; "" leaves it to the operator.
// The value of an option without a counterpart is not written, since it may be a secret.
func (im *Import) Write(w io.Writer, tokenFile string) (Result, error) {
	return im.write(w, tokenFile, &output{})
}

func (im *Import) write(w io.Writer, tokenFile string, o *output) (Result, error) {
	counts, overridden := im.chosen()
	o.listen(counts)
	for _, g := range counts {
		switch {
		case g.option.setting == "token":
			o.token(g, tokenFile)
		case g.option.setting == "" || g.option.setting == "listen":
		default:
			o.setting(g)
		}
	}
	o.defaults(counts)
	o.replaced()
	if len(overridden) > 0 {
		o.section("Overridden in Enterprise Gateway, too:")
		for _, g := range overridden {
			o.comment("%s: %s", g.place, g.name)
		}
	}
	o.unmatched(counts)
	if len(im.unread) > 0 {
		o.section("Not read:")
		for _, text := range im.unread {
			o.comment("%s", text)
		}
	}
	o.Unreadable = len(im.unread)
	text := o.text.String()
	if o.chart {
		text = o.values(text)
	}
	_, err := io.WriteString(w, text)
	return o.Result, err
}

// output is a configuration file that is being written.
type output struct {
	Result

	text     strings.Builder
	rejected []string

	// Of values for the chart.
	chart   bool
	service string   // lines of the value service; may be empty
	others  []string // settings that other values stand for, and which
}

func (o *output) comment(format string, args ...any) {
	fmt.Fprintf(&o.text, "# %s\n", kernelspecs.Printable(fmt.Sprintf(format, args...)))
}

func (o *output) section(heading string) {
	o.text.WriteString("\n")
	o.comment("%s", heading)
}

// line writes one setting if ekg accepts its value.
func (o *output) line(name string, texts []string, source, remark string) {
	line, err := settings.Line(name, texts)
	if err != nil {
		o.rejected = append(o.rejected, fmt.Sprintf("%s: %s %v", source, name, err))
		return
	}
	if other := chartValues[name]; o.chart && other != "" {
		o.others = append(o.others, source+": "+other)
		o.Settings++
		return
	}
	if remark != "" {
		source += "; " + remark
	}
	fmt.Fprintf(&o.text, "%-40s # %s\n", line, kernelspecs.Printable(source))
	o.Settings++
}

func (o *output) setting(g given) {
	v, remark := g.value, ""
	if v.none || len(v.texts) == 0 || len(v.texts) == 1 && v.texts[0] == "" {
		return // unset in Enterprise Gateway, too
	}
	if v.list && !g.option.list {
		o.rejected = append(o.rejected, fmt.Sprintf("%s: %s is not a single value", g.place, g.name))
		return
	}
	if g.option.convert != nil {
		if v, remark = g.option.convert(v); len(v.texts) == 0 {
			o.rejected = append(o.rejected, fmt.Sprintf("%s: %s: %s", g.place, g.name, remark))
			return
		}
	}
	o.line(g.option.setting, v.texts, g.place+": "+g.name, remark)
}

// listen joins address and port.
func (o *output) listen(counts []given) {
	ip, port := "127.0.0.1", "8888"
	var sources []string
	for _, g := range counts {
		if g.option.setting != "listen" || g.value.none || g.value.list {
			continue
		}
		if slices.Contains(g.option.traits, "ip") {
			ip = strings.Trim(g.value.texts[0], "[]")
			if ip == "" || ip == "*" {
				ip = "0.0.0.0"
			}
		} else {
			port = g.value.texts[0]
		}
		sources = append(sources, g.place+": "+g.name)
	}
	source := strings.Join(sources, ", ")
	switch {
	case len(sources) == 0:
	case o.chart:
		o.servicePort(port, source)
	default:
		o.line("listen", []string{net.JoinHostPort(ip, port)}, source, "")
	}
}

// token never writes the token itself.
func (o *output) token(g given, file string) {
	switch {
	case g.value.none || g.value.list || g.value.texts[0] == "":
		return
	case o.chart:
		o.chartToken(g, file)
	case file != "":
		o.line("token-file", []string{file}, g.place+": "+g.name, "")
	default:
		o.comment("token-file: FILE  # %s: %s is a secret and is not written here. --token-file FILE of this command",
			g.place, g.name)
		o.comment("writes it to a file that only you can read. Until then ekg generates a token of its own.")
	}
}

// defaults writes what differs where nothing is set.
func (o *output) defaults(counts []given) {
	has := func(setting string) bool {
		return slices.ContainsFunc(counts, func(g given) bool {
			return g.option.setting == setting && !g.value.none && !(len(g.value.texts) == 1 && g.value.texts[0] == "")
		})
	}
	if has("cull-idle-timeout") && !has("cull-connected") {
		o.line("cull-connected", []string{"false"}, "Enterprise Gateway's default; ekg's is true", "")
	}
	if !has("token") {
		o.comment("No token was given, so Enterprise Gateway accepts every request. ekg generates a token. Clients need it.")
	}
	if !o.chart && (has("kube-namespace") || has("kernel-image")) {
		o.comment("For kernels in pods, set also launcher: kubernetes and supervisor-image. See docs/kubernetes.md.")
	}
}

// unmatched lists the options without a counterpart, and the rejected values.
func (o *output) unmatched(counts []given) {
	var lines []string
	for _, g := range counts {
		if g.option.setting == "" {
			why := g.option.why
			if g.option.explain != nil {
				why = g.option.explain(g.value)
			}
			lines = append(lines, fmt.Sprintf("%s: %s: %s", g.place, g.name, why))
		}
	}
	if lines = append(lines, o.rejected...); len(lines) > 0 {
		o.section("Without a counterpart:")
		for _, line := range lines {
			o.comment("%s", line)
		}
	}
	o.Unmatched = len(lines)
}

// asList is an origin, which is one entry of a list in ekg.
func asList(v value) (value, string) { return value{texts: v.texts, list: true}, "" }

// variables drops the pattern that allows all variables.
func variables(v value) (value, string) {
	if slices.Contains(v.texts, "*") {
		return value{}, "ekg has no pattern for all variables; name those that clients may set"
	}
	return v, ""
}

// verified is a list of names of users.
func verified(v value) (value, string) {
	return v, "needs users-file, oidc-issuer, auth-token-review or hub-api-url"
}

// seconds is a number of seconds, which may have a fraction.
func seconds(v value) (value, string) {
	n, err := strconv.ParseFloat(v.texts[0], 64)
	if err != nil || !(n > 0) {
		return value{}, "is not a number of seconds above 0"
	}
	return value{texts: []string{strconv.FormatFloat(n, 'f', -1, 64) + "s"}}, ""
}
