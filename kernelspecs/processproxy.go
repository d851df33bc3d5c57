package kernelspecs

import (
	"slices"
	"strings"
)

// processProxyPath is the key of Enterprise Gateway's part of the metadata in a Problem.
const processProxyPath = "metadata.process_proxy"

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

// processProxy reads metadata.process_proxy, Enterprise Gateway's description of where a kernel runs. It ignores keys
// that ekg does not use, since Enterprise Gateway defines them.
func (r *reader) processProxy(n *node) Users {
	var users Users
	if n == nil {
		return users
	}
	if n.kind != "object" {
		r.report(n, processProxyPath, "is %s, not an object", article(n.kind))
		return users
	}
	r.proxyClass(n.member("class_name"))
	config := n.member("config")
	if config == nil {
		return users
	}
	if config.kind != "object" {
		r.report(config, processProxyPath+".config", "is %s, not an object", article(config.kind))
		return users
	}
	users.Authorized = r.userNames(config, "authorized_users")
	users.Unauthorized = r.userNames(config, "unauthorized_users")
	return users
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
	if len(names) == 0 && n.text != "" {
		r.report(n, key, "has no name")
	}
	return names
}
