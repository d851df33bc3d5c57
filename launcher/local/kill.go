package local

import (
	"errors"
	"io/fs"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/launcher/cgroup"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
)

// newGroup returns the path of a new control group for a kernel; "" if kernels get none.
func (ps *processes) newGroup(id string) string {
	if ps.groups == "" {
		return ""
	}
	return cgroup.Path(ps.groups, id)
}

// group returns the control group that the kernel's present configuration names; nil if it names none. This or another
// gateway has chosen it.
func (ps *processes) group(id string) *cgroup.Group {
	var cfg struct {
		ControlGroup string `json:"control_group"`
	}
	err := files.ReadJSON(ps.layout.file(id, configFile), &cfg)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var g *cgroup.Group
	if err == nil {
		g, err = cgroup.At(cfg.ControlGroup, id)
	}
	if err != nil {
		ps.log.Warn("control group of a kernel is not known", logkey.Kernel, id, logkey.Err, err)
	}
	return g
}

// kill kills all processes of a kernel whose supervisor has ended, and returns how many there were. It removes the
// kernel's control group. The group does not have the processes of a kernel that was moved to another one, so /proc is
// searched too. That takes long on a machine with many processes. With orderly, the supervisor has killed all processes
// already, and the search is left out if there is a group. The folder's lock is held.
func (ps *processes) kill(id string, kernelPID int, orderly bool) (int, error) {
	g := ps.group(id)
	n, err := g.Kill()
	if err == nil {
		err = g.Remove()
		if err == nil && orderly {
			return n, nil
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		ps.log.Warn("processes of a kernel's control group remain", logkey.Kernel, id, logkey.Err, err)
	}
	more, err := proctree.KillRemains(id, kernelPID)
	return n + more, err
}

// killRemains is kill for a kernel that is dead in any case.
func (ps *processes) killRemains(k *kernel, p processIDs) int {
	n, err := ps.kill(k.id, p.Kernel, false)
	if err != nil {
		// The kernel is dead all the same: a process that survives SIGKILL is stuck in the operating system.
		ps.log.Error("processes of a dead kernel remain", logkey.Kernel, k.id, logkey.Err, err)
	}
	return n
}

// removeGroup removes the control group of a kernel that has no processes.
func (ps *processes) removeGroup(k *kernel) {
	if err := ps.group(k.id).Remove(); err != nil {
		ps.log.Warn("control group of a kernel cannot be removed", logkey.Kernel, k.id, logkey.Err, err)
	}
}
