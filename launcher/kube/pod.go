package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// Labels and annotations of a kernel's pod besides those of its record.
const (
	labelName      = "app.kubernetes.io/name"
	labelComponent = "app.kubernetes.io/component"

	annotationSafeToEvict      = "cluster-autoscaler.kubernetes.io/safe-to-evict" // "false" while the kernel is in use
	annotationDoNotDisrupt     = "karpenter.sh/do-not-disrupt"                    // "true" while the kernel is in use
	annotationDefaultContainer = "kubectl.kubernetes.io/default-container"
	annotationIstio            = "sidecar.istio.io/inject" // a mesh's sidecar would outlive the kernel and keep the pod
	annotationLinkerd          = "linkerd.io/inject"
	annotationLaunchTimeout    = domain + "launch-timeout"  // seconds that the client gives the start, if they are more than the gateway does
	annotationWantedName       = domain + "wanted-pod-name" // KERNEL_POD_NAME: pods are named by ekg
)

// What both containers know of their pod.
const (
	supervisorPort     = 8889
	supervisorPortName = "supervisor"
	supervisorID       = 65532 // user and group of the supervisor's container
	configVariable     = "EKG_SUPERVISOR_CONFIG"

	supervisorProgram = "/usr/bin/ekg-supervisor" // in ekg's image
	sharedDir         = "/ekg"                    // of both containers; the kernel's cannot write there
	childProgram      = sharedDir + "/bin/ekg-supervisor"
	gpuProgram        = sharedDir + "/bin/ekg-gpu"
	childSocket       = sharedDir + "/run/child.sock"
	secretDir         = "/ekg-secret"
	spillDir          = "/ekg-spill"
	homeDir           = "/ekg-home"
	shmDir            = "/dev/shm"
	terminationLog    = "/dev/termination-log"

	volumeShared = "ekg"
	volumeSecret = "secret"
	volumeSpill  = "spill"
	volumeHome   = "home"
	volumeShm    = "dshm"
)

var (
	ownVolumes = []string{volumeShared, volumeSecret, volumeSpill, volumeHome, volumeShm}
	// ownPlaces are paths of the kernel's container over which nobody may mount anything.
	ownPlaces = []string{sharedDir, secretDir, spillDir, homeDir, terminationLog, "/proc", "/sys"}
)

// Files of a kernel's secret.
const (
	secretTLSSeed   = "tls-seed"
	secretToken     = "token"
	secretKernelKey = "kernel-key"
	secretIdentity  = "identity"
)

// Defaults and bounds of a kernel's pod.
const (
	DefaultLogLimit  = 64 << 20                // bytes
	DefaultStopGrace = 2500 * time.Millisecond // half of jupyter_client's shutdown_wait_time

	// The supervisor asks for little and may use a core that is idle: a limit would throttle output. Of memory it asks for
	// what an idle one needs; it may use, besides the log (whose part on disk is charged as page cache), 512 MiB: 64 MiB
	// read ahead of the kernel, 64 MiB that clients have sent, and the largest of a few messages, once as it came and
	// once for each framing, before the collector has run.
	defaultSupervisorCPU    = "50m"
	defaultSupervisorMemory = "64Mi"
	supervisorWork          = 512 << 20 // bytes

	sharedLimit    = 64 << 20 // bytes of the volume with the supervisor's program
	spillAllowance = 64 << 20 // bytes, besides twice the log: what is written while older parts are given back
	defaultShmSize = "1Gi"    // with a GPU: data loaders share their batches there, and 64 MiB are soon full
	graceAllowance = 10       // seconds besides twice the stop grace: until the supervisor has told its clients and ended
	restartLimit   = 5        // jupyter_client's restart_limit
	deadLinger     = 2 * time.Second
	maxConfig      = 96 << 10 // bytes of the supervisor's configuration: Linux takes 128 KiB for one variable
	maxEnvironment = 1 << 20  // bytes of all of the kernel's variables: a pod may have 1.5 MiB in all
)

// gpuCount is the resource of KERNEL_GPUS where a kernelspec has none of its own.
const gpuCount = "nvidia.com/gpu"

// visibleDevices is the variable by which images made for NVIDIA's GPUs ask for all of a node's. The value visibleNone
// keeps them from it.
const (
	visibleDevices = "NVIDIA_VISIBLE_DEVICES"
	visibleNone    = "void"
)

// PodOptions say what the pods of all kernels have in common. The zero value of a field stands for its default.
type PodOptions struct {
	Namespace             string // of kernels whose client names none
	SupervisorImage       string // ekg's own image
	SupervisorPullPolicy  string // Always, IfNotPresent or Never; "": the cluster decides by the image's tag
	SupervisorPullSecrets []string
	SupervisorCPU         string // request; there is no limit
	SupervisorMemory      string // request
	SupervisorMemoryLimit string // default: 512 MiB and the log
	KernelImage           string // of kernelspecs that name none

	LogLimit  int64           // bytes of a kernel's log
	StopGrace time.Duration   // from a polite stop to SIGTERM, and again to SIGKILL
	Cull      supervisor.Cull // when kernels are ended that nobody has asked to end
	Policy    *Policy         // nil: DefaultPolicy; not modified
}

func (o PodOptions) withDefaults() PodOptions {
	def := func(s *string, value string) {
		if *s == "" {
			*s = value
		}
	}
	if o.Policy == nil {
		o.Policy = DefaultPolicy()
	}
	if o.LogLimit == 0 {
		o.LogLimit = DefaultLogLimit
	}
	if o.StopGrace == 0 {
		o.StopGrace = DefaultStopGrace
	}
	def(&o.SupervisorCPU, defaultSupervisorCPU)
	def(&o.SupervisorMemory, defaultSupervisorMemory)
	def(&o.SupervisorMemoryLimit, resource.NewQuantity(o.LogLimit+supervisorWork, resource.BinarySI).String())
	return o
}

// Validate says what is wrong with the options, each fault with its field's name.
func (o PodOptions) Validate() error {
	o = o.withDefaults()
	if o.Namespace == "" {
		return fmt.Errorf("Namespace is missing") //nolint:staticcheck // the field's name
	}
	if !imageName.MatchString(o.SupervisorImage) {
		return fmt.Errorf("SupervisorImage: %q is not the name of an image", o.SupervisorImage) //nolint:staticcheck // the field's name
	}
	for field, value := range map[string]string{"SupervisorCPU": o.SupervisorCPU, "SupervisorMemory": o.SupervisorMemory,
		"SupervisorMemoryLimit": o.SupervisorMemoryLimit} {
		if _, err := parseQuantity(value); err != nil {
			return fmt.Errorf("%s: %q is not a quantity", field, value)
		}
	}
	if o.LogLimit < 0 || o.StopGrace < 0 {
		return fmt.Errorf("LogLimit and StopGrace cannot be negative") //nolint:staticcheck // the fields' names
	}
	return nil
}

// keyMaterial is the content of a kernel's secret.
type keyMaterial struct {
	tlsSeed   []byte // 32 bytes
	token     string
	kernelKey string
	identity  string
}

// buildSecret makes the secret of a pod that exists. It vanishes with the pod.
func buildSecret(pod *corev1.Pod, keys keyMaterial) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{
			Name: secretName(pod.Name), Namespace: pod.Namespace,
			Labels: map[string]string{LabelKernel: pod.Labels[LabelKernel], LabelManagedBy: Manager},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID,
				Controller: ptr(true)}},
		},
		Immutable: ptr(true),
		Type:      corev1.SecretTypeOpaque,
		Data: map[string][]byte{
			secretTLSSeed:   keys.tlsSeed,
			secretToken:     []byte(keys.token),
			secretKernelKey: []byte(keys.kernelKey),
			secretIdentity:  []byte(keys.identity),
		},
	}
}

// buildPod makes the pod of a kernel: nothing but the arguments has an influence on it. The error is a *launcher.RefusedError
// or a *launcher.FailedError.
func buildPod(o PodOptions, req launcher.Request, rec record) (*corev1.Pod, error) {
	o = o.withDefaults()
	ext, problems := o.readExtension(req.Spec)
	if len(problems) > 0 {
		return nil, refused("kernelspec %s: %s: %s", req.Spec.Name, problems[0].Key, problems[0].Message)
	}
	b := builder{o: o, req: req, ext: ext}
	pod := b.base()
	rec.write(pod)
	essential := pod.DeepCopy()
	for _, over := range []overlay{ext.short(), ext.Pod} {
		var err error
		if pod, err = merged(pod, over); err != nil {
			return nil, fmt.Errorf("kernelspec %s: %w", req.Spec.Name, err)
		}
	}
	if err := b.client(pod); err != nil {
		return nil, err
	}
	if err := b.finish(pod); err != nil {
		return nil, err
	}
	if err := b.configure(pod); err != nil {
		return nil, err
	}
	if err := unharmed(pod, essential); err != nil {
		return nil, err
	}
	return pod, nil
}

func refused(format string, args ...any) error {
	return &launcher.RefusedError{Reason: fmt.Sprintf(format, args...)}
}

func failed(format string, args ...any) error {
	return &launcher.FailedError{Reason: fmt.Sprintf(format, args...), Class: launcher.FailedInvalid}
}

// builder makes one pod.
type builder struct {
	o   PodOptions
	req launcher.Request
	ext extension
}

// base is the pod before the kernelspec and the client have said anything.
func (b *builder) base() *corev1.Pod {
	pod := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: b.o.Namespace,
			Labels: map[string]string{labelName: "ekg-kernel", labelComponent: "kernel",
				annotationIstio: "false"},
			Annotations: map[string]string{
				annotationSafeToEvict: "false", annotationDoNotDisrupt: "true", annotationDefaultContainer: containerKernel,
				annotationIstio: "false", annotationLinkerd: "disabled",
			},
		},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyOnFailure,
			AutomountServiceAccountToken:  ptr(false),
			EnableServiceLinks:            ptr(false),
			TerminationGracePeriodSeconds: ptr(graceFor(b.o.StopGrace)),
			Containers:                    []corev1.Container{b.supervisor(), b.kernel()},
			Volumes: []corev1.Volume{
				emptyDir(volumeShared, resource.NewQuantity(sharedLimit, resource.BinarySI), ""),
				{Name: volumeSecret, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{DefaultMode: ptr(int32(0o444))}}},
				emptyDir(volumeSpill, resource.NewQuantity(2*b.o.LogLimit+spillAllowance, resource.BinarySI), ""),
				emptyDir(volumeHome, nil, ""),
			},
		},
	}
	for _, name := range b.o.SupervisorPullSecrets {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	return pod
}

// supervisor is the container beside the kernel's. It is the first: the kubelet starts the next when its hook has
// returned, which is when the kernel's container finds its program.
func (b *builder) supervisor() corev1.Container {
	limit := resource.MustParse(b.o.SupervisorMemoryLimit)
	return corev1.Container{
		Name:            containerSupervisor,
		Image:           b.o.SupervisorImage,
		ImagePullPolicy: corev1.PullPolicy(b.o.SupervisorPullPolicy),
		Command:         []string{supervisorProgram, "pod"},
		Env: []corev1.EnvVar{
			{Name: configVariable}, // see configure
			// The collector works harder before the limit is reached; the log's page cache can be given back.
			{Name: "GOMEMLIMIT", Value: strconv.FormatInt(max(limit.Value()-b.o.LogLimit, limit.Value()/2), 10)},
		},
		Ports: []corev1.ContainerPort{{Name: supervisorPortName, ContainerPort: supervisorPort, Protocol: corev1.ProtocolTCP}},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(b.o.SupervisorCPU),
				corev1.ResourceMemory: resource.MustParse(b.o.SupervisorMemory)},
			Limits: corev1.ResourceList{corev1.ResourceMemory: limit},
		},
		Lifecycle: &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{
			Exec: &corev1.ExecAction{Command: []string{supervisorProgram, "installed"}}}},
		VolumeMounts: []corev1.VolumeMount{
			{Name: volumeShared, MountPath: sharedDir},
			{Name: volumeSecret, MountPath: secretDir, ReadOnly: true},
			{Name: volumeSpill, MountPath: spillDir},
		},
		TerminationMessagePath:   terminationLog,
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: ptr(int64(supervisorID)), RunAsGroup: ptr(int64(supervisorID)), RunAsNonRoot: ptr(true),
			ReadOnlyRootFilesystem: ptr(true), AllowPrivilegeEscalation: ptr(false),
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
}

// kernel is the kernel's container, from the user's image.
func (b *builder) kernel() corev1.Container {
	c := corev1.Container{
		Name:  containerKernel,
		Image: b.o.KernelImage,
		VolumeMounts: []corev1.VolumeMount{
			{Name: volumeShared, MountPath: sharedDir, ReadOnly: true},
			{Name: volumeHome, MountPath: homeDir},
		},
		TerminationMessagePath:   terminationLog,
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: ptr(false),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
	if b.o.Policy.NonRoot {
		c.SecurityContext.RunAsNonRoot = ptr(true)
	}
	if b.ext.Entrypoint == entrypointKeep {
		c.Args = []string{childProgram, "child"}
	} else {
		c.Command = []string{childProgram, "child"}
	}
	expanded := b.req.Spec.ExpandEnv(b.req.Env)
	for _, name := range slices.Sorted(maps.Keys(expanded)) {
		if !reservedVariable(name) {
			c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: expanded[name]})
		}
	}
	return c
}

// finish fills in what depends on all that was asked for.
func (b *builder) finish(pod *corev1.Pod) error {
	k := kernelOf(pod)
	if k.Image == "" {
		return failed("kernelspec %s names no image that the kernel could run in: metadata.ekg.image is missing", b.req.Spec.Name)
	}
	if len(b.req.Spec.Argv) == 0 && b.ext.ImageKernelspec == "" {
		return failed("kernelspec %s says neither in argv nor in metadata.ekg.imageKernelspec what to run", b.req.Spec.Name)
	}
	// Kubernetes wants the limit of a whole device said, and takes it for the request too.
	for name, q := range k.Resources.Requests {
		if _, ok := k.Resources.Limits[name]; !ok && wholeOnly(string(name)) {
			setLimit(k, name, q)
		}
	}
	if len(k.Resources.Claims) == 0 {
		for _, claim := range pod.Spec.ResourceClaims {
			k.Resources.Claims = append(k.Resources.Claims, corev1.ResourceClaim{Name: claim.Name})
		}
	}
	gpu := hasGPU(k.Resources.Limits)
	b.sharedMemory(pod, gpu || len(pod.Spec.ResourceClaims) > 0)
	k.SecurityContext.AllowPrivilegeEscalation = ptr(false)
	if drop := &k.SecurityContext.Capabilities.Drop; !slices.Contains(*drop, "ALL") {
		*drop = append(*drop, "ALL")
	}
	if !gpu && !slices.ContainsFunc(k.Env, func(e corev1.EnvVar) bool { return e.Name == visibleDevices }) {
		k.Env = append(k.Env, corev1.EnvVar{Name: visibleDevices, Value: visibleNone})
	}
	slices.SortFunc(k.Env, func(a, b corev1.EnvVar) int { return strings.Compare(a.Name, b.Name) })
	total := 0
	for i, e := range k.Env {
		switch {
		case !variableName.MatchString(e.Name):
			return refused("the name of the kernel's variable %s is not possible in a pod", shown(e.Name))
		case strings.ContainsRune(e.Value, 0) || !utf8.ValidString(e.Value):
			return refused("the kernel's variable %s is not text", e.Name)
		}
		total += len(e.Name) + len(e.Value)
		k.Env[i].Value = unexpanded(e.Value)
	}
	if total > maxEnvironment {
		return refused("the kernel's variables are %d bytes long, which is more than the %d that a pod can hold", total, maxEnvironment)
	}
	return nil
}

// sharedMemory gives the kernel a /dev/shm of its own size. What lies in it counts as memory of the kernel's container.
func (b *builder) sharedMemory(pod *corev1.Pod, gpu bool) {
	size := b.ext.ShmSize
	if size == nil && gpu {
		size = ptr(resource.MustParse(defaultShmSize))
	}
	if size == nil || size.IsZero() {
		return
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, emptyDir(volumeShm, size, corev1.StorageMediumMemory))
	k := kernelOf(pod)
	k.VolumeMounts = append(k.VolumeMounts, corev1.VolumeMount{Name: volumeShm, MountPath: shmDir})
}

// configure tells the supervisor what to run. It comes last: the pod says how long the kernel has to end.
func (b *builder) configure(pod *corev1.Pod) error {
	mode := b.req.Spec.InterruptMode
	if mode == "" {
		mode = "signal" // the default of kernel.json
	}
	spec := b.req.Spec
	spec.Prefix = "" // "python3" is that of the image
	var argv []string
	if b.ext.ImageKernelspec == "" {
		argv = spec.Command(map[string]string{"kernel_id": b.req.ID})
	}
	grace := time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second
	cfg := supervisor.Config{
		Protocol: supervisor.ProtocolVersion, KernelID: b.req.ID, SpecName: spec.Name,
		Argv: argv, Env: map[string]string{}, WorkingDir: b.workingDir(), InterruptMode: mode,
		Listen: "tcp::" + strconv.Itoa(supervisorPort), Transport: kernelspecs.TransportTCP, SpillDir: spillDir,
		ChildSocket: childSocket, ImageKernelspec: b.ext.ImageKernelspec, SecretDir: secretDir,
		TerminationFile: terminationLog, TerminationGrace: grace, Program: childProgram,
		LogLimit: b.o.LogLimit, StopGrace: min(b.o.StopGrace, (grace-graceAllowance/2*time.Second)/2), DeadLinger: deadLinger,
		RestartLimit: restartLimit, Cull: b.o.Cull.For(b.req.Cull).With(b.ext.Cull),
	}
	switch {
	case gpuCountOf(pod) == 0 && len(pod.Spec.ResourceClaims) == 0:
		cfg.Cull.GPU = 0 // there is none to be used
	case cfg.Cull.GPU > 0:
		cfg.GPUProgram = gpuProgram
	}
	text, err := json.Marshal(cfg)
	if err != nil {
		return err
	}
	if len(text) > maxConfig {
		return refused("the kernel's command line is %d bytes long, which is more than the %d that a pod can hold", len(text), maxConfig)
	}
	env := pod.Spec.Containers[0].Env
	env[slices.IndexFunc(env, func(e corev1.EnvVar) bool { return e.Name == configVariable })].Value = unexpanded(string(text))
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Name == volumeSecret {
			pod.Spec.Volumes[i].Secret.SecretName = secretName(pod.Name)
		}
	}
	return nil
}

// workingDir is the directory that the client wants; "" for that of the container.
func (b *builder) workingDir() string {
	if slices.Contains(b.o.Policy.Clients.Allow, "KERNEL_WORKING_DIR") {
		return b.req.WorkingDir
	}
	return ""
}

// unharmed makes sure that nobody has changed what the pod's safety rests on.
func unharmed(pod, essential *corev1.Pod) error {
	now, was := pod.Spec, essential.Spec
	names := func(p *corev1.Pod) (list []string) {
		for _, c := range p.Spec.Containers {
			list = append(list, c.Name)
		}
		return list
	}
	supervisorNow, supervisorWas := now.Containers[0].DeepCopy(), was.Containers[0].DeepCopy()
	supervisorNow.Env, supervisorWas.Env = nil, nil
	for what, same := range map[string]bool{
		"containers": slices.Equal(names(pod), names(essential)) && len(now.InitContainers)+len(now.EphemeralContainers) == 0,
		"supervisor": reflect.DeepEqual(supervisorNow, supervisorWas),
		"restartPolicy, token, service links": now.RestartPolicy == was.RestartPolicy && !*now.AutomountServiceAccountToken &&
			!*now.EnableServiceLinks,
		"host namespaces": !now.HostNetwork && !now.HostPID && !now.HostIPC && now.ShareProcessNamespace == nil,
		"name":            pod.Name == essential.Name,
	} {
		if !same {
			return fmt.Errorf("pod %s: its %s would not be as they must be", essential.Name, what)
		}
	}
	for key, value := range essential.Labels {
		if pod.Labels[key] != value {
			return fmt.Errorf("pod %s: its label %s would not be as it must be", essential.Name, key)
		}
	}
	return nil
}

// mergePod applies a strategic merge patch to a pod.
func mergePod(original, patch []byte) (*corev1.Pod, error) {
	result, err := strategicpatch.StrategicMergePatch(original, patch, corev1.Pod{})
	if err != nil {
		return nil, err
	}
	pod := &corev1.Pod{}
	if err := json.Unmarshal(result, pod); err != nil {
		return nil, err
	}
	// A patch puts what is new first. The order of containers is that of their start.
	slices.SortStableFunc(pod.Spec.Containers, func(a, b corev1.Container) int {
		return strings.Compare(b.Name, a.Name) // supervisor, kernel
	})
	own := func(v corev1.Volume) int {
		if i := slices.Index(ownVolumes, v.Name); i >= 0 {
			return i
		}
		return len(ownVolumes)
	}
	slices.SortStableFunc(pod.Spec.Volumes, func(a, b corev1.Volume) int { return own(a) - own(b) })
	return pod, nil
}

// unexpanded doubles every dollar sign, so that the kubelet, which replaces $(NAME) and takes $$ for one $, leaves the text
// as it is.
func unexpanded(text string) string { return strings.ReplaceAll(text, "$", "$$") }

// kernelOf is the pod's container of the kernel.
func kernelOf(pod *corev1.Pod) *corev1.Container {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == containerKernel {
			return &pod.Spec.Containers[i]
		}
	}
	return nil
}

// graceFor is how long a pod may take to end, in seconds.
func graceFor(stop time.Duration) int64 {
	return int64(math.Ceil(2*stop.Seconds())) + graceAllowance
}

// hasGPU reports whether any GPU, or part of one, is asked for.
func hasGPU(limits corev1.ResourceList) bool {
	for name, q := range limits {
		if isGPU(string(name)) && q.Sign() > 0 {
			return true
		}
	}
	return false
}

// isGPU reports whether a resource is GPUs or a part of one: nvidia.com/gpu, nvidia.com/mig-1g.5gb, aliyun.com/gpu-mem,
// nvidia.com/gpumem, tencent.com/vcuda-core.
func isGPU(name string) bool {
	_, device, ok := strings.Cut(name, "/")
	return ok && (strings.Contains(device, "gpu") || strings.HasPrefix(device, "mig-") || strings.Contains(device, "cuda"))
}

func setLimit(c *corev1.Container, name corev1.ResourceName, q resource.Quantity) {
	if c.Resources.Limits == nil {
		c.Resources.Limits = corev1.ResourceList{}
	}
	c.Resources.Limits[name] = q
}

func setRequest(c *corev1.Container, name corev1.ResourceName, q resource.Quantity) {
	if c.Resources.Requests == nil {
		c.Resources.Requests = corev1.ResourceList{}
	}
	c.Resources.Requests[name] = q
}

func emptyDir(name string, size *resource.Quantity, medium corev1.StorageMedium) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: size, Medium: medium}}}
}

func ptr[T any](v T) *T { return &v }
