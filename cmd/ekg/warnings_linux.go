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

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
	"github.com/elastic-kernel-gateway/ekg/gateway"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// logWarnings logs surprises for an operator: a container or systemd that ends kernels with the gateway, tokens that
// travel unencrypted, and environment variables without effect.
func (v *server) logWarnings(ctx context.Context) {
	s := v.settings
	if inContainer() {
		v.log.Info("in a container: kernels outlive the gateway, but end with the container")
	}
	if mode := systemdKillMode(ctx, os.Getenv); mode != "" && mode != "process" && mode != "none" {
		v.log.Warn("systemd will end all kernels with the gateway; put KillMode=process into its unit", logkey.KillMode, mode)
	}
	if !settings.IsLocal(s.Listen) && s.NoAuth {
		v.log.Warn("authentication is off and other machines reach this address: anyone who reaches it can run code",
			logkey.Listen, s.Listen)
	} else if !settings.IsLocal(s.Listen) && s.TLSCert == "" {
		v.log.Warn("other machines reach this address without TLS: tokens are sent unencrypted", logkey.Listen, s.Listen)
	}
	if slices.Contains(s.Gateway.AllowOrigins, gateway.AnyOrigin) {
		v.log.Warn("pages of all hosts may use the gateway: a page that has a token can run code")
	}
	for _, gone := range settings.RemovedVariables(os.Environ()) {
		v.log.Warn("an environment variable has no effect any more: "+gone.Instead, logkey.Names, gone.Name)
	}
	if stray := settings.StrayVariables(os.Environ()); len(stray) > 0 {
		v.log.Warn("environment variables without effect", logkey.Names, strings.Join(stray, ", "))
	}
}

// inContainer reports whether this process ends together with all other processes around it.
func inContainer() bool {
	for _, file := range []string{"/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Stat(file); err == nil {
			return true
		}
	}
	return os.Getpid() == 1
}

// systemdKillMode returns the KillMode of the unit whose main process this is, or "" if there is no such unit.
func systemdKillMode(ctx context.Context, getenv func(string) string) string {
	// All programs of a service inherit this variable, so it is only a hint.
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

// serviceOf returns a process's service from /proc/self/cgroup, and whether it is a user's service.
func serviceOf(cgroups string) (unit string, user bool) {
	for line := range strings.Lines(cgroups) {
		group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue // a group of version 1, which today's systemd no longer uses
		}
		unit = path.Base(group)
		if !strings.HasSuffix(unit, ".service") || strings.HasPrefix(unit, "user@") {
			return "", false
		}
		return unit, strings.Contains(group, "/user@")
	}
	return "", false
}

// killMode returns the KillMode in systemctl's answer, or "" if the unit's main process is not pid.
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
