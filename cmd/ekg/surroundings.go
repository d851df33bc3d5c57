package main

import (
	"context"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// noteSurroundings tells the operator what about this place will surprise him: where kernels cannot outlive the
// gateway, where tokens travel unencrypted, and which variables have no effect.
func (v *server) noteSurroundings(ctx context.Context) {
	s := v.settings
	if inContainer() {
		v.log.Info("in a container: kernels outlive the gateway, but end with the container")
	}
	if mode := systemdKillMode(ctx, os.Getenv); mode != "" && mode != "process" && mode != "none" {
		v.log.Warn("systemd will end all kernels with the gateway; put KillMode=process into its unit", "kill_mode", mode)
	}
	if !isLocal(s.listen) && s.noAuth {
		v.log.Warn("authentication is off and other machines reach this address: whoever does can run code", "listen", s.listen)
	} else if !isLocal(s.listen) && s.tlsCert == "" {
		v.log.Warn("other machines reach this address without TLS: the token travels readably", "listen", s.listen)
	}
	if stray := strayVariables(os.Environ()); len(stray) > 0 {
		v.log.Warn("environment variables without effect", "names", strings.Join(stray, ", "))
	}
}

// inContainer reports whether this process ends together with everything around it.
func inContainer() bool {
	for _, file := range []string{"/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Stat(file); err == nil {
			return true
		}
	}
	return os.Getpid() == 1
}

// systemdKillMode returns the KillMode of the unit whose main process this is, "" if it is none's.
func systemdKillMode(ctx context.Context, getenv func(string) string) string {
	// The variable is inherited by everything that a service starts, so it is only a hint.
	if getenv("INVOCATION_ID") == "" {
		return ""
	}
	cgroups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	unit, user := serviceOf(string(cgroups))
	if unit == "" {
		return ""
	}
	args := []string{"show", "--property=MainPID", "--property=KillMode", "--", unit}
	if user {
		args = append([]string{"--user"}, args...)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "systemctl", args...).Output()
	if err != nil {
		return ""
	}
	return killMode(string(out), os.Getpid())
}

// serviceOf returns the service that /proc/self/cgroup places a process in, and whether it is one of a user.
func serviceOf(cgroups string) (unit string, user bool) {
	for line := range strings.Lines(cgroups) {
		group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue // of version 1, which today's systemd no longer uses
		}
		unit = path.Base(group)
		if !strings.HasSuffix(unit, ".service") || strings.HasPrefix(unit, "user@") {
			return "", false
		}
		return unit, strings.Contains(group, "/user@")
	}
	return "", false
}

// killMode reads systemctl's answer, and believes it if the unit is about this very process.
func killMode(properties string, pid int) string {
	mode, mine := "", false
	for line := range strings.Lines(properties) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "KillMode":
			mode = value
		case "MainPID":
			mine = value == strconv.Itoa(pid)
		}
	}
	if !mine {
		return ""
	}
	return mode
}

// strayVariables returns the names in the environment that look like settings of ekg or of Enterprise Gateway but are
// none. They are told, not refused: Kubernetes gives variables to pods beside a service named "ekg", and deployments of
// Enterprise Gateway set more than there is a use for here.
func strayVariables(environ []string) []string {
	known := []string{"EG_IP", "EG_PORT", "EKG_KERNEL_ID", "EKG_GATEWAY_URL"}
	for _, o := range append(slices.Clone(options), configOption) {
		known = append(known, o.env...)
	}
	var stray []string
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, "EKG_") && !strings.HasPrefix(name, "EG_") || slices.Contains(known, name) {
			continue
		}
		if _, rest, _ := strings.Cut(name, "_"); strings.HasPrefix(rest, "SERVICE_") || rest == "PORT" || strings.HasPrefix(rest, "PORT_") && strings.Count(rest, "_") > 1 {
			continue // of a service of Kubernetes
		}
		stray = append(stray, name)
	}
	slices.Sort(stray)
	return stray
}
