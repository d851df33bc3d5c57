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
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube"
	"github.com/elastic-kernel-gateway/ekg/launcher/local"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// openLauncher opens what the settings say runs kernels.
func openLauncher(ctx context.Context, s *settings, limits launcher.Limits, log *slog.Logger, watch launcher.Observer) (launcher.Launcher, error) {
	switch s.launcher {
	case "local":
		supervisor, err := findSupervisor(s)
		if err != nil {
			return nil, err
		}
		gpuProgram, err := findGPUProgram(s, supervisor)
		if err != nil {
			return nil, err
		}
		return local.Open(ctx, local.Options{
			StateDir:   s.stateDir,
			RuntimeDir: s.runtimeDir,
			Supervisor: supervisor,
			GPUProgram: gpuProgram,
			LogLimit:   s.logLimit,
			LogTotal:   s.logTotal,
			StopGrace:  s.stopGrace,
			InheritEnv: s.inheritEnv,
			Cull:       s.cull(),
			Limits:     limits,
			Log:        log,
			Observer:   watch,
		})
	case "kubernetes":
		return openKube(ctx, s, limits, log, watch)
	default:
		return nil, fmt.Errorf("%s: there is no launcher %q", s.origins["launcher"].place, s.launcher)
	}
}

// openKube connects to the cluster and finds the kernels that are there.
func openKube(ctx context.Context, s *settings, limits launcher.Limits, log *slog.Logger, watch launcher.Observer) (launcher.Launcher, error) {
	kube.LogTo(log)
	cluster, err := kube.Connect(s.kubeconfig, s.kubeContext)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.origins["kubeconfig"].place, err)
	}
	pods, err := s.podOptions(cluster.Namespace)
	if err != nil {
		return nil, err
	}
	key, err := s.masterKey(cluster)
	if err != nil {
		return nil, err
	}
	log.Info("kernels are pods", "cluster", cluster.Host, "namespace", pods.Namespace)
	opening, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	o := kube.Options{Cluster: cluster, Pods: pods, MasterKey: key, StartLimit: time.Duration(s.startLimit), KeepEndings: time.Duration(s.keepEndings), Limits: limits, Log: log, Observer: watch}
	if s.kubePeers != "" {
		if !cluster.Inside() || s.podIP == "" {
			return nil, fmt.Errorf("%s: only for gateways in the cluster, which are told their address with --pod-ip", s.origins["kube-peers"].place)
		}
		o.Peers = &kube.Peers{Namespace: cluster.Namespace, Selector: s.kubePeers, IP: s.podIP}
	}
	return kube.Open(opening, o)
}

// openTime is how long the cluster may take to list its pods before a gateway gives up. Where it runs as a Deployment it is
// started again.
const openTime = time.Minute

// podOptions are the settings of kernels' pods.
func (s *settings) podOptions(namespace string) (kube.PodOptions, error) {
	if s.kubeNamespace != "" {
		namespace = s.kubeNamespace
	}
	o := kube.PodOptions{Namespace: namespace, SupervisorImage: s.supervisorImage, KernelImage: s.kernelImage,
		LogLimit: s.logLimit, StopGrace: time.Duration(s.stopGrace), Cull: s.cull()}
	if s.supervisorImage == "" {
		return o, fmt.Errorf("%s: the launcher kubernetes needs the name of ekg's image", s.origins["supervisor-image"].place)
	}
	if s.kubePolicy != "" {
		policy, err := kube.ReadPolicy(s.kubePolicy)
		if err != nil {
			return o, fmt.Errorf("%s: %w", s.origins["kube-policy"].place, err)
		}
		o.Policy = policy
	}
	return o, nil
}

// cull is when kernels are ended that nobody has asked to end. It is the operator's part of it: what a kernelspec says is laid
// over it by the launchers.
func (s *settings) cull() supervisor.Cull {
	return supervisor.Cull{IdleTimeout: s.cullIdleTimeout, Busy: s.cullBusy, Unattended: !s.cullConnected, BusyLimit: s.cullBusyLimit, MaxAge: s.cullMaxAge,
		KeepLimit: s.cullKeepLimit, Warning: s.cullWarning, Interval: s.cullInterval, CPU: s.cullCPU, GPU: s.cullGPU, Activity: s.cullActivity, IdleMax: s.cullIdleMax}
}

// masterKey reads the key from which those of kernels are derived. A gateway outside the cluster has one of its own, unless
// it is told another; in a cluster replicas could not serve each other's kernels with that.
func (s *settings) masterKey(cluster *kube.Cluster) ([]byte, error) {
	path, place := s.masterKeyFile, s.origins["master-key-file"].place
	if path == "" {
		if cluster.Inside() {
			return nil, fmt.Errorf("%s: a gateway in a cluster needs a key that all its replicas share", place)
		}
		path, place = filepath.Join(s.stateDir, "master-key"), s.origins["state-dir"].place
	}
	text, err := readTokenFile(path)
	if errors.Is(err, fs.ErrNotExist) && s.masterKeyFile == "" {
		text, err = makeTokenFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", place, err)
	}
	if len(text) < 32 {
		return nil, fmt.Errorf("%s: %s has %d characters, 32 are needed", place, path, len(text))
	}
	return []byte(text), nil
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

// findGPUProgram returns the absolute path of ekg-gpu, which lies beside the supervisor; "" where nothing needs it.
func findGPUProgram(s *settings, supervisor string) (string, error) {
	if s.cullGPU == 0 {
		return "", nil
	}
	if real, err := filepath.EvalSymlinks(supervisor); err == nil {
		supervisor = real
	}
	path, err := exec.LookPath(filepath.Join(filepath.Dir(supervisor), "ekg-gpu"))
	if err != nil {
		return "", fmt.Errorf("%s: it needs the program ekg-gpu beside the supervisor: %w", s.origins["cull-gpu"].place, err)
	}
	return path, nil
}
