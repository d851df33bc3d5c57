package kernelspecs

import (
	"os"
	"path/filepath"
	"strings"
)

// LauncherEnterprise is the value of metadata.ekg.launcher for a kernel whose command is a launcher of Enterprise
// Gateway, in a pod: it chooses the kernel's ports and sends them to {response_address}.
const LauncherEnterprise = "enterprise-gateway"

// launcherPath is the key of the same in a Problem.
const launcherPath = extensionPath + ".launcher"

// enterpriseBootstrap is the program of Enterprise Gateway's kernel images that starts the launcher for a language.
const enterpriseBootstrap = "/usr/local/bin/bootstrap-kernel.sh"

// podTemplate is the file of Enterprise Gateway's kernelspecs that describes their pods.
const podTemplate = "scripts/kernel-pod.yaml.j2"

// Launcher is how a kernel image of Enterprise Gateway starts its kernel.
type Launcher struct {
	Argv []string          `json:"argv"`          // runs in the pod, with placeholders
	Env  map[string]string `json:"env,omitempty"` // defaults that argv on the gateway would have set
}

// Options of Enterprise Gateway's launch scripts that become variables of the pod.
var launchOptions = map[string]string{
	"spark-context-initialization-mode": "KERNEL_SPARK_CONTEXT_INIT_MODE",
	"kernel-class-name":                 "KERNEL_CLASS_NAME",
}

// enterpriseLauncher finds out whether the kernel is started by a launcher of Enterprise Gateway. If argv is its launch
// script, which would create a pod by itself, the image's own program runs instead.
func (r *reader) enterpriseLauncher(root *node, s *Spec) {
	explicit := root.member("metadata").member("ekg").member("launcher") != nil
	at := -1
	for i, arg := range s.Argv {
		if strings.Contains(arg, responseAddress) {
			at = i
		}
	}
	class := root.member("metadata").member("process_proxy").member("class_name")
	switch {
	case explicit:
		s.Launcher = &Launcher{Argv: s.Argv, Env: map[string]string{}}
	case at < 0:
		return
	case class == nil || !strings.HasSuffix(class.text, "KubernetesProcessProxy"):
		r.report(root.member("argv").items[at], elementKey(at), "%s: Enterprise Gateway's launcher answers there, which "+
			"ekg reads only with the class KubernetesProcessProxy or with %s", responseAddress, launcherPath)
		return
	default:
		s.Launcher = &Launcher{Argv: []string{enterpriseBootstrap}, Env: launchVariables(s.Argv)}
		if !submitsPod(s.Argv) {
			s.Launcher.Env["KERNEL_SPARK_CONTEXT_INIT_MODE"] = "none"
			r.warn(root.member("argv"), "argv", "submits no Spark application: the kernel runs in its image without Spark")
		}
	}
	if _, err := os.Stat(filepath.Join(s.Dir, filepath.FromSlash(podTemplate))); err == nil &&
		root.member("metadata").member("ekg") == nil {
		r.warn(root.member("argv"), "argv", "%s is not read: ekg-migrate kernelspec --keep-launcher translates it",
			podTemplate)
	}
	s.Launcher.Env["KERNEL_LANGUAGE"] = strings.ToLower(s.Language)
	s.Launcher.Env["KERNEL_NAME"] = filepath.Base(s.Dir)
	if config := root.member("metadata").member("process_proxy").member("config"); config != nil {
		if ports := config.member("port_range"); ports != nil {
			s.Launcher.Env["PORT_RANGE"], s.Launcher.Env["EG_PORT_RANGE"] = ports.text, ports.text
		}
	}
}

// submitsPod reports whether argv is Enterprise Gateway's script for a pod, and not the one for a Spark application.
func submitsPod(argv []string) bool {
	for _, arg := range argv {
		if filepath.Base(arg) == "launch_kubernetes.py" {
			return true
		}
	}
	return false
}

// launchVariables returns the variables that the options of a launch script set.
func launchVariables(argv []string) map[string]string {
	vars := map[string]string{}
	for i, arg := range argv {
		name, value, joined := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		variable := launchOptions[strings.TrimPrefix(name, "RemoteProcessProxy.")]
		if !joined && i+1 < len(argv) {
			value = argv[i+1]
		}
		if variable != "" && strings.HasPrefix(arg, "--") && value != "" {
			vars[variable] = value
		}
	}
	return vars
}
