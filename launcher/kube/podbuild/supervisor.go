package podbuild

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// supervisorContainer returns the container of the supervisor. It is the pod's first. Its hook returns when the
// supervisor has copied its program, and only then does the kubelet start the kernel's container, which needs the copy.
func (b *builder) supervisorContainer() corev1.Container {
	limit := resource.MustParse(b.o.Supervisor.MemoryLimit)
	return corev1.Container{
		Name:            podspec.ContainerSupervisor,
		Image:           b.o.SupervisorImage,
		ImagePullPolicy: corev1.PullPolicy(b.o.Supervisor.PullPolicy),
		Command:         []string{supervisorProgram, "pod"},
		Env: []corev1.EnvVar{
			{Name: api.PodConfigVariable}, // its value is set by configureSupervisor
			{Name: "GOMAXPROCS", Value: strconv.Itoa(api.DefaultProcessors)},
			// The kubelet writes the container's limit in MiB. GOMEMLIMIT has a million bytes for each MiB, which is 95 % of
			// the limit. The garbage collector works harder from there on. It does not count the log's page cache.
			{Name: memoryVariable, ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{
				ContainerName: podspec.ContainerSupervisor, Resource: "limits.memory", Divisor: resource.MustParse("1Mi")}}},
			{Name: "GOMEMLIMIT", Value: "$(" + memoryVariable + ")000000"},
		},
		Ports: []corev1.ContainerPort{
			{Name: podspec.SupervisorPortName, ContainerPort: podspec.SupervisorPort, Protocol: corev1.ProtocolTCP},
		},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(b.o.Supervisor.CPU),
				corev1.ResourceMemory: resource.MustParse(b.o.Supervisor.Memory)},
			Limits: corev1.ResourceList{corev1.ResourceMemory: limit},
		},
		Lifecycle: &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{
			Exec: &corev1.ExecAction{Command: []string{supervisorProgram, "installed"}}}},
		VolumeMounts: []corev1.VolumeMount{
			{Name: podspec.VolumeShared, MountPath: api.PodSharedDir},
			{Name: podspec.VolumeSecret, MountPath: podspec.SecretDir, ReadOnly: true},
			{Name: podspec.VolumeSpill, MountPath: podspec.SpillDir},
		},
		TerminationMessagePath:   api.PodTerminationLog,
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext:          b.supervisorSecurity(),
	}
}

// supervisorSecurity returns the security context of the supervisor's container.
func (b *builder) supervisorSecurity() *corev1.SecurityContext {
	s := &corev1.SecurityContext{
		RunAsNonRoot: new(true), ReadOnlyRootFilesystem: new(true), AllowPrivilegeEscalation: new(false),
		Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	if !b.o.ClusterChoosesUser {
		s.RunAsUser, s.RunAsGroup = new(int64(podspec.SupervisorID)), new(int64(podspec.SupervisorID))
	}
	return s
}

// configureSupervisor sets the supervisor's configuration. It comes last, because the configuration repeats the pod's
// grace period.
func (b *builder) configureSupervisor(pod *corev1.Pod) error {
	mode := b.req.Spec.InterruptMode
	if mode == "" {
		mode = "signal" // the default of kernel.json
	}
	spec := b.req.Spec
	spec.Prefix = "" // argv's "python3" stays as it is, and is found in the image
	var argv []string
	if b.ext.ImageKernelspec == "" {
		argv = spec.Command(map[string]string{"kernel_id": b.req.ID})
	}
	grace := time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second
	cfg := api.Config{
		KernelID: b.req.ID, SpecName: spec.Name, Owner: b.req.Owner,
		Argv: argv, Env: map[string]string{}, WorkingDir: b.workingDir(), InterruptMode: mode,
		Listen: "tcp::" + strconv.Itoa(podspec.SupervisorPort), Transport: kernelspecs.TransportTCP,
		SpillDir:    podspec.SpillDir,
		ChildSocket: api.PodChildSocket, ImageKernelspec: b.ext.ImageKernelspec, SecretDir: podspec.SecretDir,
		TerminationFile: api.PodTerminationLog, TerminationGrace: grace, Program: childProgram,
		StopGrace: min(b.o.StopGrace, (grace-graceAllowance/2*time.Second)/2), DeadLinger: deadLinger,
		RestartLimit: api.DefaultRestartLimit, Cull: b.o.Cull.For(b.req.Cull).With(b.ext.Cull),
	}
	b.configureLauncher(&cfg)
	cfg.SetVersion()
	cfg.LogLimit, cfg.LogKeepFree = b.o.logLimit()
	switch gpus := podspec.GPURequestOf(pod); {
	case !gpus.NVIDIA() && len(gpus.Claims) == 0:
		cfg.Cull.GPU = 0 // NVIDIA's driver knows no GPU of this pod
	default:
		cfg.GPUSamples.Every, cfg.GPUProgram = api.GPUSampleInterval, gpuProgram
	}
	if b.req.Flavor != nil && b.req.Flavor.Park {
		cfg.GPUSamples.Park = b.park()
	}
	text, err := json.Marshal(cfg)
	if err != nil {
		return err
	}
	if len(text) > maxConfig {
		return wish.Refused("the kernel's command line has %d bytes; a pod can have at most %d", len(text), maxConfig)
	}
	configVariable(pod).Value = escapeDollars(string(text))
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Name == podspec.VolumeSecret {
			pod.Spec.Volumes[i].Secret.SecretName = podspec.SecretName(pod.Name)
		}
	}
	return nil
}

// park returns when a kernel gives a GPU back at which it takes turns with those of other pods.
func (b *builder) park() api.Park {
	p := b.o.Park
	p.Shared, p.Last, p.Idle = true, b.req.Job, cmp.Or(p.Idle, parkIdle)
	p.Memory = 0 // each pod has memory of its own
	p.Never = b.req.Job || b.ext.Park != nil && !*b.ext.Park
	return p
}

// workingDir returns the directory that the client wants, or "" for the container's own.
func (b *builder) workingDir() string {
	if slices.Contains(b.o.Policy.Clients.Allow, "KERNEL_WORKING_DIR") {
		return b.req.WorkingDir
	}
	return ""
}

// escapeDollars doubles every dollar sign. The kubelet, which expands $(NAME) and turns $$ into $, then restores the
// text.
func escapeDollars(text string) string { return strings.ReplaceAll(text, "$", "$$") }

// unescapeDollars undoes escapeDollars.
func unescapeDollars(text string) string { return strings.ReplaceAll(text, "$$", "$") }
