package podbuild

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const (
	// responseAddress is where the supervisor listens for a launcher of Enterprise Gateway. The containers of a pod share
	// loopback. The port is that of Enterprise Gateway.
	responseAddress = "127.0.0.1:8877"

	// launchLimit is how long a launcher may take to answer if nothing else is set: the default of Enterprise Gateway's
	// chart.
	launchLimit = time.Minute

	alternateInterrupt = "EG_ALTERNATE_SIGINT"
)

// configureLauncher tells the supervisor of a launcher of Enterprise Gateway.
func (b *builder) configureLauncher(cfg *api.Config) {
	l := b.req.Spec.Launcher
	if l == nil {
		return
	}
	spec := b.req.Spec
	spec.Argv, spec.Prefix = l.Argv, ""
	vars := map[string]string{"kernel_id": b.req.ID, "port_range": cmp.Or(l.Env["PORT_RANGE"], "0..0")}
	cfg.Argv = spec.Command(vars)
	cfg.ResponseAddress = responseAddress
	cfg.LaunchLimit = cmp.Or(b.req.Timeout(), launchLimit)
	if name := spec.Env[alternateInterrupt]; name != "" {
		cfg.Env[alternateInterrupt] = name
	}
}

// addLauncherEnv adds the variables that Enterprise Gateway gives to a pod and that nothing else has set. Its launcher
// logs the connection's key unless its level is higher.
func (b *builder) addLauncherEnv(pod *corev1.Pod) {
	l := b.req.Spec.Launcher
	if l == nil {
		return
	}
	k := podspec.KernelOf(pod)
	vars := map[string]string{"KERNEL_GATEWAY": "1", "KERNEL_SPARK_CONTEXT_INIT_MODE": "none", "PORT_RANGE": "0..0",
		"EG_PORT_RANGE": "0..0", "EG_LOG_LEVEL": "20", "KERNEL_NAMESPACE": pod.Namespace, "KERNEL_POD_NAME": pod.Name,
		"KERNEL_IMAGE": k.Image, "KERNEL_USERNAME": cmp.Or(b.req.Owner, "jovyan")}
	maps.Copy(vars, l.Env)
	for name, value := range vars {
		if value != "" && !slices.ContainsFunc(k.Env, func(e corev1.EnvVar) bool { return e.Name == name }) {
			k.Env = append(k.Env, corev1.EnvVar{Name: name, Value: value})
		}
	}
	always := map[string]string{"KERNEL_ID": b.req.ID, "KERNEL_GATEWAY": "1"} // as with Enterprise Gateway
	k.Env = slices.DeleteFunc(k.Env, func(e corev1.EnvVar) bool { return always[e.Name] != "" })
	for name, value := range always {
		k.Env = append(k.Env, corev1.EnvVar{Name: name, Value: value})
	}
}
