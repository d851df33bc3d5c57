package settings

import (
	"slices"
	"strings"
)

// removed holds the names of settings that earlier builds had, and what to use in place of each.
var removed = map[string]string{
	"allow-unauthenticated-remote": "use --no-auth=remote",
	"cull-activity":                "only cells and answers to prompts end the idle time; see docs/idle.md",
	"cull-busy-limit": "use cull.busy-limit of a group in --users-file, or metadata.ekg.cull.busyLimit of a " +
		"kernelspec",
	"cull-cpu":                "use metadata.ekg.cull.cpu of a kernelspec; see docs/idle.md",
	"cull-idle-max":           "change metadata.ekg.cull.idleTimeout of the kernelspec, which has no upper bound",
	"drain-delay":             "a gateway in a cluster serves for 5s after SIGTERM, and others end at once",
	"flavors-as-kernelspecs":  "kernelspecs are offered with each flavor that is not unlisted; see docs/gpus.md",
	"gpu-samples":             "GPUs are measured every 10s where ekg-gpu lies beside ekg-supervisor",
	"home-limit":              "the limit is 10GiB; mount a volume as the home folder for more",
	"jobs-give-way":           "use jobsGiveWay of a flavor in the file of --flavors; see docs/jobs.md",
	"keep-endings":            "the cluster keeps the reasons of ends for 7 days",
	"kube-burst":              "a gateway sends at most 200 requests at once to the API server",
	"kube-peers":              "gateways in a cluster find each other by the labels of the manifests and the chart",
	"oidc-groups-claim":       "groups are read from the claim groups; let the issuer map another claim to it",
	"pod-ip":                  "a gateway in a cluster finds the address of its own pod",
	"kube-qps":                "a gateway sends at most 100 requests a second to the API server",
	"local-gpu-shares":        "use a flavor with replica in the file of --flavors; see docs/gpus.md",
	"local-warm-gpus":         "warm of a kernelspec with GPUs is enough on one machine",
	"placeholder-class":       "use the component or the chart's value placeholders; see docs/gpus.md",
	"pre-pull":                "use the component pre-pull, or the chart's value prePull; see docs/kubernetes.md",
	"evict-idle-after":        "use evictIdleAfter in the file of --kube-policy",
	"job-priority-class":      "use jobPriorityClass in the file of --kube-policy",
	"profiles-as-kernelspecs": "each kernelspec is offered with each of its profiles",
	"supervisor-arch":         "use supervisor.architectures in the file of --kube-policy",
	"supervisor-cpu":          "use supervisor.cpu in the file of --kube-policy",
	"supervisor-memory":       "use supervisor.memory in the file of --kube-policy",
	"supervisor-memory-limit": "use supervisor.memoryLimit in the file of --kube-policy",
	"supervisor-pull-policy":  "use supervisor.pullPolicy in the file of --kube-policy",
	"supervisor-pull-secret":  "use supervisor.pullSecrets in the file of --kube-policy",
	"supervisor-user":         "use supervisor.user in the file of --kube-policy",
	"start-limit":             "the limit is 30m; KERNEL_LAUNCH_TIMEOUT of a request makes it longer",
	"watch-gpus":              "gateways that may list and watch nodes and pods of the cluster do; see docs/gpus.md",
	"watch-nodes":             "gateways that may list and watch nodes do; see docs/kubernetes.md",
}

// Removed returns what to use in place of a setting that earlier builds had. The text is "" for any other name.
func Removed(name string) string { return removed[name] }

// RemovedVariable is a variable of the environment that had an effect in earlier builds.
type RemovedVariable struct{ Name, Instead string }

// RemovedVariables returns the variables of an environment that earlier builds had, in the order of their names. They
// are logged and not rejected, since a variable may be part of an image or of a chart.
func RemovedVariables(environ []string) (all []RemovedVariable) {
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		if instead := removed[optionOf(name)]; instead != "" && value != "" {
			all = append(all, RemovedVariable{name, instead})
		}
	}
	slices.SortFunc(all, func(a, b RemovedVariable) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// optionOf returns the name of the option that a variable of ekg would set, or "".
func optionOf(variable string) string {
	name, ok := strings.CutPrefix(variable, "EKG_")
	if !ok {
		return ""
	}
	return strings.ToLower(strings.ReplaceAll(name, "_", "-"))
}
