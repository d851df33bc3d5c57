package settings

import (
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// Values of Settings.SupervisorUser.
const (
	UserAuto      = "auto"      // UserNamespace on OpenShift, else UserFixed
	UserFixed     = "fixed"     // the user that podspec sets
	UserNamespace = "namespace" // the one that the cluster chooses for the namespace
)

// ArchAny in Settings.SupervisorArch says that nodes of every architecture have the supervisor's image.
const ArchAny = "any"

// kubernetesSettings are for kernels that run as pods.
var kubernetesSettings = []group{
	{"Run kernels on Kubernetes", []Option{
		{
			Name: "kubeconfig", Env: []string{"EKG_KUBECONFIG"},
			defDoc: "in a pod its service account, else $KUBECONFIG, else ~/.kube/config",
			value:  text(func(s *Settings) *string { return &s.Kubeconfig }),
			Usage: "file with the address and credentials of the cluster. With it, the gateway reaches pods by port-forward " +
				"through the API server",
		},
		{
			Name: "kube-context", Env: []string{"EKG_KUBE_CONTEXT"}, defDoc: "the file's current one",
			value: text(func(s *Settings) *string { return &s.KubeContext }),
			Usage: "context of the kubeconfig",
		},
		{
			Name: "kube-namespace", Env: []string{"EKG_KUBE_NAMESPACE"},
			defDoc: "the gateway's own, or the context's",
			value:  text(func(s *Settings) *string { return &s.KubeNamespace }),
			Usage:  "namespace of the kernels' pods",
		},
		{
			Name: "kube-policy", Env: []string{"EKG_KUBE_POLICY"},
			value: text(func(s *Settings) *string { return &s.KubePolicy }),
			Usage: "YAML file that limits what kernelspecs and clients may ask of a pod; see docs/kernelspecs.md",
		},
		{
			Name: "flavors", Env: []string{"EKG_FLAVORS"},
			value: text(func(s *Settings) *string { return &s.Flavors }),
			Usage: "YAML file with flavors: the GPUs that users choose by name; see docs/gpus.md",
		},
		{
			Name: "flavors-as-kernelspecs", Env: []string{"EKG_FLAVORS_AS_KERNELSPECS"},
			value: boolean(func(s *Settings) *bool { return &s.FlavorsAsSpecs }),
			Usage: "offer each kernelspec with each flavor as a kernelspec of its own, such as \"Python 3 (T4)\"",
		},
		{
			Name: "supervisor-image", Env: []string{"EKG_SUPERVISOR_IMAGE"},
			value: text(func(s *Settings) *string { return &s.SupervisorImage }),
			Usage: "image of ekg. The supervisor's container in each kernel's pod runs it",
		},
		{
			Name: "supervisor-pull-policy", Env: []string{"EKG_SUPERVISOR_PULL_POLICY"},
			defDoc: "Kubernetes' own, by the image's tag",
			value: text(func(s *Settings) *string { return &s.SupervisorPullPolicy },
				unlessEmpty(oneOf("Always", "IfNotPresent", "Never"))),
			Usage: "when nodes pull the supervisor's image: Always, IfNotPresent or Never",
		},
		{
			Name: "supervisor-pull-secret", Env: []string{"EKG_SUPERVISOR_PULL_SECRET"},
			value: list(func(s *Settings) *[]string { return &s.SupervisorPullSecrets }, podspec.CheckSecretName),
			Usage: "name of a secret with which nodes pull the supervisor's image; repeatable. It must be in the kernels' " +
				"namespace",
		},
		{
			Name: "supervisor-cpu", Env: []string{"EKG_SUPERVISOR_CPU"}, def: podspec.DefaultSupervisorCPU,
			value: text(func(s *Settings) *string { return &s.SupervisorCPU }, podspec.CheckQuantity),
			Usage: "CPU that each supervisor's container requests. It has no limit, which would slow down output",
		},
		{
			Name: "supervisor-memory", Env: []string{"EKG_SUPERVISOR_MEMORY"}, def: podspec.DefaultSupervisorMemory,
			value: text(func(s *Settings) *string { return &s.SupervisorMemory }, podspec.CheckQuantity),
			Usage: "memory that each supervisor's container requests. A node that runs out of memory first kills processes " +
				"that use more than they requested",
		},
		{
			Name: "supervisor-memory-limit", Env: []string{"EKG_SUPERVISOR_MEMORY_LIMIT"},
			defDoc: "512Mi plus --log-limit (64Mi if auto); at least --supervisor-memory",
			value: text(func(s *Settings) *string { return &s.SupervisorMemoryLimit },
				unlessEmpty(podspec.CheckQuantity)),
			Usage: "memory limit of each supervisor's container",
		},
		{
			Name: "supervisor-user", Env: []string{"EKG_SUPERVISOR_USER"}, def: UserAuto,
			value: text(func(s *Settings) *string { return &s.SupervisorUser }, oneOf(UserAuto, UserFixed, UserNamespace)),
			Usage: "user of the supervisor's container: fixed is 65532; namespace leaves it to the cluster, as OpenShift " +
				"requires; auto is namespace on OpenShift and fixed elsewhere",
		},
		{
			Name: "supervisor-arch", Env: []string{"EKG_SUPERVISOR_ARCH"},
			defDoc: "in the cluster the gateway's own, else " + ArchAny,
			value:  list(func(s *Settings) *[]string { return &s.SupervisorArch }, podspec.CheckArchitecture),
			Usage: "kubernetes.io/arch of the nodes that can run the supervisor's image: amd64, arm64, or any; repeatable. " +
				"Pods run on such nodes only, unless their kernelspec chooses by that label",
		},
		{
			Name: "kernel-image", Env: []string{"EKG_KERNEL_IMAGE"},
			value: text(func(s *Settings) *string { return &s.KernelImage }),
			Usage: "image of kernels whose kernelspec names none",
		},
		{
			Name: "job-priority-class", Env: []string{"EKG_JOB_PRIORITY_CLASS"},
			value: text(func(s *Settings) *string { return &s.JobPriorityClass }, unlessEmpty(podspec.CheckPriorityClass)),
			Usage: "PriorityClass of the pods of jobs, unless their kernelspec names one. With a low value, kernels that " +
				"people wait for go first",
		},
		{
			Name: "master-key-file", Env: []string{"EKG_MASTER_KEY_FILE"},
			defDoc: "outside a cluster generated once, kept in the state directory",
			value:  text(func(s *Settings) *string { return &s.MasterKeyFile }),
			Usage: "file with a secret of at least 32 characters, from which the kernels' keys are derived. All replicas " +
				"need the same secret",
		},
		{
			Name: "second-master-key-file", Env: []string{"EKG_SECOND_MASTER_KEY_FILE"},
			value: text(func(s *Settings) *string { return &s.SecondMasterKeyFile }),
			Usage: "file with another master key, for a change of keys. The gateway also reaches kernels and replicas with " +
				"this key. New kernels get keys of the first one. A file that does not exist is ignored",
		},
		{
			Name: "evict-idle-after", Env: []string{"EKG_EVICT_IDLE_AFTER"}, def: "0s",
			value: limit(func(s *Settings) *time.Duration { return &s.EvictIdleAfter }),
			Usage: "how long a kernel is idle before autoscalers may evict its pod to remove a node; 0: never. A kernel " +
				"that computes, is kept or has a connected page is not evicted",
		},
		{
			Name: "watch-nodes", Env: []string{"EKG_WATCH_NODES"},
			value: boolean(func(s *Settings) *bool { return &s.WatchNodes }),
			Usage: "announce in notebooks that a kernel's node will be taken back, drained or removed. The gateway needs the " +
				"right to list and watch nodes, which the component watch-nodes gives",
		},
		{
			Name: "watch-gpus", Env: []string{"EKG_WATCH_GPUS"},
			value: boolean(func(s *Settings) *bool { return &s.WatchGPUs }),
			Usage: "show in GET /api/gpus and ekg top how many GPUs the nodes have, and which other pods hold some. The " +
				"gateway needs the right to list and watch nodes and all pods, which the component watch-gpus gives",
		},
		{
			Name: "kube-peers", Env: []string{"EKG_KUBE_PEERS"},
			value: text(func(s *Settings) *string { return &s.KubePeers }),
			Usage: "label selector of the pods of all replicas of this gateway, in its own namespace. Replicas tell each " +
				"other about changes; each needs --pod-ip",
		},
		{
			Name: "pod-ip", Env: []string{"EKG_POD_IP", "POD_IP"},
			value: text(func(s *Settings) *string { return &s.PodIP }),
			Usage: "address of this gateway's own pod",
		},
	}},
}
