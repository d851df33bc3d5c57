package kernelspecs

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// processProxyPath is the key of Enterprise Gateway's part of the metadata in a Problem.
const processProxyPath = "metadata.process_proxy"

// userPaths are the keys in whose values the lists of users are.
var userPaths = []string{"metadata", processProxyPath, processProxyPath + ".config",
	processProxyPath + ".config.authorized_users", processProxyPath + ".config.unauthorized_users"}

// ImageNamePath is the key of Spec.Image in a Problem.
const ImageNamePath = processProxyPath + ".config.image_name"

const (
	// responseAddress is the placeholder of Enterprise Gateway for the address to which its launchers connect.
	responseAddress       = "{response_address}"
	launchTimeoutVariable = "KERNEL_LAUNCH_TIMEOUT"
	maxLaunchTimeout      = 24 * time.Hour // as for the client's variable
)

// portRangeText is the form of a range of ports. It is compiled when it is needed, since most kernelspecs have none.
var portRangeText = lazily(`^[0-9]{1,5}\.\.[0-9]{1,5}$`)

// foreignProxies are the ends of Enterprise Gateway's classes that ekg cannot stand in for, and why. The first match
// counts.
var foreignProxies = []struct{ class, why string }{
	{"YarnClusterProcessProxy", "runs kernels on YARN, which ekg does not do"},
	{"DockerSwarmProcessProxy", "runs kernels on Docker Swarm, which ekg does not do"},
	{"DockerProcessProxy", "runs kernels in Docker, which ekg does not do"},
	{"SparkOperatorProcessProxy", "runs kernels by the Spark operator, which ekg does not do"},
	{"CustomResourceProcessProxy", "runs kernels by custom resources, which ekg does not do"},
	{"ConductorClusterProcessProxy", "runs kernels on Spectrum Conductor, which ekg does not do"},
	{"DistributedProcessProxy", "runs kernels on other hosts by SSH, which ekg does not do"},
}

// Users limits which users may start kernels of a kernelspec. The zero value allows all. Names match as a whole.
type Users struct {
	Authorized   []string // if there are any, no other users may
	Unauthorized []string // these may not
}

// Limited reports whether there is a user who may not start a kernel.
func (u Users) Limited() bool { return len(u.Authorized)+len(u.Unauthorized) > 0 }

// May reports whether a user may start a kernel. As in Enterprise Gateway, an unauthorized name that is also authorized
// is unauthorized.
func (u Users) May(name string) bool {
	return !slices.Contains(u.Unauthorized, name) && (len(u.Authorized) == 0 || slices.Contains(u.Authorized, name))
}

// Within returns the users of a kernelspec in a gateway whose own lists are g. As in Enterprise Gateway, a kernelspec's
// list of authorized users replaces that of the gateway, and its list of unauthorized users adds to the gateway's.
func (u Users) Within(g Users) Users {
	if len(u.Authorized) == 0 {
		u.Authorized = g.Authorized
	}
	if len(g.Unauthorized) > 0 {
		u.Unauthorized = slices.Concat(u.Unauthorized, g.Unauthorized)
	}
	return u
}

// processProxy reads metadata.process_proxy, Enterprise Gateway's description of where a kernel runs, into the spec.
// Keys without an effect are warnings: Enterprise Gateway defines them, so they are no mistake.
func (r *reader) processProxy(root *node, s *Spec) {
	s.LaunchTimeout = r.launchTimeout(root.member("env").member(launchTimeoutVariable), "env."+launchTimeoutVariable)
	n := root.member("metadata").member("process_proxy")
	if n == nil {
		return
	}
	if n.kind != "object" {
		r.report(n, processProxyPath, "is %s, not an object", article(n.kind))
		return
	}
	r.proxyClass(n.member("class_name"))
	config := n.member("config")
	if config == nil {
		return
	}
	if config.kind != "object" {
		r.report(config, processProxyPath+".config", "is %s, not an object", article(config.kind))
		return
	}
	s.Users.Authorized = r.userNames(config, "authorized_users")
	s.Users.Unauthorized = r.userNames(config, "unauthorized_users")
	if image := config.member("image_name"); image != nil {
		if image.kind != "string" {
			r.report(image, ImageNamePath, "is %s, not a string", article(image.kind))
		}
		s.Image = image.text
	}
	timeout := r.launchTimeout(config.member("launch_timeout"), processProxyPath+".config.launch_timeout")
	s.LaunchTimeout = cmp.Or(s.LaunchTimeout, timeout)
	for _, m := range config.members {
		key := processProxyPath + ".config." + m.key
		switch m.key {
		case "authorized_users", "unauthorized_users", "image_name", "launch_timeout":
		case "executor_image_name":
			r.warn(&node{line: m.line}, key, "is ignored: ekg starts no Spark executors")
		case "port_range":
			r.portRange(m.value, key, len(s.Argv) > 0 && strings.Contains(strings.Join(s.Argv, " "), responseAddress))
		default:
			r.warn(&node{line: m.line}, key, "is ignored: ekg has no use for it")
		}
	}
}

// portRange checks a range of ports, which only a launcher of Enterprise Gateway reads.
func (r *reader) portRange(n *node, key string, launcher bool) {
	switch {
	case !launcher:
		r.warn(n, key, "is ignored: only the kernel's own machine or pod reaches a kernel's ports")
	case n.kind != "string" || !portRangeText().MatchString(n.text):
		r.report(n, key, `is not a range of ports like "40000..42000"`)
	}
}

// launchTimeout reads seconds, as a number or a text. Another value, which has no meaning there either, is a warning.
func (r *reader) launchTimeout(n *node, key string) time.Duration {
	if n == nil {
		return 0
	}
	text := n.text
	if n.kind == "number" {
		text = string(n.raw)
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || !(seconds > 0 && seconds <= maxLaunchTimeout.Seconds()) { // also rejects NaN
		r.warn(n, key, "is ignored: it is not a number of seconds up to %.0f", maxLaunchTimeout.Seconds())
		return 0
	}
	return time.Duration(seconds * float64(time.Second))
}

// proxyClass rejects classes whose kernels need what ekg does not have.
func (r *reader) proxyClass(n *node) {
	const key = processProxyPath + ".class_name"
	switch {
	case n == nil || n.kind == "string" && n.text == "":
		return // Enterprise Gateway's default is a local process
	case n.kind != "string":
		r.report(n, key, "is %s, not a string", article(n.kind))
		return
	case strings.HasSuffix(n.text, "LocalProcessProxy"), strings.HasSuffix(n.text, "KubernetesProcessProxy"):
		return
	}
	class := n.text[strings.LastIndex(n.text, ".")+1:]
	for _, f := range foreignProxies {
		if strings.HasSuffix(class, f.class) {
			r.report(n, key, "%s %s", class, f.why)
			return
		}
	}
	r.report(n, key, "%q is a class that ekg does not know, and ekg runs no Python of an operator", n.text)
}

// userNames reads names that are separated by commas. A list of another shape is a problem: to ignore it would allow
// what it forbids.
func (r *reader) userNames(config *node, member string) []string {
	n, key := config.member(member), processProxyPath+".config."+member
	if n == nil {
		return nil
	}
	var texts []string
	switch n.kind {
	case "string":
		texts = strings.Split(n.text, ",")
	case "array":
		for _, item := range n.items {
			if item.kind != "string" {
				r.report(item, key, "is not a list of names")
				return nil
			}
			texts = append(texts, item.text)
		}
	default:
		r.report(n, key, "is %s, not names that are separated by commas", article(n.kind))
		return nil
	}
	var names []string
	for _, t := range texts {
		if t = strings.TrimSpace(t); t != "" {
			names = append(names, t)
		}
	}
	if len(names) == 0 && (n.text != "" || len(n.items) > 0) {
		r.report(n, key, "has no name")
	}
	return names
}
