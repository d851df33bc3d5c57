package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/local"
)

// openLauncher opens what the settings say runs kernels.
func openLauncher(ctx context.Context, s *settings, log *slog.Logger) (launcher.Launcher, error) {
	switch s.launcher {
	case "local":
		supervisor, err := findSupervisor(s)
		if err != nil {
			return nil, err
		}
		return local.Open(ctx, local.Options{
			StateDir:   s.stateDir,
			RuntimeDir: s.runtimeDir,
			Supervisor: supervisor,
			LogLimit:   s.logLimit,
			LogTotal:   s.logTotal,
			StopGrace:  s.stopGrace,
			InheritEnv: s.inheritEnv,
			Log:        log,
		})
	default:
		return nil, fmt.Errorf("%s: there is no launcher %q", s.origins["launcher"].place, s.launcher)
	}
}

// findSupervisor returns the absolute path of ekg-supervisor: what was given, else beside this program, else on PATH.
func findSupervisor(s *settings) (string, error) {
	place := s.origins["supervisor"].place
	if s.supervisor != "" {
		path, err := exec.LookPath(s.supervisor)
		if err != nil {
			return "", fmt.Errorf("%s: %w", place, err)
		}
		return filepath.Abs(path)
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	// Linked programs lie elsewhere than their link: that is where the supervisor of the same version is.
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real
	}
	beside := filepath.Join(filepath.Dir(self), "ekg-supervisor")
	_, err = exec.LookPath(beside)
	if err == nil {
		return beside, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	path, err := exec.LookPath("ekg-supervisor")
	if err != nil {
		return "", fmt.Errorf("%s: ekg-supervisor is neither in %s nor on PATH", place, filepath.Dir(self))
	}
	return filepath.Abs(path)
}
