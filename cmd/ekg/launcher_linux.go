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
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/cgroup"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/cluster"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
	"github.com/elastic-kernel-gateway/ekg/launcher/local"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
)

// openLauncher opens the launcher that the settings select. warm returns which warm kernels the kernelspecs want.
// reaper may be nil.
func openLauncher(
	ctx context.Context,
	s *settings.Settings,
	limits launcher.Limits,
	log *slog.Logger,
	watch launcher.Observer,
	reaper *proctree.Reaper,
	warm func() []launcher.Warm,
) (launcher.Launcher, error) {
	switch s.Launcher {
	case "local":
		supervisor, err := findSupervisor(s)
		if err != nil {
			return nil, err
		}
		gpuProgram, err := findGPUProgram(s, supervisor)
		if err != nil {
			return nil, err
		}
		groups, err := cgroup.Find()
		if err != nil {
			log.Info("kernels get no control groups of their own; their processes are found by session and environment",
				logkey.Err, err)
		} else if err := cgroup.Sweep(groups); err != nil {
			log.Warn("old control groups cannot be removed", logkey.Err, err)
		}
		o := s.Local
		o.Supervisor, o.GPUProgram, o.ControlGroups = supervisor, gpuProgram, groups
		o.Limits, o.Reaper, o.Log, o.Observer, o.Warm = limits, reaper, log, watch, warm
		return local.Open(ctx, o)
	case "kubernetes":
		return openKube(ctx, s, limits, log, watch, warm)
	default:
		return nil, fmt.Errorf("%s: unknown launcher %q", s.Place("launcher"), s.Launcher)
	}
}

// openKube connects to the cluster and finds its kernels.
func openKube(
	ctx context.Context,
	s *settings.Settings,
	limits launcher.Limits,
	log *slog.Logger,
	watch launcher.Observer,
	warm func() []launcher.Warm,
) (launcher.Launcher, error) {
	cluster.LogTo(log)
	cluster, err := cluster.Connect(s.Kubeconfig, s.KubeContext)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Place("kubeconfig"), err)
	}
	pods, err := podOptions(s, cluster.Namespace)
	if err != nil {
		return nil, err
	}
	if err := checkOwners(s, pods.Policy, log); err != nil {
		return nil, err
	}
	key, second, err := masterKeys(s, cluster.Inside())
	if err != nil {
		return nil, err
	}
	log.Info("kernels are pods", logkey.Cluster, cluster.Host, logkey.Namespace, pods.Namespace)
	opening, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	if pods, err = adaptToCluster(opening, cluster, pods, log); err != nil {
		return nil, err
	}
	o := kube.Options{
		Cluster:         cluster,
		Version:         version,
		Pods:            pods,
		MasterKey:       key,
		SecondMasterKey: second,
		Limits:          limits,
		Log:             log,
		Observer:        watch,
		Warm:            warm,
	}
	if pods.Policy != nil {
		o.EvictIdleAfter = pods.Policy.EvictIdleAfter
	}
	return kube.Open(opening, o)
}

const (
	// openTime bounds the time until the cluster is known. After it the gateway ends, and a Deployment starts it again.
	openTime = time.Minute
	// adaptPause is the pause after a request that failed within openTime.
	adaptPause = 500 * time.Millisecond
)

// podOptions returns the settings of kernels' pods.
func podOptions(s *settings.Settings, namespace string) (podbuild.Options, error) {
	o := s.PodOptions(namespace)
	if s.Pods.SupervisorImage == "" {
		return o, fmt.Errorf("%s: the launcher kubernetes needs the name of ekg's image", s.Place("supervisor-image"))
	}
	if s.KubePolicy != "" {
		policy, err := wish.ReadPolicy(s.KubePolicy)
		if err != nil {
			return o, fmt.Errorf("%s: %w", s.Place("kube-policy"), err)
		}
		o.Policy, o.Supervisor = policy, policy.Supervisor
		o.ClusterChoosesUser = o.Supervisor.User == wish.UserNamespace
		if !slices.Contains(o.Supervisor.Architectures, wish.ArchAny) {
			o.Architectures = o.Supervisor.Architectures
		}
	}
	if err := o.Validate(); err != nil {
		return o, fmt.Errorf("settings of kernels' pods: %w", err)
	}
	return o, nil
}

// checkOwners returns an error if the policy needs owners and the gateway has no users. With users it logs what the
// policy lets all of them use. The policy may be nil.
func checkOwners(s *settings.Settings, policy *wish.Policy, log *slog.Logger) error {
	if policy == nil {
		return nil
	}
	if len(s.UserSources()) == 0 {
		if rules := policy.OwnerRules(); len(rules) > 0 {
			return fmt.Errorf("%s: %s: %s: {owner} stands for the name of the kernel's owner, and the gateway has no users",
				s.Place("kube-policy"), s.KubePolicy, strings.Join(rules, ", "))
		}
		return nil
	}
	if rules := policy.CommonRules(); len(rules) > 0 {
		log.Warn("the policy lets all users use the same objects; write {owner} where each user has objects of their own",
			logkey.File, s.KubePolicy, logkey.Rules, strings.Join(rules, ", "))
	}
	return nil
}

// checkOfSpecs returns the check of kernelspecs that a gateway makes when it reads them, or nil.
func checkOfSpecs(s *settings.Settings) func(kernelspecs.Spec) []kernelspecs.Problem {
	if s.Launcher != "kubernetes" || len(s.UserSources()) > 0 {
		return nil
	}
	return wish.CheckNoOwner
}

// adaptToCluster completes settings that depend on the cluster. It asks until the cluster answers or ctx ends.
func adaptToCluster(
	ctx context.Context,
	cluster *cluster.Cluster,
	pods podbuild.Options,
	log *slog.Logger,
) (podbuild.Options, error) {
	if len(pods.Supervisor.Architectures) == 0 && cluster.Inside() {
		pods.Architectures = []string{runtime.GOARCH} // gateways and supervisors are of one image
	}
	if user := pods.Supervisor.User; user != "" && user != wish.UserAuto {
		return pods, nil
	}
	for {
		chooses, err := cluster.ChoosesUsers(ctx)
		if err == nil {
			pods.ClusterChoosesUser = chooses
			return pods, nil
		}
		log.Warn("the cluster does not answer; this is tried again", logkey.Err, err)
		if goroutines.Sleep(ctx, adaptPause) != nil {
			return pods, fmt.Errorf("the cluster does not answer whether it is OpenShift: %w", err)
		}
	}
}

// findSupervisor returns the absolute path of ekg-supervisor. It looks for the given path or name, else beside this
// program, else on PATH.
func findSupervisor(s *settings.Settings) (string, error) {
	place := s.Place("supervisor")
	if s.Supervisor != "" {
		path, err := exec.LookPath(s.Supervisor)
		if err != nil {
			return "", fmt.Errorf("%s: %w", place, err)
		}
		return filepath.Abs(path)
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	// This program may be started by a link. The supervisor of the same version is beside the link's target.
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

// findGPUProgram returns the absolute path of ekg-gpu, which lies beside the supervisor. It returns "" if it is missing
// and no setting needs it.
func findGPUProgram(s *settings.Settings, supervisor string) (string, error) {
	if real, err := filepath.EvalSymlinks(supervisor); err == nil {
		supervisor = real
	}
	path, err := exec.LookPath(filepath.Join(filepath.Dir(supervisor), "ekg-gpu"))
	if err != nil && s.Local.Cull.GPU == 0 {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("%s: requires the program ekg-gpu beside the supervisor: %w", s.Place("cull-gpu"), err)
	}
	return path, nil
}
